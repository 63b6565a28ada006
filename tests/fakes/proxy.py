"""A broken network between HTTP senders and a receiver: a proxy that knows where messages begin and
end.

What it does to the n-th request follows from the seed and n alone. A *fault* is one act that a good
relay would not have done, counted by kind when it is done: what an earlier fault made impossible is
not done and not counted.

As a process (`python proxy.py --seed S --upstream PORT`) it takes one command a line on standard
input and tells events and answers as JSON lines: `upstream PORT`, `faults RATE`, `catch POINT`,
`release`, `counts`.
"""

import argparse
import asyncio
import contextlib
import json
import random
import re
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

REQUEST_FAULTS = {
    "connection reset": 10,
    "request swallowed": 8,
    "request cut off": 12,
    "request delayed": 6,
    "request overtaken": 6,
    "request doubled": 9,
    "request repeated later": 7,
    "request at 1 B/s": 0.4,
    "request, then half-closed": 8,
    "no answer at all": 0.4,
}
ANSWER_FAULTS = {
    "answer lost": 12,
    "answer cut off": 10,
    "answer is garbage": 8,
    "answer of a portal": 5,
    "answer of a gateway": 8,
    "answer delayed": 4,
    "answer in single bytes": 3,
    "answer, then half-closed": 4,
}
KINDS = [*REQUEST_FAULTS, *ANSWER_FAULTS]
POINTS = ("half a request", "request delivered", "answer on its way")
"""Where a request can be held, so that a process can be killed just then."""
PORTAL = b"<html><body>Please log in to the guest network.</body></html>"
GATEWAY = (
    "500 Internal Server Error",
    "502 Bad Gateway",
    "503 Service Unavailable",
    "504 Gateway Timeout",
    "408 Request Timeout",
    "429 Too Many Requests",
)
_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*(\d+)")
CLOSED = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)


class Gone(Exception):
    """The connection is over, by a fault or by its ends."""


