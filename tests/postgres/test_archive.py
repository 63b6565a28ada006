"""Packed days: nothing is lost on the way, wherever it stops, and readers see hot and packed
samples as one.
"""

import csv
import io
import os
import random
import subprocess
import sys

import numpy as np
import psycopg
import pytest

from fakes.minutes import sampled_hours
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.services.upkeep import ArchiveRetention, days_to_pack, pack_samples
from gpuledger_collector.settings import Settings, check
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import usage
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry import archive, minute_rollup, partitions
from gpuledger_common.settings import SettingsError

pytestmark = pytest.mark.slow

DAY = 20_000 * DAY_MS
NOW = DAY + 10 * DAY_MS
KEEP_ALL = ArchiveRetention(pack_after_days=3, keep_archive_days=0, keep_usage_interval_days=0)
NAMES = list(archive.KINDS)


def sample_rows(seed, start_ms=DAY, accelerators=(1, 2, 7), count=50):
    """Rows with every kind of value and absence; some instants come twice, as remote write brings
    them in parts.
    """
    dice = random.Random(seed)
    rows = []
    for accelerator_id in accelerators:
        for place in range(count):
            at_ms = start_ms + place * 10_000 + dice.choice([0, 0, 0, 1, -0, 3]) * (place > 0)
            for _ in range(2 if dice.random() < 0.1 else 1):
                values = [value(dice, kind) for kind in archive.KINDS.values()]
                rows.append((accelerator_id, at_ms, *values))
    return rows


def value(dice, kind):
    if dice.random() < 0.2:
        return None
    if kind == "i8":
        return dice.choice([0, 1, 2**62, -5, 236])
    number = dice.choice([0.0, -0.0, 1.0, float("nan"), float("inf"), dice.random() * 1e9])
    return float(np.float32(number)) if kind == "f4" else number


