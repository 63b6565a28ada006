"""The agent as a daemon: signals, kills, missing GPUs, settings and /metrics, in real processes."""

import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import threading
import urllib.error
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fakes.agents import AGENT, agent
from fakes.ports import free_port
from fakes.sink import sink
from gpuledger_agent import daemon, release
from gpuledger_agent.exposition import MetricsPage, serve
from gpuledger_agent.settings import Settings

pytestmark = pytest.mark.slow

__all__ = ["agent"]


def test_term_spools_the_open_batch_sends_it_and_ends_with_0(agent):
    """What was measured up to the signal is delivered in one last attempt."""
    with sink() as target:
        running = agent(target.url)
        running.wait_for(lambda: len(target.committed()) >= 1)
        before = len(target.committed())
        assert running.stop() == 0
        assert len(target.committed()) > before
        usage_intervals = sorted(
            (s.accelerator, s.start_ms, s.end_ms) for b in target.batches for s in b.usage_intervals
        )
        for one, two in pairwise(usage_intervals):
            assert one[0] != two[0] or one[2] == two[1], "usage intervals of an accelerator abut"
    counts = running.counts()
    assert (counts.pending, counts.is_conserved) == (0, True)


def test_kill_9_loses_no_spooled_batch_and_doubles_none(agent):
    """After each kill the spool goes on where it was: acked stays acked, every number is used once."""
    with sink() as target:
        running = agent(target.url)
        for round_ in range(3):
            running.wait_for(lambda wanted=2 * (round_ + 1): len(target.committed()) >= wanted)
            running.process.kill()
            running.process.wait()
            assert running.counts().is_conserved
            running.start()
        running.wait_for(lambda: len(target.committed()) >= 8)
        assert running.stop() == 0
        epochs = {epoch for epoch, _ in target.committed()}
        numbers = sorted(seq for _, seq in target.committed())
    counts = running.counts()
    assert len(epochs) == 1
    assert numbers == list(range(1, counts.produced + 1))
    assert (counts.acked, counts.pending) == (counts.produced, 0)


def test_an_absent_collector_stops_nothing(agent):
    """Batches wait in the spool; when the collector comes, all arrive."""
    port = free_port()
    running = agent(f"http://127.0.0.1:{port}")
    running.wait_for(running.said("accelerators"))
    running.wait_for(lambda: running.counts().pending >= 2)
    assert running.stop() == 0
    assert running.counts().pending >= 2


def test_hup_takes_new_settings_and_keeps_old_ones_when_they_are_bad(agent):
    """Good settings are read again; bad ones are reported with their fault and change nothing."""
    with sink() as target:
        running = agent(target.url)
        running.wait_for(lambda: target.committed())
        running.config.write_text("sample_intervall_s = 1\n")
        running.process.send_signal(signal.SIGHUP)
        running.wait_for(running.said("the settings are unchanged"))
        assert "sample_interval_s" in running.log.read_text()
        running.config.write_text("sample_interval_s = 0.2\npush_interval_s = 1\n")
        running.process.send_signal(signal.SIGHUP)
        running.wait_for(running.said("settings reloaded"))
        count = len(target.committed())
        running.wait_for(lambda: len(target.committed()) > count)
        assert running.stop() == 0


def test_no_file_of_the_settings_stops_sampling_at_a_reload(agent):
    """Half-written, without end, gone, a loop of links, a pipe that nobody writes: the old settings
    stay; a thousand signals are a few reloads.
    """
    with sink() as target:
        running = agent(target.url)
        running.wait_for(lambda: target.committed())
        good = running.config.read_text()

        def put(make):
            running.config.unlink()
            make(running.config)
            said = running.log.read_text().count("the settings are unchanged")
            running.process.send_signal(signal.SIGHUP)
            running.wait_for(
                lambda: running.log.read_text().count("the settings are unchanged") > said
            )

        put(lambda path: path.write_text("sample_interval_s = "))
        put(lambda path: path.symlink_to("/dev/zero"))
        put(lambda path: path.symlink_to(path))
        put(lambda path: path.mkdir())
        running.config.rmdir()
        running.config.touch()
        put(os.mkfifo)
        running.config.unlink()
        running.config.write_text(good + 'metrics_listen = "127.0.0.1:1"\n')
        del running.environment["GPULEDGER_AGENT_METRICS_LISTEN"]
        for _ in range(1000):
            running.process.send_signal(signal.SIGHUP)
        running.wait_for(running.said("settings reloaded"))
        count = len(target.committed())
        running.wait_for(lambda: len(target.committed()) > count)
        assert running.stop() == 0


