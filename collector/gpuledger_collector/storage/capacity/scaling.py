"""Capacity in Postgres: what pools allow, what was decided for them and what came of it.

The reads take a connection, for commands and pages; `ScalingStore` is the transaction in which the job decides.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, format_instant
from gpuledger_collector.accounting.pricing import PriceBook
from gpuledger_collector.insight.demand import (
    QUEUE_EXPIRED_MS,
    QUEUE_VALID_MS,
    QueueReadings,
    hourly_demand,
    with_queue,
)
from gpuledger_collector.insight.rates import GpuHourRate, money_micro
from gpuledger_collector.insight.scaling.advice import MIN_DAYS, PastTarget
from gpuledger_collector.insight.scaling.pools import (
    DecisionOutcome,
    PendingOutcome,
    PoolDemand,
    ScalingDecision,
    ScalingTerms,
)
from gpuledger_collector.insight.series import Series
from gpuledger_collector.storage import locks
from gpuledger_collector.storage.billing import commitments, prices
from gpuledger_collector.storage.billing.declarations import replace_rows
from gpuledger_collector.storage.capacity.demand import STEPS_MS, evidence, fine, queues
from gpuledger_collector.storage.ledger.rows import ImportOutcome
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.notifications import outbox
from gpuledger_collector.storage.notifications.messages import Message

DEMAND_DAYS = 56
FINE_DAYS = 40
"""Days of five minutes: 28 to judge after ten of history, and parts of days."""
FINE_MS = STEPS_MS[0]
FRESH_MS = 6 * FINE_MS
"""What was held so long ago is what is held now."""
PAST_MS = DAY_MS
"""How far back what was desired is looked at: no cool-down and no stabilization window is longer."""
KEEP_MS = 400 * DAY_MS
"""How long decisions and what came of them are kept: there may be one every five minutes for each pool."""


def replace(connection: psycopg.Connection[Any], wanted: Sequence[ScalingTerms], now: dt.datetime) -> ImportOutcome:
    """The pools' terms in force become these; every change is audited."""
    rows = [{"pool": one.pool, "terms": one.facts()} for one in wanted]
    return replace_rows(connection, "scaling_pool", ("pool", "terms"), rows, now)


def terms(connection: Connection) -> dict[str, ScalingTerms]:
    """The terms in force by pool."""
    rows = connection.execute(sa.text("SELECT pool, terms FROM scaling_pool WHERE superseded_at IS NULL"))
    return {row.pool: ScalingTerms.of(row.pool, row.terms) for row in rows}


def demand(connection: Connection, now_ms: int, only: str | None = None) -> list[PoolDemand]:
    """Demand of every pool (or of one) as all decide on it: five minutes where evidence has them, hours else.

    Lead times are minutes, so five minutes are taken where they tell as much of the past as the choice needs, or as the
    hours do. What is held in the newest of them and what the newest readings of queues say is wanted now.
    """
    end_ms, fine_end_ms = now_ms // HOUR_MS * HOUR_MS, now_ms // FINE_MS * FINE_MS
    start_ms, fine_start_ms = end_ms - DEMAND_DAYS * DAY_MS, end_ms - FINE_DAYS * DAY_MS
    told = queues(connection, start_ms, now_ms + 1, "pool")

    def waiting(held: Sequence[Series], end_ms: int) -> dict[str, Series]:
        asked = [one for one in held if only in {None, one.name}]
        return {one.name: one for one in with_queue(asked, told, end_ms)}

    hours = waiting(hourly_demand(start_ms, end_ms, *evidence(connection, start_ms, end_ms, "pool")), end_ms)
    held = {one.name: one for one in fine(connection, fine_start_ms, fine_end_ms, only)}
    wanted = waiting(list(held.values()), fine_end_ms)
    return [
        PoolDemand(
            wanted[name] if name in wanted and _tells(wanted[name], hour) else hour,
            _newest(held.get(name), now_ms) + sum(one.newest(name) for one in told if _stands(one, now_ms)),
            _silence(told, name, now_ms),
        )
        for name, hour in sorted({**wanted, **hours}.items())
    ]


