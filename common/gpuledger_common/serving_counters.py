"""Counters of inference servers (vLLM, Triton, TGI, SGLang) and of a run's own file: their names
and how they are read.

The names are those that the servers document: vLLM docs "Production Metrics" (prometheus_client
adds `_total`), Triton "Metrics" (`nv_inference_*`), TGI (counters without `_total`; tokens are sums
of histograms), SGLang "Production Metrics". An aborted or failed request of vLLM is not an
inference. SGLang says how long its GPUs computed prompts and answers, and how many tokens that were,
if it runs with SGLANG_ENABLE_METRICS_DEVICE_TIMER. The collector uses the same table for remote
write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

from gpuledger_common.readings import Workload

ENGINES = {
    "vllm:request_success_total": ("vllm", "inferences"),
    "vllm:prompt_tokens_total": ("vllm", "prompt_tokens"),
    "vllm:generation_tokens_total": ("vllm", "generated_tokens"),
    "vllm:prompt_tokens_cached_total": ("vllm", "cached_tokens"),
    "nv_inference_count": ("triton", "inferences"),
    "nv_inference_request_success": ("triton", "requests"),
    "tgi_request_success": ("tgi", "inferences"),
    "tgi_request_success_total": ("tgi", "inferences"),
    "tgi_request_input_length_sum": ("tgi", "prompt_tokens"),
    "tgi_request_generated_tokens_sum": ("tgi", "generated_tokens"),
    "sglang:num_requests_total": ("sglang", "inferences"),
    "sglang:prompt_tokens_total": ("sglang", "prompt_tokens"),
    "sglang:generation_tokens_total": ("sglang", "generated_tokens"),
    "sglang:cached_tokens_total": ("sglang", "cached_tokens"),
    "gpuledger_run_steps_total": ("run", "steps"),
    "gpuledger_run_tokens_total": ("run", "tokens"),
    "gpuledger_run_samples_total": ("run", "samples"),
    "gpuledger_run_epochs_total": ("run", "epochs"),
}
"""Engine and counter by name of the series."""
LABELED = {
    "sglang:gpu_execution_seconds_total": (
        "sglang",
        "category",
        {
            "forward_prefill": "prefill_gpu_ms",
            "forward_extend": "prefill_gpu_ms",
            "forward_split_prefill": "prefill_gpu_ms",
            "forward_decode": "decode_gpu_ms",
            "forward_target_verify": "decode_gpu_ms",
            "forward_idle": "",
        },
        "other_gpu_ms",
    ),
    "sglang:realtime_tokens_total": (
        "sglang",
        "mode",
        {"prefill_compute": "computed_tokens", "decode": "decoded_tokens"},
        "",
    ),
}
"""Series that a label tells apart: engine, label, counters by its value, and the counter of other
values; empty: none.
"""
OWN_LABELS = frozenset(
    {
        "cache_source",
        "category",
        "dp_rank",
        "engine",
        "engine_type",
        "finished_reason",
        "gpu_uuid",
        "mode",
        "model",
        "model_name",
        "moe_ep_rank",
        "pp_rank",
        "rank",
        "tp_rank",
        "version",
    }
)
"""Labels that engines give their series: of models, ranks and kinds."""
STARTED = "process_start_time_seconds"
UNFINISHED = frozenset({"abort", "error"})
"""Values of vLLM's `finished_reason` for requests without an answer."""
MAX_EXACT = 2**53
"""Above this, float64 cannot represent every integer."""
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"\s*,?\s*')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True, slots=True)
class CounterReading:
    """A workload's counter as it stood at an instant; see wire.Count."""

    workload: Workload
    source: str
    counter: str
    at_ms: int
    value: int
    part: str
    engine: str
    started_ms: int | None


@dataclass(frozen=True, slots=True)
class PageCounter:
    """A counter on a metrics page: what it counts, the labels that distinguish its series, and its
    value.
    """

    engine: str
    counter: str
    part: str
    value: int


def meaning(name: str, labels: Mapping[str, str]) -> tuple[str, str] | None:
    """Engine and counter of a series; None for a series that is not in the table."""
    if labels.get("finished_reason") in UNFINISHED:
        return None
    if name not in LABELED:
        return ENGINES.get(name)
    engine, label, counters, other = LABELED[name]
    counter = counters.get(labels.get(label, ""), other)
    return (engine, counter) if counter else None


def is_counter(name: str) -> bool:
    """Whether a series of this name may be one of the table."""
    return name in ENGINES or name in LABELED


def part_of(labels: Mapping[str, str]) -> str:
    """The labels as one text, ordered by name; of labels that are not the engine's own, which may
    name who asked, the digest of their value.
    """
    return ",".join(
        f"{name}={value if name in OWN_LABELS else _digest(value)}"
        for name, value in sorted(labels.items())
    )


def _digest(value: str) -> str:
    return "#" + sha256(value.encode("utf-8", "replace")).hexdigest()[:16]


def exact_count(value: float) -> int | None:
    """A counter's value as an integer; None for what a counter cannot be: a fraction, negative,
    NaN, beyond 2^53.
    """
    return int(value) if 0 <= value <= MAX_EXACT and value == int(value) else None


def count_of(counter: str, value: float) -> int | None:
    """What a series says of a counter; seconds count as milliseconds, which need not be whole."""
    if not counter.endswith("_ms"):
        return exact_count(value)
    return int(value * 1000) if 0 <= value <= MAX_EXACT / 1000 else None


def parse(text: str) -> tuple[list[PageCounter], int | None]:
    """The counters of a page of exposition text, and the start of its process (unix ms) if the page
    has it.

    Lines that cannot be read are skipped, and so is a series that appears twice with different
    values.
    """
    counters: dict[tuple[str, str], PageCounter | None] = {}
    started_ms: int | None = None
    for line in text.splitlines():
        name, labels, value = _line(line)
        if value is None:
            continue
        # With labels it would be the start of another process than this server.
        if name == STARTED and not labels:
            started_ms = round(value * 1000) if 0 < value < 1e11 else None
            continue
        means = meaning(name, labels)
        if means is None or (count := count_of(means[1], value)) is None:
            continue
        counter = PageCounter(*means, part_of(labels), count)
        if counters.setdefault((name, counter.part), counter) != counter:
            counters[name, counter.part] = None
    return [counter for counter in counters.values() if counter is not None], started_ms


def _line(line: str) -> tuple[str, dict[str, str], float | None]:
    """Name, labels and value of a line; no value for a series that is not in the table or a
    malformed line.
    """
    name = line.partition("{")[0].partition(" ")[0]
    if name != STARTED and not is_counter(name):
        return name, {}, None
    rest = line[len(name) :].lstrip()
    labels: dict[str, str] = {}
    if rest.startswith("{"):
        at = 1
        while (match := _LABEL.match(rest, at)) is not None:
            labels[match[1]] = re.sub(r'\\[n"\\]', lambda escape: _ESCAPES[escape[0]], match[2])
            at = match.end()
        if rest[at : at + 1] != "}":
            return name, {}, None
        rest = rest[at + 1 :]
    try:
        return name, labels, float(rest.split()[0])
    except (ValueError, IndexError):
        return name, {}, None
