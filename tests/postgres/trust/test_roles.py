"""What each role is answered: a viewer one owner's subtree, the others everything, an agent
nothing.
"""

import json

import pytest

from fakes.routes import BODIES, REFUSED, RULES, address
from fakes.two_teams import FOREIGN, NOW_MS, ROLES, day, token, two_teams
from fakes.two_teams import OWN as OWN_TEAM

DAYS = f"from={day(-4)}&to={day(-1)}"
OWNED = (
    f"/v1/chargeback?{DAYS}&by=team",
    f"/v1/chargeback?{DAYS}&by=project,user",
    f"/v1/chargeback?{DAYS}&by=workload,node",
    f"/v1/chargeback?{DAYS}&by=pool",
    f"/v1/chargeback?{DAYS}&by=org",
    "/v1/budgets",
    "/v1/idle",
    "/v1/anomalies",
)
OF_THE_FLEET = (
    f"/v1/accelerators?{DAYS}",
    "/v1/nodes",
    "/v1/forecast",
    f"/v1/queues?{DAYS}",
    f"/v1/queues/quotas?{DAYS}",
    f"/v1/queues/evictions?{DAYS}",
    f"/v1/scaling/{FOREIGN}-pool",
)


@pytest.fixture(scope="module")
def fleet(postgres, tmp_path_factory):
    from fakes.postgres import fresh_database

    with (
        fresh_database(postgres) as dsn,
        two_teams(dsn, tmp_path_factory.mktemp("declared")) as made,
    ):
        yield made


def get(fleet, path, role):
    collector, secrets = fleet
    status, _, content = collector.request(
        "GET", path, headers={"Authorization": f"Bearer {secrets[role]}"}
    )
    return status, content


@pytest.mark.parametrize("path", OWNED)
def test_a_viewer_sees_its_own_part_of_what_finance_sees(fleet, path):
    """Threat: broken isolation of tenants.

    The foreign team is nowhere in the answer; the own rows are the same.
    """
    status, everything = get(fleet, path, "finance")
    assert status == 200
    status, own = get(fleet, path, "viewer")
    assert status == 200
    assert FOREIGN not in json.dumps(own)
    if "by=org" not in path:
        assert FOREIGN in json.dumps(everything)
        assert OWN_TEAM in json.dumps(own)
    rows = next(own[key] for key in ("rows", "budgets", "items") if key in own)
    all_rows = next(everything[key] for key in ("rows", "budgets", "items") if key in everything)
    assert rows
    if "by=org" in path:
        hours = [float(row["gpu_hours"]) for row in (*rows, *all_rows)]
        assert hours == [72.0, 144.0]
    else:
        assert rows == [row for row in all_rows if FOREIGN not in json.dumps(row)]


def test_the_total_of_a_viewer_is_that_of_its_rows(fleet):
    """Totals do not tell what others bear."""
    _, own = get(fleet, OWNED[0], "viewer")
    (row,) = own["rows"]
    assert (row["team"], row["gpu_hours"], row["cost"]) == (OWN_TEAM, "72.000000", "144.00")
    assert "288" not in json.dumps(own)


@pytest.mark.parametrize("path", OF_THE_FLEET)
def test_what_is_about_the_whole_fleet_is_not_for_a_viewer(fleet, path):
    """403 with a sentence; finance and admin are answered."""
    status, answer = get(fleet, path, "viewer")
    assert status == 403
    assert "one owner's part" in answer["detail"]
    assert FOREIGN not in json.dumps(answer)
    for role in ("finance", "admin"):
        assert get(fleet, path, role)[0] in {200, 503}


@pytest.mark.parametrize(
    ("owner", "sees"),
    [
        ({"team": OWN_TEAM, "project": f"{OWN_TEAM}-project"}, True),
        ({"team": OWN_TEAM, "project": f"{FOREIGN}-project"}, False),
        ({"team": OWN_TEAM, "org": "acme"}, False),
        ({"team": "' OR true --"}, False),
        ({"user": "nobody"}, False),
    ],
)
def test_a_subtree_is_all_of_its_levels(fleet, owner, sees):
    """Every level of the token's owner must fit; a value is a value and never SQL."""
    collector, _ = fleet
    secret = token(collector.dsn, "viewer", json.dumps(owner), owner=owner)
    headers = {"Authorization": f"Bearer {secret}"}
    for path in (OWNED[0], OWNED[6]):
        status, _, answer = collector.request("GET", path, headers=headers)
        assert status == 200
        assert (len(answer.get("rows", answer.get("items"))) > 0) == sees
        assert FOREIGN not in json.dumps(answer)


def test_an_agent_is_answered_nothing(fleet):
    """Every answer of the ledger is 403."""
    for path in (*OWNED, *OF_THE_FLEET):
        assert get(fleet, path, "agent")[0] == 403


def test_only_an_admin_reads_the_audit_log(fleet):
    """Who changed what is not for those who may be meant by it."""
    for role in ("agent", "viewer", "finance"):
        assert get(fleet, "/v1/audit", role)[0] == 403
    status, answer = get(fleet, "/v1/audit?limit=2", "admin")
    assert status == 200
    assert [item["number"] for item in answer["items"]] == [1, 2]
    assert answer["next"] == 2
    status, answer = get(fleet, "/v1/audit?limit=1000&after=2", "admin")
    assert answer["next"] is None
    assert {item["what"] for item in answer["items"]} == {
        "budget",
        "inference_server",
        "inference_tenant",
        "token",
    }
    assert all(item["at_ms"] <= NOW_MS + 3_600_000 for item in answer["items"])


def test_every_route_has_a_rule(fleet):
    """Each operation of the description as nobody and as each role: refused by its rule, and by
    nothing else.
    """
    collector, secrets = fleet
    described = collector.request("GET", "/openapi.json")[2]["paths"]
    operations = {
        f"{method.upper()} {path}" for path, methods in described.items() for method in methods
    }
    assert operations <= set(RULES)
    assert len(operations) >= 24
    for operation in sorted(operations):
        method, _, path = operation.partition(" ")
        where = address(path)
        body = None if method == "GET" else json.dumps(BODIES.get(path, {})).encode()
        for role in (None, *ROLES):
            headers = {"Content-Type": "application/json"}
            headers |= {"Authorization": f"Bearer {secrets[role]}"} if role else {}
            status = collector.request(method, where, body, headers)[0]
            assert (status in {401, 403}) == (role in REFUSED[RULES[operation]]), (
                operation,
                role,
                status,
            )
