"""`./dev`: what it installs for a task, and how it ends."""

import importlib.machinery
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.main import get_command

from gpuledger_collector.cli import demo

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path):
    """A copy of what `./dev` looks at, without an environment."""
    (tmp_path / "tests").mkdir()
    for name in ("dev", "pyproject.toml", "tests/guardian.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    return tmp_path


def dev(folder, *arguments, **options):
    return subprocess.run(
        [sys.executable, folder / "dev", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


@pytest.mark.parametrize("task", ["demo", "test", "lint", "bench", "docs", "site", "wheel", "lock"])
def test_help_needs_no_environment(checkout, task):
    """Every task explains itself before anything is installed."""
    answer = dev(checkout, task, "--help")
    assert answer.returncode == 0
    assert len(answer.stdout) > 20
    assert not (checkout / ".venv").exists()


def test_an_unknown_task_is_a_usage_error(checkout):
    """Exit code 2 and the tasks that there are."""
    answer = dev(checkout, "dmeo")
    assert answer.returncode == 2
    assert "the tasks are demo, test" in answer.stderr


def test_a_wrong_option_of_the_demo_is_said_before_anything_is_installed(checkout):
    """Exit code 2 and the options that there are, which are those of the command; `--help` names
    them, too.
    """
    answer = dev(checkout, "demo", "--onec")
    assert answer.returncode == 2
    assert "the demo has no option --onec; its options are --once, " in answer.stderr
    assert not (checkout / ".venv").exists()
    listed = answer.stderr.partition("its options are ")[2].strip().split(", ")
    declared = {name for parameter in get_command(demo.app).params for name in parameter.opts}
    assert set(listed) == declared - {"-h", "--help"}
    shown = dev(checkout, "demo", "--help").stdout
    assert all(name in shown for name in listed if name != "-v")
    assert "gpuledger demo" not in shown, "that is not on PATH"


def test_tools_keep_their_bytecode(checkout):
    """Images of Python often forbid it: each process of a run would compile all that it imports
    again.
    """
    tool = checkout / ".venv/bin/gpuledger"
    tool.parent.mkdir(parents=True)
    tool.write_text("#!/bin/sh\nenv\n")
    tool.chmod(0o755)
    dev_module = load(checkout)
    marker = f"made-from-{'-'.join(dev_module.RUNTIME)}"
    (checkout / ".venv" / marker).write_text(dev_module.fingerprint(dev_module.RUNTIME))
    answer = dev(checkout, "demo", env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert answer.returncode == 0, answer.stderr
    assert "PATH=" in answer.stdout
    assert "DONTWRITEBYTECODE" not in answer.stdout


def load(folder):
    """`./dev` of a checkout as a module."""
    loader = importlib.machinery.SourceFileLoader("dev", str(folder / "dev"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("dev", loader))
    sys.dont_write_bytecode, kept = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = kept
    return module


def test_an_installation_leaves_bytecode_of_the_demo(checkout, monkeypatch):
    """pip is told to make none, which costs the first demo as long as its first page takes."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    python = checkout / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\ncase "$2" in pip) ;; *) exec {sys.executable} "$@" ;; esac\n')
    python.chmod(0o755)
    (python.parent / "pip").touch()
    for folder in ("agent", "collector", "common", "alembic"):
        (checkout / folder).mkdir()
        (checkout / folder / "module.py").touch()
    dev_module = load(checkout)
    dev_module.IMPORTS = "import sys; sys.path.insert(0, '.'); import imported"
    (checkout / "imported.py").touch()
    assert dev_module.make_environment(dev_module.RUNTIME) == 0
    compiled = {path.parent.parent.name for path in checkout.rglob("module.*.pyc")}
    assert compiled == {"agent", "collector", "common", "alembic"}
    assert list((checkout / "__pycache__").glob("imported.*.pyc"))


def test_what_is_compiled_exists():
    """The modules that `./dev` imports after an installation are those of this checkout."""
    names = load(ROOT).IMPORTS.partition(";")[0].removeprefix("import ").split(", ")
    assert [importlib.util.find_spec(name).name for name in names] == names
    from gpuledger_collector.cli import demo

    assert all(importlib.util.find_spec(name) for name in demo.MODULES)


@pytest.mark.parametrize(
    ("task", "free_megabytes", "needed"),
    [
        ("demo", 400, "the demo needs 1000 MB"),
        ("docs", 1500, "installing the requirements needs 2000 MB"),
    ],
)
def test_a_disk_that_is_too_small_is_said_before_anything_is_installed(
    checkout, monkeypatch, capsys, task, free_megabytes, needed
):
    """What is needed and what is there, exit code 3, and nothing is left behind."""
    dev_module = load(checkout)
    monkeypatch.setattr(
        dev_module.shutil,
        "disk_usage",
        lambda _: shutil._ntuple_diskusage(10**12, 0, free_megabytes * 10**6),
    )
    assert dev_module.main([task]) == 3
    sentence = capsys.readouterr().err
    assert f"{needed} of disk" in sentence
    assert f"{free_megabytes} MB free" in sentence
    assert not (checkout / ".venv").exists()


def test_a_disk_that_becomes_full_is_named(checkout):
    """pip's own last line of it becomes one sentence."""
    line = (
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    )
    assert (
        load(checkout)
        .cause_of(f"Collecting numpy==2.5.5\n{line}")
        .startswith("the disk became full")
    )


def without_index(**given):
    """The environment of a machine whose pip knows no other index than the one given."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PIP_") and "proxy" not in name.lower()
    }
    return {**clean, "PIP_CONFIG_FILE": os.devnull, **given}


@pytest.mark.slow
def test_without_a_package_index_one_sentence_says_why(checkout):
    """A port where nobody listens: no wall of pip's own output, exit code 3, and the task does not
    run.
    """
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    answer = subprocess.run(
        [sys.executable, checkout / "dev", "demo"],
        env=without_index(PIP_INDEX_URL=f"http://127.0.0.1:{port}/simple"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert answer.returncode == 3
    assert "the package index does not answer: check the network" in answer.stderr.splitlines()[-1]
    assert "Traceback" not in answer.stderr
    assert len(answer.stderr.splitlines()) < 6


@pytest.mark.slow
def test_an_interrupted_installation_ends_cleanly(checkout):
    """The index hangs; SIGINT ends pip and `./dev` with 130, and the environment does not count as
    installed.
    """
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        hanging.settimeout(120)
        process = subprocess.Popen(
            [sys.executable, checkout / "dev", "demo"],
            env=without_index(PIP_INDEX_URL=f"http://127.0.0.1:{hanging.getsockname()[1]}/simple"),
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        connection, _ = hanging.accept()
        with connection:
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert errors.splitlines()[-1] == "./dev: stopped; the next run installs the rest"
    assert not list((checkout / ".venv").glob("made-from-*"))
    assert not (checkout / ".venv/tmp").exists()


def fake_environment(folder, script):
    """An environment that counts as installed, whose python is a shell script."""
    program = folder / ".venv/bin/python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    module = load(folder)
    (module.VENV / "made-from-dev").write_text(module.fingerprint(module.DEVELOPMENT))


def test_options_of_a_benchmark_may_stand_apart_from_their_values(checkout):
    """`--runs 3` reaches the benchmark as two arguments."""
    (checkout / "bench").mkdir()
    (checkout / "bench/ingest.py").touch()
    fake_environment(checkout, 'echo "$@"')
    answer = dev(checkout, "bench", "ingest", "--runs", "3")
    assert (answer.returncode, answer.stdout) == (0, "-m bench.ingest --runs 3\n")


@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "kill"])
def test_an_interrupt_ends_with_130_and_leaves_no_process(checkout, whole_group):
    """As Ctrl-C sends it, to every process of the terminal, and as `kill -INT` does, to one."""
    fake_environment(checkout, 'echo $$ > pid; trap "exit 7" INT; while :; do sleep 0.05; done')
    process = subprocess.Popen(
        [sys.executable, checkout / "dev", "docs"],
        cwd=checkout,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        # A test run that was started in the background ignores SIGINT, and a shell cannot undo
        # that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    pid = checkout / "pid"
    deadline = time.monotonic() + 30
    while not (pid.exists() and pid.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.02)
    if whole_group:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)
