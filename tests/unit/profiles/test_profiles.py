"""Profiles: what their files may hold, which pages they know, and what they make of what exporters
get wrong.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.exporters import CAPTURES, profile, read, synthetic
from gpuledger_common.profiles.library import all_profiles, matching, named_profile, packaged_ids
from gpuledger_common.profiles.lines import read_lines
from gpuledger_common.profiles.page import read_page
from gpuledger_common.profiles.read import ProfileError, parse_profile
from gpuledger_common.readings import WHOLE_GPU

SMALL = """
id = "small"
title = "A small exporter"
energy = "unknown"

[evidence]
repository = "somebody/exporter"
status = "synthetic"

[match]
families = ["small_*"]

[device]
keys = [["serial"]]
model = ["model"]

[[metrics]]
metric = "gpu_utilization_ratio"
families = ["small_busy_percent"]
scale = 0.01
"""
FAULTS = {
    "id: 'Small!' is not lower-case letters": ('"small"', '"Small!"'),
    "mine.toml: energy: is required": ('energy = "unknown"', ""),
    "evidence.status: 'maybe' is not one of real, synthetic": ('"synthetic"', '"maybe"'),
    "match.families: is required": ('families = ["small_*"]', ""),
    "device.keys: is required": ('keys = [["serial"]]', ""),
    "metrics 1: metric: 'gpu_utilisation_ratio' is not in the catalog; the nearest name is gpu_utilization_ratio": (
        "gpu_utilization_ratio",
        "gpu_utilisation_ratio",
    ),
    "metrics 1: scale: must be above 0": ("scale = 0.01", "scale = 0"),
    "metrics 1: range: is not [LOWEST, HIGHEST] in base units": ("scale = 0.01", "range = [1, 0]"),
    "metrics 1: scalle: is not known; the nearest key is scale": ("scale = 0.01", "scalle = 0.01"),
    "metrics 1: combine: busy time is never decided by a sum": ("scale = 0.01", 'combine = "sum"'),
    "is not TOML": ('"A small exporter"', ""),
}
"""What a message says, and the change of the profile that it is about."""


@pytest.mark.parametrize("words", FAULTS)
def test_a_fault_is_one_sentence_with_its_key(words):
    """A profile that cannot be used names the file, the table and the key."""
    with pytest.raises(ProfileError, match=r"mine\.toml") as error:
        parse_profile(SMALL.replace(*FAULTS[words], 1), "mine.toml")
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("old", "new"), [('energy = "unknown"', ""), ("gpu_utilization_ratio", "gpu_utilisation_ratio")]
)
def test_a_mistake_has_one_message(old, new):
    """A missing key or an unknown metric is one fault, whatever else stands in its table."""
    text = SMALL + 'absent = [-1]\nrange = [0, 1]\nwhere = { kind = "all" }\n'
    with pytest.raises(ProfileError) as error:
        parse_profile(text.replace(old, new, 1), "mine.toml")
    assert str(error.value).count("mine.toml: ") == 1


def small(metrics, text, more=""):
    """A page by the small profile with these families, by metric."""
    tables = "".join(
        f'[[metrics]]\nmetric = "{metric}"\nfamilies = ["{family}"]\n{keys}\n'
        for metric, family, keys in metrics
    )
    return read_page(parse_profile(SMALL + tables + more, "mine.toml"), read_lines(text))


IMPLAUSIBLE = [
    ("gpu_power_watts", 98_000, 98),
    ("gpu_power_watts", 4_294_967_295, 3000),
    ("gpu_energy_joules_total", -1, 7.2e6),
    ("gpu_energy_joules_total", 1.8e19, 7.2e6),
    ("gpu_temperature_celsius", 65_535, 71),
    ("gpu_memory_used_bytes", 1.8e19, 8.5e10),
    ("gpu_sm_clock_hertz", 1.98e15, 1.98e9),
    ("gpu_fan_speed_rpm", -1, 4200),
    ("gpu_pcie_transmit_bytes_total", -1, 1e17),
]


@pytest.mark.parametrize(("metric", "wrong", "right"), IMPLAUSIBLE)
def test_every_unit_has_a_plausible_range(metric, wrong, right):
    """A forgotten factor or sentinel is refused and counted without a declared range; a declared
    range wins.
    """
    page = small([(metric, "small_x", "")], f'small_x{{serial="1"}} {wrong}\n')
    assert (page.accelerators["1"].values, page.refused) == ({}, 1)
    assert page.problems[0].startswith(f"1 value refused: {metric} {wrong:g} is not from ")
    assert small([(metric, "small_x", "")], f'small_x{{serial="1"}} {right}\n').refused == 0
    declared = small(
        [(metric, "small_x", "range = [-10, 1e20]")], f'small_x{{serial="1"}} {wrong}\n'
    )
    assert declared.accelerators["1"].values == {metric: wrong}


TWO_CHIPS = 'small_w{serial="1",chip="0",pod="a"} 100\nsmall_w{serial="1",chip="1",pod="b"} 300\n'


def test_two_series_of_a_family_for_one_device_are_odd():
    """A key that is too coarse loses a device; holders, a declared combination and declared labels
    do not.
    """
    watts = ("gpu_power_watts", "small_w", "")
    owner = '[owner]\npod = ["pod"]\n'
    assert small([watts], TWO_CHIPS, owner).problems == (
        (
            "1: 2 different series of one family for one device: small_w differs in chip; "
            "add a label to device.keys, or declare combine"
        ),
    )
    assert small([watts], TWO_CHIPS.replace("chip=", "exported_pod="), owner).problems == ()
    assert small([watts], TWO_CHIPS, owner + '[checks]\nrepeated = ["ch*"]\n').problems == ()
    for combine, expected in (("max", 300), ("sum", 400)):
        page = small([(*watts[:2], f'combine = "{combine}"')], TWO_CHIPS, owner)
        assert (page.problems, page.accelerators["1"].values) == ((), {"gpu_power_watts": expected})
    many = "".join(TWO_CHIPS.replace('serial="1"', f'serial="{number}"') for number in range(7))
    assert small([watts], many, owner).problems[-1] == "2 more devices with different series"


def test_our_pages_have_no_ambiguous_device():
    """No packaged profile reports the pages that it was written from."""
    for identity in packaged_ids():
        assert read(synthetic(identity), identity, "n").problems == ()


def test_a_profile_of_ones_own_replaces_a_packaged_one_by_its_id(tmp_path):
    """A file adds a profile, or replaces the packaged one of that id; two files with one id are
    refused.
    """
    path, other = tmp_path / "mine.toml", tmp_path / "other.toml"
    path.write_text(SMALL)
    other.write_text(SMALL.replace('"small"', '"hami"', 1))
    by_id = {entry.id: entry for entry in all_profiles((path, other))}
    assert by_id["small"].title == by_id["hami"].title == "A small exporter"
    assert len(by_id) == len(packaged_ids()) + 1
    other.write_text(SMALL)
    with pytest.raises(ProfileError, match=r"is that of .*mine\.toml too"):
        all_profiles((path, other))
    with pytest.raises(ProfileError, match="there is no profile 'nothing'"):
        named_profile("nothing")


@pytest.mark.parametrize("identity", packaged_ids())
def test_a_page_belongs_to_one_profile(identity):
    """Our page of each exporter is known by its profile and by no other."""
    assert [entry.id for entry in matching(all_profiles(), read_lines(synthetic(identity)))] == [
        identity
    ]


REAL = {
    "cncf_dcgm_l40s_viettel.prom": ("dcgm-exporter", 2),
    "exporters/dcgm_exporter_readme_page.prom": ("dcgm-exporter", 1),
    "exporters/amd_dme_issue_lines.prom": ("amd-device-metrics-exporter", 2),
    "exporters/ascend_npu_exporter_docs_page.prom": ("huawei-ascend", 8),
    "exporters/ascend_npu_exporter_unit_test_page.prom": ("huawei-ascend", 2),
    "exporters/hami_scheduler_test_lines.prom": ("hami", 4),
    "exporters/neuron_monitor_trn1_page.prom": ("aws-neuron", 1),
    "exporters/tpu_device_plugin_tpu7x_page.prom": ("google-tpu", 1),
    "exporters/tpu_device_plugin_v6e_lines.prom": ("google-tpu", 2),
}


def capture(name):
    path = CAPTURES / name
    if not path.is_file():
        pytest.skip(f"the capture {name} is not at hand")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", REAL)
def test_a_page_that_others_captured_is_known(name):
    """Captured pages match one profile, which finds their accelerators and refuses none of their
    values.
    """
    identity, accelerators = REAL[name]
    text = capture(name)
    assert [entry.id for entry in matching(all_profiles(), read_lines(text))] == [identity]
    page = read(text, identity, "node-1")
    assert len(page.accelerators) == accelerators
    assert page.refused == 0
    assert not any("different series" in problem for problem in page.problems)


def test_every_real_profile_names_a_capture_that_shows_it():
    """A profile is real by a page of others, which the test above reads."""
    for entry in all_profiles():
        if entry.evidence.status == "real":
            assert REAL[entry.evidence.capture][0] == entry.id


def test_a_container_id_is_no_host():
    """The third line of the capture is from a container: the node is the agent's, or the scrape
    target's.
    """
    page = read(
        capture("exporters/amd_dme_issue_lines.prom"), "amd-device-metrics-exporter", "node-1"
    )
    assert page.hosts == {"node-1"}


def amd(lines):
    labels = 'gpu_id="0",gpu_partition_id="{}",gpu_compute_partition_type="{}",serial_number="S1",card_model="MI300X"'
    text = "".join(
        f"{name}{{{labels.format(part, mode)}}} {value}\n" for name, part, mode, value in lines
    )
    return read(text, "amd-device-metrics-exporter", "n")


def test_zeros_that_mean_a_failed_read_are_no_readings():
    """A power of 0 and an energy of 0 are absent; a busy share of 0 is idle."""
    page = amd(
        [
            ("gpu_package_power", 0, "spx", 0),
            ("gpu_energy_consumed", 0, "spx", 0),
            ("gpu_gfx_activity", 0, "spx", 0),
        ]
    )
    assert page.accelerators["AMD-S1"].values == {"gpu_utilization_ratio": 0}


def test_a_value_outside_its_range_is_refused_and_counted():
    """An impossible power and a percentage over 100 reach nobody, and the page says which."""
    page = amd(
        [
            ("gpu_package_power", 0, "spx", 650_000),
            ("gpu_gfx_activity", 0, "spx", 240),
            ("gpu_used_vram", 0, "spx", 5),
        ]
    )
    (entry,) = page.accelerators.values()
    assert list(entry.values) == ["gpu_memory_used_bytes"]
    assert page.refused == 2
    assert "gpu_power_watts 650000 is not from 0 to 3000" in page.problems[0]


def test_a_prefix_that_people_set_changes_nothing():
    """MetricsFieldPrefix of AMD's exporter."""
    assert read(
        synthetic("amd-device-metrics-exporter").replace("\ngpu_", "\namd_gpu_"),
        "amd-device-metrics-exporter",
    ).accelerators.keys() == (
        read(
            synthetic("amd-device-metrics-exporter"), "amd-device-metrics-exporter"
        ).accelerators.keys()
    )


