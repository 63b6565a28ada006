"""Seventeen days of a small fleet, and what is asked of its evidence: reports, pages, jobs,
imports, disputes.

Together with `fakes.citus_month` this runs every statement of the product that names a table which
Citus distributes (`fakes.statements`), and the answers are compared between one Postgres and Citus.
"""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg

from fakes.batches import batch
from fakes.books import Command
from fakes.collector import Running, running
from fakes.fleet import DAY, HOUR, OCTOBER, Fleet, Held
from fakes.idle_day import minutes
from fakes.minutes import roll_up_minutes
from fakes.prometheus import WRITE, headers, one, pod, scrape, snappy
from gpuledger_collector import wiring
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.notifications import finding_mail, spending_week_mail
from gpuledger_collector.services.finding_notifications import MailWriters, notify_findings
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.services.live import LiveWatch
from gpuledger_collector.services.recommendation_search import recommend
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.spending_watch import SpendingWatch
from gpuledger_collector.services.upkeep import (
    ArchiveRetention,
    pack_samples,
    pack_usage_intervals,
    roll_up_series,
)
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.access.tokens import create
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import hour_columns
from gpuledger_collector.storage.telemetry import interval_packing, partitions, usage_evidence
from gpuledger_common.wire import Samples

MINUTE = 60_000
RECORDING = {
    "format": "gpuledger-recording/1",
    "node": "n1",
    "driver": "1",
    "accelerators": [],
    "problems": [],
}
DAYS = 17
NOW_MS = OCTOBER + DAYS * DAY
MONTH = ("--period", "2025-10")
DECLARED = """
[[price]]
gpu_model = "H100"
purchase = "on_demand"
rate_per_gpu_hour = 2.5
currency = "USD"
effective_from = 2025-01-01

[[contact]]
team = "vision"
leads = ["lead@example.org"]

[[budget]]
name = "vision"
team = "vision"
period = "month"
amount = 100
currency = "USD"
"""
SERVER = """
billing_zone = "UTC"

[[inference]]
name = "chat"
models = ["chat"]
served_by = { team = "inference" }
weights = "1 : 0.1 : 4"
effective_from = 2025-10-01

[[tenant]]
tenant = "vision"
owner = { team = "vision" }
"""
KOLKATA = 'billing_zone = "Asia/Kolkata"\n'
"""Its midnights cut an hour of UTC in two."""
SECOND = OCTOBER + DAY + 6 * HOUR
"""Samples of the second day are imported, packed, and imported once more."""


def ask(dsn: str, folder: Path, answer: Callable[[str, Callable[[], object]], None]) -> None:
    """Furnish an empty ledger and have each question answered, by its name; the same on every
    engine.
    """
    asking = _Asking(dsn, folder)
    alone = wiring.intakes

    def among_workers(*arguments: Any, is_shared: bool) -> Any:
        return alone(*arguments, is_shared=True)

    with mock.patch.multiple(wiring, read_clock=lambda: NOW_MS, intakes=among_workers):
        asking.run("apply", asking.file("declared.toml", DECLARED))
        _furnish(asking.fleet)
        with running(dsn, clock=lambda: NOW_MS) as asking.collector:
            for part in (
                _jobs,
                _reports,
                _pages,
                _imports,
                _disputes,
                _remote_write,
                _changes,
                _tenants,
                _packed_evidence,
            ):
                for name, question in part(asking):
                    answer(name, question)
    asking.fleet.connection.close()


