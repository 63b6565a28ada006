"""gpuledger demo: a month of a simulated fleet through the real agent and the real collector, then
live.

Nothing here computes a number: the demo runs the commands that a user would run, keeps what they
print in its log, and repeats the lines that matter at the end. The month is sampled more coarsely
than the live part, so that it passes within a minute; the code is the same. What does not need the
other's result runs side by side.
"""

from __future__ import annotations

import csv
import shlex
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

from typer import Option

from gpuledger_collector.cli.common import new_app, shipped_folder
from gpuledger_collector.cli.demo_commands import Command, preload
from gpuledger_collector.cli.demo_grafana import ROLE, GrafanaFiles
from gpuledger_collector.cli.demo_stage import PORT, Stage, collector, end, free_port, set_up
from gpuledger_collector.cli.demo_summary import Highlights, summary
from gpuledger_collector.wiring import read_clock
from gpuledger_common.instants import to_datetime, to_ms

app = new_app()
LATE_NODE, LATE_DAYS = "l4-01", 2

PRICES = """pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from,effective_to,list_rate
,H100,on_demand,6.88,USD,{start},,6.88
,A100,on_demand,3.43,USD,{start},,3.43
,L40S,on_demand,1.86,USD,{start},,1.86
,L4,on_demand,0.80,USD,{start},,0.80
,H100,on_demand,5.95,USD,{change},,6.88
"""
"""On-demand medians per GPU-hour of a large cloud; H100 becomes cheaper in the middle of an hour of
the month.
"""

BUDGETS = """[[budget]]
name = "vision"
team = "vision"
period = "range"
from = {start}
to = {end}
amount = {vision}
currency = "USD"
recipients = ["vision-lead@example.com"]
escalate_to = ["head-of-research@example.com"]

[[budget]]
name = "foundation"
team = "foundation"
period = "range"
from = {start}
to = {end}
amount = {foundation}
currency = "USD"
actual = [80, 100]
recipients = ["foundation-lead@example.com"]
"""
ACTED_FROM_DAYS = 14
"""In a demo of so many days advice is followed in the middle, and measured in the second half."""
ADVISED = "sim2real"
MIXED, PAGE_STEP = "mixed", "15m"
"""The folder of pages of other vendors' exporters in the examples; each page holds for an hour."""
FINE_NODE, FINE_HOURS, STEP, FINE_STEP = "a100-02", 36, "5m", "20s"
"""One node's last hours are sampled finely: that a job waits for its data shows within minutes, not
between them.
"""
STEP_MINUTES = 5
CATCH_UP_FROM = timedelta(minutes=5)
"""A month that takes longer is followed by these minutes: evidence that is older than fifteen says
nothing of now.
"""
CARBON = """[[carbon]]
region = "an average grid"
grams_per_kwh = 450
pue = 1.3
"""
CONTACTS = """[[contact]]
user = "*"
address = "{user}@example.com"

[[contact]]
team = "*"
recipients = ["platform@example.com"]
leads = ["head-of-research@example.com"]
"""
INFERENCE = """[[inference]]
name = "chat-api"
models = ["chat-large"]
served_by = { project = "chat-api" }
weights = "1 : 0.1 : 4"

[[tenant]]
tenant = "nlp"
owner = { team = "nlp" }

[[tenant]]
tenant = "data"
owner = { team = "data" }

[[tenant]]
tenant = "speech"
owner = { team = "speech" }
"""
"""The shared model server, who pays for whose tokens, and what they weigh: a computed input token, a
cached one, and one of output.
"""
ASKED = "who-asked.csv"
VISION_A_DAY, FOUNDATION_A_DAY, DAYS_TO_COME = 400, 2500, 6
"""Vision's budget is too small for what it does, which the forecast sees before it is spent;
foundation's is not.
"""
IDLE_NOW: Command = ("gpuledger", "idle", "--now", "--top", "8")
RECOMMEND: Command = ("gpuledger", "recommend", "--top", "3")
FORECAST: Command = ("gpuledger", "forecast", "--horizon", "24h", "--format", "csv")
PLAN: Command = ("gpuledger", "plan", "capacity", "--store")
ADVISE: Command = ("gpuledger", "scale", "advise", "--delay", "10m")
MODULES = (
    *(
        f"gpuledger_collector.cli.{name}"
        for name in (
            "accelerators",
            "anomalies",
            "apply",
            "budgets",
            "chargeback",
            "close",
            "forecast",
            "idle",
            "imports",
            "inference",
            "notifications",
            "outbox",
            "plan_capacity",
            "reconcile",
            "recommend",
            "runs",
            "scale",
            "statement",
        )
    ),
    "gpuledger_agent.simulate",
)
"""What the commands of the month import."""


