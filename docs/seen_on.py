"""Which card was seen to give which metric: docs/seen_on.csv, made from outputs of real cards.

`python -m docs.seen_on [FOLDER]` reads `nvidia-smi -q` (text and XML), `nvidia-smi --query-gpu` and
dcgm-exporter pages and keeps one fact a line: metric, card, kind of evidence with its field, file.
Only a field that is the metric itself counts, and only when it holds a value. Not counted
therefore: DCGM's profiling fields on cards older than Hopper (another mechanism than NVML's GPM),
clocks-event counters for policy violations, and what Windows drivers say.
"""

from __future__ import annotations

import csv
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuledger_common.catalog import BY_NAME
from gpuledger_common.profiles.library import DCGM, packaged_profile
from gpuledger_common.profiles.lines import read_lines
from gpuledger_common.profiles.page import read_page

FACTS = Path(__file__).with_suffix(".csv")
CAPTURES = Path(__file__).resolve().parents[2] / "shared" / "data" / "captures"
NOTHING = re.compile(r"N/A|\[|Requested|Unknown|ERR|None$|$")
UNNAMED = "Graphics Device"
"""What a driver calls a card that is newer than itself."""
HEADER = ["metric", "card", "evidence", "file"]

QUERY = {
    "gpu_utilization_ratio": ("Utilization/Gpu", "Utilization/GPU"),
    "gpu_memory_copy_utilization_ratio": ("Utilization/Memory",),
    "gpu_encoder_utilization_ratio": ("Utilization/Encoder",),
    "gpu_decoder_utilization_ratio": ("Utilization/Decoder",),
    "gpu_jpeg_utilization_ratio": ("Utilization/JPEG",),
    "gpu_ofa_utilization_ratio": ("Utilization/OFA",),
    "gpu_memory_total_bytes": ("FB Memory Usage/Total",),
    "gpu_memory_used_bytes": ("FB Memory Usage/Used",),
    "gpu_memory_free_bytes": ("FB Memory Usage/Free",),
    "gpu_memory_reserved_bytes": ("FB Memory Usage/Reserved",),
    "gpu_bar1_total_bytes": ("BAR1 Memory Usage/Total",),
    "gpu_bar1_used_bytes": ("BAR1 Memory Usage/Used",),
    "gpu_bar1_free_bytes": ("BAR1 Memory Usage/Free",),
    "gpu_sm_clock_hertz": ("Clocks/SM",),
    "gpu_memory_clock_hertz": ("Clocks/Memory",),
    "gpu_video_clock_hertz": ("Clocks/Video",),
    "gpu_graphics_clock_hertz": ("Clocks/Graphics",),
    "gpu_sm_clock_max_hertz": ("Max Clocks/SM",),
    "gpu_memory_clock_max_hertz": ("Max Clocks/Memory",),
    "gpu_video_clock_max_hertz": ("Max Clocks/Video",),
    "gpu_application_memory_clock_hertz": ("Applications Clocks/Memory",),
    "gpu_temperature_celsius": ("Temperature/GPU Current Temp",),
    "gpu_memory_temperature_celsius": ("Temperature/Memory Current Temp",),
    "gpu_temperature_margin_celsius": ("Temperature/GPU T.Limit Temp",),
    "gpu_temperature_slowdown_celsius": ("Temperature/GPU Slowdown Temp",),
    "gpu_temperature_shutdown_celsius": ("Temperature/GPU Shutdown Temp",),
    "gpu_temperature_max_operating_celsius": ("Temperature/GPU Max Operating Temp",),
    "gpu_memory_temperature_max_operating_celsius": ("Temperature/Memory Max Operating Temp",),
    "gpu_temperature_slowdown_tlimit_celsius": ("Temperature/GPU Slowdown T.Limit Temp",),
    "gpu_power_watts": ("GPU Power Readings/Power Draw",),
    "gpu_power_instant_watts": ("GPU Power Readings/Instantaneous Power Draw",),
    "gpu_power_average_watts": ("GPU Power Readings/Average Power Draw",),
    "gpu_power_limit_watts": ("GPU Power Readings/Requested Power Limit",),
    "gpu_power_limit_enforced_watts": ("GPU Power Readings/Current Power Limit",),
    "gpu_power_limit_default_watts": ("GPU Power Readings/Default Power Limit",),
    "gpu_power_limit_min_watts": ("GPU Power Readings/Min Power Limit",),
    "gpu_power_limit_max_watts": ("GPU Power Readings/Max Power Limit",),
    "gpu_clocks_event_active": ("Clocks Event Reasons/Idle",),
    "gpu_throttle_sw_thermal_seconds_total": ("Clocks Event Reasons Counters/SW Thermal Slowdown",),
    "gpu_throttle_hw_thermal_seconds_total": ("Clocks Event Reasons Counters/HW Thermal Slowdown",),
    "gpu_throttle_hw_power_brake_seconds_total": (
        "Clocks Event Reasons Counters/HW Power Braking",
    ),
    "gpu_performance_state": ("Performance State",),
    "gpu_fan_speed_ratio": ("Fan Speed",),
    "gpu_persistence_mode": ("Persistence Mode",),
    "gpu_compute_mode": ("Compute Mode",),
    "gpu_mig_mode": ("MIG Mode/Current",),
    "gpu_mig_multiprocessors": ("MIG Device/Device Attributes/Shared/Multiprocessor count",),
    "gpu_ecc_mode": ("ECC Mode/Current",),
    "gpu_ecc_mode_pending": ("ECC Mode/Pending",),
    "gpu_ecc_corrected_volatile_dram_total": ("ECC Errors/Volatile/DRAM Correctable",),
    "gpu_ecc_uncorrected_volatile_dram_total": ("ECC Errors/Volatile/DRAM Uncorrectable",),
    "gpu_ecc_uncorrected_aggregate_sram_total": ("ECC Errors/Aggregate/SRAM Uncorrectable",),
    "gpu_ecc_sram_threshold_exceeded": ("ECC Errors/Aggregate/SRAM Threshold Exceeded",),
    "gpu_memory_unrepairable": ("ECC Errors/Unrepairable Memory",),
    "gpu_repair_pending": ("ECC Errors/Channel Repair Pending",),
    "gpu_retired_pages_corrected": ("Retired Pages/Single Bit ECC",),
    "gpu_retired_pages_uncorrected": ("Retired Pages/Double Bit ECC",),
    "gpu_retired_pages_pending": ("Retired Pages/Pending Page Blacklist",),
    "gpu_remapped_rows_corrected": ("Remapped Rows/Correctable Error",),
    "gpu_remapped_rows_uncorrected": ("Remapped Rows/Uncorrectable Error",),
    "gpu_remapped_rows_pending": ("Remapped Rows/Pending",),
    "gpu_remapped_rows_failure": ("Remapped Rows/Remapping Failure Occurred",),
    "gpu_remap_banks_availability_max": ("Remapped Rows/Bank Remap Availability Histogram/Max",),
    "gpu_remap_banks_availability_none": ("Remapped Rows/Bank Remap Availability Histogram/None",),
    "gpu_pcie_replays_total": ("PCI/Replays Since Reset",),
    "gpu_pcie_link_generation": ("PCI/GPU Link Info/PCIe Generation/Current",),
    "gpu_pcie_link_generation_max": ("PCI/GPU Link Info/PCIe Generation/Max",),
    "gpu_pcie_link_width": ("PCI/GPU Link Info/Link Width/Current",),
    "gpu_pcie_link_width_max": ("PCI/GPU Link Info/Link Width/Max",),
    "gpu_pcie_throughput_transmit_bytes_per_second": ("PCI/Tx Throughput",),
    "gpu_pcie_throughput_receive_bytes_per_second": ("PCI/Rx Throughput",),
    "gpu_fabric_state": ("Fabric/State",),
    "gpu_recovery_action": ("GPU Recovery Action",),
    "gpu_encoder_sessions": ("Encoder Stats/Active Sessions",),
    "gpu_fbc_sessions": ("FBC Stats/Active Sessions",),
    "gpu_info": ("GPU UUID",),
}
"""Metric -> paths in the text of `nvidia-smi -q`."""

