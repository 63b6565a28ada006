"""The demo's folder with its settings, its collector, and the log of its commands."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gpuledger_collector.cli.common import UNAVAILABLE, refuse
from gpuledger_collector.cli.demo_commands import Command, Run, ignore_interrupts, run_lanes

READY_SECONDS = 60
PATIENCE_SECONDS = 40
"""How long a process of the demo may take to end."""
PORT = 8440
MARKER, CONFIG = ".gpuledger-demo", "collector.toml"
TEMPORARY = ".tmp"
"""Where its commands put temporary files: those of one that was killed go with the folder."""


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
        """A command line of the product that asks the demo's ledger, from whatever folder it is
        run.
        """
        return own_command(self.with_settings(arguments))

    def with_settings(self, command: Command) -> Command:
        """The command with the demo's settings named, where it reads any."""
        return (
            (*command, "--config", str(self.folder / CONFIG))
            if command[0] == "gpuledger"
            else command
        )

    @property
    def log(self) -> Path:
        """Every command of the month with what it printed."""
        return self.folder / "logs" / "demo.log"

    def run(self, *command: str) -> list[str]:
        """Run a command of the product and return the lines it prints.

        Refuses to continue when it fails.
        """
        return self.run_lanes([command])[command]

    def run_lanes(self, *lanes: Sequence[Command]) -> dict[Command, list[str]]:
        """Run lanes of commands side by side, and return the lines that each prints.

        Refuses to continue when one fails.
        """
        settled = [[self.with_settings(command) for command in lane] for lane in lanes]
        runs = run_lanes(settled, self.environment, self.folder)
        printed: dict[Command, list[str]] = {}
        for command, run in zip([command for lane in lanes for command in lane], runs, strict=True):
            if run.process is not None:
                printed[command] = self._log_output(run).splitlines()
        for command, run in zip([command for lane in lanes for command in lane], runs, strict=True):
            if run.code:
                last = (
                    [line for line in printed[command] if line.strip()] or ["(it said nothing)"]
                )[-1]
                sentence = f"the demo stopped: `{' '.join(command)}` ended with {run.code}: {last}"
                refuse(f"{sentence} (see {self.log})", UNAVAILABLE)
        return printed

    def _log_output(self, run: Run) -> str:
        """What a command printed, once it is in the log."""
        output = run.text()
        shown = f"\n$ {shlex.join(own_command(run.command))}\n{output}"
        with self.log.open("a", encoding="utf-8") as log:
            log.write(shown)
        if self.verbose:
            print(shown, end="", flush=True)
        return output

    def start(self, name: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a long-running command of the product; its log goes to a file of the folder."""
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                own_command(arguments),
                env={**self.environment, **environment},
                cwd=self.folder,
                stdout=log,
                stderr=log,
                # A session of its own: Ctrl-C reaches the demo alone, which ends its processes in
                # order.
                start_new_session=True,
            )


def set_up(output: Path, port: int) -> Stage:
    """An empty folder with the demo's own settings; a folder that is not the demo's is left alone."""
    folder = output.resolve()
    # The folder is deleted below, so it must be one that the demo itself has made.
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        refuse(
            f"{folder} is not empty and was not made by the demo; name another folder with --output"
        )
    if in_use(folder / "data"):
        refuse(
            f"a demo is running in {folder}: end it first (Ctrl-C), or name another folder with"
            " --output"
        )
    if folder.exists():
        shutil.rmtree(folder)
    for name in ("logs", TEMPORARY):
        (folder / name).mkdir(parents=True)
    # Commands name files beside it.
    (folder / "logs" / "demo.log").write_text(f"$ cd {shlex.quote(str(folder))}\n")
    (folder / MARKER).write_text("made by gpuledger demo; may be deleted\n")
    # Settings of a real installation on this machine must not reach the demo, nor its data the
    # other way round.
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
        # The month is advised at its own instants; advice as of now, made meanwhile, would refuse
        # an earlier one.
        "recommend_seconds": 0,
        # Its old days are still arriving when the collector packs such days for the first time.
        "pack_after_days": 400,
    }
    # A string of JSON is one of TOML, and so is a number.
    (folder / CONFIG).write_text(
        "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    )
    own = {f"GPULEDGER_{name.upper()}": str(value) for name, value in settings.items()}
    environment = {**kept, **own, "TMPDIR": str(folder / TEMPORARY)}
    return Stage(folder, environment, chosen)


def in_use(data: Path) -> bool:
    """Whether some command uses the embedded Postgres of this data folder: each holds a lock on its
    file `users`.
    """
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
def collector(stage: Stage, meanwhile: Callable[[], None]) -> Iterator[None]:
    """The collector, up and ready while the block runs, and ended with it; `meanwhile` is called
    while it starts.
    """
    server = stage.start("collector", "gpuledger", "serve")
    try:
        meanwhile()
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
    with ignore_interrupts():
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
