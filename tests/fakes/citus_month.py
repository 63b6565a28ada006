"""A month on one engine, from the schema to a restored backup: what every step printed, and how
long it took.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from fakes.ledger_questions import ask
from fakes.processes import BIN, environment
from fakes.replicas import Replica, replicas, until
from fakes.statement_trace import ahead, settings, tracing
from gpuledger_collector import wiring
from gpuledger_collector.accounting.period import DAY_MS
from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain
from gpuledger_collector.services.upkeep import (
    RetentionDays,
    expire,
    roll_up_node_utilization,
    roll_up_pool_hours,
)
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.telemetry import retention, slow_metrics
from gpuledger_common.instants import to_ms

TODAY = dt.datetime.now(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
AHEAD_MS = to_ms(TODAY) + DAY_MS // 2 - wiring.read_clock()
"""What the collector's clock is ahead of this machine's (or behind): it begins at noon, so that both
engines play the same day whenever the test runs.
"""
FIRST = TODAY.replace(day=1)
"""The month before it is closed."""
MONTH = f"{FIRST - dt.timedelta(days=1):%Y-%m}"
BEGIN = FIRST - dt.timedelta(days=3)
NODES, LATE = ("h100-01", "a100-01"), "l40s-01"
"""Two nodes send before the close, a third one after it."""
BILL = ("chargeback", "--period", MONTH, "--by", "team,project,pool", "--format", "csv")
PRICES = (
    "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from,effective_to,list_rate\n"
    + "".join(
        f",{model},on_demand,{rate},USD,{BEGIN - dt.timedelta(days=60):%Y-%m-%dT%H:%M:%SZ},,{rate}\n"
        for model, rate in (("H100", "6.88"), ("A100", "3.43"), ("L40S", "1.86"))
    )
)
TABLE_EVIDENCE = """
SELECT md5(string_agg(line, E'\\n' ORDER BY line)) || ' ' || count(*) FROM (
    SELECT concat_ws(' ', a.uuid, w.key, u.hour_ms, u.state, u.held_ms, u.busy_ms, u.idle_ms, u.unknown_ms, u.energy_mj)
    AS line FROM usage_hour u JOIN accelerator a ON a.id = u.accelerator_id
    LEFT JOIN workload w ON w.id = u.workload_id) AS lines
"""


@dataclass
class Played:
    """What every step printed on one engine, by its name, and how long it took."""

    dsn: str
    is_citus: bool
    folder: Path
    texts: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def trace(self) -> Path:
        """The file with every statement that was run."""
        return self.folder / "statements.txt"

    def command(self, *arguments: str | Path, ends: int = 0) -> str:
        """Standard output of a gpuledger command on this engine."""
        result = CliRunner().invoke(build(), [*map(str, arguments), "--dsn", self.dsn])
        said, code = result.output, result.exit_code
        if isinstance(result.exception, Exception):
            said, code = explain(result.exception)
        assert code == ends, f"{' '.join(map(str, arguments))} ended with {code}: {said}"
        return str(result.stdout)

    def step(self, name: str, work: Callable[[], object]) -> None:
        """Do something and keep what it says."""
        begun = time.monotonic()
        self.texts[name] = str(work())
        self.seconds[name] = time.monotonic() - begun

    def value(self, query: str) -> object:
        """One value from the database."""
        with psycopg.connect(self.dsn) as connection:
            row = connection.execute(query.encode()).fetchone()
        return None if row is None else row[0]


def simulate(replica: Replica, node: str, begin: dt.datetime) -> None:
    """Send a node's last days of the month by the real meter, spool and push."""
    folder = replica.folder / node
    folder.mkdir()
    arguments = [
        "--from",
        begin.isoformat(),
        "--to",
        FIRST.isoformat(),
        "--step",
        "5m",
        "--only",
        node,
    ]
    subprocess.run(
        [BIN / "gpuledger-agent", "simulate", *arguments, "--collector", replica.url],
        check=True,
        env=environment(),
        cwd=folder,
        capture_output=True,
        timeout=300,
    )


