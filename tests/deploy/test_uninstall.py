"""Uninstalling the Debian package: the agent that runs says goodbye before it is stopped; an
upgrade says nothing.
"""

import os
import subprocess
from pathlib import Path

import pytest

PRERM = Path(__file__).parents[2] / "deploy" / "deb" / "prerm"
ACTIVE = "gpuledger-agent.service"


@pytest.fixture
def commands(tmp_path):
    """Run the script with these arguments, as if systemd were there; returns what it called, in
    order.
    """
    log, programs, systemd = tmp_path / "log", tmp_path / "bin", tmp_path / "systemd"
    programs.mkdir()
    systemd.mkdir()
    for name, last in (
        ("systemctl", f'[ "$3" = {ACTIVE} ]'),
        ("deb-systemd-invoke", ""),
        ("gpuledger-agent", ""),
        ("py3clean", ""),
    ):
        program = programs / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n{last}\n')
        program.chmod(0o755)
    script = PRERM.read_text().replace("/run/systemd/system", str(systemd))
    assert script != PRERM.read_text()

    def run(*arguments):
        environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
        subprocess.run(["sh", "-c", script, "prerm", *arguments], env=environment, check=True)
        return [
            line
            for line in log.read_text().splitlines()
            if not line.startswith(("systemctl", "py3clean"))
        ]

    return run


def test_the_agent_that_runs_says_goodbye_before_it_is_stopped(commands):
    """Once: of the two services one runs."""
    assert commands("remove") == [
        "gpuledger-agent goodbye --config /etc/gpuledger/agent.toml",
        "deb-systemd-invoke stop gpuledger-agent.service gpuledger-agent-minimal.service",
    ]


def test_an_upgrade_says_nothing(commands):
    """The new version goes on where the old one stopped."""
    assert commands("upgrade", "0.2.0") == []
