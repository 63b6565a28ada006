"""What runs held, cost and produced, for lists and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeVar

from gpuledger_collector.accounting.charged_runs import (
    EVERY_RUN,
    ChargedRun,
    RecordedOutcome,
    RunFilter,
    RunSums,
)
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.reserved_names import UNNAMED
from gpuledger_collector.accounting.unit_cost import CountedHour, HeldHour
from gpuledger_collector.storage.billing.reports import LEVEL_COLUMNS
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_as, to_object

_LINES = """workload_id, owner_id, accelerator_id, gpu_model, start_ms, end_ms, gpu_ns, busy_ns, idle_ns, unknown_ns,
    currency, cost_micro, idle_cost_micro, energy_mj"""
_SUMMED = (
    "gpu_ns",
    "busy_ns",
    "idle_ns",
    "unknown_ns",
    "cost_micro",
    "idle_cost_micro",
    "energy_mj",
)
_SUMS = ", ".join(f"sum(l.{name}) AS {name}" for name in _SUMMED)

_NAMED = """w AS MATERIALIZED (
            -- Looked up by id: a join would read every workload that there ever was.
            SELECT id, key, kind, external_id, name, user_name FROM workload
            WHERE id = ANY(ARRAY(SELECT DISTINCT workload_id FROM l))
        )"""
_PARTS = {"team": "coalesce(o.team, '')", "model": "coalesce(l.gpu_model, '')"}
Sums = TypeVar("Sums", bound=RunSums)


def sum_charged(
    connection: Connection,
    period: Period,
    owner: Mapping[str, str],
    name: str | None = None,
    wanted: RunFilter = EVERY_RUN,
    *,
    split_by: str = "",
) -> list[RunSums]:
    """Add up what `list_charged` lists, without what has to be counted for each workload.

    `split_by`, `team` or `model`: a workload that several teams pay for, or that held several
    models, is a row for each of them.
    """
    asked = _Asked(period, owner, name, None, wanted)
    column = {"": "", "team": ", owner_id", "model": ", gpu_model"}[split_by]
    part = f", {_PARTS[split_by]}" if split_by else ""
    sums = ", ".join(f"sum({name}) AS {name}" for name in _SUMMED)
    # Each table by itself: Postgres knows how many workloads there are in it, adds them up in
    # memory, and shares the rows among its workers.
    lines = " UNION ALL ".join(
        f"SELECT workload_id, currency{column}, min(start_ms) AS start_ms, max(end_ms) AS end_ms,"
        f" {sums} FROM {table} WHERE {asked.lines}{asked.owned} GROUP BY workload_id, currency{column}"
        for table in ("charge", "correction")
    )
    join = " LEFT JOIN owner o ON o.id = l.owner_id" if split_by == "team" else ""
    rows = select(
        connection,
        f"""
        WITH l AS MATERIALIZED ({lines}), {_NAMED}
        SELECT w.id AS workload_id, w.key, w.kind, w.external_id, w.name, w.user_name AS user,
            {_PARTS.get(split_by, "''")} AS part, min(l.start_ms) AS start_ms, max(l.end_ms) AS end_ms,
            l.currency, {_SUMS}
        FROM l JOIN w ON w.id = l.workload_id{join} WHERE true{asked.named}
        GROUP BY w.id, w.key, w.kind, w.external_id, w.name, w.user_name, l.currency{part}
        ORDER BY w.id, l.currency{part}
        """,
        asked.values,
    )
    return [_summed(RunSums, row) for row in rows]


def list_charged(
    connection: Connection,
    period: Period,
    owner: Mapping[str, str],
    name: str | None = None,
    ids: Sequence[int] | None = None,
    wanted: RunFilter = EVERY_RUN,
) -> list[ChargedRun]:
    """List workloads that were charged for days of the period, including corrections of those days.

    `owner`: levels of the owner who pays; `name`, `ids`: only workloads of this name, or these. A
    row names the first team and all models of its workload.
    """
    asked = _Asked(period, owner, name, ids, wanted)
    rows = select(
        connection,
        f"""
        WITH l AS MATERIALIZED (
            SELECT {_LINES} FROM charge WHERE {asked.lines} UNION ALL
            SELECT {_LINES} FROM correction WHERE {asked.lines}
        ), {_NAMED}
        SELECT w.id AS workload_id, w.key, w.kind, w.external_id, w.name, w.user_name AS user,
            coalesce(min(nullif(o.team, '')), '') AS team,
            string_agg(DISTINCT l.gpu_model, ', ') AS gpu_model,
            count(DISTINCT l.accelerator_id) AS accelerators, min(l.start_ms) AS start_ms,
            max(l.end_ms) AS end_ms,
            l.currency, {_SUMS}
        FROM l JOIN w ON w.id = l.workload_id LEFT JOIN owner o ON o.id = l.owner_id
        WHERE true{asked.of_owner}{asked.named}
        GROUP BY w.id, w.key, w.kind, w.external_id, w.name, w.user_name, l.currency
        ORDER BY w.id, l.currency
        """,
        asked.values,
    )
    return [_summed(ChargedRun, row) for row in rows]


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which workloads are asked for, as conditions of a statement."""

    period: Period
    owner: Mapping[str, str]
    name: str | None
    ids: Sequence[int] | None
    wanted: RunFilter

    @property
    def _places(self) -> Mapping[str, str]:
        wanted = self.wanted
        places = {"pool": wanted.pool, "gpu_model": wanted.model, "node": wanted.node}
        return {column: value for column, value in places.items() if value}

    @property
    def lines(self) -> str:
        """Of charges and corrections, for a WHERE."""
        return "".join(
            (
                "day_ms >= %(start)s AND day_ms < %(end)s AND state = 'held'",
                " AND workload_id IS NOT NULL",
                "" if self.ids is None else " AND workload_id = ANY(%(ids)s)",
                *(f" AND coalesce({column}, '') = %({column})s" for column in self._places),
            )
        )

    @property
    def of_owner(self) -> str:
        """Of the owner `o`, with AND before it."""
        return "".join(
            f" AND coalesce({LEVEL_COLUMNS[level]}, '') = %({level})s" for level in self.owner
        )

    @property
    def owned(self) -> str:
        """Of the owner of charges and corrections, with AND before it; nobody is an owner without
        a name.
        """
        if not self.owner:
            return ""
        nobody = " OR owner_id IS NULL" if not any(self.owner.values()) else ""
        return f" AND (owner_id IN (SELECT o.id FROM owner o WHERE true{self.of_owner}){nobody})"

    @property
    def named(self) -> str:
        """Of the workload `w`, with AND before it."""
        conditions = (
            ""
            if self.name is None
            else " AND coalesce(nullif(w.name, ''), w.external_id) = %(name)s"
        )
        if self.wanted.words:
            # A part of a text, and no pattern: people search for names with _ and %.
            names = "concat_ws(' ', w.name, w.external_id, w.key, w.user_name)"
            conditions += f" AND position(lower(%(words)s) IN lower({names})) > 0"
        return conditions + (" AND w.user_name = %(user)s" if self.wanted.user else "")

    @property
    def values(self) -> Mapping[str, object]:
        """The parameters of the conditions."""
        return {
            "start": self.period.start_ms,
            "end": self.period.end_ms,
            "name": self.name,
            "ids": None if self.ids is None else list(self.ids),
            "words": self.wanted.words,
            "user": self.wanted.user,
            **{column: "" if value == UNNAMED else value for column, value in self._places.items()},
            **self.owner,
        }


