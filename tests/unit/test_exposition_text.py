"""Prometheus' text format: what we write, Prometheus' own client reads back."""

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpuledger_common.exposition_text import Family, label_text, number, render

LABELS = st.dictionaries(
    st.from_regex(r"[a-z_][a-z0-9_]{0,9}", fullmatch=True), st.text(), max_size=4
)
SERIES = st.lists(st.tuples(st.floats(), LABELS), min_size=1, max_size=5)


@given(st.sampled_from(["counter", "gauge"]), SERIES)
def test_every_series_reads_back_as_it_was(kind, series):
    """Any text as the value of a label, any float, infinite and not a number too."""
    name = "gpu_things_total" if kind == "counter" else "gpu_things"
    family = Family(name, "Things (count)", kind)
    for value, labels in series:
        family.add(number(value), label_text(labels))
    (read,) = text_string_to_metric_families(render([family]))
    assert (read.type, read.documentation) == (kind, "Things (count)")
    assert [(sample.name, repr(sample.value), sample.labels) for sample in read.samples] == [
        (name, repr(value), labels) for value, labels in series
    ]


def test_a_family_without_series_is_declared():
    """Its HELP and TYPE say that it exists; a page without families is empty."""
    assert render([Family("a", "Text", "gauge")]) == "# HELP a Text\n# TYPE a gauge\n"
    assert render([]) == ""
