"""Scaling terms of pools, decisions and their outcomes, and the demand that decisions are made on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal

import numpy as np

from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, Period, format_instant
from gpuledger_collector.insight.demand import (
    DEMAND_DAYS,
    QueueReadings,
    hourly_demand,
    with_queue,
)
from gpuledger_collector.insight.queue_rows import QUEUE_EXPIRED_MS, QUEUE_VALID_MS
from gpuledger_collector.insight.rates import GpuHourRate, money_micro
from gpuledger_collector.insight.scaling.advice import PastTarget
from gpuledger_collector.insight.scaling.choice import HISTORY_DAYS
from gpuledger_collector.insight.scaling.pools import (
    DecisionOutcome,
    PendingOutcome,
    PoolDemand,
    RecordedDecision,
    ScalingDecision,
    ScalingTerms,
)
from gpuledger_collector.insight.series import Series
from gpuledger_collector.storage.billing import prices
from gpuledger_collector.storage.capacity.demand import STEPS_MS, evidence, fine, queues
from gpuledger_collector.storage.ledger.dated_rows import replace_rows
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select, select_as, select_text, select_value

FINE_DAYS = 40
"""Days in five-minute steps: 28 to simulate after ten of history, and parts of days."""
FINE_MS = STEPS_MS[0]
FRESH_MS = 6 * FINE_MS
"""GPUs held this recently count as held now."""
PAST_MS = DAY_MS
"""How far back targets are read: no cool-down and no stabilization window is longer."""
KEEP_MS = 400 * DAY_MS
"""How long decisions and outcomes are kept; each pool may have one every five minutes."""


def replace_terms(
    connection: Connection, wanted: Sequence[ScalingTerms], now_ms: int
) -> ImportOutcome:
    """Replace the declared terms of pools; every change is audited."""
    rows = [{"pool": each.pool, "terms": each.facts()} for each in wanted]
    return replace_rows(connection, "scaling_pool", ("pool", "terms"), rows, now_ms)


def terms(connection: Connection) -> dict[str, ScalingTerms]:
    """The terms in force by pool."""
    return {
        row.pool: ScalingTerms.from_facts(row.pool, row.terms)
        for row in select(
            connection, "SELECT pool, terms FROM scaling_pool WHERE superseded_at IS NULL"
        )
    }


def demand(connection: Connection, now_ms: int, only: str | None = None) -> list[PoolDemand]:
    """Demand of every pool (or of one), in five-minute steps when evidence suffices, else in hours.

    Lead times are minutes, so five-minute steps are used when they cover as much of the past as the
    choice of a policy needs, or as the hours do. The demand now is what the newest step holds and
    the newest queue readings ask for.
    """
    end_ms, fine_end_ms = now_ms // HOUR_MS * HOUR_MS, now_ms // FINE_MS * FINE_MS
    start_ms, fine_start_ms = end_ms - DEMAND_DAYS * DAY_MS, end_ms - FINE_DAYS * DAY_MS
    readings = queues(connection, start_ms, now_ms + 1, "pool")
    valid = [queue for queue in readings if _is_valid(queue, now_ms)]

    def with_waiting(held: Sequence[Series], until_ms: int) -> dict[str, Series]:
        chosen = [series for series in held if only in {None, series.name}]
        return {series.name: series for series in with_queue(chosen, readings, until_ms)}

    hours = hourly_demand(start_ms, end_ms, *evidence(connection, start_ms, end_ms, "pool"))
    held = {series.name: series for series in fine(connection, fine_start_ms, fine_end_ms, only)}
    wanted_hours = with_waiting(hours, end_ms)
    wanted = with_waiting(list(held.values()), fine_end_ms)
    return [
        PoolDemand(
            wanted[name] if name in wanted and _suffices(wanted[name], series) else series,
            _held_now(held.get(name), now_ms) + sum(queue.newest(name) for queue in valid),
            _silence(readings, name, now_ms),
        )
        for name, series in sorted({**wanted, **wanted_hours}.items())
    ]


def is_known(connection: Connection, pool: str) -> bool:
    """Whether a pool has or ever had capacity, imported usage or a forecast."""
    places = (
        "capacity WHERE pool = %s",
        "imported_usage WHERE pool = %s",
        "backtest WHERE grouped = 'pool' AND series = %s",
    )
    return any(
        select_value(connection, f"SELECT 1 FROM {place} LIMIT 1", (pool,)) for place in places
    )


def silence(connection: Connection, pool: str, now_ms: int) -> str:
    """The queue of a pool whose last reading is too old to know what waits, in a sentence; "" for
    none.
    """
    since_ms = now_ms - DEMAND_DAYS * DAY_MS
    recent = queues(connection, now_ms - QUEUE_EXPIRED_MS, now_ms + 1, "pool")
    if all(_is_valid(queue, now_ms) for queue in recent):
        return ""  # no queue is silent, whatever pools they named before
    return _silence(queues(connection, since_ms, now_ms + 1, "pool"), pool, now_ms)


def _suffices(fine: Series, hours: Series) -> bool:
    """Whether five-minute steps cover enough of the past, and are as recent as the hours."""
    # 0.9: a few unknown steps must not force a pool back to hours. A day more: a choice needs
    # complete days.
    enough = min(
        (HISTORY_DAYS + 1) * DAY_MS / FINE_MS, 0.9 * hours.known_count * hours.step_ms / FINE_MS
    )
    return fine.known_count >= enough and _known_until(fine) >= _known_until(hours)


def _known_until(series: Series) -> int:
    """The end of the last known step (unix ms); 0 when none is known."""
    known = np.flatnonzero(np.isfinite(series.values))
    return series.start_ms + (int(known[-1]) + 1) * series.step_ms if len(known) else 0


def _held_now(held: Series | None, now_ms: int) -> float:
    """GPUs held in the last known step, if that is recent; else 0."""
    if held is None or now_ms - (until_ms := _known_until(held)) > FRESH_MS:
        return 0.0
    return float(held.values[(until_ms - held.start_ms) // held.step_ms - 1])


def _is_valid(queue: QueueReadings, now_ms: int) -> bool:
    return now_ms - queue.newest_ms <= QUEUE_VALID_MS


def _silence(readings: Sequence[QueueReadings], pool: str, now_ms: int) -> str:
    for queue in readings:
        if (
            not _is_valid(queue, now_ms)
            and now_ms - queue.newest_ms <= QUEUE_EXPIRED_MS
            and queue.names(pool)
        ):
            read = format_instant(queue.newest_ms)
            return (
                f"the queue of {queue.source!r} was last read at {read}, so what waits is not known"
            )
    return ""


def past(connection: Connection, pool: str, now_ms: int) -> list[PastTarget]:
    """Recent targets of a pool, oldest first; the last decision is among them however old it is."""
    return select_as(
        connection,
        PastTarget,
        "SELECT made_ms AS at_ms, desired_gpus AS gpus, wanted_gpus AS wanted FROM"
        " scaling_decision WHERE pool = %(pool)s AND made_ms >= least(%(since)s, (SELECT"
        " max(made_ms) FROM scaling_decision WHERE pool = %(pool)s)) ORDER BY made_ms, id",
        {"pool": pool, "since": now_ms - PAST_MS},
    )


_PLACES = """SELECT a.model, coalesce(n.name, '') AS node, sum(a.gpu_micro) AS gpu_micro
    FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id LEFT JOIN node n ON n.id = c.node_id
    WHERE c.pool = %(pool)s AND c.in_ms <= %(at_ms)s AND (c.out_ms IS NULL OR c.out_ms > %(at_ms)s)
        AND (%(model)s::text IS NULL OR a.model = %(model)s) GROUP BY 1, 2"""
_COUNTED = """SELECT gpu_model AS model, node, sum(gpu_micro) AS gpu_micro FROM imported_usage
    WHERE pool = %(pool)s AND start_ms <= %(at_ms)s AND (end_ms IS NULL OR end_ms > %(since)s)
        AND (%(model)s::text IS NULL OR gpu_model = %(model)s) GROUP BY 1, 2"""


def rate(
    connection: Connection,
    pool: str,
    at_ms: int,
    purchase: str | None = None,
    model: str | None = None,
) -> GpuHourRate | None:
    """The mean rate of a pool, or of a model in it, at an instant; None when a part has none, or
    when there are two currencies.

    `purchase` is a way of buying; None: as the price book decides. A pool that is known from
    imported usage alone is priced by what it held in the last 28 days.
    """
    since_ms = at_ms - 28 * DAY_MS
    values = {"pool": pool, "at_ms": at_ms, "since": since_ms, "model": model}
    places = select(connection, _PLACES, values) or select(connection, _COUNTED, values)
    book = prices.price_book(connection, Period(since_ms, at_ms + 1))
    weighted = [
        (book.price_at(pool, place.model, place.node, at_ms, purchase), int(place.gpu_micro))
        for place in places
    ]
    priced = [
        (price.rate, price.currency, weight) for price, weight in weighted if price is not None
    ]
    total = sum(weight for _, _, weight in priced)
    # A mean over priced parts only, or over two currencies, would be wrong without anybody
    # noticing.
    if (
        len(priced) < len(weighted)
        or len({currency for _, currency, _ in priced}) != 1
        or not total
    ):
        return None
    mean = sum((price * weight for price, _, weight in priced), Decimal(0)) / total
    return GpuHourRate(mean.quantize(Decimal("0.000000001")), priced[0][1])


_HISTORY = """SELECT d.id AS decision_id, d.pool, d.made_ms, d.as_of_ms, d.policy, d.mode, d.demand_gpus,
        d.reactive_gpus, d.wanted_gpus, d.desired_gpus, d.before_gpus, d.quantile, d.notified,
        x.state AS notified_state, o.from_ms, o.until_ms, o.known_ms, o.demand_gpu_s AS came_gpu_s, o.wait_gpu_s,
        o.waste_gpu_s, o.reactive_wait_gpu_s, o.reactive_waste_gpu_s, o.currency, o.waste_micro, d.reason, d.inputs_hash
    FROM scaling_decision d LEFT JOIN scaling_outcome o ON o.decision_id = d.id
    LEFT JOIN outbox x ON x.key = 'scaling:' || d.id
    WHERE (%(pool)s::text IS NULL OR d.pool = %(pool)s) AND d.made_ms >= %(since)s
    ORDER BY d.made_ms DESC, d.id DESC LIMIT %(most)s"""


def history(
    connection: Connection, pool: str | None, since_ms: int, most: int
) -> list[RecordedDecision]:
    """Decisions from an instant on with their outcomes, newest first."""
    values = {"pool": pool, "since": since_ms, "most": most}
    return select_as(connection, RecordedDecision, _HISTORY, values)


KINDS = ("demand", "wait", "waste", "reactive_wait", "reactive_waste")


def sums(connection: Connection, since_ms: int) -> dict[tuple[str, str], float]:
    """GPU-seconds by pool and kind of the outcomes whose time began at an instant or later."""
    parts = ", ".join(f"sum(o.{kind}_gpu_s) AS {kind}" for kind in KINDS)
    rows = select(
        connection,
        f"SELECT d.pool, {parts} FROM scaling_outcome o JOIN scaling_decision d ON d.id ="
        " o.decision_id WHERE o.from_ms >= %s GROUP BY d.pool",
        (since_ms,),
    )
    return {(row.pool, kind): float(getattr(row, kind)) for row in rows for kind in KINDS}


def expire(connection: Connection, now_ms: int) -> None:
    """Delete decisions older than KEEP_MS with their outcomes, except the last of each pool."""
    connection.execute(
        "WITH old AS (SELECT id FROM scaling_decision d WHERE made_ms < %s AND EXISTS (SELECT FROM"
        " scaling_decision later WHERE later.pool = d.pool AND later.made_ms > d.made_ms)), judged"
        " AS (DELETE FROM scaling_outcome WHERE decision_id IN (SELECT id FROM old)) DELETE FROM"
        " scaling_decision WHERE id IN (SELECT id FROM old)",
        (now_ms - KEEP_MS,),
    )


def last_inputs_hash(connection: Connection, pool: str) -> str | None:
    """Hash of the inputs of a pool's last decision."""
    return select_text(
        connection,
        "SELECT inputs_hash FROM scaling_decision WHERE pool = %s ORDER BY made_ms DESC, id DESC"
        " LIMIT 1",
        (pool,),
    )