@dataclass(frozen=True)
class Month:
    """The days that the demo simulates, and the calendar month that it closes."""

    start: datetime
    until: datetime
    """Where the evidence ends: the demo's beginning, to a whole step."""
    days: int
    nodes: Sequence[str]

    @property
    def span(self) -> tuple[str, ...]:
        """Options that ask for the whole days."""
        return "--from", f"{self.start:%Y-%m-%d}", "--to", f"{self.until:%Y-%m-%d}"

    @property
    def middle(self) -> datetime:
        """When advice is followed."""
        return self.start + timedelta(days=self.days // 2)

    @property
    def closed_month(self) -> tuple[str, datetime] | None:
        """Name and end of the calendar month before this one; None when the demo has seen too
        little of it.
        """
        first = self.until.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        if first - self.start < timedelta(days=LATE_DAYS + 1):
            return None
        return f"{first - timedelta(days=1):%Y-%m}", first


@app.command(epilog="Example: gpuledger demo --once")
def demo(
    once: Annotated[
        bool, Option("--once", help="End after the month instead of serving live.")
    ] = False,
    days: Annotated[
        int, Option("--days", min=1, max=90, help="How many past days to simulate.")
    ] = 30,
    output: Annotated[
        Path, Option("--output", metavar="DIR", help="Folder for the files that the demo makes.")
    ] = Path("demo-output"),
    port: Annotated[
        int, Option("--port", help="Port of the collector; 0 takes 8440, or a free one.")
    ] = 0,
    mixed: Annotated[
        bool,
        Option("--mixed", help="Add an AMD and a TPU node, by replaying pages of their exporters."),
    ] = False,
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="Print what every command prints.")
    ] = False,
) -> None:
    """Show the product on a simulated fleet: its bill, its waste, and the proof that every
    GPU-second is there.

    Ends with a summary; logs/demo.log has every command that was run, with its output.
    """
    # What was started is ended, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stage = set_up(output, port)
    stage.verbose = verbose
    with collector(stage, meanwhile=lambda: preload(MODULES)):
        taken = "" if port or stage.port == PORT else f" (port {PORT} is taken)"
        stage.say(f"collector at {stage.collector}{taken}: open it, the page fills as we go")
        month = month_until_now(stage, days)
        simulate_month(stage, month)
        if mixed:
            replay_pages(stage, month)
        highlights = report(stage, month)
        print("\n" + "\n".join(summary(stage.folder, highlights)), flush=True)
        if mixed:
            print(
                "\n"
                + "\n".join(stage.run("gpuledger", "chargeback", *month.span, "--by", "model")),
                flush=True,
            )
        if once:
            first, *others = questions(stage, month)
            print(
                "\n".join([f"Ask it:        {first}", *(f"{'':15}{other}" for other in others)]),
                flush=True,
            )
        else:
            live(stage, month, mixed)


def month_until_now(stage: Stage, days: int) -> Month:
    """So many whole days of the fleet, and today up to now."""
    until = to_datetime(read_clock()).replace(second=0, microsecond=0)
    until -= timedelta(minutes=until.minute % STEP_MINUTES)
    start = (until - timedelta(days=days)).replace(hour=0, minute=0)
    return Month(start, until, days, stage.run("gpuledger-agent", "simulate", "--list-nodes"))


