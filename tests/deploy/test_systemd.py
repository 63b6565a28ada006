"""The collector's unit: what it leaves open, and that what it forbids is nothing that the collector
needs.
"""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import typer.main

from fakes.systemd import check_trace, confined, directives, exposure
from gpuledger_collector import settings as collector_settings
from gpuledger_collector.cli import build
from gpuledger_common.systemd import notify

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
UNIT, CONFIG = (
    ROOT / "deploy/systemd/gpuledger-collector.service",
    ROOT / "deploy/systemd/collector.toml",
)
GPULEDGER = [sys.executable, "-m", "gpuledger_collector"]
FOUND = directives(UNIT)


def test_little_is_open_to_the_unit():
    """At most 2.5 of 10 as systemd itself counts, and systemd understands every line."""
    assert exposure(UNIT) <= 2.5


def placed(text, folder):
    """Names of the unit's folders, moved below one that a test may write."""
    moved = text.replace("/run/credentials/gpuledger-collector.service", str(folder)).replace(
        "%d", str(folder)
    )
    return moved.replace("%S", str(folder))


def credentials(folder, dsn):
    """The files that LoadCredential= shows to the service."""
    made = {
        "dsn": dsn,
        "agent-tokens": "one-of-the-agents\n",
        "reader-tokens": "one-of-the-readers\n",
    }
    for entry in FOUND["LoadCredential"]:
        name, _, source = entry.partition(":")
        assert source.startswith("/etc/gpuledger/")
        (folder / name).write_text(made.pop(name))
    assert not made
    return folder


def environment(folder):
    """What the unit sets, over what every process has."""
    (text,) = FOUND["Environment"]
    return dict(word.split("=", 1) for word in shlex.split(placed(text, folder)))


def test_its_commands_and_settings_are_good(tmp_path):
    """Both commands are ours and parse; the file that is shipped loads with the credentials where
    systemd puts them.
    """
    folder = credentials(tmp_path, "postgresql://db.example.com/gpuledger")
    for text in (*FOUND["ExecStartPre"], *FOUND["ExecStart"]):
        program, *arguments = shlex.split(text)
        assert program == "/opt/gpuledger/bin/gpuledger"
        command = typer.main.get_command(build())
        while hasattr(command, "commands"):
            command, arguments = command.commands[arguments[0]], arguments[1:]
        command.make_context("gpuledger", list(arguments))
    config = tmp_path / CONFIG.name
    assert f"/etc/gpuledger/{config.name}" in FOUND["ExecStart"][0]
    config.write_text(placed(CONFIG.read_text(), folder))
    loaded = collector_settings.load(config, environment(folder), tmp_path)
    assert loaded.database_dsn() == "postgresql://db.example.com/gpuledger"
    assert loaded.agent_tokens() == {"one-of-the-agents"}
    assert loaded.reader_tokens() == {"one-of-the-readers"}
    assert int(FOUND["TimeoutStopSec"][0]) > 3 * loaded.drain_seconds
    assert loaded.data_dir == folder / FOUND["StateDirectory"][0]


@contextlib.contextmanager
def told(path):
    """A socket such as systemd's, and what was told on it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(path))
        channel.settimeout(90)
        yield channel


def test_a_systemd_that_does_not_listen_stops_nobody(tmp_path, monkeypatch):
    """Its queue is full after ten words, or its socket is gone: the word is lost, and the collector
    goes on.
    """
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    notify("READY=1")
    with told(tmp_path / "notify") as channel:
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as others,
            contextlib.suppress(BlockingIOError),
        ):
            others.setblocking(False)
            while True:
                others.sendto(b"STATUS=", str(tmp_path / "notify"))
        notify("STOPPING=1")
        assert channel.recv(99) == b"STATUS="


@pytest.mark.long
def test_it_runs_within_what_the_unit_leaves(dsn, tmp_path):
    """Upgrade, start, requests and stop, with every forbidden system call failing as it would
    (numpy's mbind does, and is not missed): no call beside, no memory to write and execute, no
    other kind of socket; systemd hears READY.
    """
    folder = credentials(tmp_path, dsn)
    config = tmp_path / "collector.toml"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config.write_text(
        placed(CONFIG.read_text(), folder).replace("0.0.0.0:8440", f"127.0.0.1:{port}")
    )
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GPULEDGER_")}
    given = {**clean, **environment(folder), "NOTIFY_SOCKET": str(tmp_path / "notify")}
    upgraded = [*confined(UNIT, tmp_path / "upgrade.trace"), *GPULEDGER, "db", "upgrade"]
    subprocess.run(upgraded, env=given, check=True, capture_output=True)
    with told(tmp_path / "notify") as channel:
        serve = [*confined(UNIT, tmp_path / "serve.trace"), *GPULEDGER, "serve", "--config", config]
        process = subprocess.Popen(
            serve, env=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            assert channel.recv(99) == b"READY=1"
            for path in ("/readyz", "/metrics", "/v1/nodes"):
                asked = urllib.request.Request(
                    f"http://127.0.0.1:{port}{path}",
                    headers={"Authorization": "Bearer one-of-the-readers"},
                )
                assert urllib.request.urlopen(asked, timeout=60).status == 200
            time.sleep(3)
            (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(child), signal.SIGTERM)
            assert channel.recv(99) == b"STOPPING=1"
            assert process.wait(90) == 0
        finally:
            process.kill()
            process.communicate()
    check_trace(
        UNIT, (tmp_path / "upgrade.trace").read_text() + (tmp_path / "serve.trace").read_text()
    )