XML = {
    "gpu_utilization_ratio": ("utilization/gpu_util",),
    "gpu_memory_copy_utilization_ratio": ("utilization/memory_util",),
    "gpu_encoder_utilization_ratio": ("utilization/encoder_util",),
    "gpu_decoder_utilization_ratio": ("utilization/decoder_util",),
    "gpu_jpeg_utilization_ratio": ("utilization/jpeg_util",),
    "gpu_ofa_utilization_ratio": ("utilization/ofa_util",),
    "gpu_memory_total_bytes": ("fb_memory_usage/total",),
    "gpu_memory_used_bytes": ("fb_memory_usage/used",),
    "gpu_memory_free_bytes": ("fb_memory_usage/free",),
    "gpu_memory_reserved_bytes": ("fb_memory_usage/reserved",),
    "gpu_bar1_total_bytes": ("bar1_memory_usage/total",),
    "gpu_bar1_used_bytes": ("bar1_memory_usage/used",),
    "gpu_bar1_free_bytes": ("bar1_memory_usage/free",),
    "gpu_sm_clock_hertz": ("clocks/sm_clock",),
    "gpu_memory_clock_hertz": ("clocks/mem_clock",),
    "gpu_video_clock_hertz": ("clocks/video_clock",),
    "gpu_graphics_clock_hertz": ("clocks/graphics_clock",),
    "gpu_sm_clock_max_hertz": ("max_clocks/sm_clock",),
    "gpu_memory_clock_max_hertz": ("max_clocks/mem_clock",),
    "gpu_video_clock_max_hertz": ("max_clocks/video_clock",),
    "gpu_application_memory_clock_hertz": ("applications_clocks/mem_clock",),
    "gpu_temperature_celsius": ("temperature/gpu_temp",),
    "gpu_memory_temperature_celsius": ("temperature/memory_temp",),
    "gpu_temperature_margin_celsius": ("temperature/gpu_temp_tlimit",),
    "gpu_temperature_slowdown_celsius": ("temperature/gpu_temp_slow_threshold",),
    "gpu_temperature_shutdown_celsius": ("temperature/gpu_temp_max_threshold",),
    "gpu_temperature_max_operating_celsius": ("temperature/gpu_temp_max_gpu_threshold",),
    "gpu_memory_temperature_max_operating_celsius": ("temperature/gpu_temp_max_mem_threshold",),
    "gpu_temperature_slowdown_tlimit_celsius": ("temperature/gpu_temp_slow_tlimit_threshold",),
    "gpu_power_watts": ("power_readings/power_draw", "gpu_power_readings/power_draw"),
    "gpu_power_instant_watts": ("gpu_power_readings/instant_power_draw",),
    "gpu_power_average_watts": ("gpu_power_readings/average_power_draw",),
    "gpu_power_limit_watts": (
        "power_readings/power_limit",
        "gpu_power_readings/requested_power_limit",
    ),
    "gpu_power_limit_enforced_watts": (
        "power_readings/enforced_power_limit",
        "gpu_power_readings/current_power_limit",
    ),
    "gpu_power_limit_default_watts": (
        "power_readings/default_power_limit",
        "gpu_power_readings/default_power_limit",
    ),
    "gpu_power_limit_min_watts": (
        "power_readings/min_power_limit",
        "gpu_power_readings/min_power_limit",
    ),
    "gpu_power_limit_max_watts": (
        "power_readings/max_power_limit",
        "gpu_power_readings/max_power_limit",
    ),
    "gpu_clocks_event_active": (
        "clocks_throttle_reasons/clocks_throttle_reason_gpu_idle",
        "clocks_event_reasons/clocks_event_reason_gpu_idle",
    ),
    "gpu_performance_state": ("performance_state",),
    "gpu_fan_speed_ratio": ("fan_speed",),
    "gpu_persistence_mode": ("persistence_mode",),
    "gpu_compute_mode": ("compute_mode",),
    "gpu_mig_mode": ("mig_mode/current_mig",),
    "gpu_ecc_mode": ("ecc_mode/current_ecc",),
    "gpu_ecc_mode_pending": ("ecc_mode/pending_ecc",),
    "gpu_ecc_corrected_volatile_dram_total": ("ecc_errors/volatile/dram_correctable",),
    "gpu_ecc_uncorrected_volatile_dram_total": ("ecc_errors/volatile/dram_uncorrectable",),
    "gpu_ecc_uncorrected_aggregate_sram_total": ("ecc_errors/aggregate/sram_uncorrectable",),
    "gpu_repair_pending": ("ecc_errors/channel_repair_pending",),
    "gpu_retired_pages_corrected": ("retired_pages/multiple_single_bit_retirement/retired_count",),
    "gpu_retired_pages_uncorrected": ("retired_pages/double_bit_retirement/retired_count",),
    "gpu_retired_pages_pending": ("retired_pages/pending_retirement",),
    "gpu_remapped_rows_corrected": ("remapped_rows/remapped_row_corr",),
    "gpu_remapped_rows_uncorrected": ("remapped_rows/remapped_row_unc",),
    "gpu_remapped_rows_pending": ("remapped_rows/remapped_row_pending",),
    "gpu_remapped_rows_failure": ("remapped_rows/remapped_row_failure",),
    "gpu_pcie_replays_total": ("pci/replay_counter",),
    "gpu_pcie_link_generation": ("pci/pci_gpu_link_info/pcie_gen/current_link_gen",),
    "gpu_pcie_link_generation_max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen",),
    "gpu_pcie_link_width": ("pci/pci_gpu_link_info/link_widths/current_link_width",),
    "gpu_pcie_link_width_max": ("pci/pci_gpu_link_info/link_widths/max_link_width",),
    "gpu_pcie_throughput_transmit_bytes_per_second": ("pci/tx_util",),
    "gpu_pcie_throughput_receive_bytes_per_second": ("pci/rx_util",),
    "gpu_recovery_action": ("gpu_recovery_action",),
    "gpu_encoder_sessions": ("encoder_stats/session_count",),
    "gpu_fbc_sessions": ("fbc_stats/session_count",),
    "gpu_info": ("uuid",),
}
"""Metric -> paths in the XML of `nvidia-smi -q -x`."""

