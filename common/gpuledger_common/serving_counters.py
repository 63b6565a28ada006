"""What counters of a page mean: names of vLLM, Triton, TGI, SGLang and of a run's own file, and how lines are read.

The names are those that the servers document: vLLM docs "Production Metrics" (prometheus_client adds `_total`), Triton
"Metrics" (`nv_inference_*`), TGI (counters without `_total`; tokens are sums of histograms), SGLang "Production
Metrics". A request of vLLM that was aborted or failed is no inference. The collector reads the same table for what
comes by remote write.
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
}
"""Engine and counter by name of the series."""
STARTED = "process_start_time_seconds"
UNFINISHED = frozenset({"abort", "error"})
"""Values of vLLM's `finished_reason` that are no answer."""
MOST_EXACT = 2**53
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"\s*,?\s*')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}


@dataclass(frozen=True, slots=True)
class Counted:
    """A counter of a workload as it stood at an instant; see wire.Count."""

    workload: Workload
    source: str
    counter: str
    at_ms: int
    value: int
    part: str
    engine: str
    started_ms: int | None


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter of a page: what it counts, the labels that tell it apart, and its value."""

    engine: str
    counter: str
    part: str
    value: int


def meaning(name: str, labels: Mapping[str, str]) -> tuple[str, str] | None:
    """Engine and counter of a series; None for one that counts nothing of ours."""
    if labels.get("finished_reason") in UNFINISHED:
        return None
    return ENGINES.get(name)


def part_of(labels: Mapping[str, str]) -> str:
    """The labels as one text, in order of their names."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def whole(value: float) -> int | None:
    """A counter's value as an integer; None for what no counter shows: a fraction, a negative, NaN, beyond 2^53."""
    return int(value) if 0 <= value <= MOST_EXACT and value == int(value) else None


def parse(text: str) -> tuple[list[Counter], int | None]:
    """The counters of a page of exposition text, and when its process began (unix ms), if it says.

    Lines that cannot be read are passed over. A series that stands there twice with two values says nothing.
    """
    found: dict[tuple[str, str], Counter | None] = {}
    started_ms: int | None = None
    for line in text.splitlines():
        name, labels, value = _line(line)
        if value is None:
            continue
        if name == STARTED and not labels:
            started_ms = round(value * 1000) if 0 < value < 1e11 else None
            continue
        means, counted = meaning(name, labels), whole(value)
        if means is None or counted is None:
            continue
        made = Counter(means[0], means[1], part_of(labels), counted)
        known = found.setdefault((name, made.part), made)
        if known != made:
            found[name, made.part] = None
    return [one for one in found.values() if one is not None], started_ms


def _line(line: str) -> tuple[str, dict[str, str], float | None]:
    """Name, labels and value of a line; no value where it is none of ours, or no line of a page."""
    name = line.partition("{")[0].partition(" ")[0]
    if name not in ENGINES and name != STARTED:
        return name, {}, None
    rest = line[len(name) :].lstrip()
    labels: dict[str, str] = {}
    if rest.startswith("{"):
        at = 1
        while (match := _LABEL.match(rest, at)) is not None:
            labels[match[1]] = re.sub(r'\\[n"\\]', lambda found: _ESCAPES[found[0]], match[2])
            at = match.end()
        if rest[at : at + 1] != "}":
            return name, {}, None
        rest = rest[at + 1 :]
    try:
        return name, labels, float(rest.split()[0])
    except (ValueError, IndexError):
        return name, {}, None