def simulate_month(stage: Stage, month: Month) -> None:
    """The fleet's past, with one recommendation that is followed in the middle.

    The first half is judged while the second half arrives: advice as of an instant rests on nothing
    after it.
    """
    enter_prices(stage, month)
    stage.say(f"simulating {month.days} days of a fleet through the real agent code ...")
    if month.days < ACTED_FROM_DAYS:
        stage.run_lanes(*fleet(stage, month, month.start, month.until))
        return
    stage.environment["GPULEDGER_AGENT_GIVEN_BACK_MS"] = str(to_ms(month.middle))
    stage.run_lanes(*fleet(stage, month, month.start, month.middle))
    stage.say(
        "half of the month is over: one recommendation is accepted, and its saving measured from"
        " then on ..."
    )
    seen = instant(month.middle)
    half = ("--from", f"{month.start:%Y-%m-%d}", "--to", f"{month.middle:%Y-%m-%d}")
    advice: Command = ("gpuledger", "recommend", "--as-of", seen, "--format", "csv")
    judge: list[Command] = [("gpuledger", "chargeback", *half, "--by", "team"), advice]
    printed = stage.run_lanes(judge, *fleet(stage, month, month.middle, month.until))
    rows = csv.DictReader(printed[advice])
    number = next((row["id"] for row in rows if ADVISED in (row["advice"] or "")), None)
    if number is not None:
        reason = f"{ADVISED} gives its cards back"
        stage.run("gpuledger", "recommend", "accept", number, "--at", seen, "--reason", reason)


def simulation(
    stage: Stage, start: datetime, end: datetime, *options: str, step: str = STEP
) -> list[Command]:
    """The command that simulates a part of the fleet's past and sends it to the collector; none for
    no time.
    """
    if start >= end:
        return []
    bounds = ("--from", instant(start), "--to", instant(end), "--step", step)
    return [("gpuledger-agent", "simulate", *bounds, "--collector", stage.collector, *options)]


def fleet(stage: Stage, month: Month, start: datetime, end: datetime) -> list[list[Command]]:
    """All nodes from start to end, but for what the late node saw while it was cut off: that lies
    in its spool.
    """
    fine = min(max(start, month.until - timedelta(hours=FINE_HOURS)), end)
    only = ("--only", FINE_NODE)
    # Most samples first, so that no core is left with them at the end.
    lanes = [
        [
            *simulation(stage, start, fine, *only),
            *simulation(stage, fine, end, *only, step=FINE_STEP),
        ]
    ]
    for node in month.nodes:
        if node == LATE_NODE and month.closed_month is not None:
            _, over = month.closed_month
            before = simulation(
                stage, start, min(end, over - timedelta(days=LATE_DAYS)), "--only", node
            )
            lanes.append([*before, *simulation(stage, max(start, over), end, "--only", node)])
        elif node != FINE_NODE:
            lanes.append(simulation(stage, start, end, "--only", node))
    return lanes


def catch_up(stage: Stage, month: Month) -> None:
    """Simulate the time that the demo took, where that was long: what is idle now is judged by the
    last minutes.
    """
    end = to_datetime(read_clock())
    if end - month.until > CATCH_UP_FROM:
        stage.say(
            f"simulating the {round((end - month.until) / timedelta(minutes=1))} minutes that this"
            " took ..."
        )
        stage.run_lanes(
            *(
                simulation(stage, month.until, end, "--only", node, step=FINE_STEP)
                for node in month.nodes
            )
        )


def replay_pages(stage: Stage, month: Month) -> None:
    """Nodes of other vendors: the pages of their exporters through the real agent code, with their
    prices.
    """
    stage.say("replaying the pages of an AMD and a TPU node through the real agent code ...")
    stage.run("gpuledger", "apply", str(shipped_folder("examples") / MIXED / "ledger.toml"))
    pages = str(shipped_folder("examples") / MIXED)
    stage.run_lanes(simulation(stage, month.start, month.until, "--pages", pages, step=PAGE_STEP))


def close_month(stage: Stage, name: str, end: datetime) -> None:
    """Last month is closed; then the spool of the node that was cut off arrives: the closed month
    stays as it is.
    """
    stage.say(
        f"closing {name}; what {LATE_NODE} saw in its last {LATE_DAYS} days arrives after the"
        " close ..."
    )
    stage.run("gpuledger", "close", "--period", name)
    stage.run_lanes(simulation(stage, end - timedelta(days=LATE_DAYS), end, "--only", LATE_NODE))
    stage.run("gpuledger", "corrections", "--period", name)
    stage.run("gpuledger", "periods", "--verify", name)


def instant(at: datetime) -> str:
    """RFC 3339 in UTC, to the second."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def enter_prices(stage: Stage, month: Month) -> None:
    """The demo's price book."""
    change = month.middle + timedelta(hours=9, minutes=30)
    book = stage.folder / "prices.csv"
    book.write_text(
        PRICES.format(start=instant(month.start - timedelta(days=1)), change=instant(change))
    )
    stage.run("gpuledger", "import", "prices", "prices.csv")