class _Asking:
    """An engine with a fleet on it, and the ways to ask."""

    collector: Running

    def __init__(self, dsn: str, folder: Path) -> None:
        self.dsn, self.folder = dsn, folder
        self.fleet, self.database, self._command = Fleet(dsn), Database(dsn), Command(dsn)

    def run(self, *arguments: object, code: int = 0) -> str:
        """Standard output of a command that ends so."""
        ended, out, err = self._command(*arguments)
        assert ended == code, (arguments, ended, out, err)
        return out.replace(str(self.folder), "")

    def get(self, path: str) -> str:
        """A page or an answer of the collector, once nothing of it is being computed."""
        while True:
            status, _, answer = self.collector.request("GET", path)
            assert status == 200, (path, answer)
            text = answer if isinstance(answer, str) else json.dumps(answer, sort_keys=True)
            if "being computed" not in text:
                return text
            time.sleep(0.1)

    def file(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return path

    def rows(self, query: str) -> str:
        """Rows of a table, in order."""
        return "\n".join(sorted(map(str, self.fleet.rows(query))))


def _furnish(fleet: Fleet) -> None:
    """A job that goes idle, one that shares its card, a warm service, free cards, and on the last
    day a runaway.
    """
    for number in range(1, 8):
        fleet.capacity(number, 0, node="n2" if number > 4 else "n1")
    fleet.workload(1, team="vision", project="seg")
    fleet.workload(2, team="nlp")
    fleet.workload(3, team="inference", serving="true")
    fleet.workload(4, team="vision")
    fleet.connection.execute("UPDATE workload SET name = 'job-' || external_id, user_name = 'ada'")
    last = (DAYS - 1) * DAY
    for at in range(0, DAYS * DAY, DAY):
        free = at + (23 * HOUR if at == last else DAY)
        fleet.evidence(
            [
                Held(number, 1, at, at + 10 * HOUR, busy=6 * HOUR, idle=4 * HOUR, energy=7_000_000)
                for number in (1, 2)
            ]
            + [Held(number, None, at + 10 * HOUR, free, "unallocated") for number in (1, 2)]
            + [Held(3, holder, at, at + DAY, busy=HOUR) for holder in (1, 2)]
            + [Held(4, None, at, at + DAY, "unallocated")]
        )
        fleet.evidence([Held(number, 3, at, at + DAY, idle=DAY) for number in (5, 6)], node="n2")
        fleet.evidence([Held(7, None, at, free, "unallocated")], node="n2")
    for at in range(last + 23 * HOUR, last + 23 * HOUR + 40 * MINUTE, MINUTE):
        fleet.evidence([Held(number, 4, at, at + MINUTE) for number in (1, 2, 7)])
    for number in (1, 2):
        minutes(fleet, number, last, last + 6 * HOUR, 0.9)
        minutes(fleet, number, last + 6 * HOUR, last + 10 * HOUR, 0.0)
    for number, utilization in ((5, 0.5), (6, 0.0)):
        minutes(fleet, number, last - 6 * DAY, last + DAY, utilization)
    _sample(fleet)


def _sample(fleet: Fleet) -> None:
    """Samples of the last hours, and of an hour of the second day."""
    partitions.ensure(fleet.connection, "gpu_sample", {OCTOBER + DAY, OCTOBER + (DAYS - 1) * DAY})
    for begin in (OCTOBER + DAY, NOW_MS - 20 * HOUR):
        fleet.connection.execute(
            "INSERT INTO gpu_sample (accelerator_id, at_ms, gpu_utilization_ratio, gpu_power_watts)"
            " SELECT %s, at, 0.5, 300 FROM generate_series(%s::bigint, %s::bigint - 1, 10000)"
            " AS at",
            (fleet.accelerator(1), begin, begin + HOUR),
        )


_Question = tuple[str, Callable[[], object]]


def _usage_as_columns(database: Database) -> list[tuple[object, ...]]:
    """As rating reads a large fleet, without the numbers that an engine gives."""
    day = Period(OCTOBER + DAY, OCTOBER + 2 * DAY)
    with database.transaction() as connection:
        pieces = hour_columns.read(connection, day, day.end_ms).pieces()
    return sorted(
        (one.start_ms, one.state, one.held_ms, one.busy_ms, one.idle_ms, one.energy_mj or -1)
        for one in pieces
    )


def _jobs(asking: _Asking) -> Iterator[_Question]:
    """What the collector does by itself."""
    database, later = asking.database, NOW_MS - HOUR
    spending = SpendingWatch(database)
    yield "fold and rate", lambda: refresh(database, ALWAYS, NOW_MS)
    yield (
        "usage of hours",
        lambda: asking.rows(
            "SELECT a.uuid, w.key, hour_ms, state, held_ms, busy_ms, idle_ms, u.energy_mj FROM"
            " usage_hour u JOIN accelerator a ON a.id = u.accelerator_id LEFT JOIN workload w ON"
            " w.id = u.workload_id"
        ),
    )
    yield "usage of hours, as columns", lambda: _usage_as_columns(database)
    yield "find idle", lambda: find_idle(database, later)
    yield "find idle again", lambda: find_idle(database, NOW_MS)
    yield "notify", lambda: notify_findings(database, NOW_MS, WRITERS)
    yield "watch spending", lambda: spending.run(NOW_MS - 18 * MINUTE)
    yield "recommend", lambda: recommend(database, NOW_MS)
    yield "series", lambda: roll_up_series(database, 0, NOW_MS)
    yield (
        "findings",
        lambda: asking.rows(
            "SELECT kind, team, state, since_ms, until_ms, cost_micro FROM finding"
        ),
    )


WRITERS = MailWriters(
    lambda *told: finding_mail.idle(*told, links=None),
    lambda *told: finding_mail.anomaly(*told, links=None),
    finding_mail.summary,
    spending_week_mail.spending_week,
)


def _reports(asking: _Asking) -> Iterator[_Question]:
    """Commands that read."""
    for arguments in (
        ("chargeback", *MONTH, "--by", "team,pool,model", "--format", "csv"),
        ("reconcile", *MONTH, "--evidence"),
        ("accelerators", *MONTH, "--format", "csv"),
        ("idle", "--now", "--format", "csv"),
        ("idle", "--services", "--format", "csv"),
        ("anomalies", *MONTH, "--format", "csv"),
        ("runs", *MONTH, "--format", "csv"),
        ("runs", "show", "job-1", "--format", "json"),
        ("receipt", "job-1"),
        ("recommend", "--format", "json"),
        ("nodes", "list", "--format", "json"),
        ("forecast",),
        ("scale", "advise", "--pool", "train", "--format", "json"),
        ("budgets", "--format", "json"),
        (
            "plan",
            "training",
            "--parameters",
            "7B",
            "--tokens",
            "10e9",
            "--gpus",
            "2",
            "--format",
            "json",
            "--from-ledger",
        ),
        ("export", "samples", *MONTH, "--node", "n1"),
    ):
        yield " ".join(arguments), lambda arguments=arguments: asking.run(*arguments)


def _pages(asking: _Asking) -> Iterator[_Question]:
    """What people and programs read over HTTP."""
    span = "from=2025-10-02&to=2025-10-04"
    for path in (
        "/",
        "/pools/?name=train",
        "/statements/team/vision/2025-10",
        f"/v1/series?{span}&by=team&step=1h",
        "/v1/samples?from=2025-10-02&to=2025-10-02T01:00:00Z&gpu=GPU-0001&metrics=gpu_power_watts",
        "/v1/nodes",
        "/v1/idle",
        "/fleet?color=owner",
        "/fleet?at=2025-10-02T05:00Z&color=use",
        "/fleet?at=2025-10-02T05:00Z&color=owner&format=csv",
        "/fleet/gpu/GPU-0001?from=2025-10-01&to=2025-10-04",
        f"/spend?{span}",
        f"/spend?{span}&by=model&format=csv",
        "/spend?from=2025-10-01&to=2025-10-05&by=pool",
        "/demand?gpus=2",
        "/demand?by=model&format=csv",
    ):
        yield path, lambda path=path: asking.get(path)
    yield "who held a sick GPU last", lambda: _sick(asking)


def _sick(asking: _Asking) -> str:
    asking.fleet.connection.execute(
        "UPDATE accelerator SET health = 'degraded', health_since_ms = %s WHERE uuid = 'GPU-0001'",
        (OCTOBER,),
    )
    text = asking.get("/fleet")
    assert "last held by" in text
    return text


def _imports(asking: _Asking) -> Iterator[_Question]:
    """Samples of an hour, packed, and of the same hour once more."""

    def lines(begin_ms: int) -> str:
        ticks = (
            {
                "offset_ms": at,
                "samples": [{"uuid": "GPU-0001", "values": {"gpu_utilization_ratio": 0.25}}],
            }
            for at in range(begin_ms - SECOND, begin_ms - SECOND + HOUR, MINUTE)
        )
        return "".join(json.dumps(line) + "\n" for line in (RECORDING, *ticks))

    start = ("--start", "2025-10-02T06:00:00Z")
    file = asking.file("samples.jsonl", lines(SECOND))
    yield "import samples", lambda: asking.run("import", "samples", file, *start)
    kept = ArchiveRetention(3, 0, 0)
    yield (
        "pack",
        lambda: [
            (day.day_ms, day.rows) for day in pack_samples(asking.database, kept, NOW_MS).packed
        ],
    )
    yield "import samples once more", lambda: asking.run("import", "samples", file, *start)
    late = asking.file("late.jsonl", lines(SECOND + 30_000))
    yield "import samples into a packed hour", lambda: asking.run("import", "samples", late, *start)
    yield "fold the packed hour", lambda: refresh(asking.database, ALWAYS, NOW_MS)
    yield "roll up minutes", lambda: roll_up_minutes(asking.database, Period(OCTOBER, NOW_MS))
    yield (
        "minutes",
        lambda: asking.rows(
            "SELECT accelerator_id, minute_ms, samples FROM gpu_minute WHERE minute_ms < "
            f"{OCTOBER + 2 * DAY}"
        ),
    )


def _disputes(asking: _Asking) -> Iterator[_Question]:
    """A dispute with its evidence: intervals, hours, minutes, samples and packed days."""
    span = ("--owner", "vision", "--from", "2025-10-02", "--to", "2025-10-03")
    yield "dispute", lambda: asking.run("disputes", "open", *span, "--reason", "not ours")

    def evidence() -> str:
        asking.run("disputes", "show", "1", "--evidence", asking.folder / "evidence.json")
        content = json.loads((asking.folder / "evidence.json").read_text())
        return json.dumps(
            {name: content[name] for name in ("lines", "usage_intervals", "hours", "samples")}
        )

    yield "evidence", evidence


def _remote_write(asking: _Asking) -> Iterator[_Question]:
    """Scrapes that Prometheus sends, metered twice."""
    begin = NOW_MS - 3 * HOUR

    def write(power: float) -> int:
        points = [
            point
            for at_ms in range(begin, begin + 3 * MINUTE, 15_000)
            for point in scrape(
                at_ms, 0, {"DCGM_FI_DEV_GPU_UTIL": power, "DCGM_FI_DEV_XID_ERRORS": 0.0}, **pod("p")
            )
        ]
        status, _, answer = asking.collector.request("POST", WRITE, snappy(one(points)), headers())
        assert status == 204, answer
        return wiring.metering(Settings()).run(Database(asking.dsn))

    yield "remote write", lambda: write(80.0)
    yield "remote write again", lambda: write(80.0)


def _changes(asking: _Asking) -> Iterator[_Question]:
    """Progress of a run, a node that leaves, a zone whose midnights cut hours."""
    made = batch(1, "n5", 1, NOW_MS - HOUR, samples=Samples())
    yield "a batch", lambda: asking.collector.send(made)[0]
    with psycopg.connect(asking.dsn) as connection:
        secret = create(connection, Token(0, "here", "agent", "n5", None, "", NOW_MS))[1]
    told = json.dumps({"steps": 5}).encode()
    authorized = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

    def progress() -> int:
        deadline = time.monotonic() + 60
        status = 0
        # Until the collector has read the new token, and what the node told last.
        while status not in {202, 400} and time.monotonic() < deadline:
            status = asking.collector.request("POST", "/v1/runs/job-1/progress", told, authorized)[
                0
            ]
            time.sleep(0.1)
        return status

    yield "progress", progress
    yield (
        "nodes retire",
        lambda: asking.run("nodes", "retire", "n2", "--at", "2025-10-17T00:00:00Z"),
    )
    for name, zone in (("zone", KOLKATA), ("zone again", KOLKATA.replace("Kolkata", "Tokyo"))):
        yield name, lambda zone=zone: asking.run("apply", asking.file("zone.toml", zone))
        yield f"bill after the {name}", lambda: _bill(asking)


def _bill(asking: _Asking) -> str:
    text = asking.run("chargeback", *MONTH, "--by", "team", "--format", "csv")
    return "\n".join(f"{row['team']} {row['cost']}" for row in csv.DictReader(io.StringIO(text)))


def _tenants(asking: _Asking) -> Iterator[_Question]:
    """Who asked the shared server, and what changes on pages that stay open. After the zone in
    which no server is split. The server was reported in two ways.
    """
    asking.fleet.connection.execute(
        "INSERT INTO workload_attributes (workload_id, digest, name, tags) SELECT id, sha256(n::bytea),"
        " n, tags FROM workload, unnest(ARRAY['chat-1', 'chat-2']) AS n WHERE tags->>'team' ="
        " 'inference'"
    )
    yield "declare a server", lambda: asking.run("apply", asking.file("server.toml", SERVER))
    table = "start,end,model,tenant,input_tokens,cached_tokens,output_tokens\n" + "".join(
        f"2025-10-0{day}T0{hour}:00:00Z,2025-10-0{day}T0{hour}:30:00Z,chat,{tenant},{100 * day},{hour},7\n"
        for day in (2, 3)
        for hour in (1, 5)
        for tenant in ("vision", "nlp")
    )
    file = asking.file("tokens.csv", table)
    yield "import inference", lambda: asking.run("import", "inference", file)
    yield "import inference once more", lambda: asking.run("import", "inference", file)
    for arguments in (("list", "--by", "tenant,day"), ("list", "--by", "hour"), ("servers",)):
        name = f"inference {' '.join(arguments)}"
        line = ("inference", *arguments, *MONTH, "--format", "csv")
        yield name, lambda line=line: asking.run(*line)
    yield "inference weights", lambda: asking.run("inference", "weights", *MONTH)
    charged = SERVER.replace("weights", 'mode = "charged"\nweights')
    yield "charge tenants", lambda: asking.run("apply", asking.file("charged.toml", charged))
    yield "bill of tenants", lambda: _bill(asking)
    span = "from=2025-10-02&to=2025-10-04"
    for path in (f"/models?{span}", f"/v1/inference?{span}"):
        yield path, lambda path=path: asking.get(path)

    def look() -> list[str]:
        watch = LiveWatch(asking.database)
        try:
            return [str(watch.look(NOW_MS).changes) for _ in range(2)]
        finally:
            watch.close()

    yield "live", look


def _packed_evidence(asking: _Asking) -> Iterator[_Question]:
    """Usage intervals packed, hours folded from them again, and rows again of one accelerator."""

    def fold() -> str:
        asking.fleet.connection.execute(
            "INSERT INTO hour_recompute (accelerator_id, hour_ms) SELECT DISTINCT accelerator_id,"
            " hour_ms - hour_ms % 3600000 FROM usage_hour"
        )
        refresh(asking.database, ALWAYS, NOW_MS)
        return _bill(asking)

    def evidence() -> list[Any]:
        source = usage_evidence.intervals(OCTOBER - DAY)
        return asking.rows(
            "SELECT accelerator_id, state, count(*), sum(held_ms), sum(busy_ms), sum(energy_mj),"
            f" max(seq), max(epoch::text) FROM {source} AS s GROUP BY 1, 2"
        )

    def unpack() -> bool:
        with asking.database.transaction() as connection:
            days_ms = range(OCTOBER, NOW_MS, DAY)
            return interval_packing.unpack(connection, [1], list(days_ms))

    yield "evidence in rows", evidence
    yield "pack usage intervals", lambda: str(pack_usage_intervals(asking.database, 1, NOW_MS))
    yield "packed evidence", evidence
    yield "bill of packed evidence", fold
    yield "deep proof of it", lambda: asking.run("reconcile", *MONTH, "--evidence")
    yield "unpack", unpack
    yield "pack them again", lambda: str(pack_usage_intervals(asking.database, 1, NOW_MS))
    yield "evidence packed again", evidence
