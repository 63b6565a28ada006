"""Whatever is asked of the API, by whichever role: no fault, no foreign row, and no SQL in a value.

Cases are made by schemathesis from the API's own description, valid ones and broken ones.
"""

import collections
import json

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fakes.postgres import fresh_database
from fakes.profiles import examples
from fakes.two_teams import FOREIGN, ROLES, day, two_teams

pytestmark = pytest.mark.slow

QUICK = 12
LONG = 100
INJECTIONS = (
    "'",
    "''; DROP TABLE charge; --",
    "' OR '1'='1",
    "1; SELECT pg_sleep(9)",
    "team); DELETE FROM token; --",
    "\\'; SELECT 1",
    "${jndi:ldap://x}",
    "%27%20OR%201=1",
    "\x00",
    "a\r\nX-Injected: yes",
    "🦓",
    "{}",
    "%s",
    "%(x)s",
    "team,team,team",
    "=cmd|' /C calc'!A0",
    "9" * 400,
    "-1",
    "NaN",
)


@schemathesis.serializer("application/x-protobuf", "application/msgpack")
def binary(_context, value):
    """Bodies that the description calls binary, as they are."""
    plain = getattr(value, "data", value)
    return plain if isinstance(plain, bytes) else str(plain).encode("utf-8", "replace")


@pytest.fixture(scope="module")
def fleet(postgres, tmp_path_factory):
    with (
        fresh_database(postgres) as dsn,
        two_teams(dsn, tmp_path_factory.mktemp("declared")) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def operations(fleet):
    """Every operation of the description, the links of mails among them."""
    collector, _ = fleet
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{collector.port}/openapi.json")
    return [result.ok() for result in schema.get_all_operations()]


def judge(role, status, headers, text, asked):
    """The laws: a fault is only ever a 503 that says when to come back; a viewer reads nothing of
    the other team.
    """
    assert status < 500 or (status == 503 and int(headers["Retry-After"]) > 0), (
        status,
        asked,
        text[:200],
    )
    assert "Traceback" not in text
    assert "X-Injected" not in headers
    if role in {"viewer", "agent"} and FOREIGN not in str(asked):
        assert FOREIGN not in text, asked


def explore(fleet, operation, role, examples):
    secret, answers = fleet[1][role], collections.Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def ask(case):
        answer = case.call(headers={"Authorization": f"Bearer {secret}"}, timeout=20)
        answers[answer.status_code] += 1
        judge(
            role,
            answer.status_code,
            {k: v[0] for k, v in answer.headers.items()} | {},
            answer.text or "",
            case.path,
        )

    ask()
    return answers


@pytest.mark.parametrize("role", ROLES)
def test_no_request_is_a_fault_and_none_shows_a_foreign_row(fleet, operations, role):
    """Every operation of the description, some cases each."""
    assert len(operations) >= 12
    for operation in operations:
        explore(fleet, operation, role, QUICK)


@pytest.mark.long
@pytest.mark.parametrize("role", ROLES)
def test_many_requests_are_no_fault_and_show_no_foreign_row(fleet, operations, role):
    """The same with many more."""
    answers = sum(
        (explore(fleet, operation, role, LONG) for operation in operations), collections.Counter()
    )
    print(
        f"{role}: {answers.total()} requests of {len(operations)} operations, by status"
        f" {dict(sorted(answers.items()))}"
    )


PATHS = (
    "/v1/chargeback",
    "/v1/accelerators",
    "/v1/nodes",
    "/v1/forecast",
    "/v1/budgets",
    "/v1/idle",
    "/v1/anomalies",
    "/v1/audit",
    "/v1/scaling/x",
    "/v1/runs",
    "/v1/inference",
    "/v1/queues",
    "/v1/queues/quotas",
    "/v1/queues/evictions",
    "/v1/series",
    "/v1/samples",
    "/v1/recommendations",
    "/v1/disputes",
)
values = st.sampled_from(INJECTIONS) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=30
)
NAMES = (
    "from",
    "to",
    "by",
    "limit",
    "after",
    "days",
    "open_only",
    "pool",
    "horizon_hours",
    "delay_s",
    "gpu",
    "node",
    "metrics",
    "step",
    "state",
    "all",
)


@examples(30)
@given(
    path=st.sampled_from(PATHS),
    role=st.sampled_from(["viewer", "admin"]),
    query=st.dictionaries(st.sampled_from(NAMES), values, max_size=4),
    dated=st.booleans(),
)
def test_a_value_is_a_value(fleet, path, role, query, dated):
    """Threat: SQL injection.

    Hostile texts in every parameter are an answer or a 4xx, and the tables stay.
    """
    from urllib.parse import quote, urlencode

    collector, secrets = fleet
    asked = {**({"from": day(-4), "to": day(-1)} if dated else {}), **query}
    if path.endswith("/x"):
        path = f"/v1/scaling/{quote(query.get('pool', 'x'), safe='')}"
    status, headers, text = collector.request(
        "GET", f"{path}?{urlencode(asked)}", headers={"Authorization": f"Bearer {secrets[role]}"}
    )
    judge(role, status, headers, json.dumps(text), asked)


def test_after_all_this_the_ledger_is_whole(fleet):
    """Nothing that was asked changed what is owed."""
    collector, secrets = fleet
    status, _, answer = collector.request(
        "GET",
        f"/v1/chargeback?from={day(-4)}&to={day(-1)}&by=team",
        headers={"Authorization": f"Bearer {secrets['finance']}"},
    )
    assert status == 200
    assert sorted((row["team"], row["cost"]) for row in answer["rows"]) == [
        ("vision", "144.00"),
        (FOREIGN, "144.00"),
    ]
