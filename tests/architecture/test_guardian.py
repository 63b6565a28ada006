"""The guardian of tests, benchmarks and `./dev`: whatever ends a run, no process and no folder of
it stays.
"""

import contextlib
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import guardian
from fakes.postgres import open_folder
from gpuledger_collector.storage.server.embedded import EmbeddedServer

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120
"""Only a hang takes as long."""
PROC = Path("/proc")
MARK = "MARK_OF_THE_RUN"
ORPHAN = """
import os, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
def end(*_):
    os.rename(sys.argv[1], sys.argv[1] + "-ended")
    sys.exit()
signal.signal(signal.SIGTERM, end)
if sys.argv[2:] == ["stubborn"]:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(3600)
"""
"""A daemon: no relative of the process that starts it, in a session of its own."""
RUN = """
import os, signal, subprocess, sys, tempfile, time
from pathlib import Path
home = Path(sys.argv[1])
sys.path.insert(0, {tests!r})
import guardian
guardian.GROUP_SECONDS, guardian.SETTLE_SECONDS, guardian.GRACE_SECONDS = {group_seconds}, 0.1, 1.0
guardian.enter()
def start(*kind):
    tempfile.mkdtemp()
    memory = guardian.memory_folder()
    if memory:
        (memory / "file").touch()
    subprocess.run([sys.executable, home / "orphan.py", home / "orphan", *kind], check=True)
    while not (home / "orphan").exists() or not (home / "orphan").read_text():
        time.sleep(0.01)
def ready():
    (home / "ready").write_text(str(os.getpid()))
{body}
"""
WAIT = "start()\nready()\ntime.sleep(3600)"
"""A run that leaves an orphan and a folder, and waits."""


def stop_ignoring_signals() -> None:
    """Tests that were started in the background ignore SIGINT, below nohup SIGHUP; what they start
    would do so, too.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Started:
    """A command in its own process group, whose processes have a mark, with a folder for temporary
    files.
    """

    def __init__(self, home: Path, *command: object, **options: object) -> None:
        self.home, self.mark = home, uuid.uuid4().hex
        self.temporary = home / "tmp"
        self.temporary.mkdir()
        self.temporary.chmod(0o1777)
        self.memory: list[Path] = []
        own = {name: value for name, value in os.environ.items() if name != guardian.FOLDER}
        own["TEST_FILES"] = "disk"  # below its home, by which a Postgres is known
        self.process = subprocess.Popen(
            [str(word) for word in command],
            cwd=home,
            env={**own, MARK: self.mark, "TMPDIR": str(self.temporary)},
            process_group=0,
            preexec_fn=stop_ignoring_signals,
            **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options},
        )

    def wait_until_ready(self, count: int = 1) -> None:
        until(
            lambda: len(list(self.home.glob("ready*"))) >= count or self.process.poll() is not None
        )
        assert self.process.poll() is None, "the run ended before it was ready"
        self.memory = [guardian.MEMORY / name for name in self.folders()]

    def processes(self) -> dict[int, str]:
        """What still runs of it: by the mark, or, since Postgres gets no environment, by its
        folders.
        """
        found, own = {}, [str(path) for path in (self.home, *self.memory)]
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                command = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                environment = (entry / "environ").read_bytes().decode(errors="replace")
                folder = str((entry / "cwd").readlink())
                if f"{MARK}={self.mark}" in environment or any(
                    path in command + folder for path in own
                ):
                    found[int(entry.name)] = command
        return found

    def shared_memory(self) -> set[Path]:
        """Segments that its Postgres servers have mapped."""
        maps = []
        for pid in self.processes():
            with contextlib.suppress(OSError):
                maps.append(Path(f"/proc/{pid}/maps").read_text())
        return {Path(path) for path in re.findall(r"/dev/shm/PostgreSQL\.\d+", "".join(maps))}

    def folders(self) -> list[str]:
        """Its temporary folders that are there, in memory too."""
        return sorted(
            path.name for path in (*self.temporary.iterdir(), *filter(Path.exists, self.memory))
        )

    def is_gone(self) -> bool:
        return not self.processes() and not self.folders()

    def end(self) -> None:
        """End what a failed test leaves: by the guardian, where one does what it should."""
        self.process.kill()
        until(self.is_gone, 10)
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)
        for path in self.memory:
            shutil.rmtree(path, ignore_errors=True)


def until(condition, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition, or for as long as only a hang takes."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that the user of an embedded Postgres can walk through."""
    folder = open_folder("run-")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def launch(home):
    """Starts a command in `home`."""
    with contextlib.ExitStack() as stack:

        def start(*command: object, **options: object) -> Started:
            started = Started(home, *command, **options)
            stack.callback(started.end)
            return started

        yield start


