"""Xids, MIG events, series with labels: through the real binding and the stand-in, and from true
kernel logs.
"""

import json
import os
import time
from pathlib import Path

import pytest

from gpuledger_agent.sources.kernel_log import KernelLog
from gpuledger_agent.sources.nvml_events import DriverEvents, WatchedBoard
from gpuledger_common.xids import XIDS, bus_key, meaning, parse

CAPTURES = Path(__file__).resolve().parents[4] / "shared" / "data" / "captures"

WATCH = """
import json, os, time
from gpuledger_common.readings import SourceUnavailable
from gpuledger_agent.sources.nvml import NvmlSource
from gpuledger_agent.sources.nvml_events import DriverEvents
events = DriverEvents()
source = NvmlSource(events=events)
source.open()
assert events.ready.wait(60)
def scenario(text):
    open({path!r} + '.new', 'w').write(text)
    os.replace({path!r} + '.new', {path!r})
def until(wanted):
    for _ in range(1200):
        seen = source.read(('fast',))
        if wanted(seen):
            break
        time.sleep(0.05)
    return seen
"""


def test_an_xid_is_counted_told_and_judged_by_its_severity(card):
    """A program's own fault says nothing of the card; one that asks for a reset degrades it, with
    the action.
    """
    printed = card.python(
        WATCH.format(path=str(card.path))
        + "scenario('gpus 2\\nxid 1 13\\nxid 1 13\\n')\n"
        + "seen = until(lambda seen: seen[1].series.get('gpu_xid_errors_total', [None])[0] is not"
        " None\n"
        + "             and seen[1].series['gpu_xid_errors_total'][0].value == 2)\n"
        + "print(json.dumps([[s.health.status, s.values.get('gpu_last_xid')] for s in seen]))\n"
        + "scenario('gpus 2\\nxid 1 13\\nxid 1 13\\nxid 1 119\\n')\n"
        + "seen = until(lambda seen: seen[1].values.get('gpu_last_xid') == 119)\n"
        + "print(json.dumps([seen[1].health.status, seen[1].health.cause,\n"
        + "    [[dict(one.labels), one.value] for one in"
        " seen[1].series['gpu_xid_errors_total']]]))\n"
        + "source.close(); source.open()\n"
        + "assert events.ready.wait(60)\n"
        + "print(json.dumps([[s.health.status, s.values.get('gpu_last_xid')] for s in"
        " source.read(('fast',))]))\n"
    )
    harmless, (status, cause, counts), after = (json.loads(line) for line in printed.splitlines())
    assert harmless == [["ok", 0], ["ok", 13]]
    assert status == "degraded"
    assert cause == "Xid 119: the GPU's system processor did not answer in time; reset the GPU"
    assert counts == [[{"xid": "13"}, 2], [{"xid": "119"}, 1]]
    # A reset needs the card let go: what stood against it is over.
    assert after == [
        ["ok", 0],
        ["ok", 119],
    ]


def test_a_mig_change_is_followed_as_soon_as_the_driver_tells_it(card):
    """The event, not the next slow tick, makes the source attach anew."""
    card.scenario("gpus 1\nmig 0\ninstances 0 2\n")
    printed = card.python(
        WATCH.format(path=str(card.path))
        + "scenario('gpus 1\\nmig 0\\ninstances 0 2\\nreshape 0 1\\n')\n"
        + "try:\n    until(lambda seen: False)\nexcept SourceUnavailable as error:\n   "
        " print(error)\n" + "print(len(source.open().accelerators), [s.health.status for s in"
        " source.read(('fast',))])\n"
    )
    sentence, again = printed.splitlines()
    assert "GPU 0: its MIG instances are being changed" in sentence
    assert again == "2 ['ok', 'ok']"


