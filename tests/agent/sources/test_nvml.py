"""The nvml source: the real pynvml, in a real process, over a stand-in for the driver's library."""

import inspect
import json
import os
import subprocess
import sys

import pynvml
import pytest

from gpuledger_common.catalog import METRICS
from gpuledger_common.metrics import Call

pytestmark = pytest.mark.slow


def by_index(seen):
    return {entry["index"]: entry for entry in seen["accelerators"]}


def test_readings_come_in_base_units(card):
    """Milliwatts, percent and millijoules arrive as watts, ratios and joules."""
    card.scenario("gpus 1\npower 0 412500\nbusy 0 87\n")
    metrics = card.once()["accelerators"][0]["metrics"]
    assert metrics["gpu_power_watts"] == 412.5
    assert metrics["gpu_utilization_ratio"] == 0.87
    assert round(metrics["gpu_energy_joules_total"], 3) == 123456.789
    assert metrics["gpu_memory_total_bytes"] == 80 * 1024**3
    assert metrics["gpu_memory_used_bytes"] == 1024**3
    assert metrics["gpu_power_instant_watts"] == 71.0
    assert metrics["gpu_memory_temperature_celsius"] == 55


def test_what_a_card_lacks_is_absent_with_a_reason(card):
    """Unsupported calls, failed fields, unknown enums and functions of newer drivers give no value,
    never 0.
    """
    entry = card.once()["accelerators"][0]
    assert entry["absent"]["gpu_fan_speed_ratio"] == "not supported by this card"
    assert entry["absent"]["gpu_power_average_watts"] == "not supported by this card"
    assert entry["absent"]["gpu_performance_state"] == "the driver does not know"
    assert entry["absent"]["gpu_sm_clock_hertz"] == "not in this driver (function not found)"
    assert not set(entry["absent"]) & set(entry["metrics"])


def test_a_structure_that_the_driver_fills_is_read(card):
    """Calls that fill in a versioned structure give its fields, and the whole bitmask."""
    metrics = card.once()["accelerators"][0]["metrics"]
    assert (metrics["gpu_fabric_state"], metrics["gpu_fabric_health_mask"]) == (3, 0x2A)