def pools(connection: Connection, now_ms: int) -> set[str]:
    """Pools that there were of late: with capacity, imported usage or terms of their own."""
    query = """SELECT pool FROM capacity WHERE out_ms IS NULL OR out_ms > :since
        UNION SELECT pool FROM imported_usage WHERE end_ms IS NULL OR end_ms > :since"""
    since = {"since": now_ms - DEMAND_DAYS * DAY_MS}
    return {row.pool for row in connection.execute(sa.text(query), since)}


def silence(connection: Connection, pool: str, now_ms: int) -> str:
    """Which queue of a pool has not been read for so long that nobody knows what waits; "" for none."""
    since_ms = now_ms - DEMAND_DAYS * DAY_MS
    if all(_stands(one, now_ms) for one in queues(connection, now_ms - QUEUE_EXPIRED_MS, now_ms + 1, "pool")):
        return ""  # Whatever the queues named before: none of them is silent.
    return _silence(queues(connection, since_ms, now_ms + 1, "pool"), pool, now_ms)


def _tells(fine: Series, hours: Series) -> bool:
    """Whether five minutes tell enough of the past, and as much of late, as the hours do."""
    enough = min(MIN_DAYS * DAY_MS / FINE_MS, 0.9 * hours.known * hours.step_ms / FINE_MS)
    return fine.known >= enough and _known_until(fine) >= _known_until(hours)


def _known_until(series: Series) -> int:
    """The end of the last known step (unix ms); 0 where none is known."""
    known = np.flatnonzero(np.isfinite(series.values))
    return series.start_ms + (int(known[-1]) + 1) * series.step_ms if len(known) else 0