def insert(connection: Connection, decision: ScalingDecision) -> int:
    """Record a decision and return its id."""
    advice = decision.advice
    return _insert(
        connection,
        "scaling_decision",
        {
            "pool": decision.pool,
            "made_ms": decision.made_ms,
            "as_of_ms": advice.as_of_ms,
            "step_ms": decision.step_ms,
            "lead_ms": decision.lead_ms,
            "valid_until_ms": advice.valid_until_ms,
            "policy": advice.mode,
            "mode": decision.mode,
            "demand_gpus": advice.demand_now,
            "ahead": json.dumps(
                {f"{quantile:g}": gpus for quantile, gpus in advice.demand_ahead.items()}
            ),
            "reactive_gpus": advice.reactive_gpus,
            "wanted_gpus": advice.wanted_gpus,
            "desired_gpus": advice.desired_gpus,
            "desired_nodes": advice.desired_nodes,
            "before_gpus": decision.before_gpus,
            "quantile": advice.setting.quantile,
            "setting": advice.setting.sentence(),
            "reason": advice.reason,
            "inputs_hash": decision.inputs_hash,
            "notified": f"webhook:{decision.webhook}" if decision.webhook else "",
        },
        "id",
    )


def pending_outcomes(connection: Connection, now_ms: int) -> list[PendingOutcome]:
    """Decisions whose time is over and that have no outcome yet."""
    return select_as(
        connection,
        PendingOutcome,
        """SELECT id AS decision_id, pool, serves AS from_ms, coalesce(next, serves + step_ms) AS until_ms,
                desired_gpus, reactive_gpus FROM (
                SELECT d.*, as_of_ms + step_ms + lead_ms AS serves,
                    lead(as_of_ms + step_ms + lead_ms) OVER (PARTITION BY pool ORDER BY made_ms, id) AS next
                FROM scaling_decision d WHERE made_ms >= %(since)s) served
            WHERE coalesce(next, serves + step_ms) <= %(now)s
              AND NOT EXISTS (SELECT FROM scaling_outcome o WHERE o.decision_id = served.id) ORDER BY made_ms, id""",
        {"now": now_ms, "since": now_ms - DEMAND_DAYS * DAY_MS},
    )


def insert_outcome(
    connection: Connection,
    pending: PendingOutcome,
    outcome: DecisionOutcome,
    rate: GpuHourRate | None,
    now_ms: int,
) -> None:
    """Store the outcome of a decision."""
    _insert(
        connection,
        "scaling_outcome",
        {
            "decision_id": pending.decision_id,
            "from_ms": outcome.from_ms,
            "until_ms": outcome.until_ms,
            "known_ms": outcome.known_ms,
            "demand_gpu_s": outcome.demand_gpu_s,
            "wait_gpu_s": outcome.wait_gpu_s,
            "waste_gpu_s": outcome.waste_gpu_s,
            "reactive_wait_gpu_s": outcome.reactive_wait_gpu_s,
            "reactive_waste_gpu_s": outcome.reactive_waste_gpu_s,
            "currency": None if rate is None else rate.currency,
            "waste_micro": money_micro(outcome.waste_gpu_s, rate),
            "judged_ms": now_ms,
        },
        "decision_id",
    )


def _insert(connection: Connection, table: str, row: Mapping[str, object], returning: str) -> int:
    values = ", ".join(f"%({name})s" for name in row)
    return int(
        select_value(
            connection,
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({values}) RETURNING {returning}",
            row,
        )
    )
