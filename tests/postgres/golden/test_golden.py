"""What people and programs read of one ledger stays the same bytes: commands, addresses, files of
pages, assistants.

The answers to the rich ledger (fakes.rich_ledger) lie in `answers/`, one file for each question and
form. A change that is meant is written with GPULEDGER_TEST_GOLDEN=write, and seen in the diff of
the commit that makes it.
"""

import difflib
import json
import os
import re
from inspect import signature
from pathlib import Path

import pytest

from fakes.assistant import over
from fakes.books import Command
from fakes.collector import running
from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER
from fakes.replicas import until as wait_until
from fakes.rich_ledger import CLOSED, OPEN, rich
from gpuledger_collector.api import admission
from gpuledger_collector.mcp.tools import TOOLS
from gpuledger_collector.notifications import finding_mail, spending_week_mail
from gpuledger_collector.services.finding_notifications import MailWriters, notify_findings
from gpuledger_collector.storage.database import Database

__all__ = ["rich"]
pytestmark = pytest.mark.slow
ANSWERS = Path(__file__).parent / "answers"
WRITING = "GPULEDGER_TEST_GOLDEN"
MONTH, PAST = ("--period", OPEN), ("--period", CLOSED)
BUDGETS = """
[[budget]]
name = "vision"
team = "vision"
period = "month"
amount = 500
currency = "USD"
recipients = ["vision@example.com"]
"""
CONTACT = """
[[contact]]
team = "vision"
recipients = ["vision@example.com"]

[[contact]]
team = "nlp"
recipients = ["nlp@example.com"]
"""
PRICES = "pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from\n,,on_demand,9,USD,2025-01-01\n"
LISTS = {
    "chargeback": ("chargeback", *MONTH),
    "chargeback-closed": ("chargeback", *PAST, "--by", "team,project"),
    "chargeback-workload": ("chargeback", *MONTH, "--by", "workload,model"),
    "chargeback-places": ("chargeback", *MONTH, "--by", "pool,region,node"),
    "chargeback-cash": ("chargeback", *MONTH, "--view", "cash"),
    "chargeback-euros": ("chargeback", *MONTH, "--currency", "EUR"),
    "idle": ("idle", *MONTH),
    "idle-state": ("idle", *MONTH, "--by", "state"),
    "idle-team": ("idle", *MONTH, "--by", "team"),
    "idle-services": ("idle", "--services"),
    "anomalies": ("anomalies", *MONTH),
    "runs": ("runs", *MONTH),
    "run": ("runs", "show", "job-1"),
    "receipt": ("receipt", "1"),
    "budgets": ("budgets",),
    "forecast-spend": ("forecast", "spend"),
    "what-if": ("what-if", *MONTH, "--by", "team", "--prices", "{prices}"),
    "recommend": ("recommend",),
    "disputes": ("disputes", "list"),
    "dispute": ("disputes", "show", "1"),
    "dispute-lines": ("disputes", "lines", "--owner", "vision", *MONTH),
    "corrections": ("corrections", "--period", CLOSED),
    "periods": ("periods",),
    "adjustments": ("adjustments", "list"),
    "prices": ("prices", "list"),
    "accelerators": ("accelerators",),
    "nodes": ("nodes", "list"),
    "notifications": ("notifications", "list"),
    "actions": ("actions", "list"),
    "outbox": ("outbox", "list"),
    "tags": ("tags", "check", *MONTH),
    "proof": ("reconcile", *MONTH),
    "proof-closed": ("periods", "--verify", CLOSED),
}
"""Questions that have a table, CSV and JSON; those of one form have that one."""
FORMS = {
    "tags": ("table", "json"),
    "proof": ("table", "json"),
    "proof-closed": ("table",),
    "run": ("table", "json"),
    "receipt": ("table", "json"),
    "dispute": ("table", "json"),
}
FILES = {
    "chargeback.focus": ("chargeback", *MONTH, "--format", "focus"),
    "chargeback.focus-split": ("chargeback", *MONTH, "--format", "focus", "--focus-version", "1.4"),
    "chargeback.beancount": ("chargeback", *MONTH, "--format", "beancount"),
    "statement.vision.html": ("statement", *MONTH, "--owner", "vision"),
    "statement.speech-closed.html": ("statement", *PAST, "--owner", "speech"),
    "config.toml": ("export", "config"),
}
ADDRESSES = {
    "/v1/chargeback": f"?period={OPEN}&by=team,pool",
    "/v1/runs": f"?period={OPEN}",
    "/v1/inference": f"?period={OPEN}",
    "/v1/queues": f"?period={OPEN}",
    "/v1/queues/quotas": f"?period={OPEN}",
    "/v1/queues/evictions": f"?period={OPEN}",
    "/v1/idle": f"?period={OPEN}",
    "/v1/anomalies": f"?period={OPEN}",
    "/v1/disputes/{number}": "",
    "/v1/samples": (
        "?gpu=GPU-0001&metric=gpu_util&from=2025-11-03T00:00:00Z&to=2025-11-03T01:00:00Z"
    ),
    "/v1/series": "?level=team&from=2025-11-03T00:00:00Z&to=2025-11-04T00:00:00Z",
    "/v1/accelerators": "?from=2025-11-03&to=2025-11-04",
}
"""Parameters of addresses that need some; the others are asked without."""
PLACES = {"{number}": "1", "{pool:name}": "train"}
CHANGING = {"/v1/audit": "the audit log has the instants at which it was written"}
PAGES = {
    "overview.html": f"/?period={OPEN}",
    "statements.csv": f"/statements/team/{OPEN}?format=csv",
    "idle.csv": f"/idle?period={OPEN}&format=csv",
    "anomalies.csv": f"/anomalies?period={OPEN}&format=csv",
    "jobs.csv": f"/jobs?period={OPEN}&format=csv",
    "trust.csv": f"/trust?period={OPEN}&format=csv",
}
"""The overview, and the pages that have a file for spreadsheets."""
FORECASTING = "The forecast is being computed"
TOOL_ARGUMENTS = {
    "list_values": {"dimension": "team"},
    "get_statement": {"owner": "vision", "month": OPEN},
    "verify_statement": {"month": CLOSED},
    "get_device_usage": {"device": "GPU-0001", "period": OPEN},
    "compare_periods": {"period": OPEN, "base_period": CLOSED},
    "explain_change": {"period": OPEN, "base_period": CLOSED},
    "list_idle_gpus": {"days": 30, "ongoing_only": False},
    "forecast_spend": {},
    "forecast_demand": {},
    "get_rightsizing": {},
    "get_inference_cost": {"period": OPEN},
    "list_queues": {"period": OPEN},
    "list_budgets": {},
    "describe_ledger": {},
    "get_cost": {"period": OPEN, "group_by": "team"},
    "get_gpu_waste": {"period": OPEN},
    "get_efficiency": {"period": OPEN},
}
STYLE = re.compile(
    r"<style>.*?</style>|sha256-[\w+/=]+|(?<=/assets/)[\w.]+\.[0-9a-f]{12}", re.DOTALL
)
WRITTEN = re.compile(r"\b(20[3-9]\d|202[6-9])-\d\d-\d\d[T ][\d:.]+(Z|\+00:00)?")
"""Instants of the machine's clock, at which rows were written: the ledger's own time is 2025."""


