"""The catalog that agent and collector import is what is declared, and wrong declarations are
refused.
"""

import shutil

import pytest
from docs import catalog

from gpuledger_common.catalog import DCGM_COUNTERS, DCGM_ORDER, METRICS, XIDS

FIRST = "[gpu_utilization_ratio]\n"


@pytest.fixture
def declared(tmp_path):
    """A copy of the declarations, to be changed."""
    return shutil.copytree(catalog.DECLARED, tmp_path / "declared")


def edit(folder, name, old, new):
    path = folder / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(catalog.Wrong) as refused:
        catalog.module(folder)
    return str(refused.value)


def test_the_compiled_module_is_what_is_declared():
    """Byte for byte, and value for value."""
    assert catalog.MODULE.read_text() == catalog.module()
    assert catalog.metrics() == METRICS
    assert catalog.xids() == XIDS
    names = catalog.dcgm_exporter(METRICS)
    assert (tuple(names.order), frozenset(names.counters)) == (DCGM_ORDER, DCGM_COUNTERS)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('kind = "gauge"', 'kind = "gauges"', "Invalid enum value 'gauges'"),
        ('unit = "ratio"', 'units = "ratio"', "unknown field `units`"),
        ("scale = 0.01", 'scale = "1 %"', "Expected `float`, got `str`"),
        ("scale = 0.01", "scale = 0", "scales are positive"),
        (FIRST, FIRST + 'field = "NVML_FI_DEV_X"\n', "give one of"),
        (FIRST, FIRST + "scope = 1\n", "`scope` goes with `field`"),
        ('call = "nvmlDeviceGetUtilizationRates"\n', "", "go with `call`"),
        ('dcgm_field = "DCGM_FI_DEV_GPU_UTIL"\n', "", "go with `dcgm_field`"),
        (FIRST, FIRST + FIRST, "Cannot declare"),
    ],
)
def test_a_wrong_metric_is_refused_with_its_place(declared, old, new, said):
    """The file, the metric and the key."""
    sentence = edit(declared, "metrics.toml", old, new)
    assert sentence.startswith("metrics.toml: ")
    assert said in sentence


def test_a_wrong_xid_is_refused(declared):
    """A family that is none, and a table that is no number."""
    assert "'programme'" in edit(declared, "xids.toml", '"program"', '"programme"')
    shutil.copy(catalog.DECLARED / "xids.toml", declared)
    assert "thirteen is no number" in edit(declared, "xids.toml", "[13]", "[thirteen]")


def test_a_name_of_dcgm_exporter_belongs_to_a_metric(declared):
    """A misspelled one would silently leave a family out of its order."""
    sentence = edit(declared, "dcgm_exporter.toml", '"SM_CLOCK"', '"SM_KLOCK"')
    assert sentence == "dcgm_exporter.toml: SM_KLOCK is the field of no metric"