def declare(stage: Stage, month: Month) -> None:
    """Two budgets, whom to write to, and what a kilowatt-hour emits."""
    end = month.start + timedelta(days=month.days + DAYS_TO_COME)
    (stage.folder / "budgets.toml").write_text(
        BUDGETS.format(
            start=f"{month.start:%Y-%m-%d}",
            end=f"{end:%Y-%m-%d}",
            vision=VISION_A_DAY * month.days,
            foundation=FOUNDATION_A_DAY * month.days,
        )
    )
    (stage.folder / "contacts.toml").write_text(CONTACTS)
    (stage.folder / "carbon.toml").write_text(CARBON)
    stage.run_lanes(
        [("gpuledger", "apply", f"{name}.toml") for name in ("carbon", "budgets", "contacts")]
    )


def share_model(stage: Stage, month: Month) -> None:
    """Who asked the shared model, as its gateway counted; the bill stays what it is."""
    (stage.folder / "inference.toml").write_text(INFERENCE)
    span = ("--from", instant(month.start), "--to", instant(month.until))
    stage.run("gpuledger-agent", "simulate", "--asked", ASKED, *span)
    stage.run("gpuledger", "apply", "inference.toml")
    stage.run("gpuledger", "import", "inference", ASKED)
    stage.run("gpuledger", "inference", "list", *month.span, "--by", "tenant")


def report(stage: Stage, month: Month) -> Highlights:
    """Ask the ledger what a newcomer would ask, close the last month, and leave the files."""
    stage.say("rating the month ...")
    stage.run("gpuledger", "chargeback", *month.span, "--by", "team")
    declare(stage, month)
    share_model(stage, month)
    catch_up(stage, month)
    stage.say(
        "the bill as files, forecasts; budgets, idle GPUs, unusual spending, recommendations ..."
    )
    proof: Command = ("gpuledger", "reconcile", *month.span)
    anomalies: Command = ("gpuledger", "anomalies", "--days", str(month.days))
    printed = stage.run_lanes(
        [*bill(month), proof, *budgets(month), *outlook(month)], waste(month, anomalies)
    )
    if month.closed_month is not None:
        close_month(stage, *month.closed_month)
    stage.run_lanes(
        # The collector planned when its ledger was empty, and does so again in an hour.
        [PLAN],
        *(
            [("gpuledger", "statement", "--all", "--period", name, "--dir", f"statements/{name}")]
            for name in [
                *([] if month.closed_month is None else [month.closed_month[0]]),
                f"{month.until:%Y-%m}",
            ]
        ),
    )
    # What came after the first proof, so that no page waits for the collector's own.
    stage.run("gpuledger", "reconcile", "--period", f"{month.until:%Y-%m}")
    stage.say(f"done; the files are in {stage.folder}")
    return Highlights(
        proof=printed[proof],
        idle=printed[IDLE_NOW],
        anomalies=printed[anomalies],
        recommended=printed[RECOMMEND],
        forecast=printed[FORECAST],
        advice=printed[ADVISE],
        closed=None if month.closed_month is None else month.closed_month[0],
    )


def bill(month: Month) -> list[Command]:
    """The month's bill in files, and who used most and least of what it is about."""
    chargeback = ("gpuledger", "chargeback", *month.span, "--by")
    accelerators = ("gpuledger", "accelerators", *month.span, "--top", "5", "--sort")
    return [
        (*chargeback, "team,project", "--format", "csv", "-o", "chargeback.csv"),
        (*chargeback, "team", "--format", "json", "-o", "chargeback.json"),
        (*chargeback, "team", "--format", "focus", "-o", "focus.csv"),
        (*accelerators, "busiest"),
        (*accelerators, "idlest"),
        ("gpuledger", "runs", *month.span, "--top", "5"),
    ]


def outlook(month: Month) -> list[Command]:
    """What lies ahead; and the fleet's own script, which the log has before what the ledger found
    of it.
    """
    return [
        FORECAST,
        ("gpuledger", "forecast", "--horizon", "24h"),
        ("gpuledger", "forecast", "history"),
        ADVISE,
        (
            "gpuledger-agent",
            "simulate",
            "--story",
            "--from",
            instant(month.start),
            "--to",
            instant(month.until),
        ),
    ]


