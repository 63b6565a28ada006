"""Questions with the worst filters to a ledger of a year of 200 GPUs in which 48,000 teams were
invented.
"""

from __future__ import annotations

import threading
import time
from itertools import cycle

import psycopg

from bench._attacks_arena import Arena, Row
from bench.dashboards import seed
from fakes.batches import HOUR_MS
from fakes.two_teams import NOW_MS, day, token

MIB = 1024 * 1024
GPUS, DAYS, CROWD = 200, 365, 48_000
SECONDS = 40
PAGE_BYTES = MIB
CROWDED = f"""
INSERT INTO owner (org, team, project) SELECT 'acme', 'crowd-' || n, '' FROM generate_series(1, {CROWD}) n;
INSERT INTO charge (day_ms, start_ms, end_ms, accelerator_id, workload_id, owner_id, state, pool, gpu_model, node,
        price_id, gpu_ns, busy_ns, idle_ns, unknown_ns, currency, cost_micro, idle_cost_micro)
    SELECT %(day)s, %(day)s, %(day)s + 20, 1, NULL, id, 'held', 'train', 'H100', 'node-0001', 1,
        20000000, 10000000, 10000000, 0, 'USD', 17 + id %% 1000, 8 FROM owner WHERE team LIKE 'crowd-%%';
INSERT INTO ledger_day (day_ms, owner_id, state, pool, gpu_model, currency, gpu_ns, busy_ns, idle_ns, unknown_ns,
        cost_micro, idle_cost_micro)
    SELECT day_ms, owner_id, state, pool, gpu_model, currency, gpu_ns, busy_ns, idle_ns, 0, cost_micro, idle_cost_micro
    FROM charge JOIN owner o ON o.id = owner_id WHERE o.team LIKE 'crowd-%%'
"""
"""A charge of 20 ms for each of them, today."""


class Year(Arena):
    """The arena over such a ledger; no agent but the neighbor reports."""

    def open(self) -> None:
        """Start it, write the year into its tables, and wait until nothing is being rated."""
        (self.folder / "mails").mkdir()
        self.collector.start()
        self.collector.wait_ready()
        self.dsn = self.collector.dsn()
        begun = time.monotonic()
        seed(self.dsn, GPUS, DAYS, NOW_MS // HOUR_MS * HOUR_MS)
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in CROWDED.split(";\n"):
                connection.execute(
                    psycopg.ClientCursor(connection).mogrify(statement, {"day": _today_ms()})
                )
            connection.execute("VACUUM ANALYZE")
        self.seeded_s = time.monotonic() - begun
        for name in ("finance", "viewer", "neighbor"):
            reach = {
                "viewer": {"owner": {"team": "crowd-7"}},
                "neighbor": {"node": "neighbor"},
            }.get(name, {})
            self.secrets[name] = token(
                self.dsn, "agent" if name == "neighbor" else name, name, **reach
            )
        for number in range(5):
            self.secrets[f"finance {number}"] = token(self.dsn, "finance", f"finance-{number}")


def _today_ms() -> int:
    return NOW_MS // (24 * HOUR_MS) * 24 * HOUR_MS


def year(rows: list[Row]) -> None:
    """Pages and answers alone, and then by six readers at once."""
    arena = Year(GPULEDGER_JOBS="false")  # which would rate the year again while it is written
    arena.rows = rows
    try:
        arena.open()
        _alone(arena)
        _at_once(arena)
    finally:
        arena.close()


def _paths() -> tuple[str, ...]:
    month, whole = day(0)[:7], f"from={day(-DAYS)}&to={day(1)}"
    return (
        "/",
        "/trust",
        f"/statements/team/{month}",
        f"/statements/team/crowd-7/{month}",
        "/jobs",
        f"/v1/chargeback?{whole}&by=team",
        f"/v1/chargeback?{whole}&by=workload,user,node,pool",
        f"/v1/runs?{whole}",
        f"/v1/accelerators?{whole}",
        f"/v1/series?{whole}&step=1d&by=team",
    )


def _alone(arena: Year) -> None:
    """One after the other: how long each takes, and how large it is."""
    with arena.attack(f"pages of a year and {CROWD:,} teams, one by one", "finance, viewer") as row:
        row.seen[f"seeded in {arena.seeded_s:.0f} s"] += 1
        for identity in ("finance", "viewer"):
            for path in _paths()[: None if identity == "finance" else 6]:
                begun = time.monotonic()
                status, told, text = arena.ask("GET", path, identity)
                seconds = time.monotonic() - begun
                print(
                    f"        {identity} {path[:60]}: {status}, {len(text):,} bytes,"
                    f" {seconds:.1f} s",
                    flush=True,
                )
                row.count(status)
                is_told = (
                    status == 503 and "Retry-After" in told and "ask for a shorter period" in text
                )
                row.expect(
                    status in {200, 403, 404, 422} or is_told,
                    f"{path} as {identity}: {status} {text[:100]}",
                )
                row.expect(
                    path.startswith("/v1/") or len(text) < PAGE_BYTES,
                    f"{path} has {len(text):,} bytes",
                )
                row.expect(seconds < 40, f"{path} as {identity} took {seconds:.0f} s")


def _at_once(arena: Year) -> None:
    """Six readers on four connections each."""
    with arena.attack("a year of data with the worst filters, at once", "finance, viewer") as row:
        end, before, most = time.monotonic() + SECONDS, arena.resident(), 0.0

        def ask(identity: str, first: int) -> None:
            paths = cycle((*_paths()[first:], *_paths()[:first]))
            while time.monotonic() < end:
                status, told, text = arena.ask("GET", next(paths), identity)
                row.count(status)
                row.expect(
                    status < 500 or (status == 503 and "Retry-After" in told),
                    f"{status} {text[:100]}",
                )

        identities = ["viewer", *(f"finance {number}" for number in range(5))]
        threads = [
            threading.Thread(target=ask, args=(identity, place * 3 % len(_paths())))
            for place, identity in enumerate(identities * 4)
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, arena.resident() - before)
            time.sleep(0.2)
        row.seen[f"memory {most:+.0f} MiB"] += 1