def test_the_first_candidate_that_is_there_counts_alone():
    """A preferred family replaces the others; they are never added up."""
    page = amd(
        [
            ("gpu_power_usage", 0, "spx", 100),
            ("gpu_package_power", 0, "spx", 600),
            ("gpu_average_package_power", 0, "spx", 580),
        ]
    )
    assert page.accelerators["AMD-S1"].values == {"gpu_power_watts": 600}


def test_partitions_have_the_devices_serial_and_their_share():
    """CPX on an MI300X: eight parts, of which the page shows two; the device's power is none of
    theirs.
    """
    page = amd([("gpu_package_power", 0, "cpx", 600), ("gpu_package_power", 1, "cpx", 0)])
    assert {uuid: entry.accelerator.gpu_micro for uuid, entry in page.accelerators.items()} == {
        "AMD-S1/0": WHOLE_GPU // 8,
        "AMD-S1/1": WHOLE_GPU // 8,
    }
    assert not any(entry.values for entry in page.accelerators.values())
    assert page.problems == ("AMD-S1: only 2 parts of it, 25%, on the page",)


def test_an_unknown_division_is_not_guessed():
    """A mode without a count is no accelerator, and the page says so."""
    page = amd([("gpu_package_power", 0, "hpx", 600)])
    assert (dict(page.accelerators), page.problems[0].split(":")[0]) == (
        {},
        "a part 'hpx' of model 'MI300X'",
    )


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 80)), min_size=1, max_size=12))
def test_parts_never_add_up_to_more_than_their_device(allocations):
    """Whatever HAMi's scheduler allocated, the greater of cores and memory, a device is one device."""
    labels = 'device_uuid="GPU-1",node="n",namespace="ns",pod="p{}",container_index="0"'
    text = 'hami_gpu_memory_limit_bytes{device_uuid="GPU-1",node="n"} 80\n'
    for number, (cores, memory) in enumerate(allocations):
        text += f"hami_vgpu_core_allocated_ratio{{{labels.format(number)}}} {cores}\n"
        text += f"hami_vgpu_memory_allocated_bytes{{{labels.format(number)}}} {memory}\n"
    parts = [entry.accelerator for entry in read(text, "hami").accelerators.values()]
    shares = [max(cores / 100, memory / 80) for cores, memory in allocations]
    assert len(parts) == len(allocations)
    assert sum(part.gpu_micro for part in parts) <= WHOLE_GPU
    if sum(shares) <= 1:
        assert [part.gpu_micro for part in parts] == [round(share * WHOLE_GPU) for share in shares]


