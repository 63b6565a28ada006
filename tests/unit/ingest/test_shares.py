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


REAL = """Account|ParentName|User|Share|GrpTRES
root|||1|{root}
root||root|1|
science|root||2|{science}
physics|science||2|{physics}
physics||ann|1|
chem|science||1|{chem}
chem||bob|1|
vision|root||1|{vision}
vision||eve|parent|
"""
"""As Slurm 22.05 prints it, with parents, a limit of the root and users with a Share of their own.
"""
NO_LIMITS = dict.fromkeys(("root", "science", "physics", "chem", "vision"), "")


def read(tmp_path, pool="p", text=REAL, **limits):
    """Shares of that output, and the notes."""
    file = tmp_path / "assoc.txt"
    file.write_text(text.format(**{**NO_LIMITS, **limits}))
    _, parsed = read_shares(file, pool, None)
    assert parsed.problems == []
    return {share.team: share.gpus or share.fraction for share in parsed.rows}, parsed.notes


def test_a_limit_counts_once_in_the_tree(tmp_path):
    """For the accounts in which jobs run: parents only bound it, and the root is no team."""
    limits = {
        "root": "gres/gpu=4",
        "science": "gres/gpu=4",
        "physics": "gres/gpu=3",
        "chem": "gres/gpu=2",
    }
    shares, notes = read(tmp_path, vision="cpu=8,gres/gpu:h100=2", **limits)
    assert (shares, notes) == ({"physics": 3, "chem": 2, "vision": 2}, [])
    shares, _ = read(tmp_path, **{**limits, "science": "gres/gpu=1"})
    assert shares == {"physics": 1, "chem": 1}


def test_accounts_without_a_limit_are_named(tmp_path):
    """And those whose jobs count only for the account above them."""
    shares, notes = read(tmp_path, science="gres/gpu=4")
    assert shares == {"science": 4}
    assert "its accounts chem, physics have none" in notes[0]
    assert notes[1] == "no limit of gres/gpu, hence no share: vision"


@pytest.mark.parametrize(
    ("pool", "limit", "gpus"),
    [
        ("H100", "gres/gpu:h100=2,gres/gpu:a100=4", 2),
        ("batch", "gres/gpu:h100=2,gres/gpu:a100=4", 6),
        ("batch", "gres/gpu=5,gres/gpu:h100=2", 5),
    ],
)
def test_typed_limits(tmp_path, pool, limit, gpus):
    """Of the type that the pool is named after, else of all types."""
    assert read(tmp_path, pool, vision=limit)[0] == {"vision": gpus}


def test_weights_reach_the_accounts_in_which_jobs_run(tmp_path):
    """Divided from the root down; an account with users of its own keeps their part."""
    third = Decimal("0.333333")
    assert read(tmp_path)[0] == {
        "physics": Decimal("0.444444"),
        "chem": Decimal("0.222222"),
        "vision": third,
    }
    shares, _ = read(tmp_path, text=REAL + "science||dan|1|\n")
    assert shares == {
        "physics": third,
        "chem": Decimal("0.166666"),
        "science": Decimal("0.166666"),
        "vision": third,
    }


def test_fairshare_parent_is_named(tmp_path):
    """It is no number, so the account has no part of the pool."""
    shares, notes = read(tmp_path, text=REAL.replace("vision|root||1|", "vision|root||parent|"))
    assert shares == {"physics": Decimal("0.666666"), "chem": Decimal("0.333333")}
    assert notes == [
        "vision has fairshare=parent, which is no number: it and what is below it have no share"
    ]


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
        ("nlp-intern", Decimal("0.250000"), dt.date(2026, 10, 1)),
        ("vision", Decimal("0.750000"), dt.date(2026, 10, 1)),
    ]


def test_kubernetes_quotas(tmp_path):
    """The least quota of a namespace; any vendor's GPUs; other resources are no share."""

    def quota(space, **hard):
        return {"metadata": {"namespace": space}, "spec": {"hard": hard}}

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
            (
                '{"items": [{"metadata": {"namespace": "a"}, "spec": {"hard":'
                ' {"requests.nvidia.com/gpu": "8k"}}}]}'
            ),
            "'8k' is no",
        ),
        ("Account|User\na|\n", "has no limits, parent; run sacctmgr -P show assoc format="),
        (REAL.splitlines()[0].replace("ParentName|", ""), "has no parent; run sacctmgr"),
        ("Account|Par Name|User|Share|GrpTRES\na|root||parent|\n", "none below root has a Share"),
        ("", "has no account, limits, parent, user"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path, text, words):
    """What is neither, or says nothing of GPUs."""
    file = tmp_path / "shares"
    file.write_text(text)
    _, parsed = read_shares(file, "p", None)
    assert parsed.rows == []
    assert words in str(parsed.problems[0])
