"""gpuledger demo: a month of a simulated fleet through the real agent and the real collector, then live.

Nothing here computes a number: the demo starts the commands that a user would start, keeps what they print in its log,
and repeats the lines that matter at the end. The month is sampled more coarsely than the live part, so that it passes
in minutes; the code is the same.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

from typer import Option

from gpuledger_collector.cli.common import UNAVAILABLE, new_app, refuse
from gpuledger_collector.cli.demo_grafana import ROLE, GrafanaFiles
from gpuledger_collector.cli.demo_summary import Highlights, summary
from gpuledger_collector.cli.shipped import shipped

app = new_app()
LATE_NODE, LATE_DAYS = "l4-01", 2
READY_SECONDS = 60
PATIENCE_SECONDS = 40
"""How long a process of the demo may take to end."""
PORT = 8440
MARKER, CONFIG = ".gpuledger-demo", "collector.toml"
TEMPORARY = ".tmp"
"""Where its commands put temporary files: those of one that was killed go with the folder."""

PRICES = """pool,gpu_model,purchase,rate_per_gpu_hour,currency,effective_from,effective_to,list_rate
,H100,on_demand,6.88,USD,{start},,6.88
,A100,on_demand,3.43,USD,{start},,3.43
,L40S,on_demand,1.86,USD,{start},,1.86
,L4,on_demand,0.80,USD,{start},,0.80
,H100,on_demand,5.95,USD,{change},,6.88
"""
"""On-demand medians per GPU-hour of a large cloud; H100 becomes cheaper in the middle of an hour of the month."""

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
"""One node's last hours are sampled finely: that a job waits for its data shows within minutes, not between them."""
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
VISION_A_DAY, FOUNDATION_A_DAY, DAYS_TO_COME = 400, 2500, 6
"""Vision's budget is too small for what it does, which the forecast sees before it is spent; foundation's is not."""


def own_command(arguments: Sequence[str]) -> list[str]:
    """A command line whose program is that of this installation."""
    return [str(Path(sys.executable).with_name(arguments[0])), *arguments[1:]]


