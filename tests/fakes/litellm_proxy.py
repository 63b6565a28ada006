"""The real proxy of LiteLLM, from PyPI, before one model server.

What is not LiteLLM itself: its keys and teams come by its hook `custom_auth`, and the rows of its
spend log are inserted by a callback (litellm_hooks.py), since its own database needs an engine that
neither PyPI nor npm nor Debian has. The tables are made by the migrations that LiteLLM publishes,
and LiteLLM builds the rows.

`litellm_environment` takes a minute and 750 MB; GPULEDGER_TEST_LITELLM names a virtual environment
that is kept between runs.
"""

import contextlib
import http.client
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from fakes.engines import lacking
from fakes.ports import free_port
from fakes.postgres import open_folder

VERSION = "1.106.12"
PACKAGES = (f"litellm[proxy]=={VERSION}", "prometheus-client>=0.26", "psycopg[binary]>=3.2")
UV = Path(sys.executable).with_name("uv")
UNREACHABLE = ("Failed to fetch", "network was disabled", "Connection refused")
PATIENCE_S = 240
"""It loads half a minute on a busy machine."""
METRICS_KEY = "sk-metrics"
CONFIG = """\
model_list:
  - model_name: qwen
    litellm_params:
      model: hosted_vllm/{model}
      api_base: {server}/v1
      api_key: none
{prices}litellm_settings:
  callbacks: ["prometheus", "litellm_hooks.spend_logs"]
  num_retries: 2
general_settings:
  custom_auth: litellm_hooks.authenticate
"""


@contextlib.contextmanager
def litellm_environment() -> Iterator[Path]:
    """The folder of the environment's programs; skips the test where no package index answers."""
    if kept := os.environ.get("GPULEDGER_TEST_LITELLM"):
        yield Path(kept) / "bin"
        return
    folder = open_folder("gpuledger-litellm-")
    try:
        call(UV, "venv", "--python", sys.executable, folder / "venv")
        # Built packages only: nothing of what is installed runs before the proxy itself does.
        call(UV, "pip", "install", "--python", folder / "venv", "--only-binary", ":all:", *PACKAGES)
        yield folder / "venv" / "bin"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def call(*words: object) -> None:
    answer = subprocess.run(
        [str(word) for word in words], cwd="/", capture_output=True, text=True, check=False
    )
    if answer.returncode and any(sign in answer.stderr for sign in UNREACHABLE):
        lacking(f"no package index can be reached: {answer.stderr.strip()[-200:]}")
    assert answer.returncode == 0, answer.stderr


def create_spend_logs(programs: Path, dsn: str) -> None:
    """Make LiteLLM's tables in an empty database, by its migrations in their order."""
    (folder,) = programs.parent.glob("lib/python*/site-packages/litellm_proxy_extras/migrations")
    with psycopg.connect(dsn, autocommit=True) as connection:
        for migration in sorted(folder.glob("*/migration.sql")):
            connection.execute(migration.read_text())


@dataclass
class LiteLLM:
    """A proxy that can be stopped and started again on its port."""

    programs: Path
    folder: Path
    server: str
    model: str
    keys: dict[str, tuple[str, str | None]]
    """By key its alias and its team."""
    dsn: str
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | None" = None
    prices: dict[str, str] = field(default_factory=dict)
    """What stands in its configuration of what a token costs."""

    def start(self) -> None:
        """Start it and wait until it answers."""
        prices = "".join(f"      {name}: {price}\n" for name, price in self.prices.items())
        (self.folder / "config.yaml").write_text(
            CONFIG.format(model=self.model, server=self.server, prices=prices)
        )
        shutil.copy(Path(__file__).with_name("litellm_hooks.py"), self.folder)
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "LITELLM", "DATABASE_URL"))
        }
        with (self.folder / "litellm.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    self.programs / "litellm",
                    "--config=config.yaml",
                    "--host=127.0.0.1",
                    f"--port={self.port}",
                ],
                env={
                    **clean,
                    # Its list of prices comes with it, instead of from the network.
                    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                    "LITELLM_MASTER_KEY": f"sk-{secrets.token_hex(32)}",
                    "LITELLM_STAND_KEYS": json.dumps({METRICS_KEY: ("metrics", None), **self.keys}),
                    "LITELLM_STAND_DSN": self.dsn,
                },
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + PATIENCE_S
        while not self._is_ready():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.2)

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.get("/health/liveliness")[0] == 200
        return False

    def stop(self) -> None:
        """End it as systemd or Kubernetes would."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    def log(self) -> str:
        return (self.folder / "litellm.log").read_text()[-3000:]

    def get(self, path: str, key: str = "") -> tuple[int, str]:
        """Status and text of a page."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metrics(self) -> str:
        """Its page for Prometheus, as somebody with a key reads it."""
        status, page = self.get("/metrics/", METRICS_KEY)
        assert status == 200, page
        return page


@dataclass
class Chat:
    """A client of OpenAI's chat completions, at the gateway or at the server itself."""

    port: int
    key: str = "none"
    model: str = "qwen"

    def ask(self, text: str) -> str:
        """Ask, wait for the whole answer; its id."""
        status, answer = self.attempt(text)
        assert status == 200, answer
        return str(answer["id"])

    def attempt(self, text: str) -> tuple[int, dict]:
        """Status and answer; what is no JSON stands as `text`."""
        with self._sent(text) as answer:
            said = answer.read()
            try:
                return answer.status, json.loads(said)
            except json.JSONDecodeError:
                return answer.status, {"text": said.decode(errors="replace")}

    def stream(self, text: str, stop_after: int | None = None, **options: bool) -> str:
        """Ask for a stream and read it to its end, or hang up after so many tokens; its id.

        `options` are `stream_options` beside `include_usage`.
        """
        wanted = {"stream": True, "stream_options": {"include_usage": True, **options}}
        first, seen = "", 0
        with self._sent(text, wanted) as answer:
            assert answer.status == 200, answer.read()
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    first = first or str(event["id"])
                    seen += any(choice["delta"].get("content") for choice in event["choices"])
                if seen == stop_after:
                    break
        return first

    @contextlib.contextmanager
    def _sent(self, text: str, wanted: dict | None = None) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            **(wanted or {}),
        }
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            answer = connection.getresponse()
            try:
                yield answer
            finally:
                answer.close()
        finally:
            connection.close()
