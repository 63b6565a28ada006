"""A model server as a gateway and Prometheus see it: OpenAI's chat completions, vLLM's `/metrics`,
and a log of every request that it worked for.

Run as `model_server.py PORT LOG MODEL`, or with `serve` in a thread. Standard library only.

The last message of a request says what it costs, in place of a tokenizer and a model:
`prompt=120 cached=64 output=30 say=r7`. More words make it misbehave:

    hold=10     send ten tokens, then wait until the client is gone, or another request has come
                with `release=TEXT`, where TEXT is what this one has as `say`
    fail=once   compute the prompt, then answer 500; the same `say` is served the next time

Counters move as those of vLLM do: a prompt when it was computed, whatever becomes of its request
(vLLM issue 55634), generated tokens one by one, a request when it has ended by itself.
"""

import asyncio
import contextlib
import enum
import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SECONDS_OF_PROMPT, SECONDS_OF_TOKEN = 0.0002, 0.002
"""What its histograms say that a computed prompt token and a generated one took."""
PATIENCE_S = 120
"""How long a held stream waits at most."""
PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{labels}}} {running}.0
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{{{labels}}} {prompt}.0
# HELP vllm:prompt_tokens_by_source_total Number of prompt tokens by source.
# TYPE vllm:prompt_tokens_by_source_total counter
vllm:prompt_tokens_by_source_total{{{labels},source="local_compute"}} {computed}.0
vllm:prompt_tokens_by_source_total{{{labels},source="local_cache_hit"}} {cached}.0
vllm:prompt_tokens_by_source_total{{{labels},source="external_kv_transfer"}} 0.0
# HELP vllm:prompt_tokens_cached_total Number of cached prompt tokens (local + external).
# TYPE vllm:prompt_tokens_cached_total counter
vllm:prompt_tokens_cached_total{{{labels}}} {cached}.0
# HELP vllm:generation_tokens_total Number of generation tokens processed.
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{{labels}}} {generated}.0
# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{{{labels},finished_reason="stop"}} {finished}.0
# HELP vllm:request_prefill_time_seconds Histogram of time spent in PREFILL phase for request.
# TYPE vllm:request_prefill_time_seconds histogram
vllm:request_prefill_time_seconds_bucket{{{labels},le="+Inf"}} {finished}.0
vllm:request_prefill_time_seconds_count{{{labels}}} {finished}.0
vllm:request_prefill_time_seconds_sum{{{labels}}} {prefill_s}
# HELP vllm:request_decode_time_seconds Histogram of time spent in DECODE phase for request.
# TYPE vllm:request_decode_time_seconds histogram
vllm:request_decode_time_seconds_bucket{{{labels},le="+Inf"}} {finished}.0
vllm:request_decode_time_seconds_count{{{labels}}} {finished}.0
vllm:request_decode_time_seconds_sum{{{labels}}} {decode_s}
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds {started_s}
"""


@dataclass
class Asked:
    """What a message asks for."""

    prompt: int
    cached: int = 0
    output: int = 1
    hold: int | None = None
    say: str = ""
    fail: str = ""
    release: str = ""

    @classmethod
    def read(cls, text: str) -> "Asked":
        """Raises ValueError for words that are not understood."""
        words = dict(word.split("=", 1) for word in text.split())
        numbers = {
            key: int(words.pop(key))
            for key in ("prompt", "cached", "output", "hold")
            if key in words
        }
        asked = cls(**numbers, **words)
        if not 0 <= asked.cached <= asked.prompt or asked.output < 1:
            raise ValueError("0 <= cached <= prompt and 1 <= output are needed")
        return asked


class Usage(enum.Enum):
    """Which chunks of a stream say how many tokens there were."""

    NONE, LAST, CONTINUOUS = range(3)

    @classmethod
    def wanted(cls, options: dict) -> "Usage":
        """By `stream_options` of the request, which have the same names as in vLLM."""
        if not options.get("include_usage"):
            return cls.NONE
        return cls.CONTINUOUS if options.get("continuous_usage_stats") else cls.LAST


@dataclass
class Work:
    """One request that the server worked for; a line of its log."""

    id: str
    received_ms: int
    streamed: bool
    prompt: int
    cached: int
    output: int = 0
    ended_ms: int = 0
    outcome: str = "abort"
    """`stop`, `abort`: the client was gone, or `error`: answered 500."""


@dataclass
class ModelServer:
    """Serves one model until it is stopped."""

    log: Path
    model: str = "Qwen/Qwen3-32B"
    port: int = 0
    prompt: int = 0
    cached: int = 0
    generated: int = 0
    finished: int = 0
    running: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    started_s: float = field(default_factory=time.time)
    _failed: set[str] = field(default_factory=set)
    _held: dict[str, asyncio.Event] = field(default_factory=dict)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def listen(self) -> asyncio.Server:
        """Take connections; `port` is known from then on."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def page(self) -> str:
        """What vLLM would show of these counters."""
        return PAGE.format(
            labels=f'engine="0",model_name="{self.model}"',
            computed=self.prompt - self.cached,
            **{name: getattr(self, name) for name in ("prompt", "cached", "generated")},
            **{name: getattr(self, name) for name in ("running", "finished", "started_s")},
            prefill_s=round(self.prefill_s, 6),
            decode_s=round(self.decode_s, 6),
        )

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            line, *fields = head.split("\r\n")
            method, path, _ = line.split(" ", 2)
            headers = {
                name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)
            }
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            if method == "POST" and path.partition("?")[0] == "/v1/chat/completions":
                await self._complete(json.loads(body), headers, reader, writer)
            elif path == "/metrics":
                respond(writer, 200, self.page().encode(), "text/plain; version=0.0.4")
            elif path == "/v1/models":
                listed = {"object": "list", "data": [{"id": self.model, "object": "model"}]}
                respond(writer, 200, json.dumps(listed).encode())
            else:
                respond(writer, 200 if path == "/health" else 404, b"{}")
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client is gone
        finally:
            writer.close()

    async def _complete(
        self,
        request: dict,
        headers: dict[str, str],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        try:
            asked = Asked.read(request["messages"][-1]["content"])
        except (ValueError, KeyError, TypeError) as error:
            respond(writer, 400, error_body(f"not understood: {error}", 400))
            return
        if asked.release:
            self._held.pop(asked.release, asyncio.Event()).set()
        streamed = bool(request.get("stream"))
        if request.get("stream_options") and not streamed:
            respond(writer, 400, error_body("Stream options can only be defined when stream", 400))
            return
        number = headers.get("x-request-id") or uuid.uuid4().hex
        work = Work(f"chatcmpl-{number}", now_ms(), streamed, asked.prompt, asked.cached)
        self.prompt += asked.prompt
        self.cached += asked.cached
        self.running += 1
        try:
            if asked.fail == "once" and asked.say not in self._failed:
                self._failed.add(asked.say)
                work.outcome = "error"
                respond(writer, 500, error_body("engine core failed", 500))
                return
            options = request.get("stream_options") or {}
            await self._generate(work, asked, Usage.wanted(options), reader, writer)
        finally:
            self.running -= 1
            work.ended_ms = now_ms()
            with self.log.open("a") as log:
                log.write(json.dumps(vars(work)) + "\n")

    async def _generate(
        self,
        work: Work,
        asked: Asked,
        usage: Usage,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        gone = asyncio.create_task(reader.read(1))
        try:
            if work.streamed:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
                writer.write(b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
                await send(writer, self._chunk(work, {"role": "assistant", "content": ""}))
            for number in range(asked.output):
                if number == asked.hold and await self._is_gone(asked.say, gone):
                    return
                work.output += 1
                self.generated += 1
                if work.streamed:
                    so_far = {"usage": counts_of(work)} if usage is Usage.CONTINUOUS else {}
                    await send(writer, {**self._chunk(work, {"content": f"t{number} "}), **so_far})
                await asyncio.sleep(0)
                if gone.done():
                    return
            work.outcome = "stop"
            self.finished += 1
            self.prefill_s += (work.prompt - work.cached) * SECONDS_OF_PROMPT
            self.decode_s += work.output * SECONDS_OF_TOKEN
            await self._finish(work, usage, writer)
        finally:
            gone.cancel()

    async def _is_gone(self, say: str, gone: "asyncio.Task[bytes]") -> bool:
        """Wait until the client is gone, or another request has released this one."""
        released = self._held.setdefault(say, asyncio.Event())
        waiting = asyncio.create_task(released.wait())
        await asyncio.wait({gone, waiting}, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return not released.is_set()

    async def _finish(self, work: Work, usage: Usage, writer: asyncio.StreamWriter) -> None:
        if work.streamed:
            await send(writer, self._chunk(work, {}, "stop"))
            if usage is not Usage.NONE:
                await send(writer, {**self._chunk(work, None), "usage": usage_of(work)})
            await send(writer, None)
            writer.write(b"0\r\n\r\n")
            return
        message = {"role": "assistant", "content": "".join(f"t{n} " for n in range(work.output))}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        answer = {
            **self._head(work, "chat.completion"),
            "choices": [choice],
            "usage": usage_of(work),
        }
        respond(writer, 200, json.dumps(answer).encode())

    def _head(self, work: Work, kind: str) -> dict:
        return {
            "id": work.id,
            "object": kind,
            "created": work.received_ms // 1000,
            "model": self.model,
        }

    def _chunk(self, work: Work, delta: dict | None, reason: str | None = None) -> dict:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
        return {**self._head(work, "chat.completion.chunk"), "choices": choices}


def counts_of(work: Work) -> dict:
    """OpenAI's usage so far, as vLLM sends it in every chunk by `continuous_usage_stats`: without
    details.
    """
    return {
        "prompt_tokens": work.prompt,
        "completion_tokens": work.output,
        "total_tokens": work.prompt + work.output,
    }


def usage_of(work: Work) -> dict:
    """The usage at the end, with the details that vLLM sends by --enable-prompt-tokens-details."""
    return {**counts_of(work), "prompt_tokens_details": {"cached_tokens": work.cached}}


def error_body(message: str, code: int) -> bytes:
    kind = "InternalServerError" if code == 500 else "BadRequestError"
    return json.dumps({"error": {"message": message, "type": kind, "code": code}}).encode()


def respond(
    writer: asyncio.StreamWriter, status: int, body: bytes, kind: str = "application/json"
) -> None:
    writer.write(f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nConnection: close\r\n".encode())
    writer.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)


async def send(writer: asyncio.StreamWriter, event: dict | None) -> None:
    """One server-sent event as a chunk of HTTP; None ends the stream."""
    data = f"data: {'[DONE]' if event is None else json.dumps(event)}\n\n".encode()
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@contextlib.contextmanager
def serve(log: Path, model: str = "Qwen/Qwen3-32B") -> Iterator[ModelServer]:
    """A server in a thread of its own, on a free port of loopback."""
    server, ready = ModelServer(log, model), threading.Event()
    loop = asyncio.new_event_loop()

    def work() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(server.listen())
        ready.set()
        loop.run_forever()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)


async def main(port: int, log: Path, model: str) -> None:
    server = ModelServer(log, model, port)
    async with await server.listen() as listening:
        print(server.address, flush=True)
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))
