"""Completion through the shells themselves."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
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
    done = subprocess.run(bash, env={"PATH": path, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert set(done.stdout.split()) == offered, done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_asked_in_their_way(shell, tmp_path):
    """The script names the program and how it is asked; asked so, the program answers with a command."""
    text = script(shell)
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
    shown = subprocess.run([*SHOW[:-1], "--help"], check=True, capture_output=True, text=True).stdout
    assert "--install-completion" not in shown
    assert "completion" in shown
    refused = subprocess.run([*SHOW, "tcsh"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "tcsh" in refused.stderr
    assert "Traceback" not in refused.stderr
