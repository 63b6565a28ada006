"""Reserved names: rows of the reports' own, whose names no owner bears."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.attribution import Attribution, Rule, WorkloadFacts
from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.reserved_names import escape_name, is_reserved
from gpuledger_collector.accounting.usage import STATES

OTHER_ROWS = (
    "unattributed",
    "unpriced",
    "unshared",
    "stranded",
    "total",
    "corrections",
    "correction",
)
ROWS = [f"({name})" for name in (*STATES, COMMITMENT_UNUSED, *OTHER_ROWS)]
LOOKALIKES = (
    " (Unpriced) ",
    "(UNALLOCATED)",
    "\uff08unallocated\uff09",
    "\u207dtotal\u207e",
    "(total)\u200b",
    "\u2060(total)",
    "\u00ad(total)\ufe0f",
    "()",
    "(anything at all)",
)
names = st.lists(
    st.sampled_from(["(", ")", "tag:", " ", "x", "\uff08", "\uff09", "\u200b", "total"]), max_size=6
).map("".join)


def facts(user=None, account=None, **tags):
    return WorkloadFacts(1, "slurm", user, account, None, tags, "", "n1")


@pytest.mark.parametrize("name", [*ROWS, *LOOKALIKES])
def test_names_in_parentheses_are_reserved(name):
    """Each row of the reports, and what a reader cannot tell from one."""
    assert is_reserved(name)


@pytest.mark.parametrize(
    "name", ["", "vision", "vision (eu)", "(eu) vision", "tag:(total)", "[total]", "total"]
)
def test_other_names_are_free(name):
    """Parentheses inside a name are nobody's but its owner's."""
    assert not is_reserved(name)


@pytest.mark.parametrize("name", [*ROWS, *LOOKALIKES])
@pytest.mark.parametrize("level", LEVELS)
def test_no_level_of_an_owner_is_a_row_of_the_reports(name, level):
    """Written as a tag, as the unix user or filled in by a rule: the time stays that of an owner of
    its own.
    """
    by_tag = (
        Attribution()
        .owner_of(WorkloadFacts(1, "slurm", None, None, None, {level: name}), 0)
        .level(level)
    )
    assert by_tag == f"tag:{name.strip()}"
    assert Attribution().owner_of(facts(user=name), 0).user == f"tag:{name}"
    filled = Attribution([Rule(1, "", 1, {"account": "*"}, {level: "{account}"})])
    assert filled.owner_of(facts(account=name), 0).level(level) == f"tag:{name}"


def test_parts_of_a_rule_that_make_a_reserved_name_are_escaped():
    """Each placeholder alone is harmless, and so is what they make together."""
    rule = Rule(1, "", 1, {}, {"team": "{left}{right}"})
    assert (
        Attribution([rule]).owner_of(facts(left="(un", right="priced)"), 0).team == "tag:(unpriced)"
    )


@given(names, names)
def test_escaping_joins_no_two_names_and_leaves_none_reserved(one, other):
    """Two names never become one, `tag:(total)` written by a user included."""
    assert not is_reserved(escape_name(one))
    assert (escape_name(one) == escape_name(other)) == (one == other)
    assert is_reserved(one) or one.startswith("tag:") or escape_name(one) == one