@dataclass
class Lines:
    """One connection as its reader and writer."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def message(self) -> bytes:
        """Head and body of one message; raises asyncio.IncompleteReadError at its end."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        return head + (await self.reader.readexactly(int(length[1])) if length else b"")

    async def send(self, part: bytes) -> None:
        self.writer.write(part)
        await self.writer.drain()

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """RST instead of FIN."""
        with contextlib.suppress(OSError):
            self.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
        self.writer.transport.abort()

    def half_close(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self.writer.write_eof()


@dataclass
class FaultProxy:
    """The proxy inside an event loop. `rate`: how likely a request, and an answer, is broken."""

    upstream: int
    seed: int
    rate: float = 0.6
    counts: Counter = field(default_factory=Counter)
    tell: object = lambda event: None
    _number: int = 0
    _passed: int = 0
    _catch: str | None = None
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    _later: set = field(default_factory=set)

    async def listen(self) -> int:
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0, backlog=4096)
        return self._server.sockets[0].getsockname()[1]

    def command(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if word == "upstream":
            self.upstream = int(rest)
        elif word == "faults":
            self.rate = float(rest)
        elif word == "catch":
            self._released.clear()
            self._catch = rest
        elif word == "release":
            self._catch = None
            self._released.set()
        elif word == "counts":
            self.tell({"requests": self._number, "counts": dict(self.counts)})

    async def _client(self, reader, writer) -> None:
        client, server = Lines(reader, writer), None
        mine = asyncio.current_task()
        self._later.add(mine)  # a stream whose other side is gone would be collected under our feet
        try:
            while True:
                server = await self._one(client, server)
        except (Gone, *CLOSED):
            pass
        finally:
            self._later.discard(mine)
            for side in (client, server):
                if side is not None:
                    side.close()

    async def _one(self, client: Lines, server: Lines | None) -> Lines | None:
        request = await client.message()
        if server is not None and server.writer.is_closing():
            server = None
        self._number += 1
        chance = random.Random(f"{self.seed}:{self._number}")
        before = chosen(chance, REQUEST_FAULTS, self.rate)
        after = chosen(chance, ANSWER_FAULTS, self.rate)
        if before is not None:
            server = await self._break_request(before, request, client, server, chance)
        if server is None:
            server = await self._connect()
        try:
            await self._forward(request, server)
            if before == "request, then half-closed":
                server.half_close()
            answer = await server.message()
            await self._held("answer on its way")
            if before == "request, then half-closed":
                server.close()
            return await self._answer(answer, after, client, server, chance)
        except (Gone, *CLOSED):
            server.close()
            raise

    async def _connect(self) -> Lines:
        return Lines(*await asyncio.open_connection("127.0.0.1", self.upstream))

    async def _forward(self, request: bytes, server: Lines) -> None:
        if self._catch == "half a request":
            await server.send(request[: len(request) // 2])
            await self._held("half a request")
            await server.send(request[len(request) // 2 :])
        else:
            await server.send(request)
        self._passed += 1
        await self._held("request delivered")

    async def _held(self, point: str) -> None:
        """Wait here when this is where a request is to be caught; then the connection is over."""
        if self._catch != point:
            return
        self._catch = None
        self.tell({"caught": point})
        await self._released.wait()

    async def _break_request(self, kind, request, client, server, chance) -> Lines | None:
        """Do this fault; raises Gone where nothing may come after it."""
        cut = chance.randrange(1, len(request))
        wait_s = chance.uniform(0.001, 0.05)
        if kind == "request overtaken":
            kind = await self._overtaken(chance.randint(1, 3))
        self.counts[kind] += 1
        if kind == "connection reset":
            client.reset()
            raise Gone
        if kind == "request swallowed":
            raise Gone
        if kind == "no answer at all":
            await client.reader.read()
            raise Gone
        if kind == "request cut off":
            server = server or await self._connect()
            await server.send(request[:cut])
            for side in (server, client):
                (side.reset if cut % 2 else side.close)()
            raise Gone
        if kind == "request at 1 B/s":
            self._background(self._trickle(request))
            await client.reader.read()
            raise Gone
        if kind == "request delayed":
            await asyncio.sleep(wait_s)
        if kind == "request doubled":
            self._background(self._again(request, 0))
        if kind == "request repeated later":
            self._background(self._again(request, wait_s * 40))
        return server

    async def _overtaken(self, others: int) -> str:
        """Let others pass first; what none overtook in time was delayed only."""
        wanted = self._passed + others
        for _ in range(40):
            if self._passed >= wanted:
                return "request overtaken"
            await asyncio.sleep(0.002)
        return "request delayed"

    async def _answer(self, answer, kind, client, server, chance) -> Lines | None:
        if kind is None:
            await client.send(answer)
            return server
        self.counts[kind] += 1
        if kind == "answer lost":
            (client.reset if chance.random() < 0.5 else client.close)()
            raise Gone
        if kind == "answer cut off":
            await client.send(answer[: chance.randrange(1, len(answer))])
            raise Gone
        if kind == "answer is garbage":
            await client.send(chance.randbytes(chance.randrange(1, 400)))
            raise Gone
        if kind == "answer of a portal":
            await client.send(http_answer("200 OK", PORTAL))
            return server
        if kind == "answer of a gateway":
            await client.send(
                http_answer(chance.choice(GATEWAY), b"a gateway says so", "Retry-After: 0\r\n")
            )
            return server
        if kind == "answer delayed":
            await asyncio.sleep(chance.uniform(0.001, 0.05))
        if kind == "answer in single bytes":
            for place in range(len(answer)):
                await client.send(answer[place : place + 1])
                await asyncio.sleep(0)
            return server
        await client.send(answer)
        if kind == "answer, then half-closed":
            client.half_close()
            raise Gone
        return server

    def _background(self, work) -> None:
        task = asyncio.ensure_future(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _again(self, request: bytes, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        with contextlib.suppress(*CLOSED):
            other = await self._connect()
            with contextlib.closing(other):
                await other.send(request)
                await other.message()

    async def _trickle(self, request: bytes) -> None:
        """The first half at once, then a byte a second for 5 s, then a reset."""
        with contextlib.suppress(*CLOSED):
            other = await self._connect()
            half = len(request) // 2
            await other.send(request[:half])
            for place in range(half, min(half + 5, len(request))):
                await asyncio.sleep(1)
                await other.send(request[place : place + 1])
            other.reset()


def chosen(chance: random.Random, kinds: dict, rate: float) -> str | None:
    """A kind by its weight, None for none; takes the same number of draws whatever `rate` is."""
    broken, kind = chance.random() < rate, chance.choices(list(kinds), list(kinds.values()))[0]
    return kind if broken else None


def http_answer(status: str, body: bytes, more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class ProxyProcess:
    """The proxy as a process of its own; its events are read by a thread."""

    def __init__(self, upstream: int, seed: int, rate: float = 0.6) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).resolve()),
                "--seed",
                str(seed),
                "--upstream",
                str(upstream),
                "--rate",
                str(rate),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._events: dict[str, dict] = {}
        self._came = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.port: int = self.wait("port", 120)["port"]

    def _read(self) -> None:
        for line in self._process.stdout:
            event = json.loads(line)
            with self._came:
                self._events[next(iter(event))] = event
                self._came.notify_all()

    def wait(self, name: str, seconds: float) -> dict | None:
        """The next event of this name; None when none comes."""
        with self._came:
            if self._came.wait_for(lambda: name in self._events, seconds):
                return self._events.pop(name)
        return None

    def say(self, line: str) -> None:
        self._process.stdin.write(line + "\n")

    def counts(self) -> tuple[int, Counter]:
        """Requests seen, and faults done by kind."""
        self.say("counts")
        event = self.wait("requests", 120)
        return event["requests"], Counter(event["counts"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(60)


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--upstream", type=int, required=True)
    parser.add_argument("--rate", type=float, default=0.6)
    given = parser.parse_args()
    proxy = FaultProxy(
        given.upstream,
        given.seed,
        given.rate,
        tell=lambda event: print(json.dumps(event), flush=True),
    )
    print(json.dumps({"port": await proxy.listen()}), flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    while line := await lines.readline():
        proxy.command(line.decode())


if __name__ == "__main__":
    asyncio.run(main())
