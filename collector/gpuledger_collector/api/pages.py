"""GET / and /statements: pages for people, rendered here, without scripts; the numbers are those of the commands.

Reading rates nothing, so a page says up to when the ledger is rated. Who may read: as in api.reads; a browser gives the
token as the password of HTTP Basic, whatever the user's name.
"""

from __future__ import annotations

import base64
import binascii
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
from fastapi import APIRouter, Request, Response
from psycopg import OperationalError

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED, ReportRow
from gpuledger_collector.accounting.ledger import ConservationCheck
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, UTC_DAYS, Period, format_instant
from gpuledger_collector.api.auth.keys import KeysUnavailable
from gpuledger_collector.api.auth.principal import Denied, Principal, visible
from gpuledger_collector.api.reads import BEARER, Reads, demand_of
from gpuledger_collector.export import html, plots
from gpuledger_collector.export import statement as forms
from gpuledger_collector.services.budget_status import statuses
from gpuledger_collector.services.chargeback import direct_costs_by_team
from gpuledger_collector.services.node_health import SILENT_MS, is_silent
from gpuledger_collector.services.statement import NoStatement, monthly_chargeback, read_statement, require_level
from gpuledger_collector.storage.access.row_level_security import as_viewer
from gpuledger_collector.storage.billing import periods
from gpuledger_collector.storage.billing import statements as stored
from gpuledger_collector.storage.errors import StorageError
from gpuledger_collector.storage.findings import findings
from gpuledger_collector.storage.ledger import overview, reports, zones
from gpuledger_common.plurals import plural

"""As the alert GpuLedgerNodeSilent."""
TREND_DAYS = 30
ANOMALY_DAYS = 7
SHOWN = 6
PAST_HOURS, HOURS_AHEAD = 72, 24
PATIENCE_SECONDS = 0.02
"""How long a page waits for a forecast that is being made."""
BASIC = "Basic "
CHALLENGE = 'Basic realm="GPU Ledger: any name, and a reader token as password", charset="UTF-8"'
HEADERS = {"Cache-Control": "no-store"}
log = logging.getLogger(__name__)
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Pool:
    """Demand of a pool in GPUs: hours of the past (None: not known), and low, middle, high of those to come."""

    name: str
    past: tuple[float | None, ...]
    ahead: tuple[tuple[float, float, float], ...]
    note: str
    first_ms: int
    """When the first hour of the past begins."""


@dataclass
class Outlook(Generic[Made]):
    """A forecast of demand, made once an hour beside the requests, because a page must not wait for it."""

    make: Callable[[], Made]
    lock: threading.Lock = field(default_factory=threading.Lock)
    made: tuple[int, Made] | None = None
    working: threading.Thread | None = None

    def at(self, now_ms: int, patience: float = PATIENCE_SECONDS) -> Made | None:
        """The newest forecast, an older one while a new one is made, None while there is none."""
        hour = now_ms // HOUR_MS
        with self.lock:
            if (self.made is None or self.made[0] != hour) and (self.working is None or not self.working.is_alive()):
                self.working = threading.Thread(target=self._work, args=(hour,), name="outlook", daemon=True)
                self.working.start()
            thread = self.working if self.made is None else None
        if thread is not None:
            thread.join(patience)
        return None if self.made is None else self.made[1]

    def _work(self, hour: int) -> None:
        try:
            self.made = (hour, self.make())
        except Exception as error:  # a page without a forecast is better than no page
            log.warning("the forecast of a page was not made: %s", error)


def router(reads: Reads) -> APIRouter:
    """The pages, bound to a ledger."""
    made = APIRouter(tags=["pages"], include_in_schema=False)
    outlook = Outlook(lambda: pools_of(reads))

    def answered(request: Request, read: Callable[[Principal], str]) -> Response:
        try:
            return page(read(reads.keys.person(request, offered(request.headers.get("authorization", "")))))
        except Denied as denial:
            return refused(denial.status, str(denial))
        except NoStatement as error:
            return refused(404, str(error))
        except ValueError as error:
            return refused(422, str(error))
        except (KeysUnavailable, StorageError, OperationalError) as error:
            log.warning("a page was not made: %s", error)
            return refused(503, "the database is away: come back in a moment")

    @made.get("/")
    def home(request: Request) -> Response:
        """The overview of the fleet, this month and now; to a viewer that of its owner."""
        return answered(request, lambda who: overview_of(reads, outlook, str(request.base_url).rstrip("/"), who))

    @made.get("/statements/{level}/{month}")
    def listed(request: Request, level: str, month: str, owner: str | None = None) -> Response:
        """Who has a statement in a month, or the statement of one whose name is no part of a path."""
        if owner is not None:
            return answered(request, lambda who: statement_page(reads, level, owner, month, who))
        return answered(request, lambda who: index_of(reads, level, month, who))

    @made.get("/statements/{level}/{owner:name}/{month}")
    def statement(request: Request, level: str, owner: str, month: str) -> Response:
        """The statement of an owner."""
        return answered(request, lambda who: statement_page(reads, level, owner, month, who))

    return made