def test_a_hidden_owner_is_somebody_and_nobody_by_name():
    """Ascend's placeholder for several pods holds the chip; an empty label does not."""
    page = read(synthetic("huawei-ascend"), "huawei-ascend", "n")
    (owner,) = page.accelerators["Ascend-AAAA-02"].owners.values()
    assert (owner.name, owner.tags) == ("pods that the exporter does not name", {})
    assert page.accelerators["Ascend-AAAA-02"].values == {}


def test_the_exporters_verdict_degrades():
    """A chip that the exporter calls unhealthy is degraded; -1 says nothing."""
    text = synthetic("huawei-ascend")
    page = read(text.replace("vnpu_pod", "other"), "huawei-ascend", "n")
    assert {uuid: entry.health.status for uuid, entry in page.accelerators.items()} == {
        "Ascend-AAAA-01": "ok",
        "Ascend-AAAA-02": "ok",
        "Ascend-BBBB-01": "degraded",
    }


def test_devices_that_the_exporter_counts_and_does_not_show_are_reported():
    """Three GPUs are counted, two accelerators shown."""
    text = "\n".join(
        line
        for line in synthetic("amd-device-metrics-exporter").splitlines()
        if 'gpu_id="0"' in line
    )
    page = read(f"gpu_nodes_total 3\n{text}\n", "amd-device-metrics-exporter")
    assert page.problems == ("gpu_nodes_total says 3 devices, the page shows 1",)


def test_lines_without_the_required_labels_are_somebody_elses():
    """TPU's names are generic: memory_used without make is no TPU's."""
    assert set(read(synthetic("google-tpu"), "google-tpu").accelerators) == {"TPU-77/0", "TPU-77/1"}
    assert profile("google-tpu").why_ignored("duty_cycle_node") is not None


def test_older_names_beside_the_new_ones_count_once():
    """HAMi's legacy flag prints both; the page is the same without the older."""
    lines = synthetic("hami").splitlines()
    new = "\n".join(line for line in lines if not line.startswith("vGPU"))
    assert read(synthetic("hami"), "hami").accelerators == read(new + "\n", "hami").accelerators
