"""What systemd says of a unit, and runs of its commands within what the unit leaves, where no
systemd is PID 1.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest


def needs(program: str, package: str) -> None:
    """Skips where a program is not installed."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed (apt-get install {package})")


def directives(unit: Path) -> dict[str, list[str]]:
    """The unit's directives, each with its values in order."""
    by_name: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit.read_text(), re.MULTILINE):
        by_name.setdefault(name, []).append(value)
    return by_name


def exposure(unit: Path) -> float:
    """What `systemd-analyze security` makes of a unit: 0 (nothing is open) to 10.

    Every line must be understood.
    """
    needs("systemd-analyze", "systemd")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", unit]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    score = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert score, done.stderr
    assert not done.stderr.strip()
    return float(score[1])


def system_calls(unit: Path) -> tuple[set[str], set[str]]:
    """Names of the system calls that SystemCallFilter= allows, and of those that it forbids by
    name.
    """
    command = ["systemd-analyze", "syscall-filter", "--no-pager"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    members = {
        name: re.findall(r"^    (@?[\w-]+)$", body, re.MULTILINE)
        for name, body in re.findall(r"^(@[\w-]+)\n((?: .*\n|\n(?= ))*)", text, re.MULTILINE)
    }

    def calls(name: str) -> set[str]:
        return set().union(
            *(calls(inner) if inner[0] == "@" else {inner} for inner in members[name])
        )

    allow, *deny = directives(unit)["SystemCallFilter"]
    denied = set().union(*(calls(name) for line in deny for name in line.removeprefix("~").split()))
    assert "setpriority" in denied
    return (calls(allow) | calls("@default")) - denied, denied


def confined(unit: Path, trace: Path) -> list[str]:
    """Words before a command that let every system call fail that the unit forbids by name, and
    write down the rest.
    """
    needs("strace", "strace")
    needs("systemd-analyze", "systemd")
    assert directives(unit)["SystemCallErrorNumber"] == ["EPERM"]
    forbidden = ",".join(f"?{name}" for name in sorted(system_calls(unit)[1]))
    return ["strace", "-f", "-qq", "-e", f"inject={forbidden}:error=EPERM", "-o", str(trace)]


def check_trace(unit: Path, text: str, refused: frozenset[str] = frozenset()) -> None:
    """No call beside those of the filter, no memory to write and execute, no kind of socket but the
    unit's.

    `refused` are kinds of sockets that the command asks for and does without.
    """
    allowed, denied = system_calls(unit)
    called = set(re.findall(r"^\d+ +(?:<\.\.\. )?(\w+)[( ]", text, re.MULTILINE))
    assert {"mmap", "execve"} <= called
    assert called - allowed <= denied, called - allowed - denied
    assert not re.findall(r".*PROT_WRITE\|PROT_EXEC.*", text)
    kinds = {f"AF_{kind}" for kind in re.findall(r"socket\(AF_(\w+)", text)}
    assert kinds <= set(directives(unit)["RestrictAddressFamilies"][0].split()) | refused
