"""A fleet of two teams with usage, prices, budgets and findings; everything of the second one is
called zebra.
"""

import contextlib
import datetime as dt
import json
import time
from collections.abc import Iterator
from dataclasses import replace

import psycopg

from fakes.collector import Running, running
from gpuledger_collector.accounting.inference import Asker, TokenRecord, Tokens
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.api.auth.keys import NEW_SECONDS
from gpuledger_collector.cli import build
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.access import tokens
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.ledger.token_usage import store_token_usage

OWN, FOREIGN = "vision", "zebra"
ROLES = ("agent", "viewer", "finance", "admin")
NOW_MS = int(time.time() * 1000)
TODAY_MS = NOW_MS // DAY_MS * DAY_MS
MONTH = dt.datetime.fromtimestamp(NOW_MS // HOUR_MS * HOUR_MS / 1000 - 1, dt.UTC).strftime("%Y-%m")
"""The month of the last hour that has evidence: in the first hour of a month, the one before."""


def day(number: int) -> str:
    return dt.datetime.fromtimestamp(TODAY_MS / 1000 + number * 86_400, dt.UTC).date().isoformat()


def six_days(team: str, number: int) -> bytes:
    """Six days of one GPU, all held by a job of the team."""
    end = NOW_MS // HOUR_MS * HOUR_MS
    spans = [(at, at + HOUR_MS) for at in range(end - 6 * DAY_MS, end, HOUR_MS)]
    made = {
        "version": 1,
        "node": f"{team}-node",
        "epoch": f"0192aaaa-0000-7000-8000-00000000000{number}",
        "seq": 1,
        "heartbeat": {"agent_version": "0", "source": "simulated", "status": "ok"},
        "accelerators": [
            {
                "uuid": f"GPU-{team}",
                "device_uuid": f"GPU-{team}",
                "index": 0,
                "model": "NVIDIA L4",
                "pool": f"{team}-pool",
            }
        ],
        "workloads": [
            {
                "id": f"{team}-1",
                "kind": "slurm",
                "user": f"{team}-user",
                "name": f"{team}-job",
                "tags": {"team": team, "project": f"{team}-project"},
            }
        ],
        "usage_intervals": [
            {
                "accelerator": 0,
                "state": "held",
                "workload": 0,
                "start_ms": start,
                "end_ms": stop,
                "held_ms": HOUR_MS,
                "busy_ms": HOUR_MS // 2,
                "idle_ms": HOUR_MS // 2,
            }
            for start, stop in spans
        ],
    }
    return json.dumps(made).encode()


def declared() -> str:
    budget = (
        '[[budget]]\nname = "{team}-budget"\nteam = "{team}"\nperiod = "month"\namount ='
        ' 400\ncurrency = "USD"\n'
    )
    price = (
        '[[price]]\npool = ""\ngpu_model = "NVIDIA L4"\npurchase = "on_demand"\nrate_per_gpu_hour ='
        ' 2.0\ncurrency = "USD"\neffective_from = 2025-01-01\n'
    )
    server = (
        f'[[inference]]\nname = "shared-chat"\nmodels = ["chat*"]\nserved_by = {{ project ='
        f' "{OWN}-project" }}\nweights = "1 : 0.1 : 4"\n'
    )
    tenant = '[[tenant]]\ntenant = "{team}-key"\nowner = {{ team = "{team}" }}\n'
    both = server + "".join(tenant.format(team=team) for team in (OWN, FOREIGN))
    return (
        both
        + price
        + "".join(
            budget.format(team=team) + 'recipients = ["lead@example.com"]\n'
            for team in (OWN, FOREIGN)
        )
    )


def tokens_of(team: str) -> list[TokenRecord]:
    """What the team's key asked the shared model for in each of two days of hours, and a model that
    no server answers.
    """
    end = NOW_MS // HOUR_MS * HOUR_MS
    return [
        TokenRecord(
            Asker("litellm", f"{team}-key", model),
            f"{team}-{model}-{at}",
            at,
            at + HOUR_MS,
            Tokens(9000, 4000, 1000, 7),
        )
        for at in range(end - 2 * DAY_MS, end, HOUR_MS)
        for model in ("chat-large", "lost")
    ]


def finding_of(team: str, kind: str) -> Finding:
    return Finding(
        key=f"{kind}-{team}",
        kind=kind,
        state="zombie" if kind == "idle" else "usage",
        subject=f"GPU-{team}" if kind == "idle" else team,
        accelerator_id=None,
        workload_id=None,
        team=team,
        owner={"team": team, "project": f"{team}-project"},
        since_ms=NOW_MS - HOUR_MS,
        opened_ms=NOW_MS - HOUR_MS,
        until_ms=NOW_MS,
        resolved_ms=None,
        confidence=0.9,
        currency="USD",
        cost_micro=1_000_000,
        per_day_micro=24_000_000,
        evidence={} if kind == "idle" else _evidence(team),
    )


def _evidence(team: str) -> dict[str, object]:
    """What the detector of anomalies says of an episode."""
    parts = {"price_micro": 0, "volume_micro": 900_000, "mix_micro": 100_000}
    driver = {"workload": f"{team}-job", "model": "NVIDIA L4", "change_micro": 1_000_000, **parts}
    return {
        **parts,
        "drivers": [driver],
        "rates": [],
        "days_before": 7,
        "cause": "scale-up",
        "sentence": f"{team}-job holds 2 GPUs on average instead of 1 in the same hours a week before",
        "workloads": [f"{team}-job"],
    }


def idle_job(dsn: str, team: str) -> None:
    """The team's GPU has been idle for an hour while its job holds it."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT a.id, w.id FROM accelerator a, workload w WHERE a.uuid = %s AND w.external_id"
            " = %s",
            (f"GPU-{team}", f"{team}-1"),
        ).fetchone()
        found = replace(
            finding_of(team, "idle"),
            key=f"held-{team}",
            state="gone_idle",
            accelerator_id=row[0],
            workload_id=row[1],
            evidence={"node": f"{team}-node", "wasted_gpu_ns": {}},
        )
        findings.upsert(connection, [found])
        findings.set_progress(connection, "idle", NOW_MS)
        findings.set_progress(connection, "anomaly", NOW_MS)


def token(dsn: str, role: str, name: str | None = None, **reach) -> str:
    """A new token's secret, once every collector knows it."""
    wanted = Token(0, name or role, role, reach.get("node"), reach.get("owner"), "", NOW_MS)
    with psycopg.connect(dsn) as connection:
        secret = tokens.create(connection, wanted)[1]
    time.sleep(NEW_SECONDS)
    return secret


@contextlib.contextmanager
def two_teams(dsn: str, folder) -> Iterator[tuple[Running, dict[str, str]]]:
    """A collector over both teams, and a token of each role by its name; the viewer's is for the
    first team.
    """
    from typer.testing import CliRunner

    (folder / "link").write_text("a secret that signs the links of mails\n")
    links = {"link_secret_file": folder / "link", "public_url": "https://ledger.example"}
    with running(dsn, **links) as collector:
        for number, team in enumerate((OWN, FOREIGN), start=1):
            status, answer = collector.post(
                six_days(team, number), {"Content-Type": "application/json"}
            )
            assert status == 200, answer
        (folder / "declared.toml").write_text(declared())
        applied = CliRunner().invoke(
            build(), ["apply", str(folder / "declared.toml"), "--dsn", dsn]
        )
        assert applied.exit_code == 0, applied.output
        with psycopg.connect(dsn) as connection:
            findings.upsert(
                connection,
                [finding_of(team, kind) for team in (OWN, FOREIGN) for kind in ("idle", "anomaly")],
            )
            store_token_usage(
                connection, [record for team in (OWN, FOREIGN) for record in tokens_of(team)]
            )
        refresh(Database(dsn), ALWAYS, NOW_MS)
        yield (
            collector,
            {
                "agent": token(dsn, "agent", node=f"{OWN}-node"),
                "viewer": token(dsn, "viewer", owner={"team": OWN}),
                "finance": token(dsn, "finance"),
                "admin": token(dsn, "admin"),
            },
        )