SELECTED = {
    "gpu_power_watts": "power.draw",
    "gpu_clocks_event_reasons_bitmask": "clocks_event_reasons.active",
    "gpu_ecc_corrected_volatile_total": "ecc.errors.corrected.volatile.total",
    "gpu_ecc_uncorrected_volatile_total": "ecc.errors.uncorrected.volatile.total",
    "gpu_ecc_corrected_aggregate_total": "ecc.errors.corrected.aggregate.total",
    "gpu_ecc_uncorrected_aggregate_total": "ecc.errors.uncorrected.aggregate.total",
}
"""Metric -> what only `nvidia-smi --query-gpu` has."""
MEANINGFUL_NONE = frozenset({"gpu_recovery_action"})
"""`None` is this field's healthy value, not its absence."""


@dataclass(frozen=True, slots=True, order=True)
class Fact:
    """A card gave a metric, as a file shows."""

    metric: str
    card: str
    evidence: str
    file: str


def holds_reading(metric: str, value: str | None) -> bool:
    """Whether a field holds a reading."""
    text = (value or "").strip()
    return (metric in MEANINGFUL_NONE and text == "None") or not NOTHING.match(text)


def short(product: str) -> str:
    """A card's name without the maker and the family that is clear anyway."""
    return re.sub(r"^(NVIDIA )?(GeForce |Tesla )?", "", product.strip())