@pytest.mark.parametrize(
    "make",
    [
        os.mkfifo,
        Path.mkdir,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.write_text("[" * 200_000),
        lambda path: path.write_text('{"until_ms": 1e400}'),
    ],
    ids=["fifo", "folder", "endless", "deep", "infinite"],
)
def test_a_note_that_is_none_stops_no_sampling(tmp_path, make):
    """Whoever may write into the state folder may not stop the agent: it is asked in every round."""
    make(tmp_path / release.NAME)
    assert release.read(tmp_path, 0) is None


def test_a_node_without_a_driver_keeps_its_heartbeat(agent):
    """No GPU, no driver: one sentence in the log, and batches that say so."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    with sink() as target:
        running = agent(target.url, source="nvml")
        running.wait_for(lambda: target.committed())
        assert running.stop() == 0
        beat = target.batches[-1].heartbeat
    assert beat.status == "no_driver"
    assert "install the NVIDIA driver" in beat.detail
    assert running.log.read_text().count("libnvidia-ml") == 1


def test_release_lets_the_gpus_go_and_resume_takes_them_up(agent):
    """While released nothing is sampled and the heartbeat says why; resume, or the end of the time,
    brings samples.
    """
    with sink() as target:
        running = agent(target.url)
        running.wait_for(lambda: target.committed())

        def command(*arguments):
            return subprocess.run(
                [AGENT, *arguments], env=running.environment, capture_output=True, text=True
            )

        answer = command("release", "--for", "5m")
        assert answer.returncode == 0, answer.stderr
        released = len(target.batches)
        running.wait_for(lambda: len(target.batches) >= released + 3)
        last = target.batches[-1]
        assert (last.usage_intervals, last.samples.at_ms) == ([], [])
        assert last.heartbeat.status == "degraded"
        assert "released" in last.heartbeat.detail
        assert "sampling resumes" in command("resume").stdout
        running.wait_for(
            lambda: (
                target.batches[-1].heartbeat.status == "ok" and target.batches[-1].usage_intervals
            )
        )
        assert command("release", "--for", "1s").returncode == 0
        count = len(target.batches)
        running.wait_for(
            lambda: len(target.batches) > count + 2 and target.batches[-1].usage_intervals
        )
        assert running.stop() == 0
    assert command("resume").returncode == 0


def test_why_nothing_is_delivered_stands_in_the_log_once(agent):
    """A collector that refuses the token, or is not there: one sentence each, and one more when it
    takes batches.
    """
    with sink() as target:
        target.answers = lambda _: (503, {"Retry-After": "1"}, b"")
        running = agent(target.url)
        running.wait_for(running.said("WARNING delivery: status 503; "))
        before = len(target.batches)
        running.wait_for(lambda: len(target.batches) > before + 1)
        target.answers = lambda _: (200, {}, b'{"status":"committed"}')
        running.wait_for(running.said("INFO the collector accepts batches again"))
        assert running.log.read_text().count("status 503") == 1


def test_a_page_that_cannot_be_made_is_said_once_and_counted(tmp_path, capfd):
    """The spool's file is gone bad: each scrape gets status 500 and no traceback, and the place of
    the fault counts.
    """
    port = free_port()
    settings = Settings(node="h100-03", source="simulated", spool_dir=tmp_path)
    running = daemon.build(settings, lambda: settings)
    end = serve(f"127.0.0.1:{port}", MetricsPage(running.sampler, running.spool))
    running.spool.close()
    try:
        for _ in range(2):
            with pytest.raises(urllib.error.HTTPError, match="500"):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30)
    finally:
        end()
    assert running.sampler.exceptions.counts == {"metrics": 2}
    said = capfd.readouterr().err
    assert (said.count("ERROR metrics: "), "Traceback" in said) == (1, False)


def test_an_asker_that_leaves_is_no_traceback(agent):
    """A scrape that is cut off before its answer: the log says nothing of it."""
    port = free_port()
    with sink() as target:
        running = agent(target.url, metrics_listen=f"127.0.0.1:{port}")
        running.wait_for(lambda: target.committed())
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", port)) as scrape:
                scrape.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                scrape.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read()
        assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


def test_metrics_are_clean_and_tell_of_every_gpu(agent, tmp_path):
    """/metrics parses, names each family once, speaks base units; promtool finds nothing where it
    is installed.
    """
    port = free_port()
    with sink() as target:
        running = agent(target.url, metrics_listen=f"127.0.0.1:{port}")
        running.wait_for(lambda: target.committed())
        text = (
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
        )
        assert running.stop() == 0
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert len(families["gpu_power_watts"].samples) == 8
    assert {sample.labels["node"] for sample in families["gpu_power_watts"].samples} == {"h100-03"}
    assert families["gpuledger_agent_conservation_violation"].samples[0].value == 0
    assert families["gpu_held_ratio"].samples
    assert len(re.findall(r"^# TYPE gpu_power_watts ", text, re.MULTILINE)) == 1
    promtool = shutil.which("promtool")
    if promtool:
        checked = subprocess.run(
            [promtool, "check", "metrics"], input=text, capture_output=True, text=True
        )
        # `modelName`, `…_COUNTER` and counters without `_total` are dcgm-exporter's own. Nothing
        # else may be said.
        theirs = re.compile(
            r"DCGM_.*(camelCase|should have \"_total\" suffix|should not include type 'counter')"
        )
        remarks = {line for line in checked.stderr.splitlines() if not theirs.search(line)}
        assert not remarks, remarks


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "words"),
    [
        (["run"], {"GPULEDGER_AGENT_NODDE": "x"}, 2, "the nearest one is GPULEDGER_AGENT_NODE"),
        (["run"], {"GPULEDGER_AGENT_SAMPLE_INTERVAL_S": "often"}, 2, "'often' is not a float"),
        (["run"], {"GPULEDGER_AGENT_SOURCE": "nvidia"}, 2, "not one of nvml, exporter, dcgm"),
        (["run", "--source", "dcgm"], {}, 2, "needs an address or a file"),
        (
            ["run", "--source", "simulated"],
            {"GPULEDGER_AGENT_COLLECTOR_URL": "collector:1"},
            2,
            "is not http",
        ),
        (
            ["run", "--source", "simulated"],
            {"GPULEDGER_AGENT_COLLECTOR_URL": "http://h:99999"},
            2,
            "is not http",
        ),
        (
            ["run", "--source", "simulated"],
            {"GPULEDGER_AGENT_METRICS_LISTEN": "127.0.0.1:99999"},
            2,
            "is not ADDRESS",
        ),
        (
            ["run"],
            {"GPULEDGER_AGENT_COLLECTOR_URL": "http://u:geheim@h"},
            2,
            "must not hold a user name or a password",
        ),
        (["run", "--config", "/nonexistent.toml"], {}, 2, "cannot be read"),
        (["once", "--source", "replay", "--target", "/nonexistent"], {}, 3, "cannot be read"),
        (["simulate", "--from", "x", "--to", "y"], {}, 2, "is not an instant"),
        (["release", "--for", "ever"], {}, 2, "--for: 'ever' is not a duration"),
    ],
)
def test_bad_input_is_one_sentence_and_an_exit_code(arguments, environment, code, words, tmp_path):
    """What is wrong, where, and how it should be: no traceback."""
    environment = {"GPULEDGER_AGENT_SPOOL_DIR": str(tmp_path), **environment}
    answer = subprocess.run(
        [AGENT, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == code, answer.stderr
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1


def test_check_config_checks_and_ends(tmp_path):
    """`run --check-config` says that good settings are good."""
    answer = subprocess.run(
        [AGENT, "run", "--source", "simulated", "--check-config"], capture_output=True, text=True
    )
    assert (answer.returncode, answer.stdout) == (0, "the settings are good\n")


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    """The socket that systemd would read; as long as nobody does, its queue holds ten datagrams or
    so.
    """
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(path)
        channel.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        yield channel


def test_systemd_is_told_when_it_is_ready(agent, systemd):
    """READY, WATCHDOG and STOPPING go to the socket that systemd names."""
    said = []

    def listen():
        while "STOPPING=1" not in said:
            said.append(systemd.recv(200).decode())

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    with sink() as target:
        running = agent(target.url)
        running.wait_for(lambda: target.committed())
        assert running.stop() == 0
    listening.join(60)
    assert said[-1] == "STOPPING=1"
    assert {"READY=1", "WATCHDOG=1"} <= set(said)


def test_a_systemd_that_does_not_read_stops_no_sampling(agent, systemd):
    """Its queue is full after a second: rounds are late by a second each, and batches go on, to the
    end with 0.
    """
    with sink() as target:
        running = agent(target.url)
        running.wait_for(lambda: len(target.committed()) >= 4)
        assert running.stop() == 0
    assert systemd.recv(200) == b"READY=1"