def test_series_by_reason_link_process_and_card(card):
    """What has several series on one card: the reasons of the mask, the links, the processes, the
    card's own data.
    """
    card.scenario("gpus 1\nreasons 0 5\nlinks 0 4\nprocess 0 4711\nusing 0 37\n")
    (entry,) = card.once()["accelerators"]
    series = {
        name: {tuple(one["labels"].values()): one["value"] for one in several}
        for name, several in entry["series"].items()
    }
    reasons = series["gpu_clocks_event_active"]
    assert {name for (name,), value in reasons.items() if value} == {"gpu_idle", "sw_power_cap"}
    assert len(reasons) == 9
    assert series["gpu_nvlink_link_up"] == {("0",): 1, ("1",): 1, ("2",): 1, ("3",): 0}
    assert series["gpu_process_memory_used_bytes"] == {("4711", "compute"): 3 * 2**30}
    assert series["gpu_process_sm_utilization_ratio"] == {("4711",): pytest.approx(0.37)}
    ((serial, *_),) = series["gpu_info"]
    assert serial == "1650000000"


def test_a_card_without_links_says_so(card):
    """Unsupported is absent with a reason, for series as for single metrics."""
    first, _ = card.once()["accelerators"]
    assert first["absent"]["gpu_nvlink_link_up"] == "this card has no NVLink"
    assert "gpu_nvlink_link_up" not in first["series"]


def test_a_driver_without_events_is_no_fault(card):
    """An NVML that cannot make an event set leaves the kernel log as the witness; reading goes on."""
    printed = card.python(
        "import pynvml\n"
        "def refuse(): raise pynvml.NVMLError(3)\n"
        "pynvml.nvmlEventSetCreate = refuse\n"
        "from gpuledger_agent.sources.nvml import NvmlSource\n"
        "source = NvmlSource(); source.open()\n"
        "print([s.health.status for s in source.read(('fast',))])\n"
        "source.close()\n"
    )
    assert printed.strip() == "['ok', 'ok']"


class Nvml:
    """No events at all."""

    def nvmlEventSetCreate(self):
        raise RuntimeError("none here")


def watch(tmp_path, *, bus="00000000:9B:00.0"):
    path = tmp_path / "kmsg"
    path.write_text("6,1,1,-;NVRM: Xid (PCI:0000:9b:00): 79, before the agent began\n")
    events = DriverEvents(KernelLog(path))
    events.start(Nvml(), [WatchedBoard("GPU-a", object(), bus)])
    return path, events


def test_the_kernel_log_alone_reports_xids(tmp_path):
    """What came before the agent is history; what comes after is counted, by the card's PCI
    address.
    """
    path, events = watch(tmp_path)
    with path.open("a") as file:
        file.write(
            "4,2,2,-;NVRM: Xid (PCI:0000:9b:00): 62, pid=1, name=python, 3 4 5\n SUBSYSTEM=pci\n"
        )
        file.write("4,3,3,-;NVRM: Xid (PCI:0000:41:00): 79, pid=1, name=x, another card\n")
        file.write("6,4,4,-;eth0: link is up\n")
    events.poll()
    record = events.history("GPU-a")
    assert record.counts() == {62: 1}
    assert record.last == 62
    assert record.health().status == "degraded"


def test_one_xid_reported_by_both_counts_once(tmp_path):
    """The larger of the two counts, never their sum."""
    path, events = watch(tmp_path)
    events._note("GPU-a", 94, "nvml")
    with path.open("a") as file:
        file.write("4,2,2,-;NVRM: Xid (PCI:0000:9b:00): 94, pid=1, name=x, contained\n" * 2)
    events.poll()
    assert events.history("GPU-a").counts() == {94: 2}


def test_a_milder_xid_does_not_hide_a_graver_one(tmp_path):
    """The worst since the attach stands; a new attach ends it."""
    _, events = watch(tmp_path)
    events._note("GPU-a", 79, "nvml")
    events._note("GPU-a", 13, "nvml")
    assert "Xid 79" in events.history("GPU-a").health().cause
    events.start(Nvml(), [WatchedBoard("GPU-a", object(), "0000:9b:00")])
    assert events.history("GPU-a").health().status == "ok"
    assert events.history("GPU-a").counts() == {13: 1, 79: 1}


def test_an_unreadable_kernel_log_is_a_sentence(tmp_path):
    """The agent goes on with NVML's events alone."""
    kernel_log = KernelLog(tmp_path / "none")
    DriverEvents(kernel_log).poll()
    assert (
        kernel_log.problem
        == "the kernel log cannot be read (No such file or directory): Xids come from NVML alone"
    )


