"""Hours that the database adds up are those that a fold of their usage intervals gives."""

import random

import psycopg
import pytest

from fakes.fleet import DAY, EPOCH, HOUR, OCTOBER, Fleet, Held
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services import hourly_usage
from gpuledger_collector.services.commitment_coverage import book_of
from gpuledger_collector.services.placements import placements_of
from gpuledger_collector.storage.ledger import inventory, usage
from gpuledger_collector.storage.telemetry import partitions

MINUTE = 60_000
SPAN = Period(OCTOBER + 4 * HOUR, OCTOBER + 8 * HOUR)
ACCELERATORS = 48


def intervals(chance, kind, workloads):
    """Usage intervals of one accelerator: state, workload, start, end, busy, idle, unknown and
    energy.
    """
    at, until = SPAN.start_ms + chance.randrange(HOUR), SPAN.end_ms - chance.randrange(HOUR)
    while at < until:
        end = at + chance.choice((MINUTE, 7 * MINUTE, 20 * MINUTE))
        # As agents do: they cut at the hour.
        if kind != "crossing hours":
            end = min(end, at - at % HOUR + HOUR)
        state = chance.choice(("held", "held", "unallocated", "unavailable"))
        busy = chance.randint(0, end - at)
        unknown = chance.randint(0, end - at - busy)
        rest = end - at - busy - unknown
        activity = (busy, rest, unknown)
        if state != "held" or kind == "no activity":
            activity = (0, 0, 0)
        elif kind == "partial activity":
            activity = (busy, 0, unknown)
        energy = chance.choice((None, chance.randint(0, 10**9)))
        yield (
            state,
            chance.choice(workloads) if state == "held" else None,
            at,
            end,
            *activity,
            energy,
        )
        if kind == "overlaps" and chance.random() < 0.1:
            yield state, workloads[0] if state == "held" else None, at + 1, end, *activity, energy
        if kind == "repetitions" and chance.random() < 0.1:
            yield state, workloads[1] if state == "held" else None, at, end, *activity, energy
        at = end + chance.choice((0, 0, chance.randrange(3 * MINUTE)))


def world(fleet, seed):
    """Evidence of many kinds, some of it without a report of its workload, hours requested here and
    there.
    """
    chance = random.Random(seed)
    workloads = [fleet.workload(number) for number in range(3)]
    nodes = [fleet.node("n1"), fleet.node("n2")]
    kinds = (
        "plain",
        "plain",
        "plain",
        "overlaps",
        "repetitions",
        "crossing hours",
        "no activity",
        "partial activity",
    )
    partitions.ensure(fleet.connection, "usage_interval", [OCTOBER])
    evidence, requests = [], []
    for number in range(ACCELERATORS):
        accelerator = fleet.accelerator(number)
        place = chance.choice(
            ("there", "there", "there", "moved", "begins", "elsewhere", "nowhere")
        )
        if place == "moved":
            fleet.capacity(number, 0, 6 * HOUR + 5)
            fleet.capacity(number, 6 * HOUR + 5, node="n2")
        elif place != "nowhere":
            fleet.capacity(
                number,
                5 * HOUR + 7 if place == "begins" else 0,
                node="n2" if place == "elsewhere" else "n1",
            )
        for row in intervals(chance, chance.choice(kinds), workloads):
            node = nodes[chance.random() < 0.02]
            evidence.append(
                (accelerator, *row[1::-1], *row[2:4], 0, *row[4:], node, EPOCH, len(evidence), 0)
            )
        hours = range(SPAN.start_ms, SPAN.end_ms, HOUR)
        requests += [
            (accelerator, hour) for hour in chance.sample(hours, chance.randint(1, len(hours)))
        ]
    with fleet.connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO usage_interval VALUES ({', '.join(['%s'] * 14)})", evidence
        )
        cursor.executemany(
            "INSERT INTO hour_recompute (accelerator_id, hour_ms) VALUES (%s, %s)", requests
        )
    fleet.connection.execute(
        "INSERT INTO workload_attributes (workload_id, digest) VALUES (%s, 'one'), (%s, 'two'),"
        " (%s, 'three')",
        (*workloads[1:], workloads[1]),
    )
    # Some name their report: the first one of their workload, or a later one.
    for which, part in (("min", 3), ("max", 5)):
        fleet.connection.execute(
            "UPDATE usage_interval u SET workload_attributes_id = (SELECT " + which + "(id) FROM"
            " workload_attributes t WHERE t.workload_id = u.workload_id) WHERE seq %% %s = 0",
            (part,),
        )
    if seed % 2:
        fleet.connection.execute(
            "INSERT INTO price (gpu_model, purchase, rate_per_gpu_hour, currency,"
            " effective_from_ms, recorded_at) VALUES ('H100', 'on_demand', 2, 'USD', 0, now()),"
            " ('H100', 'on_demand', 3, 'USD', %s, now())",
            (OCTOBER + 7 * HOUR + 1234,),
        )
    return requests