def _summed(kind: type[Sums], row: Any) -> Sums:
    # Sums of bigint are numeric in Postgres and arrive as Decimal; they are integers all the same.
    return to_object(kind, row, **{name: _whole(getattr(row, name)) for name in _SUMMED})


def _whole(value: Decimal | None) -> int | None:
    return None if value is None else int(value)


def list_places(
    connection: Connection, period: Period, owner: Mapping[str, str]
) -> dict[str, list[str]]:
    """List the pools, models and nodes on which workloads were charged to an owner in the period;
    what has no name is UNNAMED.
    """
    conditions = "".join(
        f" AND coalesce({LEVEL_COLUMNS[level]}, '') = %({level})s" for level in owner
    )
    rows = select(
        connection,
        "SELECT DISTINCT l.pool, l.gpu_model, l.node FROM charge l LEFT JOIN owner o ON o.id ="
        " l.owner_id WHERE l.day_ms >= %(start)s AND l.day_ms < %(end)s AND l.state = 'held' AND"
        f" l.workload_id IS NOT NULL{conditions}",
        {"start": period.start_ms, "end": period.end_ms, **owner},
    )
    columns = {"pool": "pool", "model": "gpu_model", "node": "node"}
    return {
        name: sorted({getattr(row, column) or UNNAMED for row in rows})
        for name, column in columns.items()
    }


