"""A fake collector for the agent's tests: answers as told, keeps what it was sent."""

import contextlib
import http.server
import threading
from collections.abc import Callable, Iterator

from gpuledger_common import wire
from gpuledger_common.batches import unpack

Reply = tuple[int, dict[str, str], bytes]


class Sink:
    """What came in, and what to answer: `answers` is asked per batch, default 200."""

    def __init__(self) -> None:
        self.batches: list[wire.Batch] = []
        self.bodies: dict[tuple[str, int], bytes] = {}
        self.headers: list[dict[str, str]] = []
        self.answers: Callable[[wire.Batch], Reply | None] = lambda _: (
            200,
            {},
            b'{"status":"committed"}',
        )
        self.url = ""

    def committed(self) -> set[tuple[str, int]]:
        return set(self.bodies)


@contextlib.contextmanager
def sink() -> Iterator[Sink]:
    made = Sink()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            batch = unpack(body)
            made.batches.append(batch)
            made.headers.append(dict(self.headers))
            reply = made.answers(batch)
            if reply is None:  # committed, but the reply is cut off in the middle
                made.bodies.setdefault((batch.epoch, batch.seq), body)
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Le")
                self.wfile.flush()
                self.connection.close()
                self.close_connection = True
                return
            status, headers, answer = reply
            if status in {200, 422}:
                known = made.bodies.setdefault((batch.epoch, batch.seq), body)
                assert known == body, "the bytes of a batch changed"
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
