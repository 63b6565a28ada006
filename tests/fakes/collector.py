"""A real collector in this process: HTTP on loopback, writers, a real database."""

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from fakes.batches import body_of
from gpuledger_collector import serving, wiring
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.database import Database
from gpuledger_collector.wiring import Collector
from gpuledger_common.wire import Batch

MSGPACK = {"Content-Type": "application/msgpack", "Content-Encoding": "zstd"}
JSON = {"Content-Type": "application/json"}


@dataclass
class Running:
    """A collector that listens on loopback."""

    port: int
    parts: Collector
    dsn: str

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ):
        """Status, headers and decoded JSON (or text) of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = answer.headers.get("Content-Type", "").startswith("application/json")
            return answer.status, answer.headers, json.loads(text) if is_json else text
        finally:
            connection.close()

    def post(self, body: bytes, headers: dict[str, str] | None = None):
        """Status and answer of one batch."""
        status, _, answer = self.request(
            "POST", "/v1/batches", body, MSGPACK if headers is None else headers
        )
        return status, answer

    def send(self, made: Batch):
        """Status and answer of one batch in the agent's form."""
        return self.post(body_of(made))


@contextlib.contextmanager
def running(
    dsn: str, *, clock: Callable[[], int] = wiring.read_clock, **settings: object
) -> Iterator[Running]:
    """A collector over this database until the block ends; it takes evidence of any age, as tests
    have fixed days.
    """
    opened = Database(dsn)
    wanted = Settings(
        **{"data_dir": Path("unused"), "drain_seconds": 5, "max_evidence_age_days": 0, **settings}
    )
    parts = wiring.collector(wanted, opened, clock=clock)
    parts.commit.start()
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(serving.configuration(wanted, parts))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield Running(listener.getsockname()[1], parts, dsn)
    finally:
        parts.leaving.set()  # as a signal does
        server.should_exit = True
        thread.join(10)
        parts.commit.close(5)
        parts.remote.close(5)
        listener.close()