def ids_of(connection: Connection, keys: Sequence[str]) -> list[int]:
    """Read the ids of the workloads with these keys."""
    rows = connection.execute(
        "SELECT id FROM workload WHERE key = ANY(%s) ORDER BY id", (list(keys),)
    )
    return [int(number) for (number,) in rows]


def rows_of(connection: Connection, ids: Sequence[int], period: Period) -> list[ChargedRun]:
    """Read these workloads over a period, priced rows first."""
    return sorted(
        list_charged(connection, period, {}, ids=ids), key=lambda row: row.currency is None
    )


def outcomes(connection: Connection, ids: Sequence[int]) -> dict[int, str]:
    """Read how these workloads ended, where an imported record of the scheduler says so."""
    return {
        row.workload_id: row.state
        for row in select(
            connection,
            "SELECT DISTINCT ON (workload_id) workload_id, state FROM imported_usage WHERE"
            " workload_id"
            " = ANY(%s) AND state <> '' ORDER BY workload_id, start_ms DESC",
            (list(ids),),
        )
    }


def outcomes_before(
    connection: Connection, ids: Sequence[int], before_ms: int
) -> dict[int, RecordedOutcome]:
    """Read the latest record of a scheduler about each of these workloads that begins before an
    instant.
    """
    return {
        row.workload_id: RecordedOutcome(row.state, row.end_ms)
        for row in select(
            connection,
            "SELECT DISTINCT ON (workload_id) workload_id, state, end_ms FROM imported_usage"
            " WHERE workload_id = ANY(%s) AND state <> '' AND start_ms < %s"
            " ORDER BY workload_id, start_ms DESC",
            (list(ids), before_ms),
        )
    }


def read_counts(
    connection: Connection, ids: Sequence[int], period: Period
) -> dict[int, list[CountedHour]]:
    """Read what these workloads counted, by endpoint and hour of the period."""
    hours: dict[int, list[CountedHour]] = {}
    for row in select(
        connection,
        "SELECT s.workload_id, s.via, s.source, s.counter, h.hour_ms, sum(h.units)::bigint AS"
        " units, max(h.covered_ms) AS covered_ms, max(h.restarts) AS restarts FROM"
        " counter_series s JOIN counter_hour h ON h.series_id = s.id WHERE s.workload_id ="
        " ANY(%s) AND h.hour_ms"
        " >= %s AND h.hour_ms < %s GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 5",
        (list(ids), period.start_ms, period.end_ms),
    ):
        hours.setdefault(row.workload_id, []).append(to_object(CountedHour, row))
    return hours


def held_hours(
    connection: Connection, workload_id: int, cards: Sequence[int], period: Period
) -> list[HeldHour]:
    """Read what a workload held of these accelerators, by rating interval."""
    return select_as(
        connection,
        HeldHour,
        "SELECT u.accelerator_id, u.hour_ms AS at_ms, u.held_ms, u.busy_ms, u.idle_ms,"
        " u.unknown_ms, EXISTS"
        " (SELECT FROM usage_hour other WHERE other.accelerator_id = u.accelerator_id AND"
        " other.hour_ms = u.hour_ms AND other.state = 'held' AND other.workload_id <>"
        " u.workload_id) AS shared, a.gpu_micro FROM usage_hour u JOIN accelerator a ON"
        " a.id = u.accelerator_id WHERE u.accelerator_id = ANY(%s) AND"
        " u.workload_id = %s"
        " AND u.state = 'held' AND u.hour_ms >= %s AND u.hour_ms < %s ORDER BY 1, 2",
        (list(cards), workload_id, period.start_ms, period.end_ms),
    )