def write_run(home: Path, body: str, group_seconds: float = 0.1) -> None:
    """Write the script that goes on with this body below a guardian."""
    (home / "orphan.py").write_text(ORPHAN)
    (home / "run.py").write_text(
        RUN.format(tests=str(ROOT / "tests"), body=body, group_seconds=group_seconds)
    )


@pytest.fixture
def run(home, launch):
    """Starts a script whose body runs below a guardian."""

    def start(body: str, group_seconds: float = 0.1, **options: object) -> Started:
        write_run(home, body, group_seconds)
        return launch(sys.executable, home / "run.py", home, **options)

    return start


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", 0),
        ("sys.exit(7)", 7),
        ("os.kill(os.getpid(), 15)", -15),
        ("os.kill(os.getpid(), 9)", -9),
    ],
    ids=["done", "code", "terminated", "killed"],
)
def test_a_run_ends_with_its_own_code_and_nothing_left(run, body, code):
    """Also with the signal that ended it; once the command has ended, the orphan and the folders
    are gone.
    """
    started = run(f"start()\n{body}", stderr=subprocess.PIPE, text=True)
    _, errors = started.process.communicate(timeout=PATIENCE_SECONDS)
    assert started.process.returncode == code
    assert started.processes() == {}
    assert started.folders() == []
    assert errors.startswith("ended what the run left behind: python") == (code >= 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("target", ["front", "group", "run"])
def test_a_signal_leaves_nothing_whoever_gets_it(home, run, number, target):
    """The command as its parent knows it, its whole group, and the run below the guardian."""
    started = run(WAIT)
    started.wait_until_ready()
    assert [path.is_dir() for path in started.memory] == [True]
    assert int((home / "orphan").read_text()) in started.processes()
    if target == "group":
        os.killpg(started.process.pid, number)
    else:
        os.kill(
            started.process.pid if target == "front" else int((home / "ready").read_text()), number
        )
    assert started.process.wait(PATIENCE_SECONDS) == -number
    if number == signal.SIGKILL:  # it ended at once, and what is left shortly after it
        until(started.is_gone)
    assert started.processes() == {}
    assert started.folders() == []


def test_what_ignores_signals_is_killed(run):
    """After the grace."""
    started = run("start('stubborn')")
    assert started.process.wait(PATIENCE_SECONDS) == 0
    assert started.processes() == {}
    assert started.folders() == []


def test_a_closed_folder_is_removed(launch):
    """For a user who is not root it has to be opened first."""
    program = (
        f"import os, sys, tempfile\nsys.path.insert(0, {str(ROOT / 'tests')!r})\nimport"
        " guardian\nos.geteuid() or"
        " os.setuid(65534)\nguardian.enter()\nos.makedirs(os.path.join(tempfile.mkdtemp(),"
        " 'inner/innermost'))\nos.chmod(os.path.join(os.environ['TMPDIR'],"
        " os.listdir(os.environ['TMPDIR'])[0], 'inner'), 0)"
    )
    started = launch(sys.executable, "-c", program)
    assert started.process.wait(PATIENCE_SECONDS) == 0
    assert started.folders() == []


def test_what_is_suspended_ends_in_order(home, run):
    """It gets SIGTERM and goes on, instead of being killed after the grace."""
    started = run("start()\nos.kill(int((home / 'orphan').read_text()), signal.SIGSTOP)")
    assert started.process.wait(PATIENCE_SECONDS) == 0
    assert (home / "orphan-ended").exists()


COUNT = """
import signal
count = []
signal.signal(signal.SIGINT, lambda *_: count.append(1))
{before}
ready()
while not count:
    time.sleep(0.01)
time.sleep(0.5)
sys.exit(40 + len(count))
"""
"""A run that counts interrupts, and takes a while to end after the first."""


@pytest.mark.parametrize(("target", "group_seconds"), [("front", 0.1), ("group", PATIENCE_SECONDS)])
def test_an_interrupt_reaches_the_run_once(run, target, group_seconds):
    """A second one would cut short what the run does at its end."""
    started = run(COUNT.format(before=""), group_seconds)
    started.wait_until_ready()
    if target == "group":
        os.killpg(started.process.pid, signal.SIGINT)
    else:
        started.process.send_signal(signal.SIGINT)
    assert started.process.wait(PATIENCE_SECONDS) == 41


SHELL = """
import os, signal, sys
child = os.fork()
if not child:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
os.killpg(child, signal.SIGCONT)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
"""What a shell does for a command in the foreground that is suspended once."""


def test_a_terminal_belongs_to_the_run(home, monkeypatch):
    """What is typed reaches it, a key suspends it, and another interrupts it once, however long it
    takes to end.
    """
    write_run(home, COUNT.format(before="print('typed', input(), sys.stdout.isatty(), flush=True)"))
    monkeypatch.delenv(guardian.FOLDER, raising=False)
    shell, terminal = pty.fork()
    if not shell:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.execv(sys.executable, [sys.executable, "-c", SHELL, str(home / "run.py"), str(home)])
    seen = b""
    os.write(terminal, b"words\n")
    while b"typed words True" not in seen:
        seen += os.read(terminal, 1000)
    until((home / "ready").exists)
    os.write(terminal, b"\x1a\x03")
    _, status = os.waitpid(shell, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 41


def test_below_a_guardian_there_is_no_second_one(run):
    """The tests that `./dev test` starts, and their workers, share its folder."""
    again = (
        "before = os.getpid(), os.environ['TMPDIR']\n"
        "guardian.enter()\n"
        "assert before == (os.getpid(), os.environ['TMPDIR'])"
    )
    started = run(again, stderr=subprocess.PIPE, text=True)
    _, errors = started.process.communicate(timeout=PATIENCE_SECONDS)
    assert (started.process.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    "cause",
    [
        "sys.platform = 'darwin'",
        "import threading\nthreading.Thread(target=time.sleep, args=(0.5,)).start()",
    ],
    ids=["system", "threads"],
)
def test_where_no_guardian_can_be_the_program_runs_as_before(launch, cause):
    """On a system without the kernel's help, and in a program with threads, which cannot be forked."""
    program = (
        f"import os, sys, time\nsys.path.insert(0, {str(ROOT / 'tests')!r})\nimport"
        f" guardian\n{cause}\nbefore = os.getpid(), dict(os.environ)\nguardian.enter()\nassert"
        " before == (os.getpid(), dict(os.environ))"
    )
    assert launch(sys.executable, "-c", program).process.wait(PATIENCE_SECONDS) == 0


SAMPLE = """
import os, subprocess, sys, tempfile, time
from pathlib import Path
from gpuledger_collector.storage.server.embedded import EmbeddedServer

def test_wait():
    home = Path.cwd()
    folder, orphan = Path(tempfile.mkdtemp()), home / f"orphan-{os.getpid()}"
    folder.chmod(0o755)
    EmbeddedServer(folder).acquire()
    subprocess.run([sys.executable, home / "orphan.py", orphan], check=True)
    while not orphan.exists() or not orphan.read_text():
        time.sleep(0.01)
    (home / f"ready-{os.getpid()}").touch()
    time.sleep(3600)

if __name__ == "__main__":
    test_wait()
"""
"""A test, and a benchmark, that starts an embedded Postgres and a daemon, makes a folder, and
waits.
"""


@pytest.fixture
def checkout(home, monkeypatch):
    """What runs tests and benchmarks in a checkout, with an environment that counts as installed,
    and the sample.
    """
    # Loading all installed plugins takes longer than everything else here.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist.plugin -p pytest_timeout")
    (home / "orphan.py").write_text(ORPHAN)
    for name in ("dev", "pyproject.toml"):
        shutil.copy(ROOT / name, home / name)
    shutil.copytree(ROOT / "requirements", home / "requirements")
    for folder in ("tests", "tests/fakes", "bench"):
        (home / folder).mkdir()
    for name in (
        "tests/conftest.py",
        "tests/guardian.py",
        "tests/fakes/profiles.py",
        "bench/__init__.py",
    ):
        shutil.copy(ROOT / name, home / name)
    for name in ("tests/test_one.py", "tests/test_two.py", "bench/sample.py"):
        (home / name).write_text(SAMPLE)
    programs = home / ".venv/bin"
    programs.mkdir(parents=True)
    for real in (Path(sys.executable), Path(sys.executable).with_name("gpuledger")):
        (programs / real.name).write_text(f'#!/bin/sh\nexec {real} "$@"\n')
        (programs / real.name).chmod(0o755)
    fingerprint = (
        "import dev; (dev.VENV / 'made-from-dev').write_text(dev.fingerprint(dev.DEVELOPMENT))"
    )
    (home / "dev.py").symlink_to("dev")
    subprocess.run([sys.executable, "-B", "-c", fingerprint], cwd=home, check=True)
    return home


DEV, PYTEST, TESTS = (
    (sys.executable, "dev"),
    (sys.executable, "-m", "pytest"),
    ("tests/test_one.py", "tests/test_two.py"),
)
COMMANDS = {
    "dev test, workers": ((*DEV, "test", "-n2", *TESTS), 2, 130),
    "dev bench": ((*DEV, "bench", "sample"), 1, 130),
    "pytest": ((*PYTEST, *TESTS), 1, 2),
    "pytest, workers": ((*PYTEST, "-n2", "--dist=loadfile", *TESTS), 2, 2),
    "bench": ((sys.executable, "-m", "bench.sample"), 1, -signal.SIGINT),
}
"""What is started, how many samples run in it at the same time, and its exit code after an
interrupt.
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_test_and_no_benchmark_leaves_anything(checkout, launch, name, number):
    """Whatever signal its parent sends: Postgres, a daemon, folders and shared memory are gone."""
    command, count, interrupted = COMMANDS[name]
    started = launch(*command)
    started.wait_until_ready(count)
    running, memory = started.processes(), started.shared_memory()
    assert sum("bin/postgres -D" in command for command in running.values()) == count
    assert sum("orphan.py" in command for command in running.values()) == count
    assert memory
    started.process.send_signal(number)
    assert started.process.wait(PATIENCE_SECONDS) == (
        interrupted if number == signal.SIGINT else -number
    )
    if number == signal.SIGKILL:
        until(started.is_gone)
    assert started.processes() == {}
    assert started.folders() == []
    assert not any(path.exists() for path in memory)


SEGMENTS = """
import struct
listed, control, other = (guardian.MEMORY / f"PostgreSQL.{int(name)}" for name in sys.argv[2:])
control.write_bytes(guardian.CONTROL_SEGMENT.pack(guardian.CONTROL_MAGIC, 1, 2, 0)
    + struct.pack("=2I32x", int(listed.suffix[1:]), 2) + bytes(40))
listed.write_bytes(bytes(64))
other.write_bytes(bytes(64))
"""
"""Segments as a killed Postgres leaves them, and one that no such server lists."""


@pytest.mark.parametrize("ending", ["", "os.kill(os.getpid(), 9)"])
def test_a_run_ends_with_the_shared_memory_of_servers_that_it_killed(home, launch, ending):
    """However it ends itself."""
    numbers = [uuid.uuid4().int % 2**32 for _ in range(3)]
    listed, control, other = (guardian.MEMORY / f"PostgreSQL.{number}" for number in numbers)
    write_run(home, SEGMENTS + ending)
    started = launch(sys.executable, home / "run.py", home, *numbers)
    try:
        started.process.wait(PATIENCE_SECONDS)
        assert [path.exists() for path in (listed, control, other)] == [False, False, True]
    finally:
        other.unlink()


def test_shared_memory_of_a_killed_postgres_is_removed():
    """That of a server that lives stays: it has its control segment mapped."""
    begun, folder = time.time(), open_folder()
    server = EmbeddedServer(folder)
    try:
        server.acquire()
        started = Path(f"/proc/{server.pid}")
        memory = {
            Path(path)
            for path in re.findall(r"/dev/shm/PostgreSQL\.\d+", guardian.maps_of(started))
        }
        assert memory
        guardian.remove_shared_memory(begun)
        assert all(path.exists() for path in memory)
        children = (started / f"task/{server.pid}/children").read_text().split()
        for process in (server.pid, *map(int, children)):
            # A worker of Postgres that has ended meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        until(
            lambda: (
                not any(
                    str(path) in guardian.maps_of(each)
                    for path in memory
                    for each in PROC.glob("[0-9]*")
                )
            )
        )
        assert all(path.exists() for path in memory)
        guardian.remove_shared_memory(time.time() + 60)
        assert all(path.exists() for path in memory)
        guardian.remove_shared_memory(begun)
        assert not any(path.exists() for path in memory)
    finally:
        server.release()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.slow
def test_what_a_killed_worker_leaves_ends_with_the_run(checkout, launch):
    """The controller says that its worker crashed, and ends with 1."""
    started = launch(*PYTEST, "-n1", TESTS[0])
    started.wait_until_ready()
    (ready,) = checkout.glob("ready-*")
    os.kill(int(ready.name.removeprefix("ready-")), signal.SIGKILL)
    assert started.process.wait(PATIENCE_SECONDS) == 1
    assert started.processes() == {}
    assert started.folders() == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_demo_ends_with_dev(checkout, launch, number):
    """In the midst of the simulated month; what it has made stays."""
    started = launch(*DEV, "demo", "--days", "3", stdout=subprocess.PIPE, text=True)
    assert next((line for line in started.process.stdout if "simulating" in line), None)
    assert any("bin/postgres -D" in command for command in started.processes().values())
    started.process.send_signal(number)
    started.process.communicate(timeout=PATIENCE_SECONDS)
    assert started.process.returncode == -number
    if number == signal.SIGKILL:
        until(started.is_gone)
    assert started.processes() == {}
    assert started.folders() == []
    assert (checkout / "demo-output/collector.toml").exists()
