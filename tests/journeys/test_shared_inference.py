"""From two tenants of a shared model server to a closed month, through the real LiteLLM proxy and a
real Prometheus; each line equal to the micro-unit to what an independent script says.

The script has the model server's own log and the ids that clients read. The ledger has what
Prometheus scraped of the gateway and of the server, or LiteLLM's spend log instead of the gateway's
counters; tenants are shown what they cost in two of the ledgers, and charged it in two.
"""

import contextlib
import datetime as dt
import http.client
import itertools
import json
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from fakes import who_asked
from fakes.collector import JSON, running
from fakes.litellm_proxy import METRICS_KEY, Chat, LiteLLM, create_spend_logs, litellm_environment
from fakes.model_server import ModelServer, serve
from fakes.postgres import fresh_database, postgres
from fakes.real_prometheus import Prometheus, needs_prometheus, prometheus
from fakes.replicas import until
from gpuledger_collector import wiring
from gpuledger_collector.cli import build

__all__ = ["postgres"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), needs_prometheus]

STATES = ("(unallocated)", "(unobserved)")
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
GPUS, MICRO_AN_HOUR = 2, 3_600_000
WEIGHTS = ("1", "0.1", "4")
KEYS = {
    "sk-vision": ("key-vision", "vision"),
    "sk-speech": ("key-speech", "speech"),
    "sk-lone": ("key-lone", None),
}
SCRAPES = """
global: {{scrape_interval: 2s, scrape_timeout: 2s}}
scrape_configs:
  - job_name: litellm
    metrics_path: /metrics/
    authorization: {{credentials: {key}}}
    static_configs: [{{targets: ["127.0.0.1:{gateway}"]}}]
  - job_name: vllm
    static_configs:
      - targets: ["127.0.0.1:{server}"]
        labels: {{namespace: inference, pod: qwen-0}}
remote_write:
"""
REMOTE_WRITE = """
  - url: http://127.0.0.1:{port}/api/v1/write
    queue_config: {{batch_send_deadline: 1s}}
    write_relabel_configs:
"""
WHOLE = """
      - source_labels: [__name__]
        regex: "(litellm_|vllm:).*_tokens.*_total|litellm_requests_metric_total|process_start_.*"
        action: keep
"""
SERVER_ONLY = """
      - {source_labels: [job], regex: vllm, action: keep}
"""
DECLARED = """
[[price]]
purchase = "on_demand"
rate_per_gpu_hour = 3.60
currency = "USD"
effective_from = 2025-01-01

[[inference]]
name = "qwen"
models = ["Qwen/*", "hosted_vllm/Qwen/*"]
served_by = {{ namespace = "inference" }}
weights = "{weights}"
idle = "tokens"
mode = "{mode}"

[[tenant]]
tenant = "vision"
owner = {{ team = "vision" }}

[[tenant]]
tenant = "speech"
owner = {{ team = "speech" }}

[[rule]]
name = "the platform pays for its servers"
match = {{ namespace = "inference" }}
assign = {{ team = "platform" }}
"""


