"""The map of the fleet says what the ledger says: the proof of the day, the nodes, the charges."""

import csv
import io
import json
from collections import Counter
from decimal import Decimal

import pytest

from fakes.collector import running
from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from fakes.pages import Page
from fakes.rich_ledger import rich
from fakes.two_teams import OWN, token
from gpuledger_collector.accounting.period import HOUR_MS, Calendar, Period
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.export.fleet_map import FLEET_MAP, MapAddress, block_pictures, map_rows
from gpuledger_collector.insight import fleet_map as insight
from gpuledger_collector.insight.fleet_map import ColorBy, Grain
from gpuledger_collector.services.fleet_map import MapQuestion, read_fleet_map
from gpuledger_collector.storage.billing import reports
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.row_level_security import as_viewer

__all__ = ["rich"]
HELD = ("busy", "idle", "activity unknown")
FIRST_HOUR = "2025-11-03T05:00Z"


def asked(connection, now_ms=NOW_MS, **question):
    return read_fleet_map(connection, MapQuestion(**question), now_ms)


@pytest.fixture
def reading(rich, dsn):
    with Database(dsn).transaction(read_only=True) as connection:
        yield connection


def hours_of(day: Period):
    """UTC hours that touch a day."""
    return range(day.start_ms - day.start_ms % HOUR_MS, day.end_ms, HOUR_MS)


def test_the_hours_of_a_day_are_its_proof(reading):
    """On each day of the rich ledger, one of 25 hours among them, each state has as many
    GPU-nanoseconds on the map as in the conservation check.
    """
    calendar = zones.calendar(reading)
    assert not calendar.is_utc
    whole = Period(OCTOBER - DAY, OCTOBER + 60 * DAY)
    checks = reports.conservation_checks(reading, whole)
    compared = [check for check in checks if check.capacity_ns]
    assert len(compared) == 10
    assert any(calendar.day_of(check.day_ms).ms == 25 * HOUR for check in compared)
    for check in compared:
        sums = Counter()
        for at_ms in hours_of(calendar.day_of(check.day_ms)):
            fleet = asked(reading, at_ms=at_ms)
            for share in fleet.shares:
                sums["held" if share.name in HELD else share.name] += share.gpu_ns
        expected = {
            state: getattr(check, f"{state}_ns")
            for state in ("held", "unallocated", "unavailable", "unobserved", "stranded")
        }
        assert +sums == {state: ns for state, ns in expected.items() if ns}, check.day_ms
        assert sums.total() == check.capacity_ns


@pytest.mark.parametrize("color", ColorBy)
def test_every_color_has_the_same_fleet(reading, color):
    """Accelerators and GPU-time are those of the states."""
    at_ms = OCTOBER + 33 * DAY + 3 * HOUR
    fleet, states = asked(reading, at_ms=at_ms, color=color), asked(reading, at_ms=at_ms)
    assert fleet.capacity_ns == states.capacity_ns > 0
    assert fleet.accelerators == states.accelerators == 4


def test_owners_are_those_of_the_charges(reading):
    """Who pays for the held hours of a day, on the map and in the charges of accelerators."""
    calendar: Calendar = zones.calendar(reading)
    day = calendar.day_of(OCTOBER + 34 * DAY)
    charged = Counter(
        {
            team: int(ns)
            for team, ns in reading.execute(
                "SELECT o.team, sum(c.gpu_ns) FROM charge c JOIN owner o ON o.id = c.owner_id"
                " WHERE c.day_ms = %s AND c.state = 'held' AND c.accelerator_id IS NOT NULL"
                " AND c.adjustment_id IS NULL GROUP BY 1",
                (day.start_ms,),
            ).fetchall()
        }
    )
    drawn = Counter()
    for at_ms in hours_of(day):
        for item in asked(reading, at_ms=at_ms, with_holders=True).items:
            for holder in item.holders:
                drawn[holder.team] += gpu_ns(item.gpu_micro, holder.held_ms)
    assert drawn == charged
    assert set(drawn) == {"vision", "nlp", "speech"}


def test_a_map_of_nodes_by_owner_is_that_of_gpus(reading, monkeypatch):
    """Where boards are not drawn one by one no job is named, and every team has the same time."""
    hours = [OCTOBER + (33 * 24 + at) * HOUR for at in range(24)]
    whole = [asked(reading, at_ms=at_ms, color=ColorBy.OWNER) for at_ms in hours]
    monkeypatch.setattr(insight, "MOST_DEVICES", 0)
    for gpus, at_ms in zip(whole, hours, strict=True):
        nodes = asked(reading, at_ms=at_ms, color=ColorBy.OWNER)
        assert (gpus.grain, nodes.grain) == (Grain.GPU, Grain.NODE)
        assert nodes.shares == gpus.shares
        assert {holder.name for item in nodes.items for holder in item.holders} <= {""}
    assert any(item.main_holder.name for gpus in whole for item in gpus.items if item.holders)


