"""Gateway profiles: what their files may hold, which pages they know, and whom each page counts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import exporters
from fakes.gateways import PAGES, gateway, page_lines, page_text, read, sums
from gpuledger_common.gateways.check import check_gateway_page
from gpuledger_common.gateways.library import (
    all_gateways,
    matching,
    named_gateway,
    packaged_ids,
    packaged_text,
)
from gpuledger_common.gateways.model import OVERFLOW_TENANT
from gpuledger_common.gateways.page import MAX_TEXT, read_series
from gpuledger_common.gateways.read import parse_gateway
from gpuledger_common.profiles import library
from gpuledger_common.profiles.lines import read_lines
from gpuledger_common.profiles.read import ProfileError

SMALL = """
kind = "gateway"
id = "small"
title = "A small gateway"

[evidence]
repository = "somebody/gateway"
status = "synthetic"

[match]
families = ["small_*_tokens_total"]

[[tenant_label]]
label = "team"
trust = "authenticated"
reason = "of the key"

[[tokens]]
kind = "input"
families = ["small_input_tokens_total", "old_input_tokens_total"]
"""
FAULTS = {
    "kind: 'exporter' is not one of gateway": ('kind = "gateway"', 'kind = "exporter"'),
    "id: 'Small!' is not lower-case letters": ('"small"', '"Small!"'),
    "match.families: is required": ('families = ["small_*_tokens_total"]', ""),
    "tenant_label 1: trust: 'yes' is not one of authenticated, claim": ('"authenticated"', '"yes"'),
    "tenant_label 1: reason: is required": ('reason = "of the key"', ""),
    "tokens 1: kind: 'prompt' is not one of input, cached, output": (
        'kind = "input"',
        'kind = "prompt"',
    ),
    "tokens 1: familys: is not known; the nearest key is families": (
        'families = ["small_input_tokens_total", "old_input_tokens_total"]',
        'familys = ["x"]',
    ),
    "tenants.not_read: 'team' is the label of a [[tenant_label]]": (
        "[[tokens]]",
        '[tenants]\nnot_read = ["team"]\n\n[[tokens]]',
    ),
    "is not TOML": ('"A small gateway"', ""),
}
"""What a message says, and the change of the profile that it is about."""
WHOLE = {"input": 12000, "output": 3000}
CACHED = {**WHOLE, "cached": 8000}
EXPECTED = {
    "envoy-ai-gateway": {("vision", "Qwen3-32B", "inference/qwen"): {**WHOLE, "requests": 12}},
    "otel-genai": {("vision", "Qwen3-32B", "vllm-0.inference"): {**CACHED, "requests": 12}},
    "higress": {
        ("vision", "Qwen3-32B", "outbound|8000||vllm.inference.svc.cluster.local"): {
            **WHOLE,
            "requests": 12,
        },
        ("", "Qwen3-32B", "outbound|8000||vllm.inference.svc.cluster.local"): {"input": 400},
    },
    "kong": {("vision", "Qwen3-32B", "llama2"): {**WHOLE, "requests": 12}},
    "litellm": {
        ("e8d1", "hosted_vllm/Qwen3-32B", ""): {
            "input": 12_000_000,
            "output": 3_000_000,
            "cached": 9_000_000,
            "requests": 9100,
        },
        ("", "hosted_vllm/Qwen3-32B", ""): {"input": 4000, "output": 900},
    },
    "llm-d-coordinator": {("vision", "Qwen3-32B", ""): WHOLE},
    "llm-d-epp": {
        ("vision", "Qwen3-32B", ""): {**CACHED, "requests": 12},
        (OVERFLOW_TENANT, "Qwen3-32B", ""): {"input": 600},
    },
    "sglang": {("vision", "Qwen3-32B", "http://10.0.0.1:30000"): {**CACHED, "requests": 12}},
}
"""Whom each page counts, by hand from its lines."""


@pytest.mark.parametrize("words", FAULTS)
def test_a_fault_is_one_sentence_with_its_key(words):
    """A gateway profile that cannot be used names the file, the table and the key."""
    with pytest.raises(ProfileError, match=r"mine\.toml") as error:
        parse_gateway(SMALL.replace(*FAULTS[words], 1), "mine.toml")
    assert words in str(error.value)


@pytest.mark.parametrize("identity", packaged_ids())
def test_each_page_counts_its_tenants(identity):
    """The page of every packaged gateway counts the tokens that its lines show, and no others."""
    target = "http://10.0.0.1:30000" if identity == "sglang" else ""
    assert sums(read(page_text(identity), identity, target)) == EXPECTED[identity]


def test_every_packaged_gateway_has_a_page_and_no_page_is_without_one():
    """A profile without a page is not tested."""
    assert sorted(path.stem for path in PAGES.iterdir()) == packaged_ids() == sorted(EXPECTED)


@pytest.mark.parametrize("identity", packaged_ids())
def test_a_page_belongs_to_one_profile_of_either_kind(identity):
    """No gateway's page is another gateway's, or an exporter's."""
    lines = page_lines(identity)
    assert [entry.id for entry in matching(all_gateways(), lines)] == [identity]
    assert library.matching(library.all_profiles(), lines) == []


