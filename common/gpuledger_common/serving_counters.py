"""Counters of inference servers (vLLM, Triton, TGI, SGLang) and of a run's own file: their names
and how they are read.

The names are those that the servers document: vLLM docs "Production Metrics" (prometheus_client
adds `_total`), Triton "Metrics" (`nv_inference_*`), TGI (counters without `_total`; tokens are sums
of histograms), SGLang "Production Metrics". An aborted or failed request of vLLM is not an
inference. The collector uses the same table for remote write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpuledger_common.readings import Workload

ENGINES = {
    "vllm:request_success_total": ("vllm", "inferences"),
    "vllm:prompt_tokens_total": ("vllm", "prompt_tokens"),
    "vllm:generation_tokens_total": ("vllm", "generated_tokens"),
    "nv_inference_count": ("triton", "inferences"),
    "nv_inference_request_success": ("triton", "requests"),
    "tgi_request_success": ("tgi", "inferences"),
    "tgi_request_success_total": ("tgi", "inferences"),
    "tgi_request_input_length_sum": ("tgi", "prompt_tokens"),
    "tgi_request_generated_tokens_sum": ("tgi", "generated_tokens"),
    "sglang:num_requests_total": ("sglang", "inferences"),
    "sglang:prompt_tokens_total": ("sglang", "prompt_tokens"),
    "sglang:generation_tokens_total": ("sglang", "generated_tokens"),
    "gpuledger_run_steps_total": ("run", "steps"),
    "gpuledger_run_tokens_total": ("run", "tokens"),
    "gpuledger_run_samples_total": ("run", "samples"),
    "gpuledger_run_epochs_total": ("run", "epochs"),
}
"""Engine and counter by name of the series."""
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
    return ENGINES.get(name)


def part_of(labels: Mapping[str, str]) -> str:
    """The labels as one text, ordered by name."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def exact_count(value: float) -> int | None:
    """A counter's value as an integer; None for what a counter cannot be: a fraction, negative,
    NaN, beyond 2^53.
    """
    return int(value) if 0 <= value <= MAX_EXACT and value == int(value) else None


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
        means, count = meaning(name, labels), exact_count(value)
        if means is None or count is None:
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
    if name not in ENGINES and name != STARTED:
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