def test_late_evidence_of_a_closed_day_has_an_owner(reading):
    """A holder that only a correction charges is a team's, not unrated."""
    fleet = asked(reading, at_ms=OCTOBER + 13 * HOUR, with_holders=True)
    (late,) = [item for item in fleet.items if item.uuid == "GPU-0002"]
    assert [holder.team for holder in late.holders] == ["vision"]


def test_a_slice_lies_inside_its_board(reading):
    """The rest of the board is stranded, and drawn beside its slice."""
    fleet = asked(reading, at_ms=OCTOBER + 33 * DAY + 3 * HOUR, pool="slices")
    slice_, rest = fleet.items
    assert (slice_.mig_instance, slice_.device, slice_.gpu_micro) == (
        "3g.40gb",
        "GPU-board",
        428_571,
    )
    assert (rest.device, rest.is_rest, rest.gpu_micro) == ("GPU-board", True, 571_429)
    assert rest.states == {"stranded": HOUR_MS}
    assert fleet.accelerators == 1


def test_now_agrees_with_the_list_of_nodes(fleet, dsn, run, monkeypatch):
    """States of nodes and their accelerators are those of `gpuledger nodes`; one that fell silent
    is among what needs attention, and what it did is not known.
    """
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    for number, node in ((1, "n1"), (2, "n1"), (3, "n2")):
        fleet.capacity(number, 0, node=node)
    fleet.connection.execute(
        "UPDATE node SET last_seen_at = to_timestamp(%s) WHERE name = 'n2'",
        ((NOW_MS - 3 * HOUR) / 1000,),
    )
    fleet.connection.execute(
        "INSERT INTO gpu_latest (accelerator_id, at_ms, state, gpu_utilization_ratio)"
        " SELECT id, %s, 'held', CASE uuid WHEN 'GPU-0001' THEN 0.7 ELSE 0 END FROM accelerator"
        " WHERE uuid <> 'GPU-0003'",
        (NOW_MS - 60_000,),
    )
    code, out, err = run("nodes", "list", "--format", "json")
    assert code == 0, err
    listed = {row["node"]: (row["state"], row["accelerators"]) for row in json.loads(out)}
    with Database(dsn).transaction(read_only=True) as connection:
        drawn = asked(connection)
        healths = asked(connection, color=ColorBy.HEALTH)
    assert {group.name: (group.state, group.accelerators) for group in drawn.nodes} == listed
    assert listed == {"n1": ("ok", 2), "n2": ("silent", 1)}
    assert {item.uuid: item.prevailing_state for item in drawn.items} == {
        "GPU-0001": "busy",
        "GPU-0002": "idle",
        "GPU-0003": "unobserved",
    }
    assert list(drawn.troubles) == ["silent node", "held idle"]
    assert {share.name for share in healths.shares} == {"unknown", "unobserved"}


@pytest.mark.parametrize("color", list(ColorBy))
@pytest.mark.parametrize("grain", list(Grain))
def test_what_an_old_reading_said_is_not_known_of_now(fleet, dsn, color, grain):
    """A board that was held three hours ago, and one that failed, are one board each, whatever
    they are colored by, and are drawn; nobody holds what nobody sees.
    """
    for number in (1, 2):
        fleet.capacity(number, 0, node=f"n{number}")
    fleet.connection.execute(
        "INSERT INTO gpu_latest (accelerator_id, at_ms, state, gpu_utilization_ratio)"
        " SELECT id, %s, 'held', 0.97 FROM accelerator WHERE uuid = 'GPU-0001' UNION ALL"
        " SELECT id, %s, 'unallocated', 0 FROM accelerator WHERE uuid = 'GPU-0002'",
        (NOW_MS - 3 * HOUR, NOW_MS - 60_000),
    )
    fleet.connection.execute("UPDATE accelerator SET health = 'failed' WHERE uuid = 'GPU-0002'")
    with Database(dsn).transaction(read_only=True) as connection:
        drawn = asked(connection, color=color, grain=grain)
    assert sum(share.gpu_ns for share in drawn.shares) == 2 * gpu_ns(HOUR_MS, 1_000_000)
    assert all(drawn.color_of(item) in drawn.order for item in drawn.items)
    assert [item.holders for item in drawn.items] == [(), ()]
    assert {item.uuid: item.use_permille for item in drawn.items}["GPU-0001"] is None
    assert block_pictures(drawn, MapAddress())


