"""Attacks that use what one token may: queues, owners, questions, disputes; and files and pages
that never end.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pyarrow
import pyarrow.parquet
from psycopg.conninfo import conninfo_to_dict

from bench._attacks_arena import JSON, Arena, Row
from bench._attacks_requests import NOW_MS
from fakes import hostile_pages as pages
from fakes.agents import Agent
from fakes.batches import HOUR_MS, batch, body_of, samples, workload
from fakes.hostile_pages import hostile
from fakes.ports import free_port
from fakes.processes import BIN, MSGPACK, environment
from fakes.sink import sink
from fakes.two_teams import OWN, day
from gpuledger_agent.exposition import MAX_CONNECTIONS
from gpuledger_collector.storage.server.embedded import LOGIN_SECONDS

MIB = 1024 * 1024
HOLD_S = 10
PAGE_BYTES = MIB
"""No page of any ledger is larger."""
BOMB_BYTES = 1_000_000_000


def queues(arena: Arena) -> None:
    """Bodies of queues that are held, that are large, that are old, and that are millions of
    workloads.
    """
    told = {
        "Host": "x",
        "Content-Type": "application/json",
        "Content-Length": str(32 * MIB),
        **arena.headers("agent"),
    }
    head = (
        "POST /v1/queue HTTP/1.1\r\n"
        + "".join(f"{name}: {value}\r\n" for name, value in told.items())
        + "\r\n"
    )
    size = (
        "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class WHERE relname LIKE"
        " 'queue_%%'"
    )
    # Before the clock runs: this process is the neighbor's as well.
    many = b",".join([b'{"workload_id":"0","gpus":1}'] * 1_000_000)
    large = [
        b",".join(
            f'{{"workload_id":"{n}","gpus":1,"team":"{number:0200x}","user":"{n:0400x}"}}'.encode()
            for n in range(40_000)
        )
        for number in range(6)
    ]
    with arena.attack("queues: held, large, old and of millions", "agent of a node") as row:
        before, resident = int(str(arena.query(size)[0][0])), arena.resident()
        with contextlib.ExitStack() as stack:
            for _ in range(5):
                connection = stack.enter_context(arena.socket())
                with contextlib.suppress(OSError):
                    connection.sendall(head.encode() + bytes(16 * MIB))
                row.count("body of 32 MiB held")
            time.sleep(HOLD_S)
        _reading(arena, row, many, NOW_MS, {413, 429})
        for number, users in enumerate(large):
            _reading(arena, row, users, NOW_MS - number * 1000, {413, 429})
        _reading(arena, row, b"", NOW_MS - 900 * 24 * HOUR_MS, {400, 429})
        grown, memory = int(str(arena.query(size)[0][0])) - before, arena.resident() - resident
        row.seen[f"tables {grown / MIB:+.0f} MiB, memory {memory:+.0f} MiB"] += 1
        row.expect(grown < 64 * MIB, f"queues grew by {grown / MIB:.0f} MiB")
        row.expect(memory < 400, f"the collector grew by {memory:.0f} MiB")


def _reading(arena: Arena, row: Row, waiting: bytes, at_ms: int, allowed: set[int]) -> None:
    body = f'{{"source":"slurm:x","at":{at_ms / 1000},"waiting":['.encode() + waiting + b"]}"
    status, _, text = arena.ask("POST", "/v1/queue", "agent", body, JSON)
    row.count(status or "cut off")
    row.expect(status in {0, *allowed}, f"a reading of {len(body):,} bytes: {status} {text[:100]}")


def owners(arena: Arena) -> None:
    """Thousands of teams by the token of one node, on new connections; then the pages that list
    them.
    """
    bodies = [_of_crowd(seq) for seq in range(8)]
    with arena.attack(
        "thousands of owners, and the pages that list them", "agent of a node, viewer, finance"
    ) as row:
        for body in bodies:
            status, _, text = arena.ask("POST", "/v1/batches", "agent", body, MSGPACK)
            row.count(status)
            row.expect(status in {200, 422, 429}, f"4,000 owners: {status} {text[:100]}")
        (names,) = arena.query("SELECT count(*) FROM workload WHERE external_id LIKE 'crowd-%%'")
        row.seen[f"{names[0]:,} names taken"] += 1
        row.expect(int(str(names[0])) <= 24_000, f"{names[0]} names of one node in an hour")
        for identity in ("finance", "viewer"):
            for path in ("/", "/trust", f"/statements/team/{day(0)[:7]}"):
                begun = time.monotonic()
                status, _, text = arena.ask("GET", path, identity)
                row.count(f"page {status}")
                row.expect(len(text) < PAGE_BYTES, f"{path} as {identity} has {len(text):,} bytes")
                row.expect(
                    time.monotonic() - begun < 30, f"{path} took {time.monotonic() - begun:.0f} s"
                )


def _of_crowd(seq: int) -> bytes:
    """A batch of 4,000 jobs, each of a team of its own."""
    jobs = [workload(f"crowd-{seq}-{n}", tags={"team": f"crowd-{seq}-{n}"}) for n in range(4000)]
    return body_of(
        batch(
            7000 + seq, f"{OWN}-node", 1, NOW_MS - HOUR_MS, samples=samples(1, []), workloads=jobs
        )
    )


def questions(arena: Arena) -> None:
    """Sixty connections of one viewer that ask without end, a third of which go away before the
    answer.
    """
    paths = (
        f"/v1/chargeback?period={day(0)[:7]}&by=team,user",
        f"/statements/team/{day(0)[:7]}",
        "/jobs",
        "/",
    )
    with arena.attack("questions on sixty connections", "viewer") as row:
        end = time.monotonic() + 15

        def ask(place: int) -> None:
            turn = place
            while time.monotonic() < end:
                turn += 1
                path = paths[turn % len(paths)]
                if place % 3:
                    status, told, text = arena.ask("GET", path, "viewer")
                    row.count(status)
                    row.expect(
                        status == 200 or (status in {429, 503} and "Retry-After" in told),
                        f"{path}: {status} {text[:100]}",
                    )
                else:
                    told_of = "".join(
                        f"{name}: {value}\r\n" for name, value in arena.headers("viewer").items()
                    )
                    with contextlib.suppress(OSError), arena.socket() as connection:
                        connection.sendall(
                            f"GET {path} HTTP/1.1\r\nHost: x\r\n{told_of}\r\n".encode()
                        )
                        time.sleep(0.1)
                    row.count("gone before the answer")

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(60)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def disputes(arena: Arena) -> None:
    """The same lines, contested forty times by their viewer, at once."""
    body = json.dumps(
        {"owner": {"team": OWN}, "from": day(-3), "to": day(-2), "reason": "x" * 2000}
    ).encode()
    with arena.attack("the same dispute forty times", "viewer") as row:
        with ThreadPoolExecutor(4) as pool:
            answers = [
                pool.submit(arena.ask, "POST", "/v1/disputes", "viewer", body, JSON)
                for _ in range(40)
            ]
        statuses = [answer.result()[0] for answer in answers]
        for status in statuses:
            row.count(status)
        row.expect(statuses.count(201) == 1, f"{statuses.count(201)} disputes of the same lines")
        row.expect(set(statuses) <= {201, 409, 429, 503}, f"answers {set(statuses)}")


def files(arena: Arena) -> None:
    """A file of a megabyte that inflates to one gigabyte, as jobs and as a bill; one of commas, and
    Parquet of some kilobytes whose rows have four gigabytes.
    """
    bomb = arena.folder / "bomb.csv.gz"
    with gzip.open(bomb, "wb") as file:
        for _ in range(BOMB_BYTES // MIB):
            file.write(b"A" * MIB)
    commas = arena.folder / "commas.csv"
    commas.write_text("," * 50_000_000)
    parquet = arena.folder / "bill.parquet"
    repeated = pyarrow.DictionaryArray.from_arrays([0] * 1_000, ["A" * 4_500_000])
    pyarrow.parquet.write_table(
        pyarrow.table({"ChargeDescription": repeated}), parquet, compression="zstd"
    )
    with arena.attack("files that inflate or ask for memory", "whoever runs a command") as row:
        for words in (
            ("start", str(bomb), "--dry-run"),
            ("import", "usage", str(bomb), "--dry-run"),
            ("start", str(commas), "--dry-run"),
            ("import", "bill", str(parquet), "--dry-run"),
        ):
            with (arena.folder / "command.log").open("wb") as log:
                process = subprocess.Popen(
                    [BIN / "gpuledger", *words],
                    env=environment(GPULEDGER_DSN=arena.dsn),
                    stdout=log,
                    stderr=log,
                )
                _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            row.count(
                f"exit {process.returncode}, {usage.ru_maxrss / 1024:,.0f} MiB,"
                f" {usage.ru_utime:.0f} s"
            )
            row.expect(
                process.returncode == 2, f"{' '.join(words)}: exit code {process.returncode}"
            )
            row.expect(
                usage.ru_maxrss < 1_300_000,
                f"{' '.join(words)} took {usage.ru_maxrss / 1024:,.0f} MiB",
            )


PAGES = {
    "drips": pages.drip,
    "drips its head": pages.drip_headers,
    "says nothing": pages.say_nothing,
    "never ends": pages.never_end,
    "inflates": pages.inflate,
    "redirects": pages.redirect("http://127.0.0.1:1/metrics"),
    "has a million lines": pages.send(b"a 1\n" * 1_000_000),
    "has a line of blanks": pages.send(b"a" + b" " * 1_000_000 + b"\n" + pages.LINE),
    "repeats": pages.send(pages.LINE * 40_000),
    "has 60,000 devices": pages.send(
        b"".join(
            b'DCGM_FI_DEV_GPU_UTIL{gpu="%d",UUID="GPU-%d"} 5\n' % (number, number)
            for number in range(60_000)
        )
    ),
}
"""Pages of an exporter, by what is wrong with them."""
AGENTS_AT_ONCE = 5


def agents(arena: Arena) -> None:
    """An agent before each page: it sends heartbeats, and ends at SIGTERM."""
    with (
        arena.attack(
            f"an agent before {len(PAGES)} hostile pages", "owner of an exporter's port"
        ) as row,
        ThreadPoolExecutor(AGENTS_AT_ONCE) as threads,
    ):
        for ended in [
            threads.submit(_before_page, row, name, respond) for name, respond in PAGES.items()
        ]:
            ended.result()


def _before_page(row: Row, name: str, respond: Callable[[socket.socket], None]) -> None:
    with hostile(respond) as url, sink() as target, tempfile.TemporaryDirectory() as folder:
        running = Agent(Path(folder), target.url, source="exporter", target=url).start()
        deadline = time.monotonic() + 60
        while not target.batches and time.monotonic() < deadline:
            time.sleep(0.1)
        row.expect(target.batches, f"before a page that {name} an agent sends nothing in 60 s")
        begun = time.monotonic()
        running.process.send_signal(signal.SIGTERM)
        try:
            running.process.wait(60)
        except subprocess.TimeoutExpired:
            running.process.kill()
        seconds = time.monotonic() - begun
        row.count("ended at SIGTERM" if running.process.wait() == 0 else "killed")
        row.expect(
            running.process.returncode == 0,
            f"before a page that {name} SIGTERM took {seconds:.0f} s",
        )


def listener(arena: Arena) -> None:
    """Connections to an agent's /metrics that drip, four times as many as it takes: it sends its
    batches all the while.
    """
    port = free_port()
    with (
        arena.attack("an agent's /metrics", "any user of a node") as row,
        sink() as target,
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        running = Agent(Path(folder), target.url, metrics_listen=f"127.0.0.1:{port}").start()
        stack.callback(running.process.kill)
        running.wait_for(lambda: target.batches)
        for _ in range(4 * MAX_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), 30))
            with contextlib.suppress(OSError):
                connection.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
            row.count("opened")
        before, deadline = len(target.batches), time.monotonic() + 60
        while len(target.batches) <= before + 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        row.expect(len(target.batches) > before + 2, "an agent sends nothing meanwhile")
        threads = len(list(Path(f"/proc/{running.process.pid}/task").iterdir()))
        row.expect(threads < 2 * MAX_CONNECTIONS + 16, f"it has {threads} threads")
        row.expect(running.stop() == 0, "it does not end at SIGTERM")


_WHO = b"user\0gpuledger\0database\0gpuledger\0\0"
STARTUP = struct.pack("!ii", len(_WHO) + 8, 3 << 16) + _WHO
"""What a connection sends before it is asked for a password."""


def logins(arena: Arena) -> None:
    """A hundred connections to the embedded Postgres that do not log in: no new session begins for
    the time of a login, which security.md says, and not for longer; the sessions that the collector
    has go on.
    """
    host = conninfo_to_dict(arena.dsn)
    address = (str(host["host"]), int(str(host["port"])))
    with (
        arena.attack(
            "connections that do not log in", "programs on the collector's machine"
        ) as row,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(100):
            connection = stack.enter_context(socket.create_connection(address, 30))
            connection.sendall(STARTUP)
            row.count("opened")
        begun, is_refused = time.monotonic(), True
        while is_refused and time.monotonic() < begun + 60:
            try:
                psycopg.connect(arena.dsn, connect_timeout=5).close()
                is_refused = False
            except psycopg.OperationalError:
                row.count("a session of the ledger is refused")
                time.sleep(0.5)
        seconds = time.monotonic() - begun
        row.expect(seconds < LOGIN_SECONDS + 10, f"sessions were refused for {seconds:.0f} s")
        time.sleep(5)
    # It begins a session of its own, and says rightly that there is none.
    row.holes[:] = [hole for hole in row.holes if not hole.startswith("/readyz said 503")]


ATTACKS = (questions, disputes, queues, owners, files, agents, listener)