def put(dsn, rows):
    with Database(dsn).transaction() as connection:
        partitions.ensure(connection, "gpu_sample", {row[1] // DAY_MS * DAY_MS for row in rows})
        with connection.cursor().copy(
            f"COPY gpu_sample ({', '.join(['accelerator_id', 'at_ms', *NAMES])}) FROM STDIN"
        ) as copy:
            for row in rows:
                copy.write_row(row)


def seen(dsn, ids=(1, 2, 7), period=None):
    """What the reader gives, as sorted texts: NaN equals NaN, and -0.0 is not 0.0."""
    with Database(dsn).transaction() as connection:
        found = archive.samples(connection, ids, period or Period(DAY - DAY_MS, DAY + 3 * DAY_MS))
    rows = []
    for place in range(len(found.at_ms)):
        values = []
        for name in NAMES:
            column = found.columns.get(name)
            values.append(
                column.values[place].item()
                if column is not None and column.present[place]
                else None
            )
        rows.append(repr((int(found.accelerator_id[place]), int(found.at_ms[place]), *values)))
    return sorted(rows)


def texts(rows):
    return sorted(repr(row) for row in rows)


def scalar(dsn, statement):
    with Database(dsn).transaction() as connection:
        return connection.execute(statement).fetchone()[0]


@pytest.mark.parametrize("seed", range(3))
def test_a_packed_day_gives_back_every_sample(dsn, seed):
    """Hot, packed, or some of each: the reader gives the same rows; a second run has nothing to do."""
    rows = sample_rows(seed) + sample_rows(seed + 100, DAY + 9 * DAY_MS)
    put(dsn, rows)
    old = [row for row in rows if row[1] < DAY + DAY_MS]
    assert seen(dsn) == texts(old)
    done = pack_samples(Database(dsn), KEEP_ALL, NOW)
    assert [(day.day_ms, day.rows, day.accelerators) for day in done.packed] == [(DAY, len(old), 3)]
    assert scalar(dsn, f"SELECT count(*) FROM gpu_sample WHERE at_ms < {DAY + DAY_MS}") == 0
    assert seen(dsn) == texts(old)
    assert seen(dsn, period=Period(DAY, NOW)) == texts(rows)
    inside = Period(DAY + 100_000, DAY + 200_000)
    assert seen(dsn, [2], inside) == texts(
        [row for row in old if row[0] == 2 and inside.start_ms <= row[1] < inside.end_ms]
    )
    assert pack_samples(Database(dsn), KEEP_ALL, NOW).packed == ()


def test_late_samples_are_merged_and_repeated_ones_count_once(dsn):
    """A late row makes a partition that the next run merges; a row that came twice is one."""
    first, late = sample_rows(1), sample_rows(2, DAY + 3 * HOUR_MS, accelerators=(2, 9))
    put(dsn, first)
    pack_samples(Database(dsn), KEEP_ALL, NOW)
    put(dsn, late + first[:20])
    ids = (1, 2, 7, 9)
    expected = texts(first + late)
    assert seen(dsn, ids) == expected
    done = pack_samples(Database(dsn), KEEP_ALL, NOW)
    assert [(day.rows, day.accelerators) for day in done.packed] == [(len(late) + 20, 3)]
    assert seen(dsn, ids) == expected
    assert scalar(dsn, "SELECT sum(rows) FROM sample_archive") == len(first) + len(late)


@pytest.mark.parametrize(
    "step", ["_lock", "_size", "_hot_rows", "pack", "_write", "_read_packed", "drop"]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_run_killed_anywhere_loses_nothing(dsn, monkeypatch, step, when):
    """After a fault before or after any step the day is as it was, and the next run packs it whole."""
    rows = sample_rows(3)
    put(dsn, rows[:80])
    pack_samples(Database(dsn), KEEP_ALL, NOW)
    put(dsn, rows[80:])
    module = archive.day_rows if step == "drop" else archive
    true, calls = getattr(module, step), []

    def faulty(*given):
        calls.append(given)
        if when == "before" and len(calls) == 1:
            raise KeyboardInterrupt
        done = true(*given)
        if when == "after":
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(module, step, faulty)
    with pytest.raises(KeyboardInterrupt):
        pack_samples(Database(dsn), KEEP_ALL, NOW)
    monkeypatch.undo()
    assert calls
    assert seen(dsn) == texts(rows)
    assert scalar(dsn, "SELECT count(*) FROM gpu_sample") == len(rows) - 80
    pack_samples(Database(dsn), KEEP_ALL, NOW)
    assert seen(dsn) == texts(rows)
    assert scalar(dsn, "SELECT count(*) FROM gpu_sample") == 0


def test_a_session_that_the_server_ends_loses_nothing(dsn, monkeypatch):
    """The backend dies after the drop and before COMMIT."""
    rows = sample_rows(4)
    put(dsn, rows)
    true = archive.day_rows.drop

    def dropped(connection, *day):
        true(connection, *day)
        with Database(dsn).connect() as other:
            other.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))

    monkeypatch.setattr(archive.day_rows, "drop", dropped)
    with pytest.raises(psycopg.OperationalError):
        archive.pack_day(Database(dsn), DAY)
    monkeypatch.undo()
    assert scalar(dsn, "SELECT count(*) FROM gpu_sample") == len(rows)
    assert seen(dsn) == texts(rows)


def test_what_does_not_come_back_as_it_went_in_drops_nothing(dsn, monkeypatch):
    """A packer with a fault is noticed before the partition goes."""
    rows = sample_rows(5)
    put(dsn, rows)
    true = archive.pack

    def lossy(readings):
        power = readings.columns["gpu_power_watts"]
        spoilt = archive.Column(power.values + power.values.dtype.type(1), power.present)
        return true(
            archive.Readings(readings.at_ms, {**readings.columns, "gpu_power_watts": spoilt})
        )

    monkeypatch.setattr(archive, "pack", lossy)
    with pytest.raises(archive.ArchiveDamaged, match="did not come back"):
        archive.pack_day(Database(dsn), DAY)
    assert seen(dsn) == texts(rows)


def test_a_damaged_blob_is_named(dsn):
    """Bits that changed on disk are an error with its place, not numbers."""
    put(dsn, sample_rows(6))
    archive.pack_day(Database(dsn), DAY)
    with Database(dsn).transaction() as connection:
        connection.execute(
            "UPDATE sample_archive SET blob = set_byte(blob, 40, get_byte(blob, 40) # 1)"
        )
    with pytest.raises(
        archive.ArchiveDamaged, match=r"accelerator 1 on 2024-10-04 has another checksum"
    ):
        seen(dsn)


def test_a_day_that_is_being_written_waits(dsn, monkeypatch):
    """A writer of the day holds the packing off, which gives way and comes again."""
    monkeypatch.setattr(archive, "LOCK_WAIT", "200ms")
    rows = sample_rows(7)
    put(dsn, rows)
    with Database(dsn).transaction() as writer:
        writer.execute("INSERT INTO gpu_sample (accelerator_id, at_ms) VALUES (1, %s)", (DAY,))
        assert pack_samples(Database(dsn), KEEP_ALL, NOW).busy == (DAY,)
    assert len(seen(dsn)) == len(rows) + 1
    assert pack_samples(Database(dsn), KEEP_ALL, NOW).packed[0].rows == len(rows) + 1


def test_samples_that_come_between_the_slices_are_packed_too(dsn, monkeypatch):
    """Slices hold no writer off: what is written after its slice is found at the end, none lost and
    none doubled.
    """
    rows, late = sample_rows(8), sample_rows(9, DAY + HOUR_MS, accelerators=(1, 7, 9), count=5)
    put(dsn, rows)
    monkeypatch.setattr(archive, "SLICE", 1)
    true, slices = archive._pack_slice, []

    def written_meanwhile(connection, day_ms, ids):
        done = true(connection, day_ms, ids)
        slices.append(ids)
        if len(slices) == 2:
            put(dsn, late)
        return done

    monkeypatch.setattr(archive, "_pack_slice", written_meanwhile)
    done = archive.pack_day(Database(dsn), DAY)
    assert slices == [[1], [2], [7]]
    assert (done.rows, done.accelerators) == (len(rows) + len(late), 4)
    assert seen(dsn, (1, 2, 7, 9)) == texts(rows + late)
    assert scalar(dsn, "SELECT count(*) FROM gpu_sample") == 0
    assert scalar(dsn, "SELECT sum(rows) FROM sample_archive") == len(rows) + len(late)


def test_packing_gives_way_between_slices_and_two_do_not_pack_at_once(dsn, monkeypatch):
    """A collector that stops leaves the rest to the next run; who comes second waits for its next
    run.
    """
    rows = sample_rows(10)
    put(dsn, rows)
    monkeypatch.setattr(archive, "SLICE", 1)
    asked = iter([False, True])
    assert pack_samples(Database(dsn), KEEP_ALL, NOW, stopping=lambda: next(asked)).busy == (DAY,)
    assert scalar(dsn, "SELECT count(*) FROM sample_archive") == 1
    assert seen(dsn) == texts(rows)
    with Database(dsn).try_hold(Lock.PACKING) as first:
        assert first
        assert pack_samples(Database(dsn), KEEP_ALL, NOW).busy == (DAY,)
    assert pack_samples(Database(dsn), KEEP_ALL, NOW).packed[0].rows == len(rows)
    assert seen(dsn) == texts(rows)


def test_keys_of_batches_outlive_what_agents_may_send_again(dsn, monkeypatch):
    """Those received 37 days ago and before go, in parts; a batch that may still come again is
    still known.
    """
    monkeypatch.setattr(archive, "BATCHES", 4)
    with Database(dsn).transaction() as connection:
        connection.execute(
            "INSERT INTO node (name, first_seen_at, last_seen_at) VALUES ('n1', now(), now())"
        )
        connection.execute(
            "INSERT INTO ingest_batch SELECT (SELECT id FROM node),"
            " '00000000-0000-4000-8000-000000000001', day, '', to_timestamp(%s) - interval '1 day'"
            " * day, 1, 1, NULL FROM generate_series(1, 50) AS day",
            (NOW / 1000,),
        )
    assert pack_samples(Database(dsn), KEEP_ALL, NOW).expired_batches == 0
    keep = ArchiveRetention(3, 0, 0, Settings().keep_batches_days)
    assert pack_samples(Database(dsn), keep, NOW).expired_batches == 13
    assert scalar(dsn, "SELECT max(seq) FROM ingest_batch") == 37
    with pytest.raises(SettingsError, match="keep_batches_days: must be at least 37"):
        check(Settings(keep_batches_days=36))


def test_days_are_packed_when_they_are_old_enough(dsn):
    """A day is packed when it ended `pack_after_days` before today began, not a day earlier."""
    put(dsn, [(1, DAY + number * DAY_MS, *[None] * len(NAMES)) for number in range(11)])
    found = days_to_pack(Database(dsn), KEEP_ALL, NOW + HOUR_MS)
    assert found == [DAY + number * DAY_MS for number in range(7)]


def test_packed_days_are_kept_as_long_as_asked(dsn):
    """`keep_archive_days` counts from today; 0 keeps all."""
    put(dsn, [(1, DAY + number * DAY_MS, *[None] * len(NAMES)) for number in range(4)])
    assert pack_samples(Database(dsn), KEEP_ALL, NOW).expired_blobs == 0
    assert pack_samples(Database(dsn), ArchiveRetention(3, 8, 0), NOW).expired_blobs == 2
    assert scalar(dsn, "SELECT min(day_ms) FROM sample_archive") == DAY + 2 * DAY_MS


def usage_interval_days(dsn):
    with Database(dsn).transaction() as connection:
        return archive.day_rows.days(connection, "usage_interval")


def close(dsn, start_ms, end_ms):
    with Database(dsn).transaction() as connection:
        connection.execute(
            "INSERT INTO billing_period (start_ms, end_ms, name, closed_ms, closed_by, level,"
            " lines, seal, receipt) VALUES (%s, %s, 'p', 0, 'me', 'team', 0, '', '{}')",
            (start_ms, end_ms),
        )


def test_usage_intervals_go_only_with_closed_periods_and_their_hours_stay_as_they_are(dsn):
    """Retention spares open months and the day that a closed month's last usage intervals reach
    into; marks fold nothing.
    """
    days = [DAY + number * DAY_MS for number in range(6)]
    with Database(dsn).transaction() as connection:
        partitions.ensure(connection, "usage_interval", days)
    later, keep = DAY + 60 * DAY_MS, ArchiveRetention(3, 0, 40)
    assert pack_samples(Database(dsn), keep, later).expired_days == ()
    close(dsn, days[1], days[4])
    assert pack_samples(Database(dsn), KEEP_ALL, later).expired_days == ()
    assert pack_samples(Database(dsn), keep, days[2] + 40 * DAY_MS).expired_days == (days[1],)
    assert pack_samples(Database(dsn), keep, later).expired_days == (days[2],)
    assert usage_interval_days(dsn) == [days[0], *days[3:]]
    with Database(dsn).transaction() as connection:
        connection.execute(
            "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT 1, unnest(%s::bigint[])",
            ([days[0], days[1], days[2] + 5 * HOUR_MS, days[3] + 23 * HOUR_MS, days[4]],),
        )
        marks = usage.recompute_requests(connection, Period(DAY, later), None)
    assert [mark.hour_ms for mark in marks] == [days[0], days[4]]


def test_the_minute_rollup_of_a_packed_day_is_made_of_all_its_samples(dsn):
    """Late samples of a packed minute do not replace what was there; rolling the period again
    changes nothing.
    """
    power = NAMES.index("gpu_power_watts")

    def row(at_ms, watts):
        return (1, at_ms, *[watts if place == power else None for place in range(len(NAMES))])

    put(dsn, [row(DAY, 100.0), row(DAY + 10_000, 200.0)])
    archive.pack_day(Database(dsn), DAY)
    put(dsn, [row(DAY + 20_000, 600.0)])
    for _ in range(2):
        with Database(dsn).transaction() as connection:
            hours = sampled_hours(connection, Period(DAY, DAY + DAY_MS))
            minute_rollup.roll_up_minutes(connection, hours)
            found = connection.execute(
                "SELECT minute_ms, samples, power_watts FROM gpu_minute"
            ).fetchall()
        assert found == [(DAY, 3, 300.0)]
        archive.pack_day(Database(dsn), DAY)


def run(dsn, *arguments):
    """The command as a person runs it."""
    command = [sys.executable, "-m", "gpuledger_collector", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "GPULEDGER_DSN": dsn}
    )