@pytest.mark.parametrize("identity", library.packaged_ids())
def test_no_exporter_page_is_a_gateway(identity):
    """Exporters' pages match no gateway profile."""
    assert not matching(all_gateways(), read_lines(exporters.synthetic(identity)))


@pytest.mark.parametrize("identity", packaged_ids())
def test_every_family_of_a_page_is_explained(identity):
    """No family of our pages is unknown but LiteLLM's gauge: each is counted, or ignored with its
    reason.
    """
    report = check_gateway_page(gateway(identity), page_lines(identity))
    unknown = [row.family for row in report.rows if row.state == "unknown"]
    assert unknown == (["litellm_deployment_state"] if identity == "litellm" else [])
    assert all(row.note for row in report.rows if row.state == "ignored")
    assert report.because


def test_a_family_without_a_value_that_counts_is_no_twin():
    """The reason of an unused family is its own: a twin has a better name beside it."""
    new, old = (f"{name}_input_tokens_sum" for name in ("llm_d_epp_request", "inference_objective"))
    labels = '{fairness_id="a",target_model_name="m"}'

    def notes(*values):
        lines = (
            f"{name}{labels} {value}\n" for name, value in zip((new, old), values, strict=True)
        )
        report = check_gateway_page(gateway("llm-d-epp"), read_lines("".join(lines)))
        return {row.family: row.note for row in report.rows if row.state == "ignored"}

    assert notes("5", "5") == {old: "a twin of another name on this page"}
    assert notes("NaN", "5") == {new: "no series that counts"}
    assert notes("NaN", "0.5") == dict.fromkeys((new, old), "no series that counts")


def test_the_kind_total_is_never_added():
    """A series of the type `total` repeats the input and the output."""
    page = read(page_text("envoy-ai-gateway"), "envoy-ai-gateway")
    assert sum(page.counts.values()) == 12000 + 3000 + 12


def test_what_litellm_answers_from_its_own_cache_is_no_cached_input():
    """The counter of LiteLLM's response cache counts no tokens that a server had cached."""
    line = 'litellm_cached_tokens_metric_total{model="m",team="t"} 10\n'
    assert sums(read(line, "litellm")) == {}


def test_of_deprecated_twins_one_family_counts():
    """The endpoint picker prints each count under several prefixes: only the first is read, and the
    others alone where a page has no better one.
    """
    page = read(page_text("llm-d-epp"), "llm-d-epp")
    assert page.twins == 2
    old = "\n".join(
        line for line in page_text("llm-d-epp").splitlines() if not line.startswith("llm_d_epp")
    )
    assert sums(read(old, "llm-d-epp")) == {("", "Qwen3-32B", ""): {"input": 12600, "output": 3000}}


def test_twins_are_names_of_one_kind():
    """LiteLLM has two names for cached tokens, and one for each of the others."""
    twins = {
        kind
        for kind in ("input", "cached", "output", "requests")
        if gateway("litellm").has_twins(kind)
    }
    assert twins == {"cached"}


def test_a_deprecated_name_counts_for_whom_no_better_one_does():
    """A page of several services, of which one has the old names alone."""
    text = (
        'llm_d_epp_request_input_tokens_sum{target_model_name="m",fairness_id="a"} 5\n'
        'inference_objective_input_tokens_sum{target_model_name="m"} 5\n'
        'inference_objective_input_tokens_sum{target_model_name="older"} 7\n'
    )
    page = read(text, "llm-d-epp")
    assert page.twins == 1
    assert sums(page) == {("a", "m", ""): {"input": 5}, ("", "older", ""): {"input": 7}}


