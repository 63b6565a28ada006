"""The nvml source: the real pynvml, in a real process, over a stand-in for the driver's library."""

import json
import os


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
    """Unsupported calls, failed fields, unknown enums and functions of newer drivers give no value, never 0."""
    entry = card.once()["accelerators"][0]
    assert entry["absent"]["gpu_fan_speed_ratio"] == "not supported by this card"
    assert entry["absent"]["gpu_power_average_watts"] == "not supported by this card"
    assert entry["absent"]["gpu_performance_state"] == "the driver does not know"
    assert entry["absent"]["gpu_sm_clock_hertz"] == "not in this driver (function not found)"
    assert not set(entry["absent"]) & set(entry["metrics"])


def test_a_lost_gpu_fails_alone(card):
    """A GPU that falls off the bus is failed and stays in the inventory; its neighbour keeps its readings."""
    printed = card.python(
        "import json, os\n"
        "from gpuledger_agent.sources.nvml import NvmlSource\n"
        "source = NvmlSource(); source.open()\n"
        f"open({str(card.path)!r}, 'w').write('gpus 2\\nlost 1\\n')\n"
        "print(json.dumps([[s.health.status, s.health.cause, len(s.values)] for s in source.read(('fast',))]))\n"
        "again = source.open()\n"
        "print(json.dumps([[a.uuid for a in again.accelerators], list(again.problems)]))\n"
        "print(json.dumps([s.health.status for s in source.read(('fast',))]))\n"
    )
    samples, (uuids, problems), health = (json.loads(line) for line in printed.splitlines())
    assert samples[0][0] == "ok"
    assert samples[0][2] > 5
    assert samples[1] == ["failed", "the GPU is lost", 0]
    assert [uuid[-1] for uuid in uuids] == ["0", "1"]
    assert "GPU 1 cannot be attached" in problems[0]
    assert health == ["ok", "failed"]


def test_a_hung_gpu_delays_nobody_beyond_the_deadline(card):
    """While one GPU's call hangs, the others answer; the hung one is unknown, gets no new work, and comes back."""
    printed = card.python(
        "import json, time\n"
        "from gpuledger_agent.sources.nvml import NvmlSource\n"
        "source = NvmlSource(deadline_s=0.3); source.open()\n"
        f"path = {str(card.path)!r}\n"
        "open(path, 'w').write('gpus 2\\nhang 1 2\\n')\n"
        "look = lambda: [s.health.status for s in source.read(('fast',))]\n"
        "start = time.monotonic(); first, second = look(), look(); took = time.monotonic() - start\n"
        "open(path, 'w').write('gpus 2\\n')\n"
        "deadline = time.monotonic() + 40\n"
        "while (last := look()) != ['ok', 'ok'] and time.monotonic() < deadline: time.sleep(0.1)\n"
        "print(json.dumps([first, second, took < 2, last]))\n"
    )
    first, second, in_time, last = json.loads(printed)
    assert first == second == ["ok", "unknown"]
    assert in_time
    assert last == ["ok", "ok"]


def test_mig_instances_are_accelerators_without_the_boards_power(card):
    """With MIG on, each instance is an accelerator with its dominant share; board power is on none of them."""
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
    """No library, no driver, other versions: one sentence that says the cure, exit code 3, no traceback."""
    for code, words in ((9, "driver is not loaded"), (18, "a reboot"), (4, "/dev/nvidia"), (999, "NVML 999")):
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


def test_a_recording_replays_what_was_seen(card, tmp_path):
    """What `record` wrote, `--source replay` shows again: same accelerators, same metrics, same reasons."""
    card.scenario("gpus 2\nbusy 0 50\n")
    path = tmp_path / "card.jsonl.gz"
    answer = card.command("record", str(path), "--seconds", "0.2", "--interval", "0.1")
    assert answer.returncode == 0, answer.stderr
    replayed = json.loads(card.command("once", "--json", "--source", "replay", "--target", str(path)).stdout)
    live = card.once()
    for was, is_now in zip(live["accelerators"], replayed["accelerators"], strict=True):
        assert is_now["uuid"] == was["uuid"]
        assert is_now["metrics"] == was["metrics"]
        assert is_now["absent"] == was["absent"]