@dataclass
class Story:
    """Who asked: the ids that clients read, with the team of their key."""

    gateway: LiteLLM
    server: ModelServer
    clients: Path
    asked: dict[str, str | None] = field(default_factory=dict)

    def note(self, key: str, request: str) -> None:
        """What a client writes down."""
        self.asked[request] = KEYS[key][1]
        with self.clients.open("a") as file:
            file.write(json.dumps({"id": request, "team": KEYS[key][1]}) + "\n")

    def ask(self, key: str, text: str) -> None:
        self.note(key, Chat(self.gateway.port, key).ask(text))

    def stream(self, key: str, text: str, stop_after: int | None = None) -> None:
        """With usage in every event, so that LiteLLM knows what an aborted stream had."""
        chat = Chat(self.gateway.port, key)
        self.note(key, chat.stream(text, stop_after, continuous_usage_stats=True))

    def first_half(self) -> None:
        """Answers, streams, a retry, an aborted stream, and a call that bypasses the gateway."""
        self.ask("sk-vision", "prompt=1200 cached=640 output=300")
        self.stream("sk-speech", "prompt=4001 cached=1000 output=250")
        self.ask("sk-lone", "prompt=503 output=57 fail=once say=retried")
        self.stream("sk-vision", "prompt=701 output=40 hold=10 say=aborted", stop_after=10)
        Chat(self.server.port, model=self.server.model).ask("prompt=333 output=77")
        self.ask("sk-speech", "prompt=90 cached=64 output=1001")

    def second_half(self) -> None:
        """After a restart of the gateway."""
        self.stream("sk-vision", "prompt=2017 cached=1024 output=111")
        self.ask("sk-lone", "prompt=64 output=13")
        self.ask("sk-speech", "prompt=17 output=2")

    def counted(self) -> tuple[int, int, int]:
        """Input, cached and output tokens of the server's log that a gateway knows."""
        rows = [json.loads(line) for line in self.server.log.read_text().splitlines()]
        known = [row for row in rows if row["id"] in self.asked]
        return (
            sum(row["prompt"] for row in known),
            sum(row["cached"] for row in known),
            sum(row["output"] for row in known),
        )


@pytest.fixture(scope="module")
def programs():
    with litellm_environment() as folder:
        yield folder


