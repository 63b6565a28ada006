"""Shares of teams as schedulers print them."""

import datetime as dt
import json
from decimal import Decimal

import pytest

from gpuledger_collector.ingest.files.shares import read_shares

ASSOCIATIONS = """Account|Par Name|User|Share|GrpTRES
root||||
root||root|1|
vision|root||3|cpu=10,gres/gpu=16
vision||ann|1|gres/gpu=2
nlp|root||1|{nlp}
nlp-intern|nlp||9|
"""


def test_slurm_limits_or_shares(tmp_path):
    """GPU limits where an account has one, else Shares below root; a user's own limit is no team's."""
    file = tmp_path / "assoc.txt"
    file.write_text(ASSOCIATIONS.format(nlp="gres/gpu=8,gres/gpu:a100=4"))
    scheduler, parsed = read_shares(file, "p", None)
    assert (scheduler, parsed.problems) == ("slurm", [])
    assert [(share.team, share.gpus) for share in parsed.rows] == [("nlp", 8), ("vision", 16)]
    file.write_text(ASSOCIATIONS.replace("gres/gpu=16", "").format(nlp=""))
    _, parsed = read_shares(file, "p", dt.date(2026, 10, 1))
    assert [(share.team, share.fraction, share.from_on) for share in parsed.rows] == [
        ("nlp", Decimal("0.250000"), dt.date(2026, 10, 1)),
        ("vision", Decimal("0.750000"), dt.date(2026, 10, 1)),
    ]


def test_kubernetes_quotas(tmp_path):
    """The least quota of a namespace; any vendor's GPUs; other resources are no share."""
    quota = lambda space, **hard: {"metadata": {"namespace": space}, "spec": {"hard": hard}}  # noqa: E731
    file = tmp_path / "quotas.json"
    items = [
        quota("vision", **{"requests.nvidia.com/gpu": "16", "requests.cpu": "64"}),
        quota("vision", **{"requests.nvidia.com/gpu": 12}),
        quota("nlp", **{"requests.amd.com/gpu": "4"}),
        quota("web", pods="10"),
    ]
    file.write_text(json.dumps({"items": items}))
    scheduler, parsed = read_shares(file, "p", None)
    assert (scheduler, [(share.team, share.gpus) for share in parsed.rows]) == (
        "kubernetes",
        [("nlp", 4), ("vision", 12)],
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "kubectl get resourcequota"),
        ('{"items": []}', "no quota"),
        (
            '{"items": [{"metadata": {"namespace": "a"}, "spec": {"hard": {"requests.nvidia.com/gpu": "8k"}}}]}',
            "'8k' is no",
        ),
        ("Account|User\na|\n", "has no limits"),
        ("Account|Par Name|User|Share|GrpTRES\na|root||parent|\n", "none below root has a Share"),
        ("", "has no account, limits, user"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path, text, words):
    """What is neither, or says nothing of GPUs."""
    file = tmp_path / "shares"
    file.write_text(text)
    _, parsed = read_shares(file, "p", None)
    assert parsed.rows == []
    assert words in str(parsed.problems[0])
