"""What nobody foresaw in a source, an owner source or a reading is counted and said once; sampling
goes on.
"""

import logging
import os
import re
import signal
import time

import pytest

from gpuledger_agent import release
from gpuledger_agent.clock import Clock
from gpuledger_agent.daemon import Daemon, gap_ms
from gpuledger_agent.exposition import MetricsPage
from gpuledger_agent.sampler import Sampler
from gpuledger_agent.settings import Settings
from gpuledger_agent.sources.nvml import READ_DEADLINE_S
from gpuledger_agent.spool import Spool
from gpuledger_common.batches import unpack
from gpuledger_common.meter import Meter
from gpuledger_common.readings import (
    Accelerator,
    Holder,
    Inventory,
    Sample,
    SourceUnavailable,
    Workload,
)

START = 1_790_812_800_000
CARDS = (
    Accelerator("GPU-a", "GPU-a", 0, "NVIDIA H100"),
    Accelerator("GPU-b", "GPU-b", 1, "NVIDIA H100"),
)


class Source:
    """Two cards; `broken` is raised by the next reads, while it is set."""

    name = "fake"

    def __init__(self):
        self.broken = None
        self.values = {"gpu_utilization_ratio": 0.9}
        self.opened = self.closed = 0

    def open(self):
        self.opened += 1
        return Inventory("580.1", CARDS)

    def read(self, tiers):
        if self.broken is not None:
            raise self.broken
        return [Sample(one.uuid, time.monotonic_ns(), self.values) for one in CARDS]

    def close(self):
        self.closed += 1


class Owner:
    """Says that GPU-a is held by a job, unless it is broken."""

    name = "jobs"

    def __init__(self, uuid="GPU-a"):
        self.uuid, self.broken = uuid, None

    def holders(self, accelerators, samples):
        if self.broken is not None:
            raise self.broken
        return {self.uuid: (Holder(Workload(f"job-{self.uuid}", "slurm")),)}


@pytest.fixture
def spool(tmp_path):
    made = Spool(tmp_path, 64 * 1024 * 1024, START, free_floor=0)
    yield made
    made.close()