@pytest.mark.skipif(
    not Path("/dev/kmsg").exists() or not os.access("/dev/kmsg", os.R_OK),
    reason="no /dev/kmsg here",
)
def test_the_true_kernel_log_never_makes_a_tick_wait():
    """Reading where nothing is new returns at once."""
    log = KernelLog()
    log.open()
    began = time.monotonic()
    log.read()
    assert time.monotonic() - began < 20
    log.close()


@pytest.mark.parametrize(
    ("line", "bus", "xid"),
    [
        (
            "NVRM: Xid (PCI:0000:3b:00): 119, pid='<unknown>', name=<unknown>, Timeout waiting",
            "0:3b:0",
            119,
        ),
        (
            (
                "[ 12.5] NVRM: Xid (PCI:0000:c6:00): 79, pid=1101234, name=nvc:[driver], GPU has"
                " fallen"
            ),
            "0:c6:0",
            79,
        ),
        ("NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101", "0:3:0", 31),
        ("NVRM: Xid (PCI:0001:00:00): 45", "1:0:0", 45),
    ],
)
def test_lines_of_every_age_are_read(line, bus, xid):
    """With and without pid, name and the word PCI."""
    found = parse(line)
    assert (found.bus, found.xid) == (bus, xid)


def test_other_lines_are_none_of_ours():
    """A line of the driver that tells no Xid, and one that only mentions them."""
    assert parse("NVRM: GPU at PCI:0000:3b:00: GPU-5b1c") is None
    assert parse("python: saw an Xid (PCI:0000:3b:00): 79") is None


def test_addresses_of_nvml_and_the_kernel_meet():
    """Domain width, case and function differ; the place does not."""
    assert bus_key("00000000:9B:00.0") == bus_key("0000:9b:00") == bus_key("9b:00.0")
    assert bus_key("0001:9b:00") != bus_key("0000:9b:00")


def test_an_unknown_xid_is_a_warning_and_never_nothing():
    """A newer driver's number is not passed over."""
    assert meaning(99_999).severity == "warning"
    assert all(entry.text and entry.action for entry in XIDS.values())


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures of real machines are not here")
def test_every_xid_of_real_kernel_logs_is_found_and_known():
    """Each line of the captured logs that tells an Xid is read, and its number is in the table."""
    texts = [
        path.read_text(errors="replace")
        for path in sorted(CAPTURES.iterdir())
        if "xid" in path.name.lower()
    ]
    lines = [line for text in texts for line in text.splitlines() if "NVRM: Xid (" in line]
    assert len(lines) > 5
    assert {parse(line).xid for line in lines} <= XIDS.keys()


def test_a_counter_that_begins_anew_goes_on_where_it_was(card):
    """The driver is loaded again and counts from 0: what is shown and stored rises by what was
    counted since.
    """
    card.scenario("gpus 1\nenergy 0 1000\n")
    printed = card.python(
        "import json, os\n"
        "from gpuledger_common.meter import Meter\n"
        "from gpuledger_agent.sampler import Sampler\n"
        "from gpuledger_agent.sources.nvml import NvmlSource\n"
        "source = NvmlSource()\n"
        "sampler = Sampler('n1', 'p', source, [], Meter(60_000))\n"
        "sampler.attach(source.open())\n"
        "def joules(raw):\n"
        f"    open({str(card.path)!r} + '.new', 'w').write(f'gpus 1\\nenergy 0 {{raw}}\\n')\n"
        f"    os.replace({str(card.path)!r} + '.new', {str(card.path)!r})\n"
        "    sampler.tick(lambda ns: ns // 1_000_000, ('fast',))\n"
        "    (sample,) = sampler.latest.samples.values()\n"
        "    return sample.values['gpu_energy_joules_total']\n"
        "seen = [joules(1000), joules(1500)]\n"
        "source.close(); sampler.attach(source.open())\n"
        "print(json.dumps([*seen, joules(5), joules(9)]))\n"
    )
    first, second, third, fourth = json.loads(printed)
    assert second - first == pytest.approx(500)
    assert (third - second, fourth - third) == (pytest.approx(5.789), pytest.approx(4))
