"""The health of an accelerator, with its cause.

Evidence comes from the driver's answers (a lost GPU, one that needs a reset, one that refuses every
reading) and from the counters of memory faults and requested actions. The counters are read less
often than the rest, so their readers keep the latest value of each: a fault stands until a reading
says that it is gone.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuledger_common.readings import Health
from gpuledger_common.xids import meaning

RECOVERY_ACTIONS = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain its peer-to-peer traffic and reset",
    4: "drain the GPU and reset it",
    5: "recover the IMEX domain",
}
"""nvmlDeviceGpuRecoveryAction_t; 0 asks for nothing."""
RECOVERY = "gpu_recovery_action"
_FAULTS = (
    ("gpu_remapped_rows_failure", "a row of memory could not be remapped"),
    ("gpu_ecc_uncorrected_volatile_total", "uncorrected ECC errors since the driver was loaded"),
    ("gpu_remapped_rows_pending", "a row remap waits for a reset"),
    ("gpu_retired_pages_pending", "a page retirement waits for a reset"),
)
EVIDENCE = frozenset({RECOVERY, *(name for name, _ in _FAULTS)})
"""Catalog names that the verdict uses."""
_RESET = "reset the GPU once nothing runs on it"
_NEXT_STEPS = {
    "a row of memory could not be remapped": "replace the card",
    "uncorrected ECC errors since the driver was loaded": (
        f"tell whoever held it that results may be wrong, and {_RESET}"
    ),
    "a row remap waits for a reset": _RESET,
    "a page retirement waits for a reset": _RESET,
}
"""What to do about a fault. The driver's requests and Xids name it in their cause."""
_RANK = {"ok": 0, "degraded": 1, "unknown": 2, "failed": 3}


def verdict(evidence: Mapping[str, float | int]) -> Health:
    """Health by the latest reading of each metric of EVIDENCE; a metric that the card does not give
    has no effect.
    """
    action = int(evidence.get(RECOVERY, 0))
    if action:
        return Health(
            "degraded",
            f"the driver asks to {RECOVERY_ACTIONS.get(action, f'take action {action}')}",
        )
    for name, cause in _FAULTS:
        if evidence.get(name, 0) > 0:
            return Health("degraded", cause)
    return Health()


def page_health(values: Mapping[str, float | int]) -> Health:
    """Health by the counters and the last Xid; dcgm-exporter keeps an Xid until it restarts, so it
    only degrades.
    """
    xid = int(values.get("gpu_last_xid", 0))
    if xid and (known := meaning(xid)).severity == "critical":
        return Health(
            "degraded", f"Xid {xid} is the exporter's latest: {known.text}; {known.action}"
        )
    return verdict(values)


def next_step(cause: str) -> str:
    """What to do about a cause of bad health; empty: the cause says it, or nothing is known."""
    return _NEXT_STEPS.get(cause, "")


def worse(first: Health, second: Health) -> Health:
    """The worse of two verdicts, the first where they are equally bad: a MIG instance fails with
    its device.
    """
    return second if _RANK[second.status] > _RANK[first.status] else first