@dataclass
class Stage:
    """The demo's folder, the environment of its commands, and the port of its collector."""

    folder: Path
    environment: dict[str, str]
    port: int
    verbose: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def collector(self) -> str:
        """Address of the demo's collector."""
        return f"http://127.0.0.1:{self.port}"

    def say(self, sentence: str) -> None:
        """One line of progress, with the seconds since the start."""
        print(f"[{time.monotonic() - self.started:5.1f} s] {sentence}", flush=True)

    def command(self, *arguments: str) -> list[str]:
        """A command line of the product that asks the demo's ledger, from whatever folder it is run."""
        settings = ["--config", str(self.folder / CONFIG)] if arguments[0] == "gpuledger" else []
        return [*own_command(arguments), *settings]

    @property
    def log(self) -> Path:
        """Every command of the month with what it printed."""
        return self.folder / "logs" / "demo.log"

    def run(self, *arguments: str) -> list[str]:
        """Run a command of the product and return the lines it prints. Refuses to continue when it fails."""
        command = self.command(*arguments)
        shown = f"\n$ {shlex.join(command)}\n"
        process = subprocess.run(
            command,
            env=self.environment,
            cwd=self.folder,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        with self.log.open("a", encoding="utf-8") as log:
            log.write(shown + process.stdout)
        if self.verbose:
            print(shown + process.stdout, end="", flush=True)
        if process.returncode:
            last = (process.stdout.strip().splitlines() or ["(it said nothing)"])[-1]
            sentence = f"the demo stopped: `{' '.join(arguments)}` ended with {process.returncode}: {last}"
            refuse(f"{sentence} (see {self.log})", UNAVAILABLE)
        return process.stdout.splitlines()

    def read(self, *arguments: str) -> str:
        """What a command of the product prints."""
        return subprocess.run(
            own_command(arguments), env=self.environment, cwd=self.folder, check=False, capture_output=True, text=True
        ).stdout

    def start(self, name: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a long-running command of the product; its log goes to a file of the folder."""
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                own_command(arguments),
                env={**self.environment, **environment},
                cwd=self.folder,
                stdout=log,
                stderr=log,
                # A session of its own: Ctrl-C reaches the demo alone, which ends its processes in order.
                start_new_session=True,
            )


@app.command(epilog="Example: gpuledger demo --once")
def demo(
    once: Annotated[bool, Option("--once", help="End after the month instead of serving live.")] = False,
    days: Annotated[int, Option("--days", min=1, max=90, help="How many past days to simulate.")] = 30,
    output: Annotated[Path, Option("--output", metavar="DIR", help="Folder for the files that the demo makes.")] = Path(
        "demo-output"
    ),
    port: Annotated[int, Option("--port", help="Port of the collector; 0 takes 8440, or a free one.")] = 0,
    mixed: Annotated[
        bool, Option("--mixed", help="Add an AMD and a TPU node, by replaying pages of their exporters.")
    ] = False,
    verbose: Annotated[bool, Option("--verbose", "-v", help="Print what every command prints.")] = False,
) -> None:
    """Show the product on a simulated fleet: its bill, its waste, and the proof that every GPU-second is there.

    Ends with a summary; logs/demo.log has every command that was run, with its output.
    """
    now = datetime.now(UTC)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is ended, as after Ctrl-C
    stage = set_up(output, port)
    stage.verbose = verbose
    start = (now - timedelta(days=days)).replace(hour=0, minute=0, second=0, microsecond=0)
    with collector(stage):
        taken = "" if port or stage.port == PORT else f" (port {PORT} is taken)"
        stage.say(f"collector at http://127.0.0.1:{stage.port}{taken}: open it, the page fills as we go")
        enter_prices(stage, start, days)
        stage.say(f"simulating {days} days of a fleet through the real agent code ...")
        month = last_month(start, now)
        middle = start + timedelta(days=days // 2)
        if days >= ACTED_FROM_DAYS:
            stage.environment["GPULEDGER_AGENT_GIVEN_BACK_MS"] = str(round(middle.timestamp() * 1000))
            simulate_fleet(stage, start, middle, month)
            act(stage, start, middle)
            simulate_fleet(stage, middle, now, month)
        else:
            simulate_fleet(stage, start, now, month)
        if mixed:
            replay_pages(stage, start, now)
        highlights = report(stage, start, now, days, month)
        print("\n" + "\n".join(summary(stage.folder, highlights)), flush=True)
        if mixed:
            print("\n" + "\n".join(bill_of_models(stage, start, now)), flush=True)
        if once:
            first, *others = questions(stage)
            print("\n".join([f"Ask it:        {first}", *(f"{'':15}{other}" for other in others)]), flush=True)
        else:
            live(stage, now, mixed)


def simulate(stage: Stage, start: datetime, end: datetime, *options: str, step: str = STEP) -> None:
    """Simulate a part of the fleet's past and send it to the collector."""
    if start < end:
        stage.run(
            "gpuledger-agent",
            "simulate",
            "--from",
            instant(start),
            "--to",
            instant(end),
            "--step",
            step,
            "--collector",
            stage.collector,
            *options,
        )


def simulate_fleet(stage: Stage, start: datetime, end: datetime, month: tuple[str, datetime] | None) -> None:
    """All nodes from start to end, but for what the late node saw while it was cut off: that lies in its spool."""
    alone = [FINE_NODE] if month is None else [FINE_NODE, LATE_NODE]
    simulate(stage, start, end, "--without", ",".join(alone))
    fine = max(start, datetime.now(UTC) - timedelta(hours=FINE_HOURS))
    simulate(stage, start, min(fine, end), "--only", FINE_NODE)
    simulate(stage, fine, end, "--only", FINE_NODE, step=FINE_STEP)
    if month is not None:
        simulate(stage, start, min(end, month[1] - timedelta(days=LATE_DAYS)), "--only", LATE_NODE)
        simulate(stage, max(start, month[1]), end, "--only", LATE_NODE)


def replay_pages(stage: Stage, start: datetime, end: datetime) -> None:
    """Nodes of other vendors: the pages of their exporters through the real agent code, with their prices."""
    stage.say("replaying the pages of an AMD and a TPU node through the real agent code ...")
    stage.run("gpuledger", "apply", str(shipped("examples") / MIXED / "ledger.toml"))
    simulate(stage, start, end, "--pages", str(shipped("examples") / MIXED), step=PAGE_STEP)


def bill_of_models(stage: Stage, start: datetime, now: datetime) -> list[str]:
    """The bill of every vendor's accelerators, side by side."""
    span = ("--from", f"{start:%Y-%m-%d}", "--to", f"{now:%Y-%m-%d}")
    return stage.run("gpuledger", "chargeback", *span, "--by", "model")


def act(stage: Stage, start: datetime, middle: datetime) -> None:
    """The bill and the advice in the middle of the month; one is followed, and its saving is measured from then on."""

    seen = instant(middle)
    stage.say("half of the month is over: one recommendation is accepted, and its saving measured from then on ...")
    stage.run("gpuledger", "chargeback", "--from", f"{start:%Y-%m-%d}", "--to", f"{middle:%Y-%m-%d}", "--by", "team")
    stage.run("gpuledger", "recommend", "--as-of", seen, "--top", "3")
    listed = stage.read("gpuledger", "recommend", "--as-of", seen, "--format", "json")
    number = next((item["id"] for item in json.loads(listed)["items"] if ADVISED in item["advice"]), None)
    if number is not None:
        reason = f"{ADVISED} gives its cards back"
        stage.run("gpuledger", "recommend", "accept", number, "--at", seen, "--reason", reason)


def last_month(start: datetime, now: datetime) -> tuple[str, datetime] | None:
    """Name and end of the month before this one; None when the demo has seen too little of it."""
    first = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    if first - start < timedelta(days=LATE_DAYS + 1):
        return None
    return f"{first - timedelta(days=1):%Y-%m}", first


def close_month(stage: Stage, name: str, end: datetime) -> None:
    """Last month is closed; then the spool of the node that was cut off arrives: the closed month stays as it is."""
    stage.say(f"closing {name}; what {LATE_NODE} saw in its last {LATE_DAYS} days arrives after the close ...")
    stage.run("gpuledger", "close", "--period", name)
    simulate(stage, end - timedelta(days=LATE_DAYS), end, "--only", LATE_NODE)
    stage.run("gpuledger", "corrections", "--period", name)
    stage.run("gpuledger", "periods", "--verify", name)


def instant(at: datetime) -> str:
    """RFC 3339 in UTC, to the second."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def set_up(output: Path, port: int) -> Stage:
    """An empty folder with the demo's own settings; a folder that is not the demo's is left alone."""
    folder = output.resolve()
    # The folder is deleted below, so it must be one that the demo itself has made.
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        refuse(f"{folder} is not empty and was not made by the demo; name another folder with --output")
    if in_use(folder / "data"):
        refuse(f"a demo is running in {folder}: end it first (Ctrl-C), or name another folder with --output")
    if folder.exists():
        shutil.rmtree(folder)
    for name in ("logs", TEMPORARY):
        (folder / name).mkdir(parents=True)
    # Commands name files beside it.
    (folder / "logs" / "demo.log").write_text(f"$ cd {shlex.quote(str(folder))}\n")
    (folder / MARKER).write_text("made by gpuledger demo; may be deleted\n")
    # Settings of a real installation on this machine must not reach the demo, nor its data the other way round.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULEDGER_")}
    chosen = port or free_port(PORT)
    settings: dict[str, str | int] = {
        "data_dir": str(folder / "data"),
        "listen": f"127.0.0.1:{chosen}",
        "public_url": f"http://127.0.0.1:{chosen}",
        "mail_dir": str(folder / "mails"),
        "mail_from": "gpuledger@example.com",
        # The simulated fleet sends a past month through real batches.
        "max_evidence_age_days": 0,
        # The month is replayed day by day; a watch before that would write about all of it at once.
        "budget_seconds": 3600,
    }
    # A string of JSON is one of TOML, and so is a number.
    (folder / CONFIG).write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items()))
    own = {f"GPULEDGER_{name.upper()}": str(value) for name, value in settings.items()}
    environment = {**kept, **own, "TMPDIR": str(folder / TEMPORARY)}
    return Stage(folder, environment, chosen)


def in_use(data: Path) -> bool:
    """Whether some command uses the embedded Postgres of this data folder: each holds a lock on its file `users`."""
    try:
        with (data / "users").open("a") as users:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def free_port(wanted: int) -> int:
    """The port wanted, or a free one when somebody listens there."""
    for candidate in (wanted, 0):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", candidate))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise OSError("no free port on 127.0.0.1")


@contextmanager
def collector(stage: Stage) -> Iterator[None]:
    """The collector, up and ready while the block runs, and ended with it."""
    server = stage.start("collector", "gpuledger", "serve")
    try:
        wait_ready(stage, server)
        yield
    finally:
        stage.say("ending the collector and its database ...")
        end(server)


def wait_ready(stage: Stage, server: subprocess.Popen[bytes]) -> None:
    """Wait until the collector answers /readyz with 200."""

    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{stage.collector}/readyz", timeout=2):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    log = stage.folder / "logs" / "collector.log"
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["(it said nothing)"]
    refuse(f"the demo's collector did not become ready: {last[0]} (see {log})", UNAVAILABLE)


def end(*processes: subprocess.Popen[bytes]) -> None:
    """SIGTERM to all, patience, then SIGKILL: to processes that the demo started, and to no other."""
    with uninterrupted():
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore interrupts while the block runs: a second Ctrl-C must leave no process behind."""
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def enter_prices(stage: Stage, start: datetime, days: int) -> None:
    """The demo's price book."""
    change = start + timedelta(days=days // 2, hours=9, minutes=30)
    book = stage.folder / "prices.csv"
    book.write_text(PRICES.format(start=instant(start - timedelta(days=1)), change=instant(change)))
    stage.run("gpuledger", "import", "prices", "prices.csv")


def watch_month(stage: Stage, start: datetime, now: datetime, days: int) -> None:
    """Two budgets, watched as of each day of the month; their mails lie in the folder afterwards."""
    end = start + timedelta(days=days + DAYS_TO_COME)
    (stage.folder / "budgets.toml").write_text(
        BUDGETS.format(
            start=f"{start:%Y-%m-%d}",
            end=f"{end:%Y-%m-%d}",
            vision=VISION_A_DAY * days,
            foundation=FOUNDATION_A_DAY * days,
        )
    )
    (stage.folder / "contacts.toml").write_text(CONTACTS)
    (stage.folder / "carbon.toml").write_text(CARBON)
    stage.run("gpuledger", "apply", "carbon.toml")
    stage.run("gpuledger", "apply", "budgets.toml")
    stage.run("gpuledger", "apply", "contacts.toml")
    tomorrow = now + timedelta(days=1)
    stage.run("gpuledger", "budgets", "replay", "--from", f"{start:%Y-%m-%d}", "--to", f"{tomorrow:%Y-%m-%d}")
    stage.run("gpuledger", "outbox", "send")
    stage.run("gpuledger", "budgets")


def report(stage: Stage, start: datetime, now: datetime, days: int, month: tuple[str, datetime] | None) -> Highlights:
    """Ask the ledger what a newcomer would ask, close the last month, and leave the files."""
    first, last = f"{start:%Y-%m-%d}", f"{now:%Y-%m-%d}"
    span = ("--from", first, "--to", last)
    stage.say("rating the month ...")
    stage.run("gpuledger", "chargeback", *span, "--by", "team")
    stage.run("gpuledger", "chargeback", *span, "--by", "team,project", "--format", "csv", "-o", "chargeback.csv")
    stage.run("gpuledger", "chargeback", *span, "--by", "team", "--format", "json", "-o", "chargeback.json")
    stage.run("gpuledger", "chargeback", *span, "--by", "team", "--format", "focus", "-o", "focus.csv")
    proof = stage.run("gpuledger", "reconcile", *span)
    # The fleet's own script goes before what the ledger found of it.
    stage.run("gpuledger-agent", "simulate", "--story", "--from", instant(start), "--to", instant(now))
    stage.say("budgets, idle GPUs, unusual spending, recommendations ...")
    watch_month(stage, start, now, days)
    stage.run("gpuledger", "accelerators", *span, "--sort", "busiest", "--top", "5")
    stage.run("gpuledger", "accelerators", *span, "--sort", "idlest", "--top", "5")
    stage.run("gpuledger", "idle", "--days", str(days), "--by", "state")
    idle = stage.run("gpuledger", "idle", "--now", "--top", "8")
    anomalies = stage.run("gpuledger", "anomalies", "--days", str(days))
    stage.run("gpuledger", "notifications", "write")
    stage.run("gpuledger", "outbox", "send")
    recommended = stage.run("gpuledger", "recommend", "--top", "3")
    stage.run("gpuledger", "recommend", "--state", "accepted,done")
    stage.run("gpuledger", "runs", *span, "--top", "5")
    stage.say("forecast and scaling advice ...")
    forecast = stage.run("gpuledger", "forecast", "--horizon", "24h", "--format", "csv")
    stage.run("gpuledger", "forecast", "--horizon", "24h")
    stage.run("gpuledger", "forecast", "history")
    advice = stage.run("gpuledger", "scale", "advise", "--delay", "10m")
    if month is not None:
        close_month(stage, *month)
    for name in ([] if month is None else [month[0]]) + [f"{now:%Y-%m}"]:
        stage.run("gpuledger", "statement", "--all", "--period", name, "--dir", f"statements/{name}")
    stage.say(f"done; the files are in {stage.folder}")
    return Highlights(proof, idle, anomalies, recommended, forecast, advice, None if month is None else month[0])


def live(stage: Stage, now: datetime, mixed: bool) -> None:
    """Agents of the whole fleet at ten seconds a sample, until Ctrl-C."""
    names = subprocess.run(
        own_command(("gpuledger-agent", "simulate", "--list-nodes")),
        env=stage.environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    agents: list[subprocess.Popen[bytes]] = []
    pages = {folder.name: folder for folder in (shipped("examples") / MIXED).iterdir() if mixed and folder.is_dir()}
    names += sorted(pages)
    metrics = [f"127.0.0.1:{free_port(0)}" for _ in names]
    try:
        # one by one: those that run are ended
        agents.extend(
            start_agent(stage, name, address, pages.get(name)) for name, address in zip(names, metrics, strict=True)
        )
        grafana = write_grafana(stage, metrics)
        tell(stage, now, len(agents))
        print(f"{grafana}\nCtrl-C ends everything.", flush=True)
        signal.pause()
    except KeyboardInterrupt:
        print()
    finally:
        stage.say("ending the agents ...")
        end(*agents)


def tell(stage: Stage, now: datetime, agents: int) -> None:
    """What can be looked at now, and how."""
    today = ("--from", f"{now:%Y-%m-%d}", "--to", f"{now + timedelta(days=1):%Y-%m-%d}")
    idlest = stage.command("gpuledger", "accelerators", *today, "--sort", "idlest")
    commands = "\n    ".join([*questions(stage), shlex.join(idlest)])
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


def questions(stage: Stage) -> list[str]:
    """Commands to begin with."""
    asked = (("chargeback", "--days", "30", "--by", "team,project"), ("idle", "--now", "--top", "5"))
    return [shlex.join(stage.command("gpuledger", *words)) for words in asked]


def write_grafana(stage: Stage, metrics: Sequence[str]) -> str:
    """Let a role read, write what Grafana and Prometheus need beside this demo, and return how to start them."""
    files = GrafanaFiles(stage.folder / "grafana")
    files.create_password()
    stage.run("gpuledger", "db", "grant-reader", ROLE, "--password-file", str(files.password))
    port = (stage.folder / "data" / "port").read_text().strip()
    files.write(port, stage.collector.removeprefix("http://"), metrics)
    return files.how_to_start()


def start_agent(stage: Stage, name: str, metrics: str, pages: Path | None) -> subprocess.Popen[bytes]:
    """One node's agent, with a spool of its own and its metrics at this address; of simulated GPUs, or of a page."""
    source = ["simulated"] if pages is None else ["exporter", "--target", str(min(pages.glob("*.prom")))]
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