def budgets(month: Month) -> list[Command]:
    """The budgets as of each day of the month, with their mails, and as of now."""
    tomorrow = month.until + timedelta(days=1)
    return [
        (
            "gpuledger",
            "budgets",
            "replay",
            "--from",
            f"{month.start:%Y-%m-%d}",
            "--to",
            f"{tomorrow:%Y-%m-%d}",
        ),
        ("gpuledger", "outbox", "send"),
        ("gpuledger", "budgets"),
    ]


def waste(month: Month, anomalies: Command) -> list[Command]:
    """Idle GPUs and unusual spending, whom that is told, and what to do about it."""
    return [
        ("gpuledger", "idle", "--days", str(month.days), "--by", "state"),
        IDLE_NOW,
        anomalies,
        ("gpuledger", "notifications", "write"),
        ("gpuledger", "outbox", "send"),
        RECOMMEND,
        ("gpuledger", "recommend", "--state", "accepted,done"),
    ]


def live(stage: Stage, month: Month, mixed: bool) -> None:
    """Agents of the whole fleet at ten seconds a sample, until Ctrl-C."""
    agents: list[subprocess.Popen[bytes]] = []
    pages = {
        folder.name: folder
        for folder in (shipped_folder("examples") / MIXED).iterdir()
        if mixed and folder.is_dir()
    }
    names = [*month.nodes, *sorted(pages)]
    metrics = [f"127.0.0.1:{free_port(0)}" for _ in names]
    try:
        # one by one: those that run are ended
        agents.extend(
            start_agent(stage, name, address, pages.get(name))
            for name, address in zip(names, metrics, strict=True)
        )
        grafana = write_grafana(stage, metrics)
        tell(stage, month, month.until, len(agents))
        print(f"{grafana}\nCtrl-C ends everything.", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        print()
    finally:
        stage.say("ending the agents ...")
        end(*agents)


def tell(stage: Stage, month: Month, at: datetime, agents: int) -> None:
    """What can be looked at now, and how."""
    today = ("--from", f"{at:%Y-%m-%d}", "--to", f"{at + timedelta(days=1):%Y-%m-%d}")
    idlest = stage.command("gpuledger", "accelerators", *today, "--sort", "idlest")
    commands = "\n    ".join([*questions(stage, month), shlex.join(idlest)])
    print(
        f"""
Live now: {agents} agents sample every 10 s and push every minute. Open:
    {stage.collector}/           the overview: spend, idle GPUs, budgets, demand, and a statement for each team
    {stage.collector}/docs       the API
    {stage.collector}/metrics    the collector's own metrics
Ask it, in another terminal:
    {commands}""",
        flush=True,
    )


def questions(stage: Stage, month: Month) -> list[str]:
    """Commands to begin with, the first about the days of the printed bill."""
    asked = (
        ("chargeback", *month.span, "--by", "team,project"),
        ("idle", "--now", "--top", "5"),
    )
    return [shlex.join(stage.command("gpuledger", *words)) for words in asked]


def write_grafana(stage: Stage, metrics: Sequence[str]) -> str:
    """Let a role read, write what Grafana and Prometheus need beside this demo, and return how to
    start them.
    """
    files = GrafanaFiles(stage.folder / "grafana")
    files.create_password()
    stage.run("gpuledger", "db", "grant-reader", ROLE, "--password-file", str(files.password))
    port = (stage.folder / "data" / "port").read_text().strip()
    files.write(port, stage.collector.removeprefix("http://"), metrics)
    return files.how_to_start()


def start_agent(
    stage: Stage, name: str, metrics: str, pages: Path | None
) -> subprocess.Popen[bytes]:
    """One node's agent, with a spool of its own and its metrics at this address; of simulated GPUs,
    or of a page.
    """
    source = (
        ["simulated"] if pages is None else ["exporter", "--target", str(min(pages.glob("*.prom")))]
    )
    return stage.start(
        f"agent-{name}",
        "gpuledger-agent",
        "run",
        "--source",
        *source,
        "--node",
        name,
        GPULEDGER_AGENT_COLLECTOR_URL=stage.collector,
        GPULEDGER_AGENT_SPOOL_DIR=str(stage.folder / "spool" / name),
        GPULEDGER_AGENT_METRICS_LISTEN=metrics,
    )