def ingest(played: Played, name: str, nodes: tuple[str, ...], begin: dt.datetime) -> str:
    """Send nodes by two collectors at once, whose jobs run every second; wait until all is folded
    and rated.
    """
    folder = played.folder / name
    folder.mkdir()
    # States of the last month are older than a default keeps them, from the middle of the next one
    # on.
    traced = settings(folder / "traced", played.trace, AHEAD_MS)
    with replicas(folder, played.dsn, 2, GPULEDGER_KEEP_STATE_DAYS="0", **traced) as pair:
        threads = [
            threading.Thread(target=simulate, args=(pair[number % 2], node, begin))
            for number, node in enumerate(nodes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: not played.value("SELECT count(*) FROM hour_recompute"), 300)
        until(lambda: not played.value("SELECT count(*) FROM day_recompute"), 300)
        until(lambda: played.value("SELECT count(*) FROM finding_progress"), 300)
        # Due every hour: where the collectors began before the first batch, it found no day yet.
        roll_up_node_utilization(Database(played.dsn), 0, wiring.read_clock())
        roll_up_pool_hours(Database(played.dsn), wiring.read_clock())
        logs = "".join(one.log() for one in pair)
    refused = re.search(
        r"psycopg\.errors\.(?:FeatureNotSupported|ActiveSqlTransaction|Internal).*", logs
    )
    assert refused is None, logs[logs.index("Traceback") - 200 :][:3000]
    return f"{played.value('SELECT count(*) FROM ingest_batch')} batches"


def play_days(played: Played, dsn: str) -> None:
    """The questions of `fakes.ledger_questions` on an empty database of the same engine."""
    small = Played(dsn, played.is_citus, played.folder, played.texts, played.seconds)
    small.command("db", "upgrade")
    if played.is_citus:
        small.command("db", "distribute", "--shards", "8")
    with tracing(played.trace):
        ask(dsn, played.folder, lambda name, question: small.step(f"days: {name}", question))


def play_month(played: Played, plain: str | None) -> None:
    """`play`, writing down every statement that is run."""
    with tracing(played.trace), ahead(AHEAD_MS):
        play(played, plain)


def play(played: Played, plain: str | None) -> None:
    """Everything that a month brings, on one engine; `plain`: an empty Postgres to restore the
    backup into, if any.
    """
    prices = played.folder / "prices.csv"
    prices.write_text(PRICES)
    dump = played.folder / "ledger.dump"
    played.step("schema", lambda: played.command("db", "upgrade") and "")
    if played.is_citus:
        played.step("distribute", lambda: played.command("db", "distribute", "--shards", "8"))
    played.step("prices", lambda: played.command("import", "prices", prices))
    played.step("import of a table, twice", lambda: imported(played))
    played.step("import of sacct's text over it", lambda: replaced(played))
    played.step("start with a table", lambda: started(played))
    played.step(
        "ingest by two collectors, fold, rate", lambda: ingest(played, "first", NODES, BEGIN)
    )
    played.step("usage by the hour", lambda: played.value(TABLE_EVIDENCE))
    played.step(
        "minutes", lambda: played.value("SELECT count(*) || ' ' || sum(samples) FROM gpu_minute")
    )
    played.step("chargeback CSV", lambda: played.command(*BILL))
    played.step("reconcile (proof)", lambda: played.command("reconcile", "--period", MONTH))
    played.step("idle", lambda: played.command("idle", "--period", MONTH, "--format", "csv"))
    played.step("close (receipt)", lambda: receipt(played.command(*close_of("json"))))
    played.step("seal", lambda: seal(played))
    played.step(
        "late node after the close",
        lambda: ingest(played, "late", (LATE,), FIRST - dt.timedelta(hours=12)),
    )
    played.step(
        "corrections", lambda: played.command("corrections", "--period", MONTH, "--format", "csv")
    )
    played.step("chargeback CSV after it", lambda: played.command(*BILL))
    played.step("pack", lambda: pack(played))
    samples = ("export", "samples", "--period", MONTH, "--node", NODES[0])
    played.step("samples, packed", lambda: played.command(*samples))
    played.step("privacy show", lambda: played.command("privacy", "show", person(played)))
    played.step(
        "privacy erase",
        lambda: re.sub("erased-[0-9a-f]+", "", played.command("privacy", "erase", person(played))),
    )
    played.step("retention", lambda: retire(played))
    played.step("seal at the end", lambda: seal(played))
    played.step("backup", lambda: played.command("db", "backup", dump) and "")
    if plain is not None:
        other = Played(plain, False, played.folder)
        played.step("restore on one Postgres", lambda: restored(other, dump))


JOBS = "job_id,user,account,start,end,gpus,gpu_model,pool\n" + "".join(
    f"{number},ann,{account},{BEGIN:%Y-%m-%d}T{number:02}:00:00Z,{BEGIN:%Y-%m-%d}T{number + 2:02}:00:00Z,4,H100,batch\n"
    for number, account in enumerate(("vision", "nlp", "vision"), start=1)
)
BEGIN_S = int(BEGIN.timestamp())
SACCT = "".join(
    f"{number}|c1|vision|ann|batch|normal|COMPLETED|{BEGIN_S}|{BEGIN_S}|{BEGIN_S + 3600 * number}"
    f"|{BEGIN_S + 3600 * (number + 2)}|7200|00:00:00|gres/gpu:h100=4|n1|||train\n"
    for number in (1, 3)
)


def imported(played: Played) -> str:
    """A table of jobs, again without the users and with another end, again with the first one."""
    jobs = played.folder / "jobs.csv"
    fewer = "".join(re.sub(r",\w+", "", line, count=1) + "\n" for line in JOBS.splitlines())
    outputs = []
    for text in (JOBS, fewer.replace("T04:", "T05:"), fewer):
        jobs.write_text(text)
        outputs.append(played.command("import", "usage", jobs))
    return "".join(outputs)


def replaced(played: Played) -> str:
    """Slurm's accounting of the same time is refused, and then takes the table's place."""
    dump = played.folder / "sacct.txt"
    dump.write_text(SACCT)
    words = ("import", "sacct", dump)
    return played.command(*words, ends=2) + played.command(*words, "--replace")


def started(played: Played) -> str:
    """The bill of a table by one command, without what is the time of its run."""
    jobs = played.folder / "lab.csv"
    jobs.write_text(JOBS.replace(",batch\n", ",lab\n"))
    output = played.command("start", jobs, "--rate", "2.5", "--yes")
    return output.replace(str(played.folder), "")


def close_of(form: str) -> tuple[str, ...]:
    return "close", "--period", MONTH, "--by", "tests", "--format", form


def receipt(text: str) -> str:
    """A receipt without the instant of the close."""
    return json.dumps(
        {key: value for key, value in json.loads(text).items() if key != "closed_at"}, indent=1
    )


def seal(played: Played) -> str:
    """The seal of the month, and whether its lines still match it."""
    rows = json.loads(played.command("periods", "--verify", MONTH, "--format", "json"))
    return " ".join(f"{row['seal']} intact: {row['intact']}, {row['lines']} lines" for row in rows)


def person(played: Played) -> str:
    return str(played.value("SELECT min(user_name) FROM workload WHERE user_name <> ''"))


def pack(played: Played) -> str:
    """What is packed, without bytes and without changes of slow metrics: their number depends on the
    order in which batches arrive, and collectors pack them as well.
    """
    said = played.command("db", "pack")
    return re.sub(r", \d+ bytes to \d+|[\d,]+ changes? of slow metrics packed", "", said)


def retire(played: Played) -> str:
    """What is removed a quarter later: usage intervals of the closed month, minutes, states, names."""
    later_ms = to_ms(TODAY + dt.timedelta(days=100))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wiring, "read_clock", lambda: later_ms)
        patch.setenv("GPULEDGER_KEEP_USAGE_INTERVAL_DAYS", "39")
        patch.setenv("GPULEDGER_KEEP_ARCHIVE_DAYS", "60")
        packed = pack(played)
    database = Database(played.dsn)
    # Not by the job, which keeps minutes of days whose node utilization another hourly job has yet
    # to compute.
    minutes = retention.expire_minutes(database, later_ms - 30 * DAY_MS, lambda: False)
    # Of slow metrics the number of rows depends on the order in which batches arrive: an older
    # reading is kept as well.
    assert slow_metrics.expire(database, later_ms - 14 * DAY_MS, lambda: False) > 0
    expired = expire(database, RetentionDays(0, 0, 0, 60, 60), later_ms)
    return f"{packed}{minutes} minutes {expired}"


