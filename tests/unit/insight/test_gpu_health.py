"""How one GPU is now: by the worst of its parts, since when, and not where nobody hears of it."""

from dataclasses import replace

import pytest

from gpuledger_collector.accounting.gpu_receipt import GpuPart
from gpuledger_collector.insight.gpu_health import GONE, SILENT, GpuHealth, judge_gpu
from gpuledger_collector.insight.nodes import SILENT_MS

NOW_MS = 10**12
WELL = GpuPart(
    accelerator_id=1,
    uuid="GPU-1",
    device="GPU-1",
    model="H100",
    mig_instance=None,
    gpu_index=0,
    health="ok",
    cause="",
    health_since_ms=5,
    pool="train",
    node="n1",
    out_ms=None,
    node_status="ok",
    seen_ms=NOW_MS,
)
SICK = replace(
    WELL,
    uuid="GPU-2",
    mig_instance="1g.10gb",
    health="degraded",
    cause="a row remap waits for a reset",
    health_since_ms=7,
)
OFF = replace(WELL, seen_ms=NOW_MS - SILENT_MS - 1)


@pytest.mark.parametrize(
    ("parts", "health"),
    [
        ([WELL], GpuHealth("ok", 5)),
        (
            [WELL, SICK],
            GpuHealth(
                "degraded",
                7,
                "a row remap waits for a reset",
                "1g.10gb",
                "reset the GPU once nothing runs on it",
            ),
        ),
        (
            [SICK, replace(SICK, health="failed", cause="lost", health_since_ms=None)],
            GpuHealth("failed", None, "lost", "1g.10gb"),
        ),
        ([WELL, replace(WELL, health="unknown", health_since_ms=None)], GpuHealth("unknown", None)),
        # What it was when its node fell silent is not known of now.
        ([replace(SICK, seen_ms=OFF.seen_ms)], GpuHealth(SILENT, OFF.seen_ms)),
        # Nobody expects a sign of life of a node that only the inventory names.
        ([replace(OFF, node_status="inventory")], GpuHealth("ok", 5)),
        ([replace(WELL, node="", node_status="", seen_ms=None)], GpuHealth("ok", 5)),
        ([replace(WELL, out_ms=9), replace(SICK, out_ms=11)], GpuHealth(GONE, 11)),
        # A slice that is gone says nothing of the board as it is divided now.
        ([WELL, replace(SICK, out_ms=11)], GpuHealth("ok", 5)),
    ],
)
def test_a_gpu_is_judged_by_the_worst_that_is_there(parts, health):
    """With its reason, and what to do about it."""
    assert judge_gpu(parts, NOW_MS) == health