def cli(dsn, *arguments):
    done = run(dsn, *arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_commands_pack_and_give_back_what_an_import_reads_again(dsn, tmp_path):
    """import, db pack, export, import again: the same file, and nothing new to import, of a node or
    of one GPU.
    """
    head = "ts,uuid,gpu_power_watts,gpu_energy_joules_total,gpu_clocks_event_reasons_bitmask"
    lines = [head] + [
        f"2024-10-04T{minute // 60:02}:{minute % 60:02}:00.5Z,GPU-{gpu},{minute * 0.1:.1f},"
        f"{'' if minute % 3 else minute * 1234.5},{4 if minute % 2 else ''}"
        for gpu in (1, 2)
        for minute in range(90)
    ]
    (tmp_path / "samples.csv").write_text("\n".join(lines) + "\n")
    ask = ["--from", "2024-10-04", "--to", "2024-10-05"]
    assert "180" in cli(dsn, "import", "samples", tmp_path / "samples.csv")
    before = cli(dsn, "export", "samples", "--gpu", "GPU-2", *ask)
    assert (
        cli(dsn, "db", "pack", "--dry-run") == "would pack 2024-10-04\n1 day of samples to pack\n"
    )
    assert "packed 2024-10-04: 180 samples of 2 accelerators" in cli(dsn, "db", "pack")
    assert cli(dsn, "export", "samples", "--gpu", "GPU-2", *ask) == before
    found = list(csv.DictReader(io.StringIO(before)))
    assert len(found) == 90
    assert found[33]["ts"] == "2024-10-04T00:33:00.500Z"
    assert (found[33]["gpu_power_watts"], found[33]["gpu_energy_joules_total"]) == (
        "3.3",
        "40738.5",
    )
    assert (
        found[31]["gpu_energy_joules_total"],
        found[32]["gpu_clocks_event_reasons_bitmask"],
    ) == ("", "")
    with Database(dsn).transaction() as connection:
        connection.execute(
            "INSERT INTO node (name, first_seen_at, last_seen_at) VALUES ('n1', now(), now())"
        )
        connection.execute(
            "INSERT INTO capacity (accelerator_id, node_id, in_ms, out_ms, source) "
            "SELECT a.id, n.id, %s, %s, 'import' FROM accelerator a, node n WHERE a.uuid = 'GPU-2'",
            (DAY - DAY_MS, DAY + 30 * 60_000),
        )
    cli(dsn, "export", "samples", "--node", "n1", *ask, "-o", tmp_path / "node.csv")
    assert (tmp_path / "node.csv").read_text().splitlines() == before.splitlines()[:31]
    (tmp_path / "again.csv").write_text(before)
    cli(dsn, "import", "samples", tmp_path / "again.csv")
    assert scalar(dsn, "SELECT count(*) FROM gpu_sample") == 0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--gpu", "GPU-9"], "no accelerator is called GPU-9"),
        (["--node", "n9"], "nothing was on n9"),
        ([], "either --node or --gpu"),
        (["--gpu", "a", "--from", "soon"], "--from: "),
        (["--gpu", "a", "--from", "2024-10-06"], "--to: must be after --from"),
    ],
)
def test_what_cannot_be_exported_is_said_in_a_sentence(dsn, given, sentence):
    """Exit 2 and no traceback."""
    done = run(dsn, "export", "samples", "--from", "2024-10-04", "--to", "2024-10-05", *given)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"keep_usage_interval_days": 38}, "keep_usage_interval_days: must be 0 or at least 39"),
        ({"keep_archive_days": 3}, "keep_archive_days: must be 0 .* or over pack_after_days, 3"),
        ({"pack_after_days": 0}, "pack_after_days: must be at least 1"),
    ],
)
def test_retention_below_what_is_safe_is_refused(given, sentence):
    """Evidence that an agent may still hold is never let go."""
    with pytest.raises(SettingsError, match=sentence):
        check(Settings(**given))
    check(Settings(keep_usage_interval_days=39, keep_archive_days=4))
