"""From pods, annotations and claims to the bill, one world for each system that divides cards; each
bill is right by hand.
"""

from fakes import kubelet
from fakes.facts import AUGUST_MS
from fakes.kubernetes_node import card

KAI = "kai-resource-reservation"


def test_fractions_of_kai_scheduler(node):
    """An hour of a card: half of it for vision, a quarter for nlp; the rest is the reservation's
    own, of nobody.
    """
    node.kubelet.pods = [kubelet.pod(KAI, "reserve-0", card(0))]
    node.api.pods = [node.api.pod(KAI, "reserve-0", "r0", **{"runai-gpu-group": "g"})]
    for team, annotations in (
        ("vision", {"gpu-fraction": "0.5"}),
        ("nlp", {"gpu-memory": "20000"}),
    ):
        node.pod(team, "train", annotations=annotations, team=team, **{"runai-gpu-group": "g"})
        node.api.pods[-1]["metadata"]["uid"] = f"uid-{team}"
    node.hold(AUGUST_MS)
    assert node.world.bill("2026-08")["vision"] == ("0.500000", "5.00")
    assert node.world.bill("2026-08")["nlp"] == ("0.250000", "2.50")
    assert node.world.bill("2026-08")["(unattributed)"] == ("0.250000", "2.50")


def test_virtual_cards_of_hami(node):
    """Two pods of a quarter and one of half of the memory: one card and no more, for three hours."""
    for name, team, mebibytes in (
        ("a", "vision", 20000),
        ("b", "vision", 20000),
        ("c", "nlp", 40000),
    ):
        text = f"{card(1)},NVIDIA,{mebibytes},0:;"
        node.pod(
            team,
            name,
            f"{card(0)}-{name.encode()[0]}",
            annotations={"hami.io/vgpu-devices-allocated": text},
            team=team,
        )
    node.hold(AUGUST_MS, 180)
    assert node.world.bill("2026-08")["vision"] == ("1.500000", "15.00")
    assert node.world.bill("2026-08")["nlp"] == ("1.500000", "15.00")
    # Three other cards were free all the time: the one of the kubelet, and two more.
    assert node.world.bill("2026-08")["(unallocated)"] == ("9.000000", "90.00")


def test_claims_that_share_and_observe(node):
    """60 and 20 of 80 GiB of a card, which a monitor only observes; the other three are free."""
    devices = [
        {
            "name": f"gpu-{at}",
            "attributes": {"uuid": {"string": card(at)}},
            "capacity": {"memory": {"value": "80Gi"}},
        }
        for at in range(4)
    ]
    spec = {"driver": "gpu.nvidia.com", "pool": {"name": "node1"}, "nodeName": "n1"}
    node.api.slices["v1"] = [{"metadata": {"name": "s"}, "spec": {**spec, "devices": devices}}]
    of_card = {"driver": "gpu.nvidia.com", "pool": "node1"}
    for team, share, size in (("vision", "s1", "60Gi"), ("nlp", "s2", "20Gi")):
        part = {"device": "gpu-0", "shareID": share, "consumedCapacity": {"memory": size}}
        node.api.claim(team, "part", {**of_card, **part})
        node.kubelet.pods.append(
            kubelet.claiming_pod(team, f"{team}-0", "gpu-0", claim="part", share=share)
        )
        node.api.pods.append(node.api.pod(team, f"{team}-0", f"u-{team}", team=team))
    every = [{**of_card, "device": f"gpu-{at}", "adminAccess": True} for at in range(4)]
    node.api.claim("watch", "all", *every)
    names = [f"gpu-{at}" for at in range(4)]
    node.kubelet.pods.append(kubelet.claiming_pod("watch", "exporter", *names, claim="all"))
    node.api.pods.append(node.api.pod("watch", "exporter", "u-watch", team="ops"))
    node.hold(AUGUST_MS)
    bill = node.world.bill("2026-08")
    assert bill["vision"] == ("0.750000", "7.50")
    assert bill["nlp"] == ("0.250000", "2.50")
    assert bill["(unallocated)"] == ("3.000000", "30.00")
    assert "ops" not in bill