def named_cards(
    connection: Connection, cards: Sequence[int]
) -> dict[int, tuple[str, str, int | None]]:
    """Read UUID, model and memory of accelerators."""
    return {
        row.id: (row.uuid, row.model, row.memory_bytes)
        for row in select(
            connection,
            "SELECT id, uuid, model, memory_bytes FROM accelerator WHERE id = ANY(%s)",
            (list(cards),),
        )
    }


READINGS = (
    "utilization_ratio",
    "zero_ratio",
    "sm_active_ratio",
    "tensor_active_ratio",
    "dram_active_ratio",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
    "sm_clock_hertz",
    "slowed_ratio",
)
TRAFFIC = {
    "nvlink_bytes_per_second": (
        "gpu_nvlink_transmit_bytes_per_second + gpu_nvlink_receive_bytes_per_second"
    ),
    "pcie_receive_bytes_per_second": "gpu_pcie_receive_bytes_per_second",
    "occupancy_ratio": "gpu_sm_occupancy_ratio",
    "thermal_ratio": "(gpu_clocks_event_reasons_bitmask & 96 <> 0)::int",
    "power_cap_ratio": "(gpu_clocks_event_reasons_bitmask & 132 <> 0)::int",
}
"""Means of raw samples that the minute rollup does not have.

96: software and hardware thermal slowdown; 132: power cap and power brake (nvml.h,
nvmlClocksEventReason*).
"""


def minutes(
    connection: Connection, spans: Sequence[tuple[int, int, int]]
) -> dict[int, dict[int, dict[str, float]]]:
    """Read readings by accelerator and minute over spans (accelerator, start, end); missing
    readings are absent.
    """
    sums: dict[int, dict[int, dict[str, float]]] = {}
    if not spans:
        return sums
    cards, starts, ends = ([span[at] for span in spans] for at in range(3))
    asked = (
        "JOIN unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS s (id, start_ms, end_ms) ON"
        " accelerator_id = id"
    )
    rolled = connection.execute(
        f"SELECT accelerator_id, minute_ms, {', '.join(READINGS)} FROM gpu_minute {asked} "
        "AND minute_ms >= start_ms AND minute_ms < end_ms",
        (cards, starts, ends),
    )
    for card, at_ms, *values in rolled:
        entry = {
            name: float(value)
            for name, value in zip(READINGS, values, strict=True)
            if value is not None
        }
        sums.setdefault(card, {})[at_ms] = entry
    raw = connection.execute(
        "SELECT accelerator_id, at_ms - at_ms %% 60000,"
        f" {', '.join(f'avg({what})' for what in TRAFFIC.values())} FROM gpu_sample {asked} AND"
        " at_ms >= start_ms AND at_ms < end_ms WHERE at_ms >= %s AND at_ms < %s GROUP BY 1, 2",
        (cards, starts, ends, min(starts), max(ends)),
    )
    for card, at_ms, *values in raw:
        entry = sums.setdefault(card, {}).setdefault(at_ms, {})
        entry |= {
            name: float(value)
            for name, value in zip(TRAFFIC, values, strict=True)
            if value is not None
        }
    return sums


def whole_hours(held: Sequence[HeldHour], most: int) -> list[tuple[int, int, int]]:
    """Return the spans (accelerator, start, end) of the last `most` hours in which the workload was
    alone.
    """
    alone = [minute for minute in held if minute.held_ms == HOUR_MS and not minute.shared]
    newest = sorted({minute.at_ms for minute in alone})[-most:]
    return [
        (minute.accelerator_id, minute.at_ms, minute.at_ms + HOUR_MS)
        for minute in alone
        if minute.at_ms in set(newest)
    ]