@pytest.fixture
def daemon(spool, tmp_path):
    source = Source()
    sampler = Sampler("n1", "p", source, [Owner("GPU-a"), Owner("GPU-b")], Meter(30_000))
    settings = Settings(spool_dir=tmp_path, collector_url="http://127.0.0.1:1")
    return Daemon(
        settings,
        lambda: settings,
        spool,
        sampler,
        Clock(time.time_ns() // 10**6, time.monotonic_ns()),
    )


def rounds(daemon, number):
    for _ in range(number):
        daemon._tick(("fast",))
        time.sleep(0.002)


def usage_intervals(daemon, spool):
    daemon.sampler.flush(spool, START)
    return unpack(spool.next("newest").body).usage_intervals


def test_an_exception_of_the_source_ends_one_round(daemon, spool, caplog):
    """The round is missing, the next bridges it, it is counted; the log has one line with the place
    in the code.
    """
    rounds(daemon, 2)
    daemon.sampler.source.broken = KeyError("nvmlFieldValue")
    with caplog.at_level(logging.ERROR, "gpuledger_agent"):
        rounds(daemon, 2)
    daemon.sampler.source.broken = None
    rounds(daemon, 1)
    assert daemon.sampler.ticks == 3
    assert daemon.sampler.exceptions.counts == {"source": 2}
    (line,) = (record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR)
    assert re.fullmatch(
        r"source: KeyError: 'nvmlFieldValue' at test_survival.py:\d+; sampling continues"
        r" without it",
        line,
    )
    assert len(usage_intervals(daemon, spool)) == 2
    assert daemon.sampler.source.opened == 1


def test_a_source_that_keeps_failing_is_closed_and_opened_again(daemon):
    """Three rounds in a row: its state may be broken.

    The heartbeat says so, and it comes back by itself.
    """
    rounds(daemon, 1)
    source = daemon.sampler.source
    source.broken = AttributeError("no")
    rounds(daemon, 5)
    assert (source.opened, source.closed) == (1, 1)
    assert daemon.sampler.status == "no_driver"
    assert daemon.sampler.detail == "the source fails: AttributeError: no"
    source.broken, daemon._reopen_at = None, 0.0
    rounds(daemon, 2)
    assert (source.opened, daemon.sampler.status) == (2, "ok")


def test_a_release_lets_go_of_a_source_that_was_lost_as_well(daemon, tmp_path):
    """Handles that went stale are still handles: a release in the seconds before they are taken
    anew frees them.
    """
    rounds(daemon, 1)
    source = daemon.sampler.source
    source.broken = SourceUnavailable("GPU 0: its handle is stale")
    rounds(daemon, 1)
    assert (source.closed, daemon.sampler.detail) == (0, "GPU 0: its handle is stale")
    now_ms = time.time_ns() // 10**6
    release.write(tmp_path, release.Release(now_ms + 60_000))
    rounds(daemon, 3)
    assert source.closed == 1
    assert release.read(tmp_path, now_ms).confirmed


@pytest.mark.parametrize(
    "note", ['{"until_ms": Infinity}', '{"until_ms": 1e400}', "[1]", '{"until_ms": "x"}', "\xff"]
)
def test_a_note_of_a_release_that_cannot_be_read_stops_nothing(daemon, tmp_path, note):
    """Whoever may write the folder may write anything there."""
    (tmp_path / release.NAME).write_text(note, encoding="latin-1")
    rounds(daemon, 2)
    assert (daemon.sampler.ticks, daemon.sampler.exceptions.counts) == (2, {})


def test_the_agents_user_may_read_a_note_of_a_careful_administrator(tmp_path):
    """The root of a hardened machine has umask 077; the agent is another user and must see that a
    release began.
    """
    before = os.umask(0o077)
    try:
        release.write(tmp_path, release.Release(1))
    finally:
        os.umask(before)
    assert (tmp_path / release.NAME).stat().st_mode & 0o777 == 0o644


def test_a_note_is_never_written_through_a_link(tmp_path):
    """Root writes it into the agent's folder: a link that the agent's user puts there must not lead
    root elsewhere.
    """
    victim = tmp_path / "shadow"
    victim.write_text("precious")
    victim.chmod(0o600)
    (tmp_path / f".{release.NAME}.{os.getpid()}").symlink_to(victim)
    release.write(tmp_path, release.Release(1))
    assert (victim.read_text(), victim.stat().st_mode & 0o777) == ("precious", 0o600)
    assert not (tmp_path / release.NAME).is_symlink()


@pytest.mark.parametrize("interval_s", [0.1, 1.0, 2.0, 10.0, 60.0])
def test_a_gpu_that_answers_at_its_deadline_costs_its_neighbors_nothing(interval_s):
    """The longest round of all is still shorter than a gap, however short the interval is."""
    longest_s = max(interval_s, READ_DEADLINE_S) + interval_s
    assert gap_ms(Settings(sample_interval_s=interval_s)) > 1000 * longest_s
    assert gap_ms(Settings()) == 30_000


def test_a_reload_says_what_only_a_restart_changes(daemon, caplog):
    """What was read again and does not hold yet is named, whichever setting it is."""
    daemon.reload = lambda: Settings(
        spool_dir=daemon.settings.spool_dir,
        pool="training",
        metrics_listen="",
        owner_stale_s=9,
        push_interval_s=7,
    )
    with caplog.at_level(logging.INFO, "gpuledger_agent"):
        daemon._reload()
    (line,) = (
        record.getMessage() for record in caplog.records if "reloaded" in record.getMessage()
    )
    assert line == "settings reloaded; a restart is needed for pool, metrics_listen, owner_stale_s"
    assert daemon.settings.push_interval_s == 7


def test_an_owner_source_that_raises_takes_no_other_with_it(daemon, spool):
    """The others' holders are held; what only the broken one knows is not called free: it is
    unseen, then held on.
    """
    rounds(daemon, 2)
    broken = daemon.sampler.owners[0]
    broken.broken = ValueError("a job file of another version")
    rounds(daemon, 3)
    seen = usage_intervals(daemon, spool)
    assert {(usage_interval.accelerator, usage_interval.state) for usage_interval in seen} == {
        (0, "held"),
        (1, "held"),
    }
    ends = {usage_interval.accelerator: usage_interval.end_ms for usage_interval in seen}
    assert ends[0] < ends[1]
    broken.broken = None
    rounds(daemon, 1)
    again = usage_intervals(daemon, spool)
    assert {usage_interval.state for usage_interval in again} == {"held"}
    assert (
        min(usage_interval.start_ms for usage_interval in again if usage_interval.accelerator == 0)
        == ends[0]
    )
    assert daemon.sampler.exceptions.counts == {"owner Owner": 3}


def test_a_reading_that_no_arithmetic_can_take_is_that_accelerators_loss(daemon, spool):
    """NaN as power breaks the energy of one card's interval, not the round."""
    rounds(daemon, 2)
    daemon.sampler.source.values = {"gpu_utilization_ratio": 0.9, "gpu_power_watts": float("nan")}
    rounds(daemon, 1)
    daemon.sampler.source.values = {"gpu_utilization_ratio": 0.9}
    rounds(daemon, 2)
    assert daemon.sampler.ticks == 5
    assert daemon.sampler.exceptions.counts == {"meter": 2}
    assert len(usage_intervals(daemon, spool)) == 4


def test_a_reading_that_fits_into_no_column_holds_back_no_time(daemon, spool):
    """A source that gives a text for a number costs the readings of that batch, counted; the usage
    intervals arrive.
    """
    daemon.sampler.source.values = {"gpu_utilization_ratio": 0.9, "gpu_power_limit_watts": "n/a"}
    rounds(daemon, 3)
    assert len(usage_intervals(daemon, spool)) == 2
    assert daemon.sampler.readings_lost == 6
    daemon.sampler.source.values = {"gpu_utilization_ratio": 0.9}
    rounds(daemon, 1)
    usage_intervals(daemon, spool)
    assert len(unpack(spool.next("newest").body).samples.at_ms) == 2


def test_the_watchdog_is_fed_only_while_both_loops_move(daemon, monkeypatch):
    """A push loop that has stood still for two minutes: systemd hears nothing and restarts the
    agent.
    """
    said = []
    monkeypatch.setattr("gpuledger_agent.daemon.notify", said.append)
    for still_s in (200.0, 0.0):
        daemon.moved_push = time.monotonic() - still_s
        daemon.signals.put(signal.SIGTERM)
        daemon._sample()
        daemon.stop.clear()
    assert said == ["WATCHDOG=1"]


def test_faults_are_on_the_page(daemon, spool):
    """/metrics counts them by place."""
    rounds(daemon, 1)
    daemon.sampler.source.broken = KeyError("x")
    rounds(daemon, 1)
    page = MetricsPage(daemon.sampler, spool).text()
    assert 'gpuledger_agent_faults_total{place="source"} 1.0\n' in page
