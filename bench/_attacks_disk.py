"""Attacks on a collector of three workers whose data lies on a small disk: temporary files, a full
disk, WAL.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from bench._attacks_arena import Arena, Row
from fakes import two_teams
from fakes.batches import HOUR_MS, batch, body_of
from fakes.postgres import open_folder
from fakes.processes import MSGPACK
from fakes.two_teams import OWN, token

MIB = 1024 * 1024
DISK_MIB = 900
WORKERS = 3
SENDERS = 6
FULL_S = 20
LEFT_MIB = 6
"""What stays free of a disk that is full."""
SPILL = """SELECT count(*) FROM (
    SELECT repeat(md5(i::text), 60) FROM generate_series(1, 3000000) i ORDER BY 1 OFFSET 0) x"""
STORED = (
    "SELECT n.name, b.seq FROM ingest_batch b JOIN node n ON n.id = b.node_id WHERE n.name LIKE"
    " 'sender-%%'"
)


@contextlib.contextmanager
def small_disk() -> Iterator[Path | None]:
    """A folder on a disk of 900 MB; None where none may be mounted."""
    folder = open_folder("gpuledger-attacks-disk-")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=0755", "tmpfs", str(folder)]
    is_mounted = (
        not os.geteuid() and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    )
    try:
        yield folder if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


class Disk(Arena):
    """The arena on that disk; only nodes and one viewer are known to it."""

    def open(self) -> None:
        """Start it, asking for /readyz from the first moment on."""
        (self.folder / "mails").mkdir()
        self.collector.start()
        begun, slowest = time.monotonic(), 0.0
        while not self._answers():
            time.sleep(0.05)
        while time.monotonic() - begun < 120:
            asked = time.monotonic()
            status, text = self.collector.get("/readyz")
            slowest = max(slowest, time.monotonic() - asked)
            if status == 200 and f'"workers":"{WORKERS} of {WORKERS}"' in text:
                break
        self.slowest_start_s = slowest
        self.dsn = self.collector.dsn()
        for name in ("neighbor", *(f"sender-{number}" for number in range(SENDERS))):
            self.secrets[name] = token(self.dsn, "agent", name, node=name)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError):
            return self.collector.get("/readyz")[0] == 200
        return False


def disk(rows: list[Row]) -> None:
    """Everything that needs a disk of its own."""
    with small_disk() as folder:
        if folder is None:
            print("attacks on a full disk need root, which may mount one: not done", flush=True)
            return
        arena = Disk(folder, GPULEDGER_WORKERS=str(WORKERS))
        arena.rows = rows
        try:
            arena.open()
            _starting(arena)
            _temporary_files(arena)
            _full(arena)
        finally:
            arena.close()


def _starting(arena: Disk) -> None:
    with arena.attack(f"requests while {WORKERS} workers start", "nobody") as row:
        row.count(f"slowest /readyz {arena.slowest_start_s:.1f} s")
        row.expect(
            arena.slowest_start_s < 5,
            f"a request waited {arena.slowest_start_s:.1f} s for a worker that starts",
        )


def _temporary_files(arena: Disk) -> None:
    """Four sessions of a team's role that sort without end, with all their limits lifted; then the
    role is revoked.
    """
    role = "spilling_reader"
    (arena.folder / "password").write_text("a password\n")
    arena.command(
        "db",
        "grant-reader",
        role,
        "--owner",
        f"team={OWN}",
        "--password-file",
        str(arena.folder / "password"),
    )
    address = make_conninfo(arena.dsn, user=role, password="a password")
    with arena.attack("temporary files of a team's role", "dashboards of a team") as row:
        end, least = time.monotonic() + 15, shutil.disk_usage(arena.folder).free

        def spill() -> None:
            while time.monotonic() < end:
                try:
                    with psycopg.connect(address, autocommit=True) as session:
                        session.execute("SET default_transaction_read_only = off")
                        session.execute("SET statement_timeout = 0")
                        session.execute("SET work_mem = '64kB'")
                        session.execute(SPILL)
                        row.count("sort done")
                except psycopg.Error as error:
                    row.count(type(error).__name__)

        threads = [threading.Thread(target=spill) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            least = min(least, shutil.disk_usage(arena.folder).free)
            time.sleep(0.05)
        row.seen[f"at least {least / MIB:.0f} MiB stayed free"] += 1
        with psycopg.connect(address, autocommit=True) as session:
            session.execute("SELECT count(*) FROM charge")
            arena.command("db", "revoke-reader", role)
            try:
                session.execute("SELECT count(*) FROM charge")
                row.expect(False, "a revoked role goes on reading")
            except psycopg.Error as error:
                row.count(f"revoked: {type(error).__name__}")


def _full(arena: Disk) -> None:
    """Six nodes send while the disk fills up, is full for a while, and is free again; WAL is kept
    within its bound.
    """
    row = Row(f"a full disk under {WORKERS} workers, and WAL", "agents of six nodes")
    arena.rows.append(row)
    acknowledged: set[tuple[str, int]] = set()
    over, lock, largest_wal = threading.Event(), threading.Lock(), 0

    def send(name: str) -> None:
        seq = 0
        while not over.is_set():
            start_ms = two_teams.NOW_MS - 12 * HOUR_MS + seq * 60_000
            body = body_of(batch(seq, name, 8, start_ms))
            begun = time.monotonic()
            status = arena.ask("POST", "/v1/batches", name, body, MSGPACK)[0]
            row.count(status or "cut off")
            row.expect(status in {0, 200, 429, 503}, f"a batch on a full disk: {status}")
            if status == 200:
                with lock:
                    acknowledged.add((name, seq))
                    row.waits.append(time.monotonic() - begun)
                seq = (seq + 1) % 700
            else:
                time.sleep(0.2)

    threads = [
        threading.Thread(target=send, args=(f"sender-{number}",)) for number in range(SENDERS)
    ]
    with ending(threads, over):
        time.sleep(10)
        ballast = arena.folder / "ballast"
        _fill(ballast)
        statuses: set[int] = set()
        for _ in range(FULL_S * 2):
            with contextlib.suppress(OSError):
                statuses.add(arena.collector.get("/readyz")[0])
            largest_wal = max(largest_wal, _wal_bytes(arena.folder))
            time.sleep(0.5)
        row.expect(503 in statuses, f"/readyz on a full disk said {statuses}")
        ballast.unlink()
        before = len(acknowledged)
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and len(acknowledged) < before + 20:
            time.sleep(0.2)
        row.expect(
            len(acknowledged) >= before + 20,
            "after the disk was freed no batch was taken for two minutes",
        )
    stored = {(str(name), int(str(seq))) for name, seq in arena.query(STORED)}
    row.lost = len(acknowledged - stored)
    row.seen[f"{len(acknowledged):,} acknowledged"] += 1
    row.seen[f"WAL up to {largest_wal / MIB:.0f} MiB"] += 1
    row.expect(not row.lost, f"{row.lost} acknowledged batches are not stored")


@contextlib.contextmanager
def ending(threads: list[threading.Thread], over: threading.Event) -> Iterator[None]:
    """Start these threads; they are told that it is over when the block ends, however it does."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(90)


def _fill(path: Path) -> None:
    """Take the disk but for a few MiB, piece by piece, since others write at the same time."""
    with path.open("wb") as file, contextlib.suppress(OSError):
        while (free := shutil.disk_usage(path.parent).free - LEFT_MIB * MIB) > 0:
            os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), min(free, 16 * MIB))


def _wal_bytes(folder: Path) -> int:
    total = 0
    for path in (folder / "data").rglob("pg_wal/*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size
    return total