FINDING = (
    "INSERT INTO finding (key, kind, state, subject, accelerator_id, workload_id, team, owner,"
    " since_ms, opened_ms, until_ms, resolved_ms, confidence, currency, cost_micro, per_day_micro,"
    " evidence) SELECT %(key)s, %(kind)s, %(state)s, %(subject)s, (SELECT id FROM accelerator WHERE"
    " uuid = %(subject)s), (SELECT id FROM workload WHERE key = %(workload)s), %(team)s, %(owner)s,"
    " %(since)s, %(since)s, %(until)s, %(resolved)s, 0.9, %(currency)s, %(cost)s, %(per_day)s,"
    " %(evidence)s"
)
UNUSUAL = {
    "days_before": 7,
    "price_micro": 0,
    "volume_micro": 81_250_000,
    "mix_micro": 0,
    "rates": [],
    "drivers": [{"workload": "job-2", "model": "H100", "change_micro": 81_250_000}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("golden")


@pytest.fixture
def asked(rich, dsn, folder):
    """The ledger with a budget and a dispute, and a command on it."""
    command = Command(dsn)
    (folder / "budgets.toml").write_text(BUDGETS)
    (folder / "contact.toml").write_text(CONTACT)
    (folder / "prices.csv").write_text(PRICES)
    for arguments in (
        ("apply", folder / "budgets.toml"),
        ("apply", folder / "contact.toml"),
        ("disputes", "open", "--owner", "vision", "--period", OPEN, "--reason", "Not our job."),
    ):
        code, out, err = command(*arguments)
        assert code == 0, (out, err)
    find(rich, dsn)
    return command


def find(rich, dsn):
    """Two idle accelerators, one of them until now, and spending that stands out; the teams of what
    is ongoing are notified.
    """
    start = OCTOBER + 34 * DAY
    idle, unusual = ("idle", "never_used"), ("anomaly", "usage")
    ended = start + 5 * HOUR, start + 6 * HOUR
    place = {"node": "n1", "pool": "train"}
    for (kind, state), subject, workload, team, (until, resolved), (
        currency,
        *amounts,
    ), evidence in (
        (idle, "GPU-0001", 1, "vision", (NOW_MS, None), ("USD", 12_345_678, 9_876_543), place),
        (idle, "GPU-0003", 3, "speech", ended, ("EUR", 37_037_034, 29_629_629), {"node": "n2"}),
        (unusual, "nlp", 0, "nlp", (NOW_MS, None), ("USD", 81_250_000, 81_250_000), UNUSUAL),
    ):
        row = {
            "key": f"{kind}:{subject}",
            "kind": kind,
            "state": state,
            "subject": subject,
            "workload": f"slurm::{workload}",
            "team": team,
            "owner": json.dumps({"team": team}),
            # An episode that is found long after it began is in no mail.
            "since": NOW_MS - DAY if kind == "anomaly" else start,
            "until": until,
            "resolved": resolved,
            "currency": currency,
            "cost": amounts[0],
            "per_day": amounts[1],
            "evidence": json.dumps(evidence),
        }
        rich.connection.execute(FINDING, row)
    writers = MailWriters(
        finding_mail.idle,
        finding_mail.anomaly,
        finding_mail.summary,
        spending_week_mail.spending_week,
    )
    report = notify_findings(Database(dsn), NOW_MS, writers)
    assert (report.idle, report.anomalies) == (1, 1)


def steady(text):
    """A text without what changes from run to run."""
    return WRITTEN.sub("(written)", STYLE.sub("", text))


def commands(command, folder):
    for name, arguments in LISTS.items():
        for form in FORMS.get(name, ("table", "csv", "json")):
            words = [word.format(prices=folder / "prices.csv") for word in arguments]
            yield (
                f"command/{name}.{form}",
                command(*words, *(() if form == "table" else ("--format", form))),
            )
    for name, arguments in FILES.items():
        yield f"command/{name}", command(*arguments)


def addresses(dsn):
    reads = [
        row.way_in.removeprefix("GET ")
        for row in admission.ADMISSIONS
        if row.way_in.startswith("GET /v1/")
    ]
    with running(dsn, clock=lambda: NOW_MS) as collector:
        for path in reads:
            if path.endswith("/ack") or path in CHANGING:
                continue
            target = path
            for place, value in PLACES.items():
                target = target.replace(place, value)
            status, _, answer = collector.request("GET", target + ADDRESSES.get(path, ""))
            text = (
                answer
                if isinstance(answer, str)
                else json.dumps(answer, indent=1, ensure_ascii=False)
            )
            yield f"address/{re.sub(r'[{}:]', '', path[1:]).replace('/', '.')}", (status, text, "")
        for name, path in PAGES.items():
            # A page does not wait for a forecast: its answer is that with it.
            wait_until(lambda path=path: FORECASTING not in collector.request("GET", path)[2])
            status, _, answer = collector.request("GET", path)
            yield f"page/{name}", (status, answer, "")


def tools(dsn):
    assistant = over(dsn, NOW_MS, None)
    for tool in TOOLS:
        reply = assistant.ask(tool.__name__, **TOOL_ARGUMENTS[tool.__name__])
        content = json.dumps(reply.content, indent=1, ensure_ascii=False)
        yield f"assistant/{tool.__name__}", (reply.is_error, content, reply.text)


def test_every_answer_is_the_same_bytes(asked, dsn, folder):
    """Each answer is that of its file, and no file is left over."""
    given = {}
    for surface in (addresses(dsn), tools(dsn), commands(asked, folder)):
        for name, (status, out, err) in surface:
            given[name] = steady(f"{status}\n{out}{err}")
    if os.environ.get(WRITING) == "write":
        for path in sorted(ANSWERS.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        for name, text in given.items():
            path = ANSWERS / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    kept = {
        str(path.relative_to(ANSWERS)): path.read_text()
        for path in ANSWERS.rglob("*")
        if path.is_file()
    }
    changed = [
        "\n".join(
            difflib.unified_diff(
                kept[name].splitlines(), given[name].splitlines(), name, "now", lineterm="", n=1
            )
        )
        for name in sorted(kept.keys() & given.keys())
        if kept[name] != given[name]
    ]
    assert not changed, "\n".join(changed)
    assert kept.keys() == given.keys()


def test_every_tool_is_asked():
    """A new tool of assistants is asked here, too."""
    assert set(TOOL_ARGUMENTS) == {tool.__name__ for tool in TOOLS}
    assert all(
        set(given) <= set(signature(tool).parameters)
        for tool in TOOLS
        for given in [TOOL_ARGUMENTS[tool.__name__]]
    )