@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_sums_are_those_of_a_fold(fleet, database, monkeypatch, seed, readers) -> None:
    """Over overlaps, repetitions, gaps, moves and changes of a price: whichever way an accelerator
    goes, and by how many sessions evidence is read.
    """
    requests = world(fleet, seed)
    if readers > 1:
        monkeypatch.setattr(hourly_usage, "TWO_READERS_FROM", 2)
        monkeypatch.setattr(hourly_usage, "SORTED_AT_ONCE", 24)
    one_by_one = []
    fold_hours = hourly_usage.fold_hours

    def counted(evidence, *rest):
        one_by_one.append(evidence)
        return fold_hours(evidence, *rest)

    monkeypatch.setattr(hourly_usage, "fold_hours", counted)
    hourly_usage.fold_usage(database)
    assert 0 < len(one_by_one) < ACCELERATORS
    with database.transaction() as connection:
        day = Period(OCTOBER, OCTOBER + DAY)
        book = book_of(connection, day)
        placements = placements_of(inventory.capacity(connection, day))
        expected = set()
        for accelerator in {accelerator for accelerator, _ in requests}:
            evidence = list(usage.usage_intervals(connection, [accelerator], day))
            hours = [hour for wanted, hour in requests if wanted == accelerator]
            expected |= set(fold_hours(evidence, hours, placements.get(accelerator, ()), book))
        rows = {
            (row.accelerator_id, row.start_ms, row.state, row.workload_id, row.attributes_id): row
            for row in usage.hourly_usage(connection, day)
        }
    assert len(rows) > ACCELERATORS
    # A row in the table ends with its hour, also where a change of a price cut it.
    assert {
        (key, row.held_ms, row.busy_ms, row.idle_ms, row.unknown_ms, row.energy_mj)
        for key, row in rows.items()
    } == {
        (
            (
                piece.accelerator_id,
                piece.start_ms,
                piece.state,
                piece.workload_id,
                piece.attributes_id,
            ),
            *(piece.held_ms, piece.busy_ms, piece.idle_ms, piece.unknown_ms, piece.energy_mj),
        )
        for piece in expected
    }


def test_a_second_reader_sees_what_the_first_sees(fleet, database, monkeypatch) -> None:
    """Evidence that arrives while hours are folded waits for the next fold, with its requests."""
    monkeypatch.setattr(hourly_usage, "TWO_READERS_FROM", 2)
    for number in (1, 2):
        fleet.capacity(number, 0)
        fleet.evidence([Held(number, 1, 0, HOUR // 2)])
    read = usage.evidence_sums
    sessions = set()

    def late(connection, accelerator_ids, period):
        sessions.add(connection.info.backend_pid)
        fleet_of_another = Fleet(database.dsn)
        fleet_of_another.evidence([Held(number, 1, HOUR // 2, HOUR) for number in (1, 2)])
        fleet_of_another.connection.close()
        return read(connection, accelerator_ids, period)

    with monkeypatch.context() as patch:
        patch.setattr(usage, "evidence_sums", late)
        assert hourly_usage.fold_usage(database) == 2
    assert len(sessions) == 2
    held = "SELECT accelerator_id, held_ms FROM usage_hour ORDER BY 1"
    assert [row[1] for row in fleet.rows(held)] == [HOUR // 2] * 2
    assert hourly_usage.fold_usage(database) == 2
    assert hourly_usage.fold_usage(database) == 0


def test_a_second_reader_that_is_lost_leaves_everything_to_the_next_fold(
    fleet, database, monkeypatch
) -> None:
    """All is written by the first session, in one transaction."""
    monkeypatch.setattr(hourly_usage, "TWO_READERS_FROM", 2)
    for number in (1, 2):
        fleet.capacity(number, 0)
        fleet.evidence([Held(number, 1, 0, HOUR)])
    read = usage.evidence_sums

    def killed(connection, accelerator_ids, period):
        if accelerator_ids == [fleet.accelerator(2)]:
            pid = connection.info.backend_pid
            fleet.rows("SELECT pg_terminate_backend(%s, 10000)", pid)
        return read(connection, accelerator_ids, period)

    with monkeypatch.context() as patch:
        patch.setattr(usage, "evidence_sums", killed)
        with pytest.raises(psycopg.OperationalError):
            hourly_usage.fold_usage(database)
    assert fleet.rows("SELECT FROM usage_hour") == []
    assert len(fleet.rows("SELECT FROM hour_recompute")) == 2
    assert hourly_usage.fold_usage(database) == 2


def test_late_evidence_of_one_reads_no_hours_of_others(fleet, database, monkeypatch) -> None:
    """Each accelerator's evidence is read from its own first requested hour to its last."""
    partitions.ensure(fleet.connection, "usage_interval", [OCTOBER])
    early, late = fleet.accelerator(1), fleet.accelerator(2)
    fleet.connection.execute(
        "INSERT INTO hour_recompute (accelerator_id, hour_ms) VALUES (%s, %s), (%s, %s)",
        (early, OCTOBER, late, OCTOBER + 9 * HOUR),
    )
    spans = {}
    read = usage.evidence_sums

    def noted(connection, accelerator_ids, period):
        spans[tuple(accelerator_ids)] = period
        return read(connection, accelerator_ids, period)

    monkeypatch.setattr(usage, "evidence_sums", noted)
    assert hourly_usage.fold_usage(database) == 2
    assert spans == {
        (early,): Period(OCTOBER, OCTOBER + HOUR),
        (late,): Period(OCTOBER + 9 * HOUR, OCTOBER + 10 * HOUR),
    }
