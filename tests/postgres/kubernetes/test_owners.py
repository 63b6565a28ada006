"""A label chooses only between the owners that its namespace allows: what it claims beyond is
refused, kept and shown.
"""

import json
import time

import pytest

from fakes.facts import AUGUST_MS, HOUR
from fakes.kubernetes_node import card


def namespace(node, name, annotations=None, **labels):
    metadata = {"name": name, "labels": labels, "annotations": annotations or {}}
    node.api.namespaces.append({"metadata": metadata})


def test_a_pod_does_not_bill_the_team_of_another_namespace(node):
    """The namespace's team pays; the claim is kept from its first to its last time, said by doctor,
    and waits for nobody's decision.
    """
    namespace(node, "vision", team="vision")
    node.pod("vision", "greedy", card(0), team="nlp", project="seg")
    node.hold(AUGUST_MS)
    node.hold(AUGUST_MS + HOUR)
    hours = node.hours("2026-08", "team")
    assert (hours["vision"], "nlp" in hours) == ("2.000000", False)
    assert node.hours("2026-08", "project")["seg"] == "2.000000"
    kept = node.world.rows("SELECT kind, subject, first_ms, last_ms FROM refused_claim")
    assert kept == [("owner", "vision/greedy claims team nlp", AUGUST_MS, AUGUST_MS + 2 * HOUR)]
    sheet = json.loads(
        node.world.run("reconcile", "--period", "2026-08", "--format", "json", code=0)
    )
    assert sheet["refused_claims"] == []


def test_annotations_of_the_namespace_allow_more(node):
    """Two teams to choose from, and any project but only where a list does not say which."""
    allowed = {"gpuledger.allowed-teams": "nlp, speech", "gpuledger.allowed-projects": "asr"}
    namespace(node, "shared", allowed, team="platform")
    node.pod("shared", "a", card(0), team="nlp", project="asr")
    node.pod("shared", "b", card(1), team="vision", project="secret")
    node.pod("shared", "c", card(2), team="platform")
    namespace(node, "open", {"gpuledger.allowed-teams": "*"}, team="platform")
    node.pod("open", "d", card(3), team="whoever")
    node.hold(AUGUST_MS)
    hours = node.hours("2026-08", "team")
    assert {name: hours.get(name) for name in ("nlp", "vision", "platform", "whoever")} == {
        "nlp": "1.000000",
        "vision": None,
        "platform": "2.000000",
        "whoever": "1.000000",
    }
    assert "secret" not in node.hours("2026-08", "project")
    subjects = node.world.rows("SELECT subject FROM refused_claim ORDER BY 1")
    assert subjects == [("shared/b claims project secret",), ("shared/b claims team vision",)]


def test_doctor_says_a_claim_of_today(node):
    """Who claims what, and what allows it: an inventory does not."""
    namespace(node, "vision", team="vision")
    node.pod("vision", "greedy", card(0), team="nlp")
    node.hold(int(time.time() * 1000) // HOUR * HOUR - 2 * HOUR)
    _, out, _ = node.world._run("doctor")
    shown = " ".join(out.split())
    assert "n1: vision/greedy claims team nlp, whom its namespace does not allow; it does" in shown
    assert "annotation gpuledger.allowed-teams, gpuledger.allowed-projects or" in shown
    assert "import inventory" not in shown


@pytest.mark.parametrize("labels", [{}, {"project": "seg"}])
def test_a_namespace_that_names_no_team_lets_its_pods_name_one(node, labels):
    """As before; and its project is a default, since a project lies below its team."""
    namespace(node, "free", **labels)
    node.pod("free", "a", card(0), team="nlp", project="asr")
    node.hold(AUGUST_MS)
    assert node.hours("2026-08", "team")["nlp"] == "1.000000"
    assert node.hours("2026-08", "project")["asr"] == "1.000000"
    assert node.world.rows("SELECT count(*) FROM refused_claim") == [(0,)]