def _newest(held: Series | None, now_ms: int) -> float:
    """What is held in the last known step of late; 0 for nothing known."""
    if held is None or now_ms - (until_ms := _known_until(held)) > FRESH_MS:
        return 0.0
    return float(held.values[(until_ms - held.start_ms) // held.step_ms - 1])


def _stands(queue: QueueReadings, now_ms: int) -> bool:
    """Whether the newest reading of a queue still holds."""
    return now_ms - queue.newest_ms <= QUEUE_VALID_MS


def _silence(told: Sequence[QueueReadings], pool: str, now_ms: int) -> str:
    """Which queue of a pool has not been read for so long that nobody knows what waits; "" for none."""
    for one in told:
        if not _stands(one, now_ms) and now_ms - one.newest_ms <= QUEUE_EXPIRED_MS and one.names(pool):
            read = format_instant(one.newest_ms)
            return f"the queue of {one.source!r} was last read at {read}, so what waits is not known"
    return ""


def past(connection: Connection, pool: str, now_ms: int) -> list[PastTarget]:
    """What was desired of late, oldest first; the last decision is among it however old it is."""
    rows = connection.execute(
        sa.text(
            "SELECT made_ms, desired_gpus, wanted_gpus FROM scaling_decision WHERE pool = :pool "
            "AND made_ms >= least(:since, (SELECT max(made_ms) FROM scaling_decision WHERE pool = :pool)) "
            "ORDER BY made_ms, id"
        ),
        {"pool": pool, "since": now_ms - PAST_MS},
    )
    return [PastTarget(row.made_ms, row.desired_gpus, row.wanted_gpus) for row in rows]


_PLACES = """SELECT a.model, coalesce(n.name, '') AS node, sum(a.gpu_micro) AS gpu_micro
    FROM capacity c JOIN accelerator a ON a.id = c.accelerator_id LEFT JOIN node n ON n.id = c.node_id
    WHERE c.pool = :pool AND c.in_ms <= :at_ms AND (c.out_ms IS NULL OR c.out_ms > :at_ms) GROUP BY 1, 2"""
_COUNTED = """SELECT gpu_model AS model, node, sum(gpu_micro) AS gpu_micro FROM imported_usage
    WHERE pool = :pool AND start_ms <= :at_ms AND (end_ms IS NULL OR end_ms > :since) GROUP BY 1, 2"""


def rate(connection: Connection, pool: str, at_ms: int) -> GpuHourRate | None:
    """The pool's rate at an instant: the mean over what stands in it; None where a part has none, or in two currencies.

    A pool that is known by imported usage alone is priced by what it held in the last 28 days.
    """
    given = {"pool": pool, "at_ms": at_ms, "since": at_ms - 28 * DAY_MS}
    places = connection.execute(sa.text(_PLACES), given).all() or connection.execute(sa.text(_COUNTED), given).all()
    raw = driver(connection)
    book = PriceBook(prices.current(raw), commitments.choices(raw))
    found = [(book.price_at(pool, row.model, row.node, "", at_ms), int(row.gpu_micro)) for row in places]
    known = [(price.rate, price.currency, weight) for price, weight in found if price is not None]
    weights = sum(weight for _, _, weight in known)
    if len(known) < len(found) or len({currency for _, currency, _ in known}) != 1 or not weights:
        return None
    mean = sum((price * weight for price, _, weight in known), Decimal(0)) / weights
    return GpuHourRate(mean.quantize(Decimal("0.000000001")), known[0][1])


def driver(connection: Connection) -> psycopg.Connection[Any]:
    """The driver's connection behind SQLAlchemy's, in the same transaction."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)
    return raw


@dataclass(frozen=True)
class Past:
    """A decision of the past, with what came of it as far as it is known."""

    decision_id: int
    facts: Mapping[str, Any]


_HISTORY = """SELECT d.id AS decision_id, d.*, o.from_ms, o.until_ms, o.known_ms, o.demand_gpu_s, o.wait_gpu_s,
    o.waste_gpu_s, o.reactive_wait_gpu_s, o.reactive_waste_gpu_s, o.currency, o.waste_micro, x.state AS told_state
    FROM scaling_decision d LEFT JOIN scaling_outcome o ON o.decision_id = d.id
    LEFT JOIN outbox x ON x.key = 'scaling:' || d.id
    WHERE (CAST(:pool AS text) IS NULL OR d.pool = :pool) AND d.made_ms >= :since
    ORDER BY d.made_ms DESC, d.id DESC LIMIT :most"""


def history(connection: Connection, pool: str | None, since_ms: int, most: int) -> list[Past]:
    """Decisions from an instant on with their outcomes, the newest first."""
    rows = connection.execute(sa.text(_HISTORY), {"pool": pool, "since": since_ms, "most": most}).mappings()
    return [Past(row["decision_id"], dict(row)) for row in rows]


KINDS = ("demand", "wait", "waste", "reactive_wait", "reactive_waste")


def sums(connection: Connection, since_ms: int) -> dict[tuple[str, str], float]:
    """GPU-seconds by pool and kind of the outcomes whose time began at an instant or later."""
    parts = ", ".join(f"sum(o.{kind}_gpu_s)" for kind in KINDS)
    query = f"SELECT d.pool, {parts} FROM scaling_outcome o JOIN scaling_decision d ON d.id = o.decision_id"
    rows = connection.execute(sa.text(f"{query} WHERE o.from_ms >= :since GROUP BY d.pool"), {"since": since_ms})
    return {(row[0], kind): float(value) for row in rows for kind, value in zip(KINDS, row[1:], strict=True)}


def forget_old(connection: psycopg.Connection[Any], now_ms: int) -> None:
    """Let decisions go that were made longer ago than KEEP_MS, with their outcomes; each pool's last one stays."""
    connection.execute(
        "WITH old AS (SELECT id FROM scaling_decision d WHERE made_ms < %s AND EXISTS (SELECT FROM scaling_decision "
        "later WHERE later.pool = d.pool AND later.made_ms > d.made_ms)), "
        "judged AS (DELETE FROM scaling_outcome WHERE decision_id IN (SELECT id FROM old)) "
        "DELETE FROM scaling_decision WHERE id IN (SELECT id FROM old)",
        (now_ms - KEEP_MS,),
    )


@dataclass(frozen=True)
class ScalingStore:
    """Where the job decides (jobs.advise_scaling.Scaling)."""

    engine: Callable[[], Engine]

    @contextmanager
    def unit(self) -> Iterator[ScalingUnit]:
        """A transaction, alone in deciding; undone when the block raises."""
        with self.engine().begin() as connection:
            connection.execute(sa.text(locks.statement(Lock.SCALING)))
            yield ScalingUnit(connection)


@dataclass(frozen=True)
class ScalingUnit:
    """What the job reads and writes, over one connection inside a transaction."""

    connection: Connection

    def terms(self) -> dict[str, ScalingTerms]:
        """The terms in force by pool."""
        return terms(self.connection)

    def demand(self, now_ms: int) -> list[PoolDemand]:
        """Demand of every pool."""
        return demand(self.connection, now_ms)

    def past(self, pool: str, now_ms: int) -> list[PastTarget]:
        """What was desired of late, oldest first."""
        return past(self.connection, pool, now_ms)

    def rate(self, pool: str, at_ms: int) -> GpuHourRate | None:
        """The pool's rate at an instant."""
        return rate(self.connection, pool, at_ms)

    def last_hash(self, pool: str) -> str | None:
        """What the last decision of a pool was made from."""
        query = "SELECT inputs_hash FROM scaling_decision WHERE pool = :pool ORDER BY made_ms DESC, id DESC LIMIT 1"
        return self.connection.execute(sa.text(query), {"pool": pool}).scalar()

    def put(self, decision: ScalingDecision, message: Callable[[int], Message | None]) -> int:
        """Write a decision, and the message that tells of it; its number."""
        advice = decision.advice
        row = {
            "pool": decision.pool,
            "made_ms": decision.made_ms,
            "as_of_ms": advice.as_of_ms,
            "step_ms": decision.step_ms,
            "lead_ms": decision.lead_ms,
            "valid_until_ms": advice.valid_until_ms,
            "policy": advice.mode,
            "mode": decision.mode,
            "demand_gpus": advice.demand_now,
            "ahead": json.dumps({f"{quantile:g}": gpus for quantile, gpus in advice.demand_ahead.items()}),
            "reactive_gpus": advice.reactive_gpus,
            "wanted_gpus": advice.wanted_gpus,
            "desired_gpus": advice.desired_gpus,
            "desired_nodes": advice.desired_nodes,
            "before_gpus": decision.before_gpus,
            "quantile": advice.setting.quantile,
            "setting": advice.setting.sentence(),
            "reason": advice.reason,
            "inputs_hash": decision.inputs_hash,
            "told": f"webhook:{decision.webhook}" if decision.webhook else "",
        }
        given = ", ".join("CAST(:ahead AS jsonb)" if name == "ahead" else f":{name}" for name in row)
        query = f"INSERT INTO scaling_decision ({', '.join(row)}) VALUES ({given}) RETURNING id"
        number = int(self.connection.execute(sa.text(query), row).scalar_one())
        if (said := message(number)) is not None:
            outbox.put(driver(self.connection), said)
        return number

    def unjudged(self, now_ms: int) -> list[PendingOutcome]:
        """Decisions that have served out and have no outcome yet."""
        query = """SELECT id, pool, serves AS from_ms, coalesce(next, serves + step_ms) AS until_ms, desired_gpus,
                reactive_gpus FROM (
                SELECT d.*, as_of_ms + step_ms + lead_ms AS serves,
                    lead(as_of_ms + step_ms + lead_ms) OVER (PARTITION BY pool ORDER BY made_ms, id) AS next
                FROM scaling_decision d WHERE made_ms >= :since) served
            WHERE coalesce(next, serves + step_ms) <= :now
              AND NOT EXISTS (SELECT FROM scaling_outcome o WHERE o.decision_id = served.id) ORDER BY made_ms, id"""
        rows = self.connection.execute(sa.text(query), {"now": now_ms, "since": now_ms - DEMAND_DAYS * DAY_MS})
        return [PendingOutcome(*row) for row in rows]

    def put_outcome(
        self, waiting: PendingOutcome, came: DecisionOutcome, rate: GpuHourRate | None, now_ms: int
    ) -> None:
        """Write what came of a decision."""
        row = {
            "decision_id": waiting.decision_id,
            "from_ms": came.from_ms,
            "until_ms": came.until_ms,
            "known_ms": came.known_ms,
            "demand_gpu_s": came.demand_gpu_s,
            "wait_gpu_s": came.wait_gpu_s,
            "waste_gpu_s": came.waste_gpu_s,
            "reactive_wait_gpu_s": came.reactive_wait_gpu_s,
            "reactive_waste_gpu_s": came.reactive_waste_gpu_s,
            "currency": None if rate is None else rate.currency,
            "waste_micro": money_micro(came.waste_gpu_s, rate),
            "judged_ms": now_ms,
        }
        names = ", ".join(row)
        query = f"INSERT INTO scaling_outcome ({names}) VALUES ({', '.join(f':{name}' for name in row)})"
        self.connection.execute(sa.text(query), row)
