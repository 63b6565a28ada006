"""The page's column "seen on" is evidence: made anew from the outputs of real cards, it is what is
committed.
"""

import csv

import pytest
from docs import generate, seen_on

from gpuledger_common.catalog import BY_NAME, METRICS


def test_the_committed_facts_are_those_of_the_captures(tmp_path):
    """Each fact is found again in the file that it names, and none is left out."""
    if not seen_on.CAPTURES.is_dir():
        pytest.skip("no outputs of real cards in ../shared/data/captures")
    made = tmp_path / "made.csv"
    seen_on.write(seen_on.collect(seen_on.CAPTURES), made)
    assert made.read_text() == seen_on.FACTS.read_text()


def test_every_fact_is_about_a_metric_that_we_read_and_none_of_gpm():
    """Facts name metrics of the catalog; none is counted from a related measurement."""
    with seen_on.FACTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 500
    assert len({(row["metric"], row["card"]) for row in rows}) == len(rows)
    for row in rows:
        assert not BY_NAME[row["metric"]].tier.startswith("gpm"), row


def test_fields_without_a_value_are_no_evidence():
    """N/A, a deprecation and a lack of permission are no readings; neither is a header without a
    card.
    """
    text = """
GPU 00000000:01:00.0
    Product Name                          : NVIDIA Test 1
    Fan Speed                             : N/A
    GPU Recovery Action                   : None
    Utilization
        Gpu                               : 3 %
        Memory                            : [Requested functionality has been deprecated]
    Clocks
        SM                                : 210 MHz
    Max Clocks
        SM                                : N/A
done
    Performance State                     : P0
"""
    (card,) = seen_on.cards_of_text(text)
    found = {
        metric
        for metric, places in seen_on.QUERY.items()
        if any(seen_on.holds_reading(metric, card.get(p)) for p in places)
    }
    assert found == {"gpu_utilization_ratio", "gpu_sm_clock_hertz", "gpu_recovery_action"}
    assert seen_on.short("NVIDIA GeForce RTX 4090") == "RTX 4090"


def test_the_page_shows_each_metric_with_its_cards():
    """Unit, kind, tier, NVML source, DCGM name and cards stand in the row of each metric."""
    page = generate.metrics_page()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert set(rows) == {metric.name for metric in METRICS}
    seen = seen_on.load()
    for metric in METRICS:
        cells = [cell.strip() for cell in rows[metric.name].split(" | ")]
        assert cells[1:3] == [metric.unit, metric.kind]
        assert cells[4] == metric.tier
        assert cells[7].split(", ") == (seen.get(metric.name) or [""])
    assert "H200" in seen["gpu_power_watts"]
