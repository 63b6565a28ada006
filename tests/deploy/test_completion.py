"""Completion through the shells themselves."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
COMPLETIONS = Path(__file__).parents[2] / "deploy" / "completions"
UNIT = Path(__file__).parents[2] / "deploy" / "slurm" / "gpuledger-queue.service"
SHOW = [BIN / "gpuledger", "completion"]


def script(shell):
    """What `gpuledger completion SHELL` prints."""
    return subprocess.run([*SHOW, shell], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["charg"], {"chargeback"}),
        (["db", "upg"], {"upgrade"}),
        (["serve", "--check"], {"--check-config"}),
        (["completion", "fi"], {"fish"}),
    ],
)
def test_bash_completes_commands_options_and_choices(typed, offered, tmp_path):
    """The script that is printed, sourced by bash, fills COMPREPLY."""
    words = " ".join(shlex.quote(word) for word in ["gpuledger", *typed])
    asked = f"""{script("bash")}
COMP_WORDS=({words}); COMP_CWORD={len(typed)}
function=$(complete -p gpuledger | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
"$function" gpuledger; printf '%s\\n' "${{COMPREPLY[@]}}" """
    path = f"{BIN}:/usr/bin:/bin"
    bash = [shutil.which("bash"), "--norc", "--noprofile", "-c", asked]
    done = subprocess.run(
        bash, env={"PATH": path, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert set(done.stdout.split()) == offered, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_asked_in_their_way(shell, tmp_path):
    """The script names the program and how it is asked; asked so, the program answers with a
    command.
    """
    text = script(shell)
    committed = COMPLETIONS / {"zsh": "_gpuledger", "fish": "gpuledger.fish"}[shell]
    if shutil.which(shell):
        subprocess.run([shell, "-n", committed], check=True, timeout=60)
    assert f"complete_{shell}" in text
    assert "gpuledger" in text
    given = {"_GPULEDGER_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "gpuledger charg"}
    if shell == "fish":
        given["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    assert all(name in text for name in given)
    path = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    answer = subprocess.run(SHOW[:1], env={**given, **path}, capture_output=True, text=True)
    assert "chargeback" in answer.stdout
    assert "reconcile" not in answer.stdout


def test_help_stays_as_it_is():
    """No option of completion on the program itself; an unknown shell is refused in a sentence."""
    shown = subprocess.run(
        [*SHOW[:-1], "--help"], check=True, capture_output=True, text=True
    ).stdout
    assert "--install-completion" not in shown
    assert "completion" in shown
    refused = subprocess.run([*SHOW, "tcsh"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "tcsh" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_the_committed_scripts_are_what_the_command_lines_are(tmp_path):
    """Made anew, the files are those that are committed; else run deploy/completions/generate."""
    subprocess.run([sys.executable, COMPLETIONS / "generate", tmp_path], check=True, timeout=60)
    for made in sorted(tmp_path.iterdir()):
        assert made.read_text() == (COMPLETIONS / made.name).read_text(), made.name
    assert len(list(tmp_path.iterdir())) == 6


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["re"], {"record", "release", "resume"}),
        (["queue", "--sl"], {"--slurm"}),
        (["once", "--source", "sim"], {"simulated"}),
        (["queue", "--pool", ""], set()),
        (["record", "--sec"], {"--seconds"}),
    ],
)
def test_bash_completes_the_agent(typed, offered):
    """Commands, the options of each, and what an option's value may be."""
    words = " ".join(shlex.quote(word) for word in ["gpuledger-agent", *typed])
    asked = f"""source {shlex.quote(str(COMPLETIONS / "gpuledger-agent.bash"))}
COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _gpuledger_agent; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(
        [shutil.which("bash"), "--norc", "-c", asked], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == offered, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_can_read_the_agents_script(shell):
    """Their own parsers take them; skipped where the shell is not installed."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    file = COMPLETIONS / {"zsh": "_gpuledger-agent", "fish": "gpuledger-agent.fish"}[shell]
    subprocess.run([shell, "-n", file], check=True, timeout=60)


def test_the_queues_unit_is_understood_and_runs_a_command_that_there_is():
    """systemd finds no fault in it, and the agent knows every word of its ExecStart."""
    from gpuledger_agent.cli import parser

    (command,) = [
        line.partition("=")[2]
        for line in UNIT.read_text().splitlines()
        if line.startswith("ExecStart=")
    ]
    program, *words = shlex.split(command)
    assert program == "/usr/bin/gpuledger-agent"
    assert parser().parse_args(words).slurm
    if shutil.which("systemd-analyze"):
        told = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", "--no-pager", UNIT],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Overall exposure level" in told.stdout
        assert not told.stderr.strip()