def offered(header: str) -> str:
    """The header as a bearer's; the password of HTTP Basic, which browsers ask for, is the token."""
    if not header.startswith(BASIC):
        return header
    try:
        plain = base64.b64decode(header.removeprefix(BASIC), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
    return BEARER + plain.partition(":")[2]


def page(text: str, status: int = 200) -> Response:
    """A page with the headers that keep everything foreign out of it."""
    headers = {**HEADERS, "Content-Security-Policy": f"{html.policy()}; frame-ancestors 'none'"}
    return Response(text, status, headers, "text/html; charset=utf-8")


def refused(status: int, sentence: str) -> Response:
    """A page that says why there is nothing to see, and what to do."""
    made = page(html.render("refused.html", status=status, sentence=sentence, policy=html.policy()), status)
    if status == 401:
        made.headers["WWW-Authenticate"] = CHALLENGE
    if status == 503:
        made.headers["Retry-After"] = "5"
    return made


def statement_page(reads: Reads, level: str, owner: str, month: str, who: Principal) -> str:
    """The statement, as the command writes it. Raises Denied when this reader may not see all of that owner."""
    if not who.sees({level: owner}):
        raise Denied(403, "this token sees another owner's part of the ledger only")
    with reads.ledger.transaction(read_only=True) as connection:
        chargeback = monthly_chargeback(connection, level, month, reads.now_ms)
        try:
            with as_viewer(connection, who.owner):
                return forms.as_html(read_statement(connection, level, owner, month, reads.now_ms, chargeback))
        except NoStatement as error:
            if who.owner is None:
                raise
            # The sentence names who was billed, which is not for this reader.
            raise NoStatement(f"{level} {owner!r} was billed nothing in {month}") from error


def index_of(reads: Reads, level: str, month: str, who: Principal) -> str:
    """The owners of a level that were billed in a month and that this reader may see, with links."""
    require_level(level)
    nominal = UTC_DAYS.month(month)
    with reads.ledger.transaction(read_only=True) as connection:
        period = zones.in_zone(connection, nominal)
        with as_viewer(connection, who.owner):
            owners = [one for one in stored.owners(connection, level, period) if who.sees({level: one})]
        made = monthly_chargeback(connection, level, month, reads.now_ms).report
    return forms.index(level, month, [(owner, html.statement_path(level, owner, month)) for owner in owners], made)


def pools_of(reads: Reads) -> list[Pool]:
    """Demand of each pool, past and to come; slow, so it is made beside the requests."""
    from gpuledger_collector.insight.forecast import forecast

    known = {one.name: one for one in demand_of(reads, None) if one.known}
    made = []
    for entry in forecast(list(known.values()), HOURS_AHEAD) if known else []:
        values = known[entry.series].values[-PAST_HOURS:]
        past = tuple(float(value) if np.isfinite(value) else None for value in values)
        low, middle, high = (entry.quantiles.index(quantile) for quantile in (0.1, 0.5, 0.9))
        ahead = tuple((float(row[low]), float(row[middle]), float(row[high])) for row in entry.values)
        first_ms = known[entry.series].end_ms - (len(past) - 1) * HOUR_MS
        made.append(Pool(entry.series, past, ahead, entry.note or "", first_ms))
    return made


def overview_of(reads: Reads, outlook: Outlook[list[Pool]], address: str, who: Principal) -> str:
    """The page. What is about the whole fleet is left out for a reader who sees one owner's part."""
    now_ms = reads.now_ms
    with reads.ledger.transaction(read_only=True) as connection:
        calendar = zones.calendar(connection)
        name = calendar.month_of(now_ms)
        month = calendar.month(name)
        fleet = overview.fleet(connection, now_ms - SILENT_MS)
        proofs = reports.conservation_checks(connection, month)
        today_ms = calendar.day_of(now_ms).start_ms
        trend = Period(calendar.days_before(today_ms, TREND_DAYS), today_ms)
        made = direct_costs_by_team(connection, month, who.owner)
        with as_viewer(connection, who.owner):
            daily = overview.daily_by_team(connection, trend, who.owner or {})
            seen = visible(findings.named(connection, "idle", now_ms - DAY_MS, now_ms + 1), who)
            odd = visible(findings.named(connection, "anomaly", now_ms - ANOMALY_DAYS * DAY_MS, now_ms + 1), who)
            standing = [one for one in statuses(connection, now_ms) if who.sees(one.budget.owner)]
        idle = sorted((one for one in seen if one["resolved_ms"] is None), key=lambda one: -(one["per_day_micro"] or 0))
        nodes = overview.nodes(connection) if who.owner is None else []
        closed = periods.closed(connection)
        months = stored.months(connection)
        priced = overview.has_prices(connection)
        corrected = overview.corrected(connection, month) if who.owner is None else []
    empty = not fleet.nodes and not made.rows and not months
    whole = who.owner is None
    pools = outlook.at(now_ms) if whole and not empty else None
    known_ms = max((proof.until_ms for proof in proofs), default=None)
    return html.render(
        "overview.html",
        policy=html.policy(),
        empty=empty,
        whole=whole,
        reader=who,
        address=address,
        month=name,
        now=format_instant(now_ms - now_ms % 1000),
        known=None if known_ms is None else format_instant(known_ms - known_ms % 1000),
        fleet=fleet,
        gpus=f"{fleet.gpu_micro / MICRO:.1f}".removesuffix(".0"),
        spend=[
            _spend(made.rows, total, daily, calendar.days(trend), proofs)
            for total in made.totals
            if total.currency is not None
        ],
        unpriced=[row for row in made.rows if row.currency is None],
        priced=priced,
        corrected=corrected,
        idle=[forms.finding_facts(one) for one in idle[:SHOWN]],
        idle_count=len(idle),
        idle_per_day=_per_day(idle),
        anomalies=[forms.finding_facts(one) for one in odd[:SHOWN]],
        anomaly_days=ANOMALY_DAYS,
        budgets=[forms.budget_facts(one) for one in standing],
        pools=None if pools is None else [_pool(one) for one in pools],
        nodes=[_node(one, now_ms) for one in nodes],
        trust=forms.trust(proofs),
        closed=closed[-1] if closed else None,
        months=months[:13],
        levels=LEVELS,
    )


def _per_day(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """What goes on idle costs per day, by currency, in micro-units."""
    sums: dict[str, int] = {}
    for row in rows:
        if row["currency"] is not None and row["per_day_micro"] is not None:
            sums[row["currency"]] = sums.get(row["currency"], 0) + row["per_day_micro"]
    return sorted(sums.items())


def _spend(
    rows: tuple[ReportRow, ...],
    total: ReportRow,
    daily: dict[str, dict[str, dict[int, int]]],
    trend: Sequence[Period],
    proofs: list[ConservationCheck],
) -> dict[str, Any]:
    """One currency: the chargeback's rows with a line of the last days each; owners apart from what nobody held."""
    currency = total.currency or ""
    mine = [row for row in rows if row.currency == currency]
    most = max((row.cost_minor or 0 for row in mine), default=0)
    return {
        "currency": currency,
        "total": total,
        "rows": [
            {
                "row": row,
                "owner": row.keys[0],
                "held": not _is_state(row.keys[0]),
                "length": plots.length_bar(float(row.cost_minor or 0), float(most)),
                "trend": _trend(row.keys[0], daily.get(currency, {}), trend, currency),
            }
            for row in mine
        ],
        "days": len(proofs),
    }


def _is_state(key: str) -> bool:
    """Whether a row is time that nobody held."""
    return key in {"(unallocated)", "(unavailable)", "(unobserved)", "(stranded)"}


def _trend(owner: str, teams: dict[str, dict[int, int]], trend: Sequence[Period], currency: str) -> Any:
    days = teams.get("" if owner == UNATTRIBUTED else owner)
    if days is None:
        return ""
    first = min(day for team in teams.values() for day in team)
    values = [days.get(day.start_ms, 0) / MICRO if day.start_ms >= first else None for day in trend]
    whole = [value for value in values if value is not None]
    said = f"{plural(len(whole), 'day')}, from {min(whole):,.0f} to {max(whole):,.0f} {currency} a day"
    return plots.spark(values, f"Spend of {owner} by day", said, height=36)


def _pool(one: Pool) -> dict[str, Any]:
    lows, middles, highs = zip(*one.ahead, strict=True)
    peak = max(range(len(middles)), key=lambda at: highs[at])
    said = (
        f"Over the next {plural(len(middles), 'hour')} between {min(lows):.0f} and {max(highs):.0f} GPUs with eight "
        f"chances in ten; the highest, in {plural(peak + 1, 'hour')}, between {lows[peak]:.0f} and {highs[peak]:.0f}."
    )
    title = f"GPUs wanted in pool {one.name}: the last {plural(len(one.past), 'hour')} and the next {len(middles)}"
    days = plots.dates(one.first_ms, HOUR_MS, len(one.past) + len(one.ahead))
    plot = plots.spark(one.past, title, said, one.ahead, width=720, height=200, axis=True, days=days)
    rows = [(at + 1, *one.ahead[at]) for at in range(2, len(one.ahead), 3)]
    return {
        "name": one.name,
        "path": html.pool_path(one.name),
        "said": said,
        "plot": plot,
        "note": one.note,
        "rows": rows,
    }


def _node(node: overview.Node, now_ms: int) -> dict[str, Any]:
    silent = is_silent(node.seen_ms, now_ms)
    return {
        "name": node.name,
        "seen": ago(now_ms - node.seen_ms),
        "gpus": node.accelerators,
        "state": "silent" if silent else node.status,
        "detail": node.detail,
        "well": node.status == "ok" and not silent,
    }


def ago(ms: int) -> str:
    """How long ago, in the largest unit that fits."""
    for size, unit in ((DAY_MS, "day"), (HOUR_MS, "hour"), (60_000, "minute")):
        if ms >= size:
            number = ms // size
            return f"{number} {unit}{'s' if number > 1 else ''} ago"
    return "just now"
