"""The expander does to SQL what Grafana does: examples from its own tests (macros_test.go,
templateSrv.test.ts).
"""

import datetime as dt

import pytest

from fakes.grafana import MacroError, Range, expanded, interpolated

SPAN = Range(
    dt.datetime(2018, 4, 12, 18, 0, tzinfo=dt.UTC), dt.datetime(2018, 4, 12, 18, 5, tzinfo=dt.UTC)
)
TEAM = {"team": {"multi": True, "includeAll": True, "allValue": "'*'"}}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("select $__time(time_column)", 'select time_column AS "time"'),
        (
            "WHERE $__timeFilter(time_column)",
            (
                "WHERE time_column BETWEEN '2018-04-12T18:00:00.000000Z' AND"
                " '2018-04-12T18:05:00.000000Z'"
            ),
        ),
        ("select $__timeFrom()", "select '2018-04-12T18:00:00.000000Z'"),
        (
            "GROUP BY $__timeGroup(time_column , '5m')",
            "GROUP BY floor(extract(epoch from time_column)/300)*300",
        ),
        (
            "SELECT $__timeGroup(t,'5m'), value",
            'SELECT floor(extract(epoch from t)/300)*300 AS "time", value',
        ),
        ("$__timeGroupAlias(t,'5m', NULL)", 'floor(extract(epoch from t)/300)*300 AS "time"'),
        ("$__timeGroup(t, $__interval)", "floor(extract(epoch from t)/60)*60"),
        ("$__unixEpochFilter(time)", "time >= 1523556000 AND time <= 1523556300"),
        ("$__unixEpochNanoFilter(t)", "t >= 1523556000000000000 AND t <= 1523556300000000000"),
        ("$__unixEpochNanoFrom() / 1000000", "1523556000000000000 / 1000000"),
        ("$__unixEpochGroupAlias(t, '5m')", 'floor((t)/300)*300 AS "time"'),
        ("$__unixEpochFrom()", "1523556000"),
        ("$__interval_ms", "60000"),
    ],
)
def test_macros(text, wanted):
    """Each macro gives Grafana's text."""
    assert expanded(text, SPAN, 60) == wanted


@pytest.mark.parametrize("text", ["$__nothing(x)", "$__timeGroup(t)", "$__timeFilter()"])
def test_faults_are_faults(text):
    """What Grafana refuses is refused here."""
    with pytest.raises(MacroError):
        expanded(text, SPAN, 60)


def test_an_argument_ends_at_the_first_parenthesis():
    """The trap: Grafana's regular expression cuts a nested call in two."""
    assert expanded("$__time(to_timestamp(x))", SPAN, 60) == 'to_timestamp(x AS "time")'


@pytest.mark.parametrize(
    ("text", "value", "wanted"),
    [
        ("IN ($team)", ["a", "b'c"], "IN ('a','b''c')"),
        ("IN (${team:sqlstring})", ["a"], "IN ('a')"),
        ("IN (${team:sqlstring})", "$__all", "IN ('*')"),
        ("${team:singlequote}", ["a", "b"], "'a','b'"),
        ("${team:csv}", ["a", "b"], "a,b"),
        ("${team:regex}", ["a.b", "c"], r"(a\.b|c)"),
        ("[[team:pipe]]", ["a", "b"], "a|b"),
        ("$teams", ["a"], "$teams"),
    ],
)
def test_variables(text, value, wanted):
    """Formats, several values, all, and names that are no variables."""
    assert interpolated(text, TEAM, {"team": value}) == wanted


def test_a_single_value_is_escaped_but_not_quoted():
    """Why the boards ask for sqlstring: a plain $name of one value gets no quotes."""
    assert interpolated("'$one'", {"one": {}}, {"one": "it's"}) == "'it''s'"


@pytest.mark.parametrize(
    ("hours", "minimum", "wanted"), [(1, "", 5), (24 * 30, "", 3600), (1, "1h", 3600)]
)
def test_interval(hours, minimum, wanted):
    """$__interval follows the range, and the panel's minimum."""
    assert Range(SPAN.since, SPAN.since + dt.timedelta(hours=hours)).interval_s(minimum) == wanted