def test_the_binding_is_imported_without_what_it_does_not_use():
    """What finds libraries comes when it is asked, and says what it always says."""
    code = (
        "import sys\n"
        "from gpuledger_agent.sources.nvml_binding import import_binding\n"
        "binding = import_binding()\n"
        "assert not {'ctypes.util', 'subprocess', 'shutil'} & sys.modules.keys()\n"
        "assert import_binding() is binding\n"
        "found = binding.find_library('c')\n"
        "import ctypes.util\n"
        "assert ctypes.util.find_library is not binding.find_library\n"
        "assert found == ctypes.util.find_library('c')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_binding_knows_every_call_of_the_catalog():
    """Each function, field and structure that the catalog names is there, and takes what it is
    given.
    """
    for metric in METRICS:
        if isinstance(metric.reader, Call):
            function = inspect.signature(getattr(pynvml, metric.reader.function))
            positional = [None, *(name for name in metric.reader.args if "=" not in name)]
            named = dict.fromkeys(
                name.partition("=")[0] for name in metric.reader.args if "=" in name
            )
            function.bind(*positional, **named)
            assert all(hasattr(pynvml, name.rpartition("=")[2]) for name in metric.reader.args), (
                metric.name
            )
        elif metric.reader is not None:
            assert hasattr(pynvml, metric.reader.constant), metric.name


def test_a_lost_gpu_fails_alone(card):
    """A GPU that falls off the bus is failed and stays in the inventory; its neighbor keeps its
    readings.
    """
    printed = card.python(
        "import json, os\nfrom gpuledger_agent.sources.nvml import NvmlSource\nsource ="
        f" NvmlSource(); source.open()\nopen({str(card.path)!r}, 'w').write('gpus 2\\nlost"
        " 1\\n')\nprint(json.dumps([[s.health.status, s.health.cause, sorted(s.values)] for s in"
        " source.read(('fast',))]))\nagain = source.open()\nprint(json.dumps([[a.uuid for a in"
        " again.accelerators], list(again.problems)]))\nprint(json.dumps([s.health.status for s in"
        " source.read(('fast',))]))\n"
    )
    samples, (uuids, problems), health = (json.loads(line) for line in printed.splitlines())
    assert samples[0][0] == "ok"
    assert len(samples[0][2]) > 5
    assert samples[1][:2] == ["failed", "the GPU is lost"]
    assert set(samples[1][2]) <= {"gpu_lost", "gpu_last_xid"}
    assert [uuid[-1] for uuid in uuids] == ["0", "1"]
    assert "GPU 1 cannot be attached" in problems[0]
    assert health == ["ok", "failed"]


def test_a_hung_gpu_delays_nobody_beyond_the_deadline(card):
    """While one GPU's call hangs, the others answer; the hung one is unknown, gets no new work, and
    comes back.
    """
    printed = card.python(
        "import json, time\nfrom gpuledger_agent.sources.nvml import NvmlSource\nsource ="
        f" NvmlSource(deadline_s=0.8); source.open()\npath = {str(card.path)!r}\nopen(path,"
        " 'w').write('gpus 2\\nhang 1 5\\n')\nlook = lambda: [s.health.status for s in"
        " source.read(('fast',))]\nstart = time.monotonic(); first, second = look(), look(); took"
        " = time.monotonic() - start\nopen(path, 'w').write('gpus 2\\n')\ndeadline ="
        " time.monotonic() + 40\nwhile (last := look()) != ['ok', 'ok'] and time.monotonic() <"
        " deadline: time.sleep(0.1)\nprint(json.dumps([first, second, took < 4, last]))\n"
    )
    first, second, in_time, last = json.loads(printed)
    assert first == second == ["ok", "unknown"]
    assert in_time
    assert last == ["ok", "ok"]


def test_mig_instances_are_accelerators_without_the_boards_power(card):
    """With MIG on, each instance is an accelerator with its dominant share; board power is on none
    of them.
    """
    card.scenario("gpus 2\nmig 1\n")
    seen = card.once()["accelerators"]
    assert [entry["mig_instance"] for entry in seen] == [None, "1g.10gb/7", "1g.10gb/8"]
    whole, first, second = seen
    assert "gpu_power_watts" in whole["metrics"]
    for instance in (first, second):
        assert instance["device_uuid"].endswith("1")
        assert instance["gpu_micro"] == 142_857
        assert "gpu_power_watts" not in instance["metrics"]
        assert "gpu_energy_joules_total" not in instance["metrics"]
        assert instance["metrics"]["gpu_memory_total_bytes"] == 10 * 1024**3
    assert first["uuid"] != second["uuid"]


def test_a_process_on_a_gpu_is_its_holder(card):
    """A compute process makes its unix user's workload the owner; a GPU without one has none."""
    card.scenario(f"gpus 2\nprocess 1 {os.getpid()}\n")
    seen = by_index(card.once())
    assert seen[0]["owner"] == []
    (owner,) = seen[1]["owner"]
    assert owner["user"]
    assert owner["weight"] == 1


def test_each_failure_of_the_driver_has_its_sentence_and_exit_code(card, tmp_path):
    """No library, no driver, other versions: one sentence that says the cure, exit code 3, no
    traceback.
    """
    for code, words in (
        (9, "driver is not loaded"),
        (18, "a reboot"),
        (4, "/dev/nvidia"),
        (999, "NVML 999"),
    ):
        card.scenario(f"gpus 1\ninit {code}\n")
        answer = card.command("once")
        assert answer.returncode == 3
        assert words in answer.stderr
        assert answer.stderr.count("\n") == 1
    card.environment["LD_LIBRARY_PATH"] = str(tmp_path)
    answer = card.command("check")
    assert answer.returncode == 3
    assert "libnvidia-ml.so.1 was not found" in answer.stdout


def test_check_says_what_the_card_gives_and_why_not_the_rest(card):
    """`check` counts the metrics and groups the missing ones by reason."""
    answer = card.command("check")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "NVIDIA H100 80GB HBM3" in answer.stdout
    assert "not supported by this card: " in answer.stdout


@pytest.mark.parametrize(
    "span",
    [("--interval", "inf"), ("--interval", "nan"), ("--seconds", "-1"), ("--seconds", "nan")],
)
def test_a_recording_of_a_span_that_is_none_is_refused(card, tmp_path, span):
    """One sentence and status 2; no file."""
    answer = card.command("record", str(tmp_path / "x.jsonl"), "--source", "simulated", *span)
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert "--interval above 0" in answer.stderr
    assert not (tmp_path / "x.jsonl").exists()


def test_a_recording_replays_what_was_seen(card, tmp_path):
    """What `record` wrote, `--source replay` shows again: same accelerators, same metrics, same
    reasons.
    """
    card.scenario("gpus 2\nbusy 0 50\n")
    path = tmp_path / "card.jsonl.gz"
    answer = card.command("record", str(path), "--seconds", "0.2", "--interval", "0.1")
    assert answer.returncode == 0, answer.stderr
    replayed = json.loads(
        card.command("once", "--json", "--source", "replay", "--target", str(path)).stdout
    )
    live = card.once()
    for was, is_now in zip(live["accelerators"], replayed["accelerators"], strict=True):
        assert is_now["uuid"] == was["uuid"]
        # There from when the driver is listened to, which may be after the first look.
        heard = {"gpu_last_xid": 0}
        assert is_now["metrics"] | heard == was["metrics"] | heard
        assert is_now["absent"] == was["absent"]
        assert is_now["series"].keys() == was["series"].keys() > set()


LOOK = """
import json, os, sys, time
from gpuledger_common.readings import SourceUnavailable
from gpuledger_agent.sources.nvml import NvmlSource, StillStarting
def scene(text):
    # at once: GPUs are counted in the background, and half a scene has none
    with open({path!r} + '.new', 'w') as file: file.write(text)
    os.replace({path!r} + '.new', {path!r})
def show(value):
    print(json.dumps(value))
def health(samples):
    return [[sample.health.status, sample.health.cause] for sample in samples]
def attach(source):
    # as the agent does: what began before is let finish, and asked again
    for _ in range(200):
        try: return source.open()
        except StillStarting: time.sleep(0.1)
    return source.open()
"""


def told(card, code):
    printed = card.python(LOOK.format(path=str(card.path)) + code)
    return [json.loads(line) for line in printed.splitlines()]


def test_a_fault_stands_between_its_rare_readings(card):
    """The counters behind a verdict are read once a minute; in between the GPU stays degraded, and
    its repair shows.
    """
    fault, between, repaired = told(
        card,
        "scene('gpus 1\\nrecovery 0 1\\n')\n"
        "source = NvmlSource(); attach(source)\n"
        "show(health(source.read(('fast', 'slow'))))\n"
        "show(health(source.read(('fast',))))\n"
        "scene('gpus 1\\n')\n"
        "show(health(source.read(('fast', 'slow'))))\n",
    )
    assert fault == between == [["degraded", "the driver asks to reset the GPU"]]
    assert repaired == [["ok", ""]]


def test_a_failed_remap_of_a_board_degrades_its_mig_instances(card):
    """Instances share the fate of their board: its broken memory is theirs."""
    (seen,) = told(
        card,
        "scene('gpus 1\\nmig 0\\nremap 0 1\\n')\n"
        "source = NvmlSource(); attach(source)\n"
        "show(health(source.read(('fast', 'slow'))))\n",
    )
    assert seen == [["degraded", "a row of memory could not be remapped"]] * 2


def test_a_gpu_that_hangs_when_it_is_attached_keeps_nobody_waiting(card):
    """The others are attached and read; the sentence names the silent one, and it joins when it
    answers.
    """
    inventory, health, late, after = told(
        card,
        "scene('gpus 2\\nhang 1 4\\n')\nsource = NvmlSource(attach_deadline_s=0.8)\ninventory ="
        " attach(source)\nshow([[entry.index for entry in inventory.accelerators],"
        " list(inventory.problems)])\nshow(health(source.read(('fast',))))\nscene('gpus"
        " 2\\n')\ndeadline = time.monotonic() + 40\nsentence = ''\nwhile not sentence and"
        " time.monotonic() < deadline:\n    try: source.read(('fast',)); time.sleep(0.1)\n   "
        " except SourceUnavailable as error: sentence ="
        " str(error)\nshow(sentence)\nshow([entry.index for entry in attach(source).accelerators] +"
        " health(source.read(('fast',))))\n",
    )
    assert inventory == [[0], ["GPU 1 does not answer; it is attached as soon as it does"]]
    assert health == [["ok", ""]]
    assert "answers" in late or "does so again" in late
    assert after == [0, 1, ["ok", ""], ["ok", ""]]


def test_other_mig_instances_are_noticed(card):
    """A new instance makes the source say so at the next slow tick, and the next attach knows it;
    none is lost.
    """
    before, sentence, grown, shrunk = told(
        card,
        "scene('gpus 1\\nmig 0\\n')\nsource = NvmlSource()\nshow([entry.mig_instance for entry in"
        " attach(source).accelerators])\nscene('gpus 1\\nmig 0\\ninstances 0"
        " 3\\n')\nsource.read(('fast',))\ntry: source.read(('fast', 'slow'))\nexcept"
        " SourceUnavailable as error: show(str(error))\nshow([entry.mig_instance for entry in"
        " attach(source).accelerators])\nscene('gpus 1\\nmig 0\\ninstances 0 1\\n')\ntry:"
        " source.read(('fast',))\nexcept SourceUnavailable: show([entry.mig_instance for entry in"
        " attach(source).accelerators])\n",
    )
    assert before == ["1g.10gb/7", "1g.10gb/8"]
    assert "MIG instances have changed" in sentence
    assert grown == ["1g.10gb/7", "1g.10gb/8", "1g.10gb/9"]
    assert shrunk == ["1g.10gb/7"]


def test_mig_without_an_instance_is_said(card):
    """A board that is cut up into nothing gives no accelerator and a sentence."""
    card.scenario("gpus 1\nmig 0\ninstances 0 0\n")
    seen = card.once()
    assert seen["accelerators"] == []
    assert seen["problems"] == ["GPU 0 has MIG on and no instance: it cannot be held"]


def test_handles_that_went_stale_are_taken_anew(card):
    """After a driver reload the source says so once, attaches anew, and reads on."""
    sentence, after = told(
        card,
        "source = NvmlSource(); attach(source)\n"
        "scene('gpus 2\\nstale 1 1\\n')\n"
        "try: source.read(('fast',))\n"
        "except SourceUnavailable as error: show(str(error))\n"
        "scene('gpus 2\\n')\n"
        "attach(source)\n"
        "show(health(source.read(('fast',))))\n",
    )
    assert "GPU 1: its handle is stale (NVML 1)" in sentence
    assert after == [["ok", ""], ["ok", ""]]


def test_processes_that_may_not_be_seen_are_not_zero(card):
    """Where the driver refuses the list, the number of processes is absent with the reason."""
    card.scenario("gpus 1\nhidden 0 1\n")
    entry = card.once()["accelerators"][0]
    assert "gpu_processes" not in entry["metrics"]
    assert (
        entry["absent"]["gpu_processes"]
        == "the driver does not list processes: not permitted to this user"
    )


def test_activity_comes_from_pairs_of_gpm_samples(card):
    """Percent and MiB/s become ratios and bytes per second; the samples swap roles and are freed at
    the end.
    """
    values, absent, later, left = told(
        card,
        "import pynvml\n"
        "scene('gpus 1\\ngpm 0 40\\n')\n"
        "source = NvmlSource(); attach(source)\n"
        "source.read(('gpm',)); sample = source.read(('gpm',))[0]\n"
        "show({name: sample.values[name] for name in ('gpu_sm_active_ratio',"
        " 'gpu_pcie_transmit_bytes_per_second')})\n"
        "show(sample.absent['gpu_dram_active_ratio'])\n"
        "scene('gpus 1\\ngpm 0 90\\n')\n"
        "show(source.read(('gpm',))[0].values['gpu_sm_active_ratio'])\n"
        "source.close()\n"
        "show(pynvml.nvmlLib.nvml_stub_allocated())\n",
    )
    assert values == {"gpu_sm_active_ratio": 0.4, "gpu_pcie_transmit_bytes_per_second": 3 * 1024**2}
    assert absent == "not supported by this card"
    assert later == 0.9
    assert left == 0


def test_mig_instances_have_their_own_activity(card):
    """On a Hopper card each instance is measured through its board, by its GPU instance's id."""
    card.scenario("gpus 1\nmig 0\ngpm 0 56\n")
    activity = [entry["metrics"]["gpu_sm_active_ratio"] for entry in card.once()["accelerators"]]
    assert activity == [0.08, 0.07]


def test_one_card_without_gpm_is_told_so_and_asked_once(card):
    """A card older than Hopper has no activity and says why."""
    card.scenario("gpus 1\n")
    assert (
        card.once()["accelerators"][0]["absent"]["gpu_sm_active_ratio"]
        == "not supported by this card"
    )


def test_engines_are_told_one_by_one_when_asked_for(card):
    """The tier gpm-opt: a series for each decoder that the card has, and a reason for the engines
    that it lacks.
    """
    card.scenario("gpus 1\ngpm 0 40\n")
    printed = card.python(
        "import json\n"
        "from gpuledger_agent.sources.nvml import NvmlSource\n"
        "source = NvmlSource(); source.open()\n"
        "tiers = ('fast', 'gpm', 'gpm-opt', 'opt-in')\n"
        "source.read(tiers); (sample,) = source.read(tiers)\n"
        "decoders = sample.series['gpu_nvdec_engine_utilization_ratio']\n"
        "print(json.dumps([[[dict(one.labels), one.value] for one in decoders],\n"
        "    sample.absent['gpu_nvjpg_engine_utilization_ratio'],\n"
        "    sample.absent['gpu_process_accounting_gpu_seconds']]))\n"
    )
    decoders, jpeg, accounting = json.loads(printed)
    assert decoders == [[{"engine": "0"}, 0.25], [{"engine": "1"}, 0.5]]
    assert jpeg in {"no value yet", "not supported by this card"}
    assert "accounting mode is off" in accounting


def test_a_gpu_that_is_plugged_in_or_taken_out_is_followed(card):
    """The count is asked again on slow ticks, beside the readings; another number makes the source
    attach anew.
    """
    printed = card.python(
        "import os, time\n"
        "from gpuledger_common.readings import SourceUnavailable\n"
        "from gpuledger_agent.sources.nvml import NvmlSource\n"
        "source = NvmlSource(); print(len(source.open().accelerators))\n"
        "def until_told(gpus):\n"
        f"    open({str(card.path)!r} + '.new', 'w').write(f'gpus {{gpus}}\\n')\n"
        f"    os.replace({str(card.path)!r} + '.new', {str(card.path)!r})\n"
        "    for _ in range(1500):\n"
        "        try: source.read(('fast', 'slow'))\n"
        "        except SourceUnavailable as error: return error\n"
        "        time.sleep(0.02)\n"
        "for gpus in (3, 2):\n"
        "    print(until_told(gpus))\n"
        "    print([s.health.status for s in (source.open(), source.read(('fast',)))[1]])\n"
    )
    assert printed.splitlines() == [
        "2",
        "the driver shows 3 GPUs instead of 2; they are attached again",
        "['ok', 'ok', 'ok']",
        "the driver shows 2 GPUs instead of 3; they are attached again",
        "['ok', 'ok', 'failed']",
    ]