def restored(other: Played, dump: Path) -> str:
    """The bill and the seal of a backup, on one plain Postgres."""
    other.command("db", "restore", dump)
    return f"{seal(other)}\n{other.command(*BILL)}"


def versions(citus: str) -> str:
    """What the cluster is."""
    with psycopg.connect(citus) as connection:
        row = connection.execute(
            "SELECT 'Citus ' || extversion || ' on PostgreSQL ' ||"
            " current_setting('server_version') || ', ' || (SELECT count(*) FROM pg_dist_node WHERE"
            " shouldhaveshards) || ' workers with ' || (SELECT count(*) FROM pg_dist_shard WHERE"
            " logicalrelid = 'usage_interval'::regclass) || ' shards of each table' FROM"
            " pg_extension WHERE extname = 'citus'"
        ).fetchone()
    return str(row and row[0])


def table(one: Played, citus: Played) -> str:
    """A line for each step: seconds on both, and whether they said the same."""
    lines = [f"{'step':60} {'one Postgres':>12} {'Citus':>8}  equal"]
    for name, text in citus.texts.items():
        if name not in one.texts:
            lines.append(f"{name[:60]:60} {'-':>12} {citus.seconds[name]:6.1f} s")
            continue
        equal = "-" if not text else f"{len(text):,} bytes" if one.texts[name] == text else "NO"
        lines.append(
            f"{name[:60]:60} {one.seconds[name]:10.1f} s {citus.seconds[name]:6.1f} s  {equal}"
        )
    return "\n".join([*lines, f"seal on both: {citus.texts['seal'].split()[0]}"])
