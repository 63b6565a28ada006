"""The evidence of the last weeks that recommendations are derived from."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period
from gpuledger_collector.accounting.rating import present_ms
from gpuledger_collector.accounting.usage import HELD, UNALLOCATED, HourlyUsage
from gpuledger_collector.insight.recommendations import (
    Holding,
    IntervalUsage,
    ObservedAccelerator,
    Window,
)
from gpuledger_collector.services.commitment_coverage import book_of
from gpuledger_collector.services.rating import DayUsage, places, usage_of
from gpuledger_collector.services.recommendations import DEMAND_DAYS, WINDOW_DAYS
from gpuledger_collector.storage.findings import findings, recommendations
from gpuledger_collector.storage.findings.readings import workload_readings
from gpuledger_collector.storage.ledger import inventory, workloads
from gpuledger_collector.storage.locks import Connection

_HoldingKey = tuple[int | None, str, str]
"""Workload (None: unallocated), pool and model."""


class ObservedWindow:
    """Usage of the window by day, and what the proposals look at; `window` is None without any
    capacity.
    """

    def __init__(self, connection: Connection, now_ms: int) -> None:
        self._connection = connection
        # Complete hours only: the running one would look idle in its missing minutes.
        end_ms = now_ms - now_ms % HOUR_MS
        longest = Period((end_ms - WINDOW_DAYS * DAY_MS) // DAY_MS * DAY_MS, end_ms)
        capacity = inventory.capacity(connection, longest)
        self.book = book_of(connection, longest)
        self.days: list[DayUsage] = []
        self.window: Window | None = None
        self._owners: dict[_HoldingKey, dict[str, str]] = {}
        """Of each holding at its first piece inside the window."""
        first_ms = min((row.in_ms for row in capacity), default=end_ms)
        # A fleet that is younger than the window is judged on the time that it has existed.
        self.period = Period(max(longest.start_ms, -(-first_ms // HOUR_MS) * HOUR_MS), end_ms)
        if self.period.ms:
            days = Period(self.period.start_ms // DAY_MS * DAY_MS, -(-end_ms // DAY_MS) * DAY_MS)
            # What moves between owners is no saving.
            self.days = [
                usage_of(connection, day, end_ms, with_tokens=False) for day in days.days()
            ]
            self.window = self._window()

    def _window(self) -> Window:
        start_ms, end_ms = self.period.start_ms, self.period.end_ms
        usage, accelerators = self._usage()
        free = {
            (pool, model): Holding(
                None, f"free/{pool}/{model}", "", "", pool, model, usage=intervals
            )
            for (workload_id, pool, model), intervals in usage.items()
            if workload_id is None
        }
        idle = findings.overlapping(self._connection, "idle", start_ms, end_ms)
        return Window(
            start_ms=start_ms,
            end_ms=end_ms,
            holdings=self._holdings(usage),
            free=free,
            accelerators=accelerators,
            findings=[finding for finding in idle if finding.opened_ms < end_ms],
            book=self.book,
            demand_ns=recommendations.demand(
                self._connection, end_ms - DEMAND_DAYS * DAY_MS, end_ms
            ),
            imported=len({row.workload_id for usage in self.days for row in usage.imported}),
        )

    def _usage(
        self,
    ) -> tuple[dict[_HoldingKey, list[IntervalUsage]], dict[int, ObservedAccelerator]]:
        """Usage inside the window by holder and kind, and every accelerator with the share of its
        time observed.
        """
        usage: dict[_HoldingKey, list[IntervalUsage]] = defaultdict(list)
        seen_ms: dict[int, int] = defaultdict(int)
        capacity_ms: dict[int, int] = defaultdict(int)
        accelerators: dict[int, ObservedAccelerator] = {}
        for day in self.days:
            inside = day.day.clip(self.period)
            if inside is None:
                continue
            for placement, capacity, pieces in places(day, self.book):
                accelerator = placement.accelerator
                key = accelerator.accelerator_id
                accelerators[key] = ObservedAccelerator(
                    accelerator.pool,
                    accelerator.gpu_model,
                    accelerator.node,
                    accelerator.gpu_micro,
                    0.0,
                )
                capacity_ms[key] += present_ms(capacity, inside, self.period.end_ms)
                for piece in pieces:
                    if not self.period.start_ms <= piece.start_ms < self.period.end_ms:
                        continue
                    seen_ms[key] += piece.held_ms
                    if piece.state == UNALLOCATED or (
                        piece.state == HELD and piece.workload_id is not None
                    ):
                        holder = piece.workload_id, accelerator.pool, accelerator.gpu_model
                        usage[holder].append(_interval(piece))
                        if piece.workload_id is not None and holder not in self._owners:
                            owner_of = day.owners.owners_at(accelerator.pool, accelerator.node)
                            owner = owner_of(piece.workload_id, piece.start_ms, piece.attributes_id)
                            self._owners[holder] = owner.levels()
        return usage, {
            key: replace(
                accelerator,
                seen=min(1.0, seen_ms[key] / capacity_ms[key]) if capacity_ms[key] else 0.0,
            )
            for key, accelerator in accelerators.items()
        }

    def _holdings(self, usage: dict[_HoldingKey, list[IntervalUsage]]) -> list[Holding]:
        ids = sorted({workload_id for workload_id, _, _ in usage if workload_id is not None})
        facts, names = (
            workloads.facts(self._connection, ids),
            recommendations.names(self._connection, ids),
        )
        readings = workload_readings(self._connection, self.period.start_ms, self.period.end_ms)
        holdings = [
            Holding(
                workload_id,
                *names[workload_id],
                facts[workload_id].kind,
                pool,
                model,
                facts[workload_id].tags,
                self._owners[workload_id, pool, model],
                intervals,
                readings.get((workload_id, model), {}),
            )
            for (workload_id, pool, model), intervals in usage.items()
            if workload_id is not None
        ]
        return sorted(holdings, key=lambda holding: (holding.key, holding.pool, holding.model))


def _interval(piece: HourlyUsage) -> IntervalUsage:
    return IntervalUsage(
        piece.accelerator_id,
        piece.start_ms,
        piece.held_ms,
        piece.busy_ms,
        piece.idle_ms,
        piece.unknown_ms,
        piece.energy_mj,
    )
