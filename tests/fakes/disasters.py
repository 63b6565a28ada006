"""Disasters for a collector behind a broken network, and the fleet that lives through them.

Named points of a kill need no hook in the product: outside the database the proxy holds a request
there, inside of a transaction a lock on the next table that it writes does.
"""

import asyncio
import contextlib
import http.client
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

import psycopg

from fakes.batches import EPOCH
from fakes.poison import poisons
from fakes.postgres import open_folder
from fakes.processes import BIN, MSGPACK, CollectorProcess, free_port
from fakes.proxy import POINTS, ProxyProcess
from fakes.truth import Node, Truth, Verdict, body_of, judge, small_disk
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.upkeep import pack_usage_intervals
from gpuledger_collector.storage.database import Database

TABLES = {
    "ingest_batch": "the transaction has begun",
    "usage_interval": "the key is written",
    "hour_recompute": "the usage intervals are written",
    "gpu_sample": "the hours are marked",
    "gpu_latest": "the samples are written",
}
"""A lock on the table stops a transaction just there."""
IN_TRANSACTION = "in a transaction, "
HERD = 2000
PACKED_AFTER_DAYS = 37


class FaultyFleet:
    """A collector with its database, the proxy before it, the nodes behind that, and one ledger of
    truth.
    """

    def __init__(
        self,
        seed: int,
        nodes: int = 12,
        rate: float = 0.6,
        spools: Path | None = None,
        workers: int = 1,
    ) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        self.folder = open_folder("gpuledger-faults-")
        self.spools = Path(spools) if spools else self.folder / "spools"
        self.collector = CollectorProcess(self.folder, GPULEDGER_WORKERS=str(workers))
        self.worker_count = workers
        self.truth = Truth()
        self.faults: Counter = Counter()
        self.poisoned: Counter = Counter()
        self._rate, self._count = rate, nodes
        self._stack = contextlib.ExitStack()
        self._threads: list[threading.Thread] = []
        self.nodes: list[Node] = []
        self._herds = 0
        self.stampede_said = "none"
        self._poisons = 0

    def __enter__(self) -> "FaultyFleet":
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._stack.callback(shutil.rmtree, self.spools, ignore_errors=True)
        self._stack.callback(self._stop_collector)
        self.collector.start()
        self.collector.wait_ready()
        self.proxy = ProxyProcess(self.collector.port, self.seed, self._rate)
        self._stack.callback(self.proxy.close)
        tight = self._stack.enter_context(small_disk(self.spools / "node-disk"))
        for number in range(self._count):
            self._add(f"node-{number}", self.spools / f"node-{number}")
        self._add("node-small", self.spools / "node-small", 2**18)
        if tight is not None:
            self._add("node-disk", tight)
        for node in self.nodes:
            self._threads.append(threading.Thread(target=node.run, name=node.name, daemon=True))
            self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.stopping.set()
        self._stack.close()

    def _add(self, name: str, folder: Path, max_bytes: int = 2**26) -> None:
        self.nodes.append(Node(self.truth, name, self.proxy.port, folder, max_bytes))

    def _stop_collector(self) -> None:
        if self.collector.process is not None and self.collector.process.poll() is None:
            self.collector.stop()

    def injected(self) -> Counter:
        """Every fault done so far, by kind."""
        _, counts = self.proxy.counts()
        for node in self.nodes:
            counts.update(node.faults)
        return counts + self.faults + self.poisoned

    # What an operator, a kernel or a bad day does.

    def _kill(self, how: str) -> None:
        """SIGKILL the collector, and start it again; of several workers all, one, or their
        supervisor.
        """
        victims = (
            ["collector"]
            if self.worker_count == 1
            else ["supervisor", "worker", "worker", "every worker"]
        )
        victim = self.chance.choice(victims)
        self.faults[f"{victim} killed: {how}"] += 1
        workers = list(self.collector.workers().values())
        if victim in {"collector", "supervisor"} or not workers:
            self.collector.kill()
            self.collector.start()
            return
        for pid in workers if victim == "every worker" else [self.chance.choice(workers)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _start_again(self, how: str) -> None:
        self._kill(how)
        self.collector.wait_ready()

    def renew_workers(self) -> None:
        """SIGHUP: every worker is replaced, one after the other."""
        assert self.collector.process is not None
        self.collector.wait_serving(self.worker_count)
        before = set(self.collector.workers().values())
        self.faults["rolling restart of the workers"] += 1
        self.collector.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 120
        while before & set(self.collector.workers().values()):
            assert time.monotonic() < deadline, "the workers were not replaced"
            time.sleep(0.05)

    def kill_at_random(self) -> None:
        """SIGKILL whatever it does."""
        time.sleep(self.chance.uniform(0, 0.2))
        self._start_again("at random")

    def kill_at_point(self) -> None:
        """SIGKILL while the proxy holds a request just there."""
        point = POINTS[self.chance.randrange(len(POINTS))]
        self.proxy.say(f"catch {point}")
        if self.proxy.wait("caught", 10) is not None:
            self._start_again(point)
        self.proxy.say("release")

    def kill_in_transaction(self, seconds: float = 60) -> bool:
        """SIGKILL while a transaction waits before the table that it writes next; whether one came
        in time.
        """
        table = self.chance.choice(list(TABLES))
        with psycopg.connect(self.collector.dsn()) as connection:
            connection.execute(f"LOCK TABLE {table} IN SHARE MODE")
            deadline, caught = time.monotonic() + seconds, False
            while not caught and time.monotonic() < deadline:
                time.sleep(0.01)
                caught = self._waits(connection)
            if caught:
                self._kill(IN_TRANSACTION + TABLES[table])
            connection.rollback()
        if caught:
            self.collector.wait_ready()
        return caught

    def _waits(self, connection: psycopg.Connection) -> bool:
        row = connection.execute(
            "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT"
            " l.granted AND a.application_name = 'gpuledger-ingest')"
        ).fetchone()
        return row == (True,)

    def end_postgres(self) -> None:
        """Immediate shutdown, or SIGKILL of the postmaster; the collector starts it again by
        itself.
        """
        how = self.chance.choice((signal.SIGQUIT, signal.SIGQUIT, signal.SIGKILL))
        before = self.collector.postmaster()
        self.faults[
            "Postgres: immediate shutdown" if how == signal.SIGQUIT else "Postgres killed"
        ] += 1
        self.collector.kill_postgres(how)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, ValueError, IndexError, http.client.HTTPException):
                if (
                    self.collector.postmaster() != before
                    and self.collector.get("/readyz")[0] == 200
                ):
                    return
            time.sleep(0.05)
        raise AssertionError("the database did not come back")

    def roll_over(self) -> None:
        """A new collector starts beside the old one, which is then asked to stop: what an upgrade
        does.
        """
        old, port = self.collector.process, free_port()
        assert old is not None
        environment = {**self.collector.environment, "GPULEDGER_LISTEN": f"127.0.0.1:{port}"}
        with (self.folder / "collector.log").open("ab") as log:
            new = subprocess.Popen(
                [BIN / "gpuledger", "serve"],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        self.collector.process, self.collector.port, self.collector.environment = (
            new,
            port,
            environment,
        )
        self.collector.wait_ready()
        self.proxy.say(f"upstream {port}")
        self.faults["rolling upgrade"] += 1
        old.terminate()
        code = old.wait(120)
        if code:
            self.truth.refused[f"a collector that was asked to stop ended with {code}"] += 1
        self.collector.wait_ready()

    def trouble_nodes(self) -> None:
        """Clocks, restarts, full spools and full disks; each node does it to itself, between two
        requests.
        """
        for node in self.nodes:
            kinds = {"node-small": ["flood"], "node-disk": ["fill"]}.get(
                node.name, ["clock", "restart"]
            )
            node.wanted.append(self.chance.choice(kinds))

    def poison(self) -> None:
        """One of each poison, straight to the collector: any answer but the ones that it may get is
        told.
        """
        self._poisons += 1
        for poison in poisons(self._poisons * 100):
            for _ in range(200):
                with contextlib.suppress(OSError, http.client.HTTPException):
                    status = self._post(poison.path, poison.body, poison.headers)
                    if status != 503:
                        break
                time.sleep(0.05)
            else:
                status = 503
            self.poisoned[f"poison: {poison.name}"] += 1
            if status not in poison.answers:
                self.truth.refused[f"{poison.name} was answered {status}"] += 1

    def _post(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.collector.port, timeout=30)
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()

    def stampede(self, herd: int = HERD) -> None:
        """Agents that all connect within a second, to a collector that has just come back."""
        self._herds += 1
        self._start_again("before a stampede")
        bodies = {}
        for number in range(herd):
            name = f"herd-{number}"
            bodies[name] = body_of(name, EPOCH, self._herds, self._herds)
            self.truth.made[name, EPOCH, self._herds] = self._herds
        began = time.monotonic()
        statuses = asyncio.run(_stampede(self.collector.port, bodies))
        seconds = time.monotonic() - began
        for name in bodies:
            self.truth.acknowledged.add((name, EPOCH, self._herds))
        self.faults[f"stampede of {herd:,} agents"] += 1
        self.stampede_said = (
            f"{herd:,} agents connected within a second and were all taken in "
            f"{seconds:.1f} s; answers: {dict(sorted(statuses.items()))}"
        )
        for status in set(statuses) - {"200", "503", "no answer"}:
            self.truth.refused[f"an agent of a stampede was answered {status}"] += 1

    # The end.

    def settle(self, seconds: float = 180) -> Verdict:
        """No more faults; what waits is delivered, hours are folded, days rated, usage intervals
        packed, and everything is compared.
        """
        self.proxy.say("faults 0")
        self.proxy.say("release")
        for node in self.nodes:
            node.end()
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        dsn = self.collector.dsn()
        now_ms = int(time.time() * 1000)
        refresh(Database(dsn), ALWAYS, now_ms)
        # The collector does so by itself when it starts, if it comes to it: the evidence is old.
        pack_usage_intervals(Database(dsn), PACKED_AFTER_DAYS, now_ms)
        verdict = judge(self.truth, self.nodes, dsn)
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        verdict.unaccounted += [
            f"{name} was not done {seconds:.0f} s after the last fault" for name in alive
        ]
        return verdict


async def _stampede(port: int, bodies: dict[str, bytes]) -> Counter:
    """Posts each body on a connection of its own, all begun within a second, each again until it is
    taken.
    """
    statuses: Counter = Counter()

    async def one(body: bytes, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        head = "".join(f"{name}: {value}\r\n" for name, value in MSGPACK.items())
        request = (
            f"POST /v1/batches HTTP/1.1\r\nHost: x\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        for attempt in range(50):
            status = "no answer"
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(60):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(request)
                    status = (await reader.readuntil(b"\r\n")).split()[1].decode()
                    writer.close()
            statuses[status] += 1
            if status == "200":
                return
            await asyncio.sleep(0.05 * 2 ** min(attempt, 5))
        raise AssertionError("an agent of a stampede was never taken")

    chance = random.Random(len(bodies))
    await asyncio.gather(*(one(body, chance.random()) for body in bodies.values()))
    return statuses