def test_an_hour_that_is_not_rated_says_so(fleet, dsn, run):
    """Its owner is not known yet, and what is unobserved is counted up to now only."""
    fleet.capacity(1, 0)
    fleet.workload(1)
    at_ms = NOW_MS - NOW_MS % HOUR_MS
    since = at_ms - OCTOBER
    fleet.evidence([Held(1, 1, since - HOUR, since, busy=HOUR // 2)])
    with Database(dsn).transaction(read_only=True) as connection:
        drawn = asked(connection, now_ms=at_ms + 600_000, at_ms=at_ms)
        assert (drawn.is_rated, drawn.holds) == (False, None)
        assert drawn.items[0].states == {"unobserved": 600_000}
    run("chargeback", "--period", "2025-11")
    with Database(dsn).transaction(read_only=True) as connection:
        drawn = asked(connection, at_ms=at_ms - HOUR, color=ColorBy.OWNER)
        assert (drawn.is_rated, drawn.holds) == (True, True)
        assert [share.name for share in drawn.shares] == ["team-1"]


def test_an_hour_to_come_is_refused(reading):
    """In a sentence."""
    with pytest.raises(ValueError, match="lies ahead"):
        asked(reading, at_ms=NOW_MS + HOUR_MS)


def test_a_viewer_reads_nothing_of_the_fleet(reading):
    """Also below the page: under row-level security the tables of the map are no viewer's."""
    with pytest.raises(Exception, match="permission denied"), as_viewer(reading, {"team": "nlp"}):
        asked(reading)


@pytest.fixture
def page(rich, dsn):
    with running(dsn) as collector:

        def ask(path, **headers):
            status, _, text = collector.request("GET", path, headers=headers)
            return status, text

        yield ask


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_the_page_of_an_hour(page):
    """Its legend adds up, its squares lead to receipts, its links to the hours beside; and the CSV
    has the same.
    """
    status, text = page(f"/fleet?at={FIRST_HOUR}")
    assert status == 200, text
    found = Page(text)
    legend = next(table for table in found.tables if table.rows[0][0] == "state").rows
    (_, *rows, all_of_it) = legend
    assert sum(int(row[1]) for row in rows) == int(all_of_it[1]) == 4
    assert sum(Decimal(row[2]) for row in rows) == Decimal(all_of_it[2])
    assert {f"/fleet/gpu/GPU-000{number}" for number in (1, 2, 3, 4)} <= set(found.links)
    assert "/fleet?at=2025-11-03T04%3A00Z" in found.links
    assert "/fleet?at=2025-11-02T05%3A00Z" in found.links
    assert "n3 / ? 3g.40gb: " in text
    status, answer = page(f"/fleet?at={FIRST_HOUR}&format=csv")
    lines = rows_of(answer)
    assert {line["device"] for line in lines} == {"GPU-0001", "GPU-0002", "GPU-0003", "GPU-board"}
    assert [line["uuid"] for line in lines] == ["GPU-0003", "GPU-0004", "", "GPU-0001", "GPU-0002"]
    hours = sum(
        Decimal(line["gpus"]) * Decimal(line[name])
        for line in lines
        for name in lines[0]
        if name.endswith("_h")
    )
    assert hours == 4
    assert {line["team"] for line in lines} == {"", "vision", "speech"}
    # By owner the table names jobs as well, each a link to its receipt.
    owners = Page(page(f"/fleet?at={FIRST_HOUR}&color=owner")[1])
    table = next(table for table in owners.tables if table.rows[0][-1] == "job").rows
    held = [row[-1] for row in table[1:] if row[-1]]
    assert held
    assert len([link for link in owners.links if link.startswith("/jobs/")]) == len(held)


@pytest.mark.parametrize("color", [*ColorBy])
@pytest.mark.parametrize("by", [*Grain])
def test_every_way_to_look_at_it(page, color, by):
    """As a picture, and as a table, without a fault."""
    for at in ("", f"&at={FIRST_HOUR}"):
        status, text = page(f"/fleet?color={color}&by={by}{at}")
        assert status == 200, text
        assert Page(text).faults == []
        assert "As a table" in text or not at


def test_what_an_address_says_wrong(page):
    """An hour, a color or a grain that there is not is refused in a sentence; a node without
    anything says so.
    """
    for query, words in {
        "at=yesterday": "is not an instant",
        "at=2100-01-01T00:00Z": "lies ahead",
        "color=red": "is none of state, owner, use, health",
        "by=rack": "is none of gpu, node, pool",
    }.items():
        status, text = page(f"/fleet?{query}")
        assert status == 422, query
        assert words in text, query
    status, text = page(f"/fleet?at={FIRST_HOUR}&node=n9")
    assert status == 200
    assert "Nothing of node n9 was there in this hour" in text
    status, text = page("/fleet?at=2025-09-01T00:00Z")
    assert "the first one came on Wed 1 Oct 2025" in text


def test_a_form_writes_instants_without_a_zone(page):
    """Which is UTC."""
    assert page("/fleet?at=2025-11-03T05:00")[1] == page(f"/fleet?at={FIRST_HOUR}")[1]


def test_a_viewer_is_refused_in_a_sentence(fleet, dsn):
    """The map is of the whole fleet."""
    secret = token(dsn, "viewer", owner={"team": OWN})
    with running(dsn) as collector:
        for path in ("/fleet", "/fleet?format=csv"):
            status, _, text = collector.request(
                "GET", path, headers={"Authorization": f"Bearer {secret}", "Accept": "text/html"}
            )
            assert status == 403
            assert "this token sees one owner" in text


def test_a_ledger_of_imported_counts_has_a_sentence(fleet, dsn, run, tmp_path):
    """It names no accelerator that could be drawn."""
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("workload_id,start,end,gpus\n1,2025-11-01T00:00:00Z,2025-11-02T00:00:00Z,8\n")
    assert run("import", "usage", jobs)[0] == 0
    with running(dsn) as collector:
        status, _, text = collector.request("GET", "/fleet")
    assert status == 200
    assert "counts of GPUs, imported from a scheduler" in text


def test_an_empty_ledger_has_a_sentence(fleet, dsn):
    """It says what would be drawn."""
    with running(dsn) as collector:
        status, _, text = collector.request("GET", "/fleet")
    assert status == 200
    assert "No accelerator is known yet" in text


def test_many_nodes_are_a_path_for_each_color(fleet, dsn):
    """A block of a hundred nodes has a path for each color and a link for each node."""
    fleet.connection.execute(
        """
        INSERT INTO node (name, first_seen_at, last_seen_at)
            SELECT 'n' || n, to_timestamp(%(now)s), to_timestamp(%(now)s) FROM generate_series(1, 120) n;
        INSERT INTO accelerator (uuid, device_uuid, model, gpu_index)
            SELECT 'GPU-' || g, 'GPU-' || g, 'H100', g %% 8 FROM generate_series(0, 959) g;
        INSERT INTO capacity (accelerator_id, gpu_model, gpu_micro, node_id, pool, in_ms, source)
            SELECT a.id, a.model, a.gpu_micro, n.id, 'train', 0, 'agent' FROM accelerator a
            JOIN node n ON n.name = 'n' || 1 + substr(a.uuid, 5)::bigint / 8;
        INSERT INTO gpu_latest (accelerator_id, at_ms, state, gpu_utilization_ratio)
            SELECT id, %(now)s * 1000, 'held', gpu_index %% 2 FROM accelerator
        """.replace("%(now)s", f"{NOW_MS // 1000}::bigint").replace("%%", "%")
    )
    with Database(dsn).transaction(read_only=True) as connection:
        drawn = asked(connection)
    assert drawn.grain is Grain.NODE
    ((pool, blocks),) = block_pictures(drawn, MapAddress())
    assert (pool, [block.caption for block in blocks]) == ("train", ["n1 to n100", "n101 to n120"])
    assert blocks[0].picture.count('<path class="m-busy"') == 1
    assert blocks[0].picture.count('<path class="m-') == 2 + 100
    assert blocks[0].picture.count("<a href=") == 100
    assert len(list(FLEET_MAP.csv_rows(map_rows(drawn)))) == 961


def test_a_pool_without_a_name_can_be_looked_at_alone(fleet, dsn):
    """Its link asks for it, and not for all pools."""
    for number, pool, node in ((1, "", "n1"), (2, "named", "n2")):
        fleet.accelerator(number)
        fleet.capacity(number, 0, pool=pool, node=node)
    with running(dsn) as collector:
        links = Page(collector.request("GET", "/fleet?by=pool")[2]).links
        path = "/fleet?pool=%28unnamed%29"
        assert path in links
        status, _, text = collector.request("GET", f"{path}&by=gpu")
        assert status == 200
        assert '<input type="hidden" name="pool" value="(unnamed)">' in text
        assert "GPU-0001" in text
        assert "GPU-0002" not in text
        rows = rows_of(collector.request("GET", f"{path}&format=csv")[2])
        assert [row["uuid"] for row in rows] == ["GPU-0001"]
        receipt = collector.request("GET", "/fleet/gpu/GPU-0001")[2]
        assert path in Page(receipt).links
