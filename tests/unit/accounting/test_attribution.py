"""Attribution: tags are levels, rules refine them, and what nobody names stays unattributed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.attribution import (
    MAX_LEVEL_BYTES,
    MAX_PATH_BYTES,
    Attribution,
    Rule,
    WorkloadFacts,
)
from gpuledger_collector.accounting.owner_tree import LEVELS, OwnerPath
from gpuledger_collector.accounting.reserved_names import is_reserved


def facts(user=None, account=None, name=None, pool="", **tags):
    return WorkloadFacts(1, "slurm", user, account, name, tags, pool, "n1")


def rule(position, match, assign, start=None, end=None):
    return Rule(position, f"rule {position}", position, match, assign, start, end)


def test_a_tag_named_like_a_level_is_that_level():
    """Without any rule, team and project tags attribute; other tags do not; the unix user fills the
    user.
    """
    owner = Attribution().owner_of(
        facts(user="amina", team="vision", project="seg", color="blue"), 0
    )
    assert owner == OwnerPath(team="vision", project="seg", user="amina")
    assert Attribution().owner_of(facts(), 0) == OwnerPath()


@pytest.mark.parametrize(
    ("match", "assign", "by_place"),
    [
        ({"account": "a"}, {"team": "{queue}"}, False),
        ({"pool": "train"}, {"team": "a"}, True),
        ({"account": "*"}, {"team": "on {node} of {account}"}, True),
    ],
)
def test_owners_depend_on_the_place_where_a_rule_names_it(match, assign, by_place):
    """A pattern or a placeholder of pool or node; without rules nothing does."""
    assert Attribution([rule(1, match, assign)]).depends_on_place is by_place
    assert not Attribution().depends_on_place


@given(st.dictionaries(st.sampled_from(LEVELS), st.text("aä視🚀()", max_size=2000)))
def test_no_owner_is_longer_than_an_index_holds(tags):
    """Names that fit are kept; of others each level is cut, and none becomes a reserved one."""
    owner = Attribution().owner_of(facts(**tags), 0)
    given_bytes = sum(len(name.encode()) for name in tags.values())
    names = owner.levels().values()
    if given_bytes <= MAX_PATH_BYTES:
        assert [name.removeprefix("tag:") for name in names] == [
            tags[level] for level in LEVELS if tags.get(level)
        ]
    else:
        assert all(len(name.encode()) <= MAX_LEVEL_BYTES + len("tag:") for name in names)
    assert not any(is_reserved(name) for name in names)


def test_later_rules_override_the_levels_of_earlier_ones():
    """Rules hold in their order; each sets only the levels that it names."""
    rules = [
        rule(2, {"account": "asr-*"}, {"project": "{account}"}),
        rule(1, {"account": "*"}, {"team": "speech"}),
    ]
    owner = Attribution(rules).owner_of(facts(account="asr-large", team="vision"), 0)
    assert owner == OwnerPath(team="speech", project="asr-large")


@pytest.mark.parametrize(
    ("kind", "key", "matched"),
    [
        ("slurm", "slurm:c1:42", {"slurm"}),
        ("imported", "imported:import:c1/42@1790845200", {"slurm", "imported"}),
        ("imported", "imported:import:c1/42@1790845200@1790899999", {"slurm", "imported"}),
        ("imported", "imported:import:42", {"imported"}),
        ("imported", "imported:import:me@example.com", {"imported"}),
        ("kubernetes", "kubernetes:c1:uid", {"kubernetes"}),
    ],
)
def test_a_job_of_slurm_is_one_by_whichever_way_it_came(kind, key, matched):
    """From agents or from `import sacct`; the kind of an imported one still matches as well."""
    job = WorkloadFacts(1, kind, "ann", "ml-a", None, key=key)
    kinds = ("slurm", "imported", "kubernetes")
    rules = Attribution(
        [
            rule(at, {"kind": name, "account": "ml-*"}, {"team": "x"})
            for at, name in enumerate(kinds)
        ]
    )
    assert {kinds[found.position] for found in rules.matching(job, 0)} == matched


def test_a_rule_holds_only_while_it_is_dated_to():
    """From its start, up to and without its end."""
    dated = Attribution([rule(1, {"account": "a"}, {"team": "t"}, 100, 200)])
    assert [dated.owner_of(facts(account="a"), at).team for at in (99, 100, 199, 200)] == [
        "",
        "t",
        "t",
        "",
    ]


def test_a_placeholder_without_a_value_leaves_the_level_alone():
    """`{account}` of a workload without one sets nothing, and does not set an empty name."""
    owner = Attribution([rule(1, {"kind": "slurm"}, {"team": "{account}"})]).owner_of(
        facts(team="vision"), 0
    )
    assert owner.team == "vision"


@pytest.mark.parametrize(
    ("match", "hit"),
    [
        ({"account": "a*"}, True),
        ({"account": "A*"}, False),
        ({"missing": "*"}, False),
        ({"pool": "p"}, True),
        ({"account": "a?c", "pool": "p"}, True),
        ({"account": "abc", "pool": "q"}, False),
        ({}, True),
    ],
)
def test_every_pattern_of_a_rule_must_fit(match, hit):
    """Wildcards as in file names, upper and lower case differ, a missing tag fits nothing."""
    matched = Attribution([rule(1, match, {"team": "t"})]).owner_of(
        facts(account="abc", pool="p"), 0
    )
    assert (matched.team == "t") == hit


@given(
    st.dictionaries(st.sampled_from(["team", "project", "note"]), st.text(max_size=8), max_size=3)
)
def test_attribution_never_fails_on_what_people_write(tags):
    """Any tag value gives an owner; blank ones are no names."""
    owner = Attribution().owner_of(facts(**tags), 0)
    assert owner.team == tags.get("team", "").strip()


def test_a_fact_wins_over_a_tag_of_its_name():
    """What the scheduler knows is not for users to write; a blank tag is none."""
    facts = WorkloadFacts(
        1,
        "slurm",
        "amina",
        "vision",
        None,
        {"user": "boss", "account": "rich", "name": " ", "x": " "},
    )
    assert [facts.value(name) for name in ("user", "account", "name", "x")] == [
        "amina",
        "vision",
        None,
        None,
    ]
    assert Attribution().owner_of(facts, 0).user == "amina"


ALIKE = (
    "visi\u043en",
    "vis\u0456on",
    "\u202evision",
    "vision\u200b",
    "VISION",
    "vision/",
    "vi\u00adsion",
    "\uff56ision",
    "vision\0",
)


@pytest.mark.parametrize("name", ALIKE)
def test_a_name_that_looks_alike_is_an_owner_of_its_own(name):
    """Threat: spoofed tags.

    Letters of another script, hidden ones and other cases take nothing from the real team, and a
    rule of the scheduler's account overrides whatever was written.
    """
    written = Attribution().owner_of(facts(team=name), 0)
    assert written.team == name != "vision"
    by_account = Attribution([rule(1, {"account": "*"}, {"team": "{account}"})])
    assert by_account.owner_of(facts(account="speech", team="vision"), 0).team == "speech"
    assert (
        Attribution([rule(1, {"team": "vision"}, {"project": "p"})])
        .owner_of(facts(team=name), 0)
        .project
        == ""
    )
