"""`./dev`: what it installs for a task, and how it ends."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path):
    """A copy of what `./dev` looks at, without an environment."""
    for name in ("dev", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "requirements", tmp_path / "requirements")
    return tmp_path


def dev(folder, *arguments, **options):
    return subprocess.run(
        [sys.executable, folder / "dev", *arguments], capture_output=True, text=True, timeout=60, **options
    )


@pytest.mark.parametrize("task", ["demo", "test", "lint", "bench", "docs", "lock"])
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


def fake_environment(folder, script):
    """An environment that counts as installed, whose python is a shell script."""
    program = folder / ".venv/bin/python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    code = (
        "import importlib.machinery as m, importlib.util as u, sys\n"
        "sys.dont_write_bytecode = True\n"
        f"loader = m.SourceFileLoader('dev', {str(folder / 'dev')!r})\n"
        "module = u.module_from_spec(u.spec_from_loader('dev', loader))\n"
        "loader.exec_module(module)\n"
        "(module.VENV / 'made-from-dev').write_text(module.fingerprint(module.DEVELOPMENT))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
        # A test run that was started in the background ignores SIGINT, and a shell cannot undo that.
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