def test_new_counters_win_over_the_old_histogram():
    """OpenTelemetry's counters of 2026 and its histogram of before count once; the histogram alone
    counts as well.
    """
    page = read(page_text("otel-genai"), "otel-genai")
    assert page.twins == 2
    old = "\n".join(
        line for line in page_text("otel-genai").splitlines() if "inference_usage" not in line
    )
    assert sums(read(old, "otel-genai")) == {
        ("vision", "Qwen3-32B", "vllm-0.inference"): {**WHOLE, "requests": 12}
    }


def test_two_series_that_differ_in_hidden_labels_are_both_counted():
    """Labels that are not read still tell series apart: two keys of a team add up."""
    line = 'litellm_input_tokens_metric_total{hashed_api_key="KEY",model="m",team="t"} 10\n'
    page = read(line.replace("KEY", "a") + line.replace("KEY", "b"), "litellm")
    assert sums(page) == {("t", "m", ""): {"input": 20}}


def test_names_addresses_and_keys_are_not_kept():
    """Nothing of a page's persons and keys is in what is read of it."""
    page = read(page_text("litellm"), "litellm")
    for secret in ("ana", "ben", "@example.com", "88dc28", "77aa01", "lab"):
        assert secret not in repr(page)


def test_a_header_is_a_claim_and_a_key_is_not():
    """Each profile says who set its label: teams of keys are trusted, bare headers are claims."""
    trust = {entry.id: {tenant.trust for tenant in entry.tenants} for entry in all_gateways()}
    assert trust == {
        "litellm": {"authenticated"},
        "higress": {"authenticated"},
        "kong": {"authenticated"},
        "envoy-ai-gateway": {"claim"},
        "otel-genai": {"claim"},
        "llm-d-epp": {"claim"},
        "llm-d-coordinator": {"claim"},
        "sglang": {"claim"},
    }


def test_the_user_of_the_body_is_never_a_tenant():
    """LiteLLM's end_user is chosen by the client: it neither names nor changes a tenant."""
    line = 'litellm_input_tokens_metric_total{end_user="acme",model="m",team="None"} 10\n'
    assert sums(read(line, "litellm")) == {("", "m", ""): {"input": 10}}


def test_a_counter_that_says_two_things_is_not_believed():
    """A series that a page shows twice with different values counts nothing; NaN, fractions and
    negative values neither.
    """
    lines = "".join(
        f'litellm_input_tokens_metric_total{{model="{model}",team="t"}} {value}\n'
        for model, value in (("a", 1), ("a", 2), ("b", "NaN"), ("c", -1), ("d", 0.5), ("e", 3))
    )
    assert sums(read(lines, "litellm")) == {("t", "e", ""): {"input": 3}}


def test_the_start_of_the_process_is_read_where_counters_begin_with_it():
    """LiteLLM's page says when its counters began; that of an OpenTelemetry collector does not."""
    assert read(page_text("litellm"), "litellm").started_ms == 1_764_028_800_000
    start = "process_start_time_seconds 1764028800\n"
    assert read(start + page_text("otel-genai"), "otel-genai").started_ms is None


def test_a_new_gateway_is_a_file(tmp_path):
    """A file adds a gateway, or replaces the packaged one of that id; exporters' files are left to
    their own library, and two files with one id are refused.
    """
    path, other, exporter = (tmp_path / f"{name}.toml" for name in "abc")
    path.write_text(SMALL)
    other.write_text(
        packaged_text("llm-d-epp").replace('trust = "claim"', 'trust = "authenticated"')
    )
    exporter.write_text(library.packaged_text("hami"))
    by_id = {entry.id: entry for entry in all_gateways((path, other, exporter))}
    assert by_id["small"].title == "A small gateway"
    assert by_id["llm-d-epp"].tenants[0].trust == "authenticated"
    assert named_gateway(str(path)) == by_id["small"]
    assert "hami" not in by_id
    assert "small" not in {entry.id for entry in library.all_profiles((path, exporter))}
    other.write_text(SMALL)
    with pytest.raises(ProfileError, match="id 'small' is that of"):
        all_gateways((path, other))


@given(tenant=st.text(max_size=2 * MAX_TEXT), model=st.text(max_size=2 * MAX_TEXT))
def test_texts_of_a_page_are_bounded(tenant, model):
    """Whoever writes labels cannot make a tenant or a model longer than is stored."""
    labels = {"team": tenant, "model": model}
    series = read_series(gateway("litellm"), "litellm_input_tokens_metric_total", labels)
    assert len(series.tenant) <= MAX_TEXT
    assert len(series.model) <= MAX_TEXT