@dataclass
class Ledger:
    """A ledger with its collector, and the command on it.

    `source`: who asked is known by metrics, or by rows of LiteLLM's spend log.
    """

    dsn: str
    port: int
    folder: Path
    source: str
    mode: str

    def run(self, *arguments: str | Path) -> str:
        result = CliRunner().invoke(build(), [*map(str, arguments), "--dsn", self.dsn])
        assert result.exit_code == 0, (arguments, result.output, result.exception)
        return result.stdout

    def declare(self) -> None:
        text = DECLARED.format(weights=" : ".join(WEIGHTS), mode=self.mode)
        (self.folder / "ledger.toml").write_text(text)
        self.run("apply", self.folder / "ledger.toml")

    def select(self, query: str) -> list[tuple]:
        with psycopg.connect(self.dsn) as connection:
            return connection.execute(query).fetchall()

    def get(self, path: str) -> dict:
        """An answer of the API, whose amounts are exact."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
            return json.loads(answer.read())

    def import_spend_logs(self, dsn: str) -> None:
        """Twice: the second time changes nothing."""
        file = self.folder / "litellm.dsn"
        file.write_text(dsn)
        file.chmod(0o600)
        assert " 0 added" not in self.run("import", "litellm", "--database", file)
        assert " 0 added" in self.run("import", "litellm", "--database", file)

    def asked(self) -> tuple[int, int, int]:
        """Input, cached and output tokens that a gateway is known to have counted."""
        ((input_tokens, cached, output),) = self.select(
            "SELECT coalesce(sum(input), 0), coalesce(sum(cached), 0), coalesce(sum(output), 0)"
            " FROM token_hour"
        )
        return int(input_tokens), int(cached), int(output)

    def lines(self, months: list[str]) -> list[dict]:
        """What tenants pay by day, in the words of the script."""
        rows = [
            row
            for month in months
            for row in self.get(f"/v1/inference?period={month}&by=day,tenant")["items"]
        ]
        return sorted(
            (
                {
                    "day": row["day"],
                    "tenant": row["tenant"],
                    "computed": row["input_tokens"] - row["cached_tokens"],
                    "cached": row["cached_tokens"],
                    "output": row["output_tokens"],
                    "used_micro": row["cost_used_micro"],
                    "idle_micro": row["cost_idle_micro"],
                }
                for row in rows
                if row["input_tokens"]
            ),
            key=lambda row: (row["day"], row["tenant"]),
        )

    def bill(self, months: list[str]) -> dict[str, int]:
        """Micro-units by team of all months, which the command rates; without what nobody held."""
        paid: dict[str, int] = defaultdict(int)
        for month in months:
            text = self.run("chargeback", "--period", month, "--by", "team", "--format", "json")
            for row in json.loads(text)["rows"]:
                paid[row["team"]] += row["cost_micro"] or 0
        return {team: micro for team, micro in paid.items() if micro and team not in STATES}

    def charged(self, months: list[str]) -> dict[str, int]:
        """Micro-units that answers of who asked say are on bills, by tenant."""
        paid: dict[str, int] = defaultdict(int)
        for month in months:
            for row in self.get(f"/v1/inference?period={month}&by=tenant")["items"]:
                paid[row["tenant"]] += row["cost_charged_micro"]
        return {tenant: micro for tenant, micro in paid.items() if micro}

    def served(self) -> dict[str, int]:
        """What its counters of the server have counted."""
        rows = self.select(
            "SELECT counter, sum(units) FROM counter_hour JOIN counter_series ON id = series_id"
            " GROUP BY counter"
        )
        return {counter: int(units) for counter, units in rows}


def hold_gpus(ledger: Ledger, days: range) -> None:
    """A pod holds two GPUs all day, and they work for half of each hour."""
    hours = [
        (gpu, at_ms)
        for gpu in range(GPUS)
        for day_ms in days
        for at_ms in range(day_ms, day_ms + DAY_MS, HOUR_MS)
    ]
    batch = {
        "version": 1,
        "node": "h100-1",
        "epoch": "0192aaaa-0000-7000-8000-000000000001",
        "seq": 1,
        "heartbeat": {"agent_version": "0", "source": "simulated", "status": "ok"},
        "accelerators": [
            {
                "uuid": f"GPU-{gpu}",
                "device_uuid": f"GPU-{gpu}",
                "index": gpu,
                "model": "NVIDIA H100",
            }
            for gpu in range(GPUS)
        ],
        "workloads": [
            {
                "id": "6f2b",
                "kind": "kubernetes",
                "name": "inference/qwen-0",
                "tags": {"namespace": "inference", "pod": "qwen-0"},
            }
        ],
        "usage_intervals": [
            {
                "accelerator": gpu,
                "state": "held",
                "workload": 0,
                "start_ms": at_ms,
                "end_ms": at_ms + HOUR_MS,
                "held_ms": HOUR_MS,
                "busy_ms": HOUR_MS // 2,
                "idle_ms": HOUR_MS // 2,
            }
            for gpu, at_ms in hours
        ],
    }
    connection = http.client.HTTPConnection("127.0.0.1", ledger.port, timeout=60)
    connection.request("POST", "/v1/batches", json.dumps(batch), JSON)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    connection.close()


def script_lines(story: Story, folder: Path, days: range) -> list[dict]:
    """What the independent script says."""
    held_ms = GPUS * DAY_MS
    day = {
        "charge_micro": GPUS * 24 * MICRO_AN_HOUR,
        "busy_ms": held_ms // 2,
        "held_ms": held_ms,
    }
    question = {
        "server": str(story.server.log),
        "clients": str(story.clients),
        "weights": WEIGHTS,
        "idle": "tokens",
        "days": {date_of(day_ms): day for day_ms in days},
    }
    (folder / "question.json").write_text(json.dumps(question))
    command = [sys.executable, "-IS", who_asked.__file__, folder / "question.json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in printed.splitlines()]


def date_of(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).date().isoformat()


def after_month(at_ms: int) -> int:
    """Noon of the first day of the next month."""
    first = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).date().replace(day=1)
    following = (first + dt.timedelta(days=32)).replace(day=1)
    return round(dt.datetime.combine(following, dt.time(12), dt.UTC).timestamp() * 1000)


def ask_through_a_restart(story: Story, scraped: Prometheus, ledgers: list[Ledger]) -> None:
    """Ask, restart the gateway when all of it was scraped, and ask again."""
    scraped.wait_for("up", 2)
    for ledger in ledgers:
        until(lambda ledger=ledger: ledger.select("SELECT 1 FROM counter_reading"))
    story.first_half()
    scraped.wait_for("litellm_output_tokens_metric_total", story.counted()[2])
    before = story.counted()[2]
    story.gateway.stop()
    story.gateway.start()
    scraped.wait_for("up", 2)
    story.second_half()
    scraped.wait_for("litellm_output_tokens_metric_total", story.counted()[2] - before)
    server = story.server
    for ledger in ledgers:
        until(
            lambda ledger=ledger: (
                ledger.served().get("prompt_tokens") == server.prompt
                and ledger.served().get("generated_tokens") == server.generated
            )
        )


def tell_scrapes(gateway: LiteLLM, server: ModelServer, ledgers: list[Ledger]) -> str:
    """What Prometheus scrapes, and writes to each ledger."""
    scrapes = SCRAPES.format(key=METRICS_KEY, gateway=gateway.port, server=server.port)
    for ledger in ledgers:
        series = WHOLE if ledger.source == "metrics" else SERVER_ONLY
        scrapes += REMOTE_WRITE.format(port=ledger.port).rstrip() + series.rstrip()
    return scrapes + "\n"


def expected_bill(mode: str, lines: list[dict], days: range) -> dict[str, int]:
    """What teams pay of these days: where tenants are charged, what the script says of each."""
    paid = {"platform": len(days) * GPUS * 24 * MICRO_AN_HOUR}
    for line in lines if mode == "charged" else ():
        if not line["tenant"].startswith("("):
            micro = line["used_micro"] + line["idle_micro"]
            paid[line["tenant"]] = paid.get(line["tenant"], 0) + micro
            paid["platform"] -= micro
    return paid


def test_each_tenant_pays_what_the_servers_log_says(
    programs, postgres, tmp_path, monkeypatch
) -> None:
    """By metrics and by spend logs alike: lines of teams, of a key without one, and of nobody;
    shown, and charged.
    """
    now_ms = int(time.time() * 1000)
    end_ms = (now_ms + 30 * 60_000) // DAY_MS * DAY_MS + DAY_MS
    days = range(now_ms // DAY_MS * DAY_MS, end_ms, DAY_MS)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serve(tmp_path / "server.jsonl"))
        spend_logs = stack.enter_context(fresh_database(postgres, "template0"))
        create_spend_logs(programs, spend_logs)
        gateway = LiteLLM(programs, tmp_path, server.address, server.model, KEYS, spend_logs)
        stack.callback(gateway.stop)
        gateway.start()
        story = Story(gateway, server, tmp_path / "clients.jsonl")
        ledgers = []
        for source, mode in itertools.product(("metrics", "rows"), ("showback", "charged")):
            dsn = stack.enter_context(fresh_database(postgres))
            collector = stack.enter_context(running(dsn, clock=lambda: end_ms))
            folder = tmp_path / f"{source}-{mode}"
            folder.mkdir()
            ledgers.append(Ledger(dsn, collector.port, folder, source, mode))
            ledgers[-1].declare()
            hold_gpus(ledgers[-1], days)
        scraped = stack.enter_context(prometheus(tmp_path, tell_scrapes(gateway, server, ledgers)))
        ask_through_a_restart(story, scraped, ledgers)
        for ledger in ledgers:
            if ledger.source == "metrics":
                until(lambda ledger=ledger: ledger.asked() == story.counted())
            else:
                ledger.import_spend_logs(spend_logs)
                assert ledger.asked() == story.counted()
        expected = script_lines(story, tmp_path, days)
        assert {row["tenant"] for row in expected} == {
            "vision",
            "speech",
            "(unattributed)",
            "(nobody)",
        }
        monkeypatch.setattr(wiring, "read_clock", lambda: after_month(end_ms - 1))
        months = sorted({date_of(day_ms)[:7] for day_ms in days})
        for ledger in ledgers:
            # Commands rate what they read; the API reads what is rated.
            bill = expected_bill(ledger.mode, expected, days)
            charged = {name: micro for name, micro in bill.items() if name != "platform"}
            assert ledger.bill(months) == bill
            assert ledger.lines(months) == expected
            assert ledger.charged(months) == charged
            for month in months:
                ledger.run("close", "--period", month)
            assert ledger.bill(months) == bill
            assert ledger.lines(months) == expected
            assert ledger.charged(months) == charged
            for month in months:
                ledger.run("periods", "--verify", month)
                ledger.run("reconcile", "--period", month, "--evidence")
