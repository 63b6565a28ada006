"""Who held an accelerator last."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LastHolder:
    """Who held an accelerator in the last hour in which it was held.

    `job` empty: the workload is not known; `team` is who pays for that hour, empty: nobody, and None
    where it is not rated yet.
    """

    uuid: str
    hour_ms: int
    job: str
    job_key: str
    user: str
    team: str | None