def cards_of_text(text: str) -> Iterator[dict[str, str]]:
    """Each GPU of `nvidia-smi -q`: path -> value; indentation of four makes the path."""
    card: dict[str, str] | None = None
    path: list[str] = []
    for line in text.splitlines():
        if re.match(r"GPU [0-9A-Fa-f]{8}:", line):
            if card:
                yield card
            card, path = {}, []
            continue
        found = re.match(r"( {4,})(\S.*?)(?:\s+: ?(.*))?$", line)
        if card is None or not line.strip():
            continue
        if found is None:
            yield card
            card = None
            continue
        path = [*path[: len(found[1]) // 4 - 1], found[2].strip()]
        if found[3] is not None:
            card.setdefault("/".join(path), found[3])
    if card:
        yield card


def facts_of_text(path: Path) -> Iterator[Fact]:
    """What `nvidia-smi -q` and `--query-gpu` in a text file show."""
    text = path.read_text(encoding="utf-8", errors="replace")
    for card in cards_of_text(text):
        name = short(card.get("Product Name", ""))
        for metric, places in QUERY.items():
            for place in places:
                if name and holds_reading(metric, card.get(place)):
                    yield Fact(metric, name, f"nvidia-smi -q: {place}", path.name)
    for heading, row in re.findall(r"^(timestamp, driver_version, .*)\n(.*)$", text, re.MULTILINE):
        names = [field.partition(" [")[0] for field in heading.split(", ")]
        values = dict(zip(names, row.split(", "), strict=False))
        for metric, field in SELECTED.items():
            if len(names) == len(row.split(", ")) and holds_reading(metric, values.get(field)):
                yield Fact(
                    metric, short(values["name"]), f"nvidia-smi --query-gpu: {field}", path.name
                )


def facts_of_xml(path: Path) -> Iterator[Fact]:
    """What `nvidia-smi -q -x` shows."""
    for card in ElementTree.parse(path).getroot().findall("gpu"):  # noqa: S314 - files of our own folder
        name = short(card.findtext("product_name", ""))
        if name == UNNAMED:
            continue
        for metric, places in XML.items():
            for place in places:
                if holds_reading(metric, card.findtext(place)):
                    yield Fact(metric, name, f"nvidia-smi -q -x: {place}", path.name)


def facts_of_page(path: Path) -> Iterator[Fact]:
    """What a dcgm-exporter page shows; DCGM prints 0 for a memory without a sensor."""
    page = read_page(packaged_profile(DCGM), read_lines(path.read_text(encoding="utf-8")))
    for one in page.accelerators.values():
        for metric, value in one.values.items():
            entry = BY_NAME[metric]
            if entry.tier.startswith("gpm") or (
                metric == "gpu_memory_temperature_celsius" and value == 0
            ):
                continue
            yield Fact(
                metric,
                short(one.accelerator.model),
                f"dcgm-exporter: {entry.dcgm_field}",
                path.name,
            )


def collect(folder: Path) -> list[Fact]:
    """One fact for each metric and card: that of the first file, nvidia-smi's own words before
    DCGM's.
    """
    readers = ((".txt", facts_of_text), (".xml", facts_of_xml), (".prom", facts_of_page))
    kept: dict[tuple[str, str], Fact] = {}
    for ending, read in readers:
        for path in sorted(folder.glob(f"*{ending}")):
            if "windows" in path.name:
                continue
            for fact in read(path):
                kept.setdefault((fact.metric, fact.card), fact)
    unknown = {fact.metric for fact in kept.values()} - set(BY_NAME)
    if unknown:
        raise LookupError(f"not in the catalog: {', '.join(sorted(unknown))}")
    return sorted(kept.values())


def write(facts: Iterable[Fact], path: Path) -> None:
    """The facts as CSV."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows([fact.metric, fact.card, fact.evidence, fact.file] for fact in facts)


def load(path: Path = FACTS) -> dict[str, list[str]]:
    """Metric -> the cards on which it was seen."""
    with path.open(encoding="utf-8", newline="") as file:
        seen: dict[str, list[str]] = {}
        for row in csv.DictReader(file):
            seen.setdefault(row["metric"], []).append(row["card"])
    return seen


def main(arguments: list[str]) -> int:
    """Writes the facts."""
    folder = Path(arguments[0]) if arguments else CAPTURES
    if not folder.is_dir():
        sys.stderr.write(
            f"docs.seen_on: {folder} is not there; name the folder with outputs of real cards\n"
        )
        return 3
    facts = collect(folder)
    write(facts, FACTS)
    sys.stdout.write(f"{FACTS}: {len(facts)} facts\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
