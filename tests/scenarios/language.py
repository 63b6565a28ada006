"""The scenario language: lines of a story, run through the product's own jobs on a real database.

See README.md.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import psycopg

from gpuledger_collector.accounting.adjustments import TIERED, Adjustment, EntryRefused
from gpuledger_collector.accounting.attribution import Rule
from gpuledger_collector.accounting.carbon import Intensity
from gpuledger_collector.accounting.chargeback import report
from gpuledger_collector.accounting.commitments import Commitment
from gpuledger_collector.accounting.contested_lines import Contest
from gpuledger_collector.accounting.disputes import BadStep, Remedy
from gpuledger_collector.accounting.exchange import Exchange, ExchangeRate, view
from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.node_costs import NodeCost
from gpuledger_collector.accounting.owned_hardware import Owned
from gpuledger_collector.accounting.period import Period, date_range, month
from gpuledger_collector.accounting.pricing import Price, PurchaseChoice
from gpuledger_collector.accounting.shared_costs import AMOUNT, SharedCost
from gpuledger_collector.services import disputes
from gpuledger_collector.services.close import CannotClose, close_period
from gpuledger_collector.services.findings import WholeFleet
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.billing import (
    adjustments,
    commitments,
    declarations,
    node_costs,
    prices,
    reports,
)
from gpuledger_collector.storage.billing.allocation import allocate
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import rules, zones
from gpuledger_collector.storage.locks import Lock
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_common.largest_remainder import split

HOUR, DAY = 3_600_000, 86_400_000
EPOCH = "00000000-0000-4000-8000-000000000002"
_WHEN = r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,3})?)?(?:Z|[+-]\d\d:\d\d)?)?"
_NODE = (
    "INSERT INTO node (name, first_seen_at, last_seen_at) VALUES (%s, now(), now()) "
    "ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING id"
)
_WORKLOAD = (
    "INSERT INTO workload (key, kind, external_id, account, user_name, tags, first_seen_at) VALUES"
    " (%s, %s, %s, %s, %s, %s::jsonb, now()) ON CONFLICT (key) DO UPDATE SET key = excluded.key"
    " RETURNING id"
)
_OUT = "UPDATE capacity SET out_ms = %s WHERE accelerator_id = %s AND out_ms IS NULL"
_INTERVAL = """
INSERT INTO usage_interval (accelerator_id, workload_id, state, start_ms, end_ms, held_ms, busy_ms, idle_ms, unknown_ms,
    energy_mj, node_id, epoch, seq, record)
SELECT %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, (
    SELECT node_id FROM capacity WHERE accelerator_id = %s AND (out_ms IS NULL OR out_ms > %s) ORDER BY in_ms LIMIT 1
), %s, %s, %s
"""
_DIRTY_HOUR = "INSERT INTO hour_recompute (accelerator_id, hour_ms) VALUES (%s, %s)"
_DATE = r"\d{4}-\d\d-\d\d"
_WHO = r"(?P<id>\S+)(?P<tags>(?: \S+=\S+)*)"
_DONE = r"(?: busy (?P<busy>[\d.]+)%)?(?: idle (?P<idle>[\d.]+)%)?(?: drawing (?P<watts>\d+) W)?"
_SPAN = rf"from (?P<start>{_WHEN})(?: to (?P<end>{_WHEN}))?"


class Wrong(AssertionError):
    """A line that cannot be read, or that does not come true; the message names file and line."""


@dataclass
class Story:
    """A scenario that runs: the database, the clock, what was named so far."""

    dsn: str
    connection: psycopg.Connection
    now_ms: int = 1_800_000_000_000
    accelerators: dict[str, int] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    choices: list[PurchaseChoice] = field(default_factory=list)
    batches: int = 0
    intervals: list[tuple[object, ...]] = field(default_factory=list)
    disputes: list[int] = field(default_factory=list)

    # what there is

    def do_now(self, text: str) -> None:
        self.now_ms = instant(text)

    def do_node(self, text: str) -> None:
        given = match(
            r"(?P<node>\S+)(?: pool (?P<pool>\S+))?: (?P<count>\d+) x (?P<model>\S+)(?: share"
            r" (?P<share>[\d.]+))? " + _SPAN,
            text,
        )
        node = self._one(_NODE, given["node"])
        for index in range(int(given["count"])):
            name = f"{given['node']}/{index}"
            known = self.accelerators.get(name) or self._one(
                "INSERT INTO accelerator (uuid, device_uuid, model, gpu_micro) VALUES (%s, %s, %s,"
                " %s) RETURNING id",
                name,
                name,
                f"NVIDIA {given['model']}",
                int(Decimal(given["share"] or 1) * 1_000_000),
            )
            self.accelerators[name] = known
            self.connection.execute(
                "INSERT INTO capacity (accelerator_id, gpu_model, gpu_micro, node_id, pool, in_ms,"
                " out_ms, source) SELECT id, model, gpu_micro, %s, %s, %s, %s, 'agent' FROM"
                " accelerator WHERE id = %s",
                (
                    node,
                    given["pool"] or "default",
                    instant(given["start"]),
                    maybe(given["end"]),
                    known,
                ),
            )
            self._mark_days(instant(given["start"]), maybe(given["end"]))

    def do_leave(self, text: str) -> None:
        given = match(rf"(?P<what>\S+) at (?P<at>{_WHEN})", text)
        for accelerator in self._named(given["what"]):
            self.connection.execute(
                _OUT,
                (instant(given["at"]), accelerator),
            )
            self._mark_days(instant(given["at"]), None)

    def do_move(self, text: str) -> None:
        given = match(
            rf"(?P<what>\S+) to (?P<node>\S+)(?: pool (?P<pool>\S+))? at (?P<at>{_WHEN})", text
        )
        node = self._one(_NODE, given["node"])
        at_ms = instant(given["at"])
        for accelerator in self._named(given["what"]):
            pool = self._one(
                "SELECT pool FROM capacity WHERE accelerator_id = %s AND out_ms IS NULL",
                accelerator,
            )
            self.connection.execute(_OUT, (at_ms, accelerator))
            self.connection.execute(
                "INSERT INTO capacity (accelerator_id, gpu_model, gpu_micro, node_id, pool, in_ms,"
                " source) SELECT id, model, gpu_micro, %s, %s, %s, 'agent' FROM accelerator WHERE"
                " id = %s",
                (node, given["pool"] or pool, at_ms, accelerator),
            )
            self.connection.execute(_DIRTY_HOUR, (accelerator, at_ms - at_ms % HOUR))
            self._mark_days(at_ms, None)

    def do_price(self, text: str) -> None:
        given = match(
            rf"(?P<model>\S+) (?P<rate>[\d.]+) (?P<currency>[A-Z]{{3}}) {_SPAN}(?: pool"
            r" (?P<pool>\S+))?"
            r"(?: node (?P<node>\S+))?(?: (?P<purchase>spot|reserved|owned|on_demand))?(?: list"
            r" (?P<list>[\d.]+))?",
            text,
        )
        price = Price(
            None,
            given["pool"] or "",
            "" if given["model"] == "any" else given["model"],
            given["purchase"] or "on_demand",
            Decimal(given["rate"]),
            given["currency"],
            instant(given["start"]),
            maybe(given["end"]),
            Decimal(given["list"]) if given["list"] else None,
            "",
            given["node"] or "",
        )
        prices.add(self.connection, [price], self.now_ms)

    def do_commitment(self, text: str) -> None:
        given = match(
            rf"(?P<name>[^:]+): (?P<gpus>\d+) x (?P<model>\S+)(?: pool (?P<pool>\S+))?(?: upfront"
            rf" (?P<upfront>[\d.]+))?"
            rf"(?: recurring (?P<rate>[\d.]+))? (?P<currency>[A-Z]{{3}}) from (?P<start>{_WHEN}) to"
            rf" (?P<end>{_WHEN})",
            text,
        )
        one = Commitment(
            None,
            given["name"],
            int(given["gpus"]),
            int(Decimal(given["upfront"] or 0) * 1_000_000),
            Decimal(given["rate"] or 0),
            given["currency"],
            instant(given["start"]),
            instant(given["end"]),
            given["pool"] or "",
            "" if given["model"] == "any" else given["model"],
        )
        kept = [
            other
            for other in commitments.COMMITMENTS.in_force(self.connection)
            if other.name != one.name
        ]
        commitments.replace_commitments(self.connection, [*kept, one], self.now_ms)

    def do_withdraw(self, text: str) -> None:
        kept = [
            one for one in commitments.COMMITMENTS.in_force(self.connection) if one.name != text
        ]
        commitments.replace_commitments(self.connection, kept, self.now_ms)

    def do_owned(self, text: str) -> None:
        given = match(
            r"(?P<model>\S+) bought for (?P<capex>[\d.]+) (?P<currency>[A-Z]{3})(?: salvage"
            r" (?P<salvage>[\d.]+))? "
            rf"over (?P<months>\d+) months from (?P<start>{_WHEN})(?: takes (?P<watts>[\d.]+) W(?:"
            r" x (?P<pue>[\d.]+))? "
            r"at (?P<kwh>[\d.]+) per kWh)?(?: opex (?P<opex>[\d.]+))?(?P<measured> measured)?",
            text,
        )
        amount = {
            name: Decimal(given[name] or 0) for name in ("capex", "salvage", "watts", "kwh", "opex")
        }
        one = Owned(
            name=given["model"],
            capex=amount["capex"],
            months=int(given["months"]),
            currency=given["currency"],
            starts_ms=instant(given["start"]),
            salvage=amount["salvage"],
            opex_per_month=amount["opex"],
            watts=amount["watts"],
            pue=Decimal(given["pue"] or 1),
            price_per_kwh=amount["kwh"],
            energy="measured" if given["measured"] else "rated",
            gpu_model=given["model"],
        )
        prices.add_derived(self.connection, one.prices(), self.now_ms)

    def do_buy(self, text: str) -> None:
        given = match(
            r"(?P<purchase>spot|reserved|owned|on_demand)(?: in (?P<pool>\S+))?(?: on"
            r" (?P<node>\S+))?"
            rf"(?: for (?P<tags>\S+=\S+))?(?: from (?P<start>{_WHEN}))?(?: to (?P<end>{_WHEN}))?",
            text,
        )
        one = PurchaseChoice(
            None,
            text,
            len(self.choices),
            given["purchase"],
            given["pool"] or "",
            "",
            given["node"] or "",
            pairs(given["tags"] or ""),
            maybe(given["start"]),
            maybe(given["end"]),
        )
        self.choices.append(one)
        commitments.replace_choices(self.connection, self.choices, self.now_ms)

    def do_exchange(self, text: str) -> None:
        given = match(
            rf"(?P<of>[A-Z]{{3}}) to (?P<to>[A-Z]{{3}}) (?P<rate>[\d.]+) from (?P<start>{_WHEN})",
            text,
        )
        one = ExchangeRate(
            given["of"], given["to"], Decimal(given["rate"]), instant(given["start"])
        )
        commitments.EXCHANGE_RATES.replace(
            self.connection,
            [*commitments.EXCHANGE_RATES.in_force(self.connection), one],
            self.now_ms,
        )

    def do_rule(self, text: str) -> None:
        given = match(rf"(?P<name>\S+): (?P<match>.+?) gives (?P<assign>.+?)(?: {_SPAN})?", text)
        starts, ends = maybe(given["start"]), maybe(given["end"])
        rule = Rule(
            None,
            given["name"],
            len(self.rules),
            pairs(given["match"]),
            pairs(given["assign"]),
            starts,
            ends,
        )
        self.rules.append(rule)
        rules.replace_rules(self.connection, self.rules, self.now_ms)

    def do_zone(self, text: str) -> None:
        zones.replace_zone(self.connection, text, self.now_ms)

    def do_shared(self, text: str) -> None:
        given = match(
            r"(?P<name>\S+): (?:(?P<amount>[\d.]+) (?P<currency>[A-Z]{3}) a month"
            r"|(?P<state>unallocated|unavailable|unobserved|commitment_unused)(?: of pool"
            r" (?P<pool>\S+))?) "
            rf"by (?P<key>cost|gpu_hours|even|weights (?P<weights>\S+))(?: per (?P<level>\w+))?"
            rf"(?: in (?P<scope>\S+))?(?: from (?P<start>{_DATE}))?(?: to (?P<end>{_DATE}))?",
            text,
        )
        days = [
            None if given[name] is None else dt.date.fromisoformat(given[name])
            for name in ("start", "end")
        ]
        amount = None if given["amount"] is None else int(Decimal(given["amount"]) * 1_000_000)
        weights = {owner: int(weight) for owner, weight in pairs(given["weights"] or "").items()}
        cost = SharedCost(
            given["name"],
            given["state"] or AMOUNT,
            amount,
            given["currency"],
            given["pool"] or "",
            given["key"].partition(" ")[0],
            given["level"] or "team",
            weights,
            pairs(given["scope"] or ""),
            *days,
        )
        declarations.SHARED_COSTS.replace(
            self.connection,
            [*declarations.SHARED_COSTS.in_force(self.connection), cost],
            self.now_ms,
        )

    def do_adjust(self, text: str) -> None:
        given = match(
            r"(?P<name>\S+): (?:(?P<kind>markup|discount) (?P<percent>[\d.]+)%|tiered"
            r" (?P<steps>\S+) "
            r"(?P<currency>[A-Z]{3})(?: per (?P<per>\w+))?)(?: of (?P<owner>\w+=\S+))?(?: in"
            r" (?P<pool>\S+))?"
            rf"(?: on (?P<model>\S+))?(?: from (?P<start>{_DATE}))?(?: to (?P<end>{_DATE}))?",
            text,
        )
        policy = Adjustment(
            None,
            given["name"],
            given["kind"] or TIERED,
            pairs(given["owner"] or ""),
            given["pool"] or "",
            given["model"] or "",
            Decimal(given["percent"]) if given["percent"] else None,
            pairs(given["steps"] or ""),
            (given["per"] or "team") if given["steps"] else "",
            None,
            given["currency"],
            *(
                None if given[name] is None else dt.date.fromisoformat(given[name])
                for name in ("start", "end")
            ),
        )
        kept = [
            one for one in adjustments.list_declared(self.connection) if one.name != policy.name
        ]
        adjustments.replace_adjustments(self.connection, [*kept, policy], self.now_ms)

    def do_nodecost(self, text: str) -> None:
        given = match(
            r"(?P<name>\S+): (?P<rate>[\d.]+) (?P<currency>[A-Z]{3}) a node-hour(?: in"
            r" (?P<pool>\S+))?"
            rf"(?: on (?P<node>\S+))?(?: from (?P<start>{_DATE}))?(?: to (?P<end>{_DATE}))?",
            text,
        )
        cost = NodeCost(
            None,
            given["name"],
            given["currency"],
            given["pool"] or "",
            given["node"] or "",
            Decimal(given["rate"]),
            from_on=None if given["start"] is None else dt.date.fromisoformat(given["start"]),
            to_on=None if given["end"] is None else dt.date.fromisoformat(given["end"]),
        )
        place = cost.name, cost.pool, cost.node
        kept = [
            one
            for one in node_costs.NODE_COSTS.in_force(self.connection)
            if (one.name, one.pool, one.node) != place
        ]
        node_costs.replace_node_costs(self.connection, [*kept, cost], self.now_ms)

    def do_drop(self, text: str) -> None:
        kept = [one for one in adjustments.list_declared(self.connection) if one.name != text]
        adjustments.replace_adjustments(self.connection, kept, self.now_ms)

    def do_book(self, text: str) -> None:
        given = match(
            rf"(?P<name>\S+): (?P<kind>credit|debit) (?P<amount>[\d.]+) (?P<currency>[A-Z]{{3}}) "
            rf"for (?P<owner>\w+=\S+) from (?P<start>{_DATE}) to (?P<end>{_DATE})",
            text,
        )
        entry = Adjustment(
            None,
            given["name"],
            given["kind"],
            pairs(given["owner"]),
            amount_micro=int(Decimal(given["amount"]) * 1_000_000),
            currency=given["currency"],
            from_on=dt.date.fromisoformat(given["start"]),
            to_on=dt.date.fromisoformat(given["end"]),
            reason="agreed",
            approver="finance",
        )
        adjustments.book(self.connection, entry, self.now_ms)

    def do_reverse(self, text: str) -> None:
        try:
            adjustments.reverse(self.connection, text, "booked in error", "finance", self.now_ms)
        except EntryRefused as error:
            raise Wrong(str(error)) from error

    def do_carbon(self, text: str) -> None:
        given = match(
            r"(?P<grams>[\d.]+) g(?: pue (?P<pue>[\d.]+))?(?: pool (?P<pool>\S+))?(?: from"
            rf" (?P<start>{_DATE}))?",
            text,
        )
        starts = None if given["start"] is None else dt.date.fromisoformat(given["start"])
        one = Intensity(
            "grid", given["pool"] or "", Decimal(given["grams"]), Decimal(given["pue"] or 1), starts
        )
        declarations.CARBON.replace(
            self.connection, [*declarations.CARBON.in_force(self.connection), one], self.now_ms
        )

    # what happens

    def do_job(self, text: str) -> None:
        given = match(rf"{_WHO} on (?P<what>\S+) {_SPAN}{_DONE}", text)
        workload = self._workload(given["id"], pairs(given["tags"]))
        start, end = instant(given["start"]), instant(given["end"])
        for accelerator in self._named(given["what"]):
            for begin, stop in hours(start, end):
                length = stop - begin
                busy, idle = (
                    int(length * Decimal(given[name] or 0) / 100) for name in ("busy", "idle")
                )
                energy = int(given["watts"]) * length if given["watts"] else None
                self._usage_interval(
                    accelerator, workload, "held", begin, stop, length, busy, idle, energy=energy
                )

    def do_share(self, text: str) -> None:
        given = match(rf"(?P<what>\S+) {_SPAN}: (?P<holders>.+)", text)
        holders = [
            match(r"(?P<id>\S+) x (?P<weight>\d+)", part.strip())
            for part in given["holders"].split(",")
        ]
        (accelerator,) = self._named(given["what"])
        for begin, stop in hours(instant(given["start"]), instant(given["end"])):
            parts = split(stop - begin, [int(holder["weight"]) for holder in holders])
            self.batches += 1
            for record, (holder, part) in enumerate(zip(holders, parts, strict=True)):
                self._usage_interval(
                    accelerator,
                    self._workload(holder["id"], {}),
                    "held",
                    begin,
                    stop,
                    part,
                    0,
                    0,
                    record,
                )

    def do_free(self, text: str) -> None:
        self._state("unallocated", text)

    def do_broken(self, text: str) -> None:
        self._state("unavailable", text)

    def _state(self, state: str, text: str) -> None:
        given = match(rf"(?P<what>\S+) {_SPAN}", text)
        for accelerator in self._named(given["what"]):
            for begin, stop in hours(instant(given["start"]), instant(given["end"])):
                self._usage_interval(accelerator, None, state, begin, stop, 0, 0, 0)

    def do_usage(self, text: str) -> None:
        given = match(
            r"(?P<id>\S+)(?P<tags>(?: \S+=\S+)*): (?P<gpus>[\d.]+) GPUs of (?P<model>\S+) in"
            rf" (?P<pool>\S+) {_SPAN}",
            text,
        )
        workload = self._workload(given["id"], pairs(given["tags"]), "imported")
        start, end = instant(given["start"]), maybe(given["end"])
        self.connection.execute(
            "INSERT INTO imported_usage (workload_id, start_ms, end_ms, gpu_micro, gpu_model, pool)"
            " VALUES (%s, %s, %s, %s, %s, %s)",
            (
                workload,
                start,
                end,
                int(Decimal(given["gpus"]) * 1_000_000),
                given["model"],
                given["pool"],
            ),
        )
        self._mark_days(start, end)

    def do_tag(self, text: str) -> None:
        given = match(r"(?P<id>\S+)(?P<tags>(?: \S+=\S+)+)", text)
        self.connection.execute(
            "UPDATE workload SET tags = %s::jsonb WHERE external_id = %s",
            (json.dumps(pairs(given["tags"])), given["id"]),
        )
        self.connection.execute(
            "INSERT INTO day_recompute (day_ms) SELECT DISTINCT c.day_ms FROM charge c "
            "JOIN workload w ON w.id = c.workload_id WHERE w.external_id = %s",
            (given["id"],),
        )

    def do_contest(self, text: str) -> None:
        """The owner opens a dispute; of one workload if that is named."""
        given = match(rf"(?P<team>\S+?)(?: job (?P<job>\S+))? {_SPAN}: (?P<reason>.+)", text)
        self.do_rate("")
        period = Period(instant(given["start"]), instant(given["end"]))
        contest = Contest({"team": given["team"]}, period, None, given["job"])
        with Database(self.dsn).transaction() as connection:
            dispute = disputes.open_dispute(
                connection, contest, given["reason"], given["team"], self.now_ms
            )
        self.disputes.append(dispute.id)

    def do_decide(self, text: str) -> None:
        """The newest dispute is decided: rejected, or accepted for another owner, for nobody, as
        unavailable.
        """
        way = r"(?P<no>rejected)|accepted, (?:(?P<broken>unavailable)|(?P<to>\S+=\S+|nobody))"
        given = match(rf"(?:{way}): (?P<note>.+)", text)
        owner = (
            None
            if given["no"] or given["broken"]
            else pairs(given["to"] if given["to"] != "nobody" else "")
        )
        remedy = None if given["no"] else Remedy(owner)
        number, ledger = self.disputes[-1], Database(self.dsn)
        resolution = disputes.Resolution(number, remedy, given["note"], "finance", self.now_ms)
        try:
            disputes.resolve_dispute(ledger, resolution)
        except BadStep as error:
            raise Wrong(str(error)) from error
        check(disputes.read_record(ledger, number, WholeFleet()).seal_holds, "the seal is broken")

    def do_rate(self, _: str) -> None:
        refresh(Database(self.dsn), Period(1_500_000_000_000, self.now_ms + DAY), self.now_ms)

    def do_close(self, text: str) -> None:
        self.do_rate("")
        name = text.strip()
        try:
            with Database(self.dsn).transaction(Lock.LEDGER) as connection:
                close_period(
                    connection,
                    name,
                    zones.calendar(connection).month(name),
                    "team",
                    "a scenario",
                    self.now_ms,
                )
        except CannotClose as error:
            raise Wrong(str(error)) from error
        made = self._report(f"in {name}")[0]
        rows = {
            (row.currency, row.keys[0]): row.total_minor
            for row in made.rows
            if row.currency is not None
        }
        booked = {key: total for key, (total, _) in self._invoices(name).items()}
        check(
            {key: units for key, units in booked.items() if units}
            == {key: units for key, units in rows.items() if units},
            f"the invoices are {booked}, not the chargeback's {rows}",
        )

    def _invoices(self, name: str) -> dict[tuple[str, str], tuple[int, int]]:
        """The invoices of a closed month: minor units, and how much of them is shared, by currency
        and owner.
        """
        booked = self.connection.execute(
            "SELECT i.currency, i.owner, i.minor FROM invoice i JOIN billing_period p ON p.start_ms"
            " = period_start_ms WHERE p.name = %s",
            (name,),
        ).fetchall()
        (receipt,) = self.connection.execute(
            "SELECT receipt FROM billing_period WHERE name = %s", (name,)
        ).fetchone()
        shared = {
            (one["currency"], one["owner"]): one["shared"].replace(".", "")
            for one in receipt["invoices"]
        }
        return {
            (currency, owner): (minor, int(shared[currency, owner]))
            for currency, owner, minor in booked
        }

    # what must be so

    def do_expect(self, text: str) -> None:
        refused = re.fullmatch(r'refused "(?P<words>[^"]+)": (?P<line>.+)', text)
        if refused:
            self._refused(refused["words"], refused["line"])
            return
        kind, _, rest = text.partition(" ")
        if kind == "proof":
            with Database(self.dsn).transaction(Lock.LEDGER) as connection:
                sheet = reconcile(
                    connection, zones.calendar(connection).days_named(period_of(rest))
                )
            check(
                sheet.holds,
                f"the proof does not hold: {[day for day in sheet.days if not day.holds]}",
            )
            check(bool(sheet.days), "no day was rated")
        elif kind == "only":
            names, where = match(r"(?P<names>.+) (?P<where>(?:in|from) .+)", rest).values()
            wanted = {name.strip() for name in names.split(",")}
            found = {row.keys[0] for row in self._report(where)[0].rows}
            check(found == wanted, f"rows are {', '.join(sorted(found))}")
        elif kind in {"invoice", "invoices"}:
            self._expect_invoice(text)
        else:
            self._expect_row(text)

    def _expect_invoice(self, text: str) -> None:
        money = (
            r"(?P<amount>[-\d.]+) (?P<currency>[A-Z]{3})(?:, shared (?P<shared>[-\d.]+) [A-Z]{3})?"
        )
        given = match(rf"(?:invoice (?P<owner>\S+)|invoices) in (?P<month>\S+): {money}", text)
        found = self._invoices(given["month"])
        mine = [
            amounts
            for (currency, owner), amounts in found.items()
            if currency == given["currency"] and given["owner"] in (None, owner)
        ]
        check(bool(mine), f"invoices are {found}")
        for at, name in enumerate(("amount", "shared")):
            said = Decimal(
                Money.from_minor(sum(amounts[at] for amounts in mine), given["currency"]).plain()
            )
            check(
                given[name] is None or said == Decimal(given[name]),
                f"{name} is {said}, not {given[name]}",
            )

    def _refused(self, words: str, line: str) -> None:
        try:
            self.run(line)
        except Wrong as error:
            check(words in str(error), f"refused, but because {error}")
            return
        raise Wrong(f"{line!r} was carried out")

    def _expect_row(self, text: str) -> None:
        given = match(
            r"(?P<owner>.+?) (?P<where>(?:in|from) .+?)(?: by (?P<level>\w+))?(?: seen in"
            r" (?P<view>[A-Z]{3}))?"
            r"(?: at (?P<rate>.+?))?: (?P<amounts>.+)",
            text,
        )
        made, period = self._report(given["where"], given["level"] or "team")
        if given["view"]:
            made = self._seen_in(given["view"], period, given["level"] or "team")
        amounts = [
            match(
                r"(?:(?P<kind>idle|shared|all|list|contracted|adjusted) )?(?P<value>[+-]?[\d.]+|no)"
                r" (?P<unit>\S+)",
                part.strip(),
            )
            for part in given["amounts"].split(",")
        ]
        currency = next(
            (one["unit"] for one in amounts if one["unit"] not in {"h", "kWh", "g"}), None
        )
        rows = made.totals if given["owner"] == "total" else made.rows
        mine = [
            row
            for row in rows
            if (given["owner"] == "total" or row.keys[0] == given["owner"])
            and currency in (None, row.currency)
            and given["rate"] in (None, row.exchange)
        ]
        check(
            len(mine) == 1,
            f"{len(mine)} rows of {given['owner']!r}; rows are"
            f" {[(row.keys, row.currency) for row in made.rows]}",
        )
        (row,) = mine
        currency = row.currency or "USD"
        for one in amounts:
            if one["unit"] in {"h", "kWh", "g"}:
                hours = row.gpu_hours_held_idle if one["kind"] else row.gpu_hours
                actual = {"h": hours, "kWh": row.energy_kwh, "g": row.co2e_grams}[one["unit"]]
            else:
                minor = {
                    None: row.cost_minor,
                    "idle": row.cost_held_idle_minor,
                    "shared": row.shared_minor,
                    "all": row.total_minor,
                    "adjusted": row.adjusted_minor,
                    "list": row.list_minor,
                    "contracted": row.contracted_minor,
                }[one["kind"]]
                actual = (
                    None if minor is None else Decimal(Money.from_minor(minor, currency).plain())
                )
            wanted = None if one["value"] == "no" else Decimal(one["value"])
            said = f"{one['kind']} {one['unit']}" if one["kind"] else one["unit"]
            check(
                actual == wanted,
                f"{said} is {'nothing' if actual is None else actual}, not {one['value']}",
            )

    def _report(self, where: str, level: str = "team"):
        period = zones.calendar(self.connection).days_named(period_of(where))
        aside = allocate(self.connection, period, (level,), self.now_ms)
        return (
            report(reports.charged_lines(self.connection, period, (level,)), (level,), aside),
            period,
        )

    def _seen_in(self, currency: str, period: Period, level: str):
        exchange = Exchange(commitments.EXCHANGE_RATES.in_force(self.connection), currency)
        parts = [
            (
                span,
                reports.charged_lines(self.connection, span, (level,)),
                allocate(self.connection, span, (level,), self.now_ms),
            )
            for span in exchange.spans(period)
        ]
        return view(parts, (level,), exchange)

    # how it is done

    def run(self, line: str) -> None:
        """Carries out one line."""
        verb, _, rest = line.partition(" ")
        action = getattr(self, f"do_{verb}", None)
        if action is None:
            raise Wrong(f"{verb!r} is no word that a line begins with")
        with self.connection.transaction():
            action(rest.strip())
            self._write_intervals()

    def _workload(self, name: str, tags: dict[str, str], kind: str = "slurm") -> int:
        account, user = tags.pop("account", None), tags.pop("user", None)
        return self._one(
            _WORKLOAD,
            f"{kind}::{name}",
            kind,
            name,
            account,
            user,
            json.dumps(tags),
        )

    def _usage_interval(
        self, accelerator, workload, state, start, end, held, busy, idle, record=None, energy=None
    ) -> None:
        """Keep an interval, to be written with all others of its line."""
        if record is None:
            self.batches += 1
        unknown = held - busy - idle
        measured = (start, end, held, busy, idle, unknown, energy)
        self.intervals.append(
            (accelerator, workload, state, *measured, EPOCH, self.batches, record or 0)
        )

    def _write_intervals(self) -> None:
        """Write what a line told of accelerators, and ask for the hours to be folded."""
        if not self.intervals:
            return
        days = {start - start % DAY for _, _, _, start, *_ in self.intervals}
        partitions.ensure(self.connection, "usage_interval", sorted(days))
        rows = [(*row[:10], row[0], row[3], *row[10:]) for row in self.intervals]
        hours_of = [(row[0], row[3] - row[3] % HOUR) for row in self.intervals]
        self.intervals.clear()
        with self.connection.transaction(), self.connection.cursor() as cursor:
            cursor.executemany(_INTERVAL, rows)
            cursor.executemany(_DIRTY_HOUR, hours_of)

    def _named(self, text: str) -> list[int]:
        found = []
        for part in text.split(","):
            node, _, places = part.partition("/")
            first, _, last = places.partition("-")
            found += [f"{node}/{index}" for index in range(int(first), int(last or first) + 1)]
        unknown = [name for name in found if name not in self.accelerators]
        if unknown:
            raise Wrong(f"{unknown[0]} is not there")
        return [self.accelerators[name] for name in found]

    def _mark_days(self, start_ms: int, end_ms: int | None) -> None:
        stop = min(self.now_ms, end_ms or self.now_ms)
        self.connection.execute(
            "INSERT INTO day_recompute (day_ms) SELECT d FROM generate_series(%s::bigint,"
            " %s::bigint, %s) d WHERE d IN (SELECT day_ms FROM conservation_check)",
            (start_ms - start_ms % DAY, stop, DAY),
        )

    def _one(self, query: str, *values: object):
        row = self.connection.execute(query, values).fetchone()
        assert row is not None
        return row[0]


def tell(path: Path, dsn: str) -> int:
    """Runs a scenario; how many expectations came true. Raises Wrong naming file and line."""
    held = 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        story = Story(dsn, connection)
        for number, line in statements(path.read_text(encoding="utf-8")):
            try:
                story.run(line)
            except Exception as error:
                raise Wrong(f"{path.name}:{number}: {line}\n    {error}") from error
            held += line.startswith("expect ")
    return held


def statements(text: str) -> list[tuple[int, str]]:
    """Lines with their numbers, comments and empty ones left out, continued ones put together."""
    found: list[tuple[int, str]] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.partition("#")[0].rstrip()
        if not line:
            continue
        if line[0] in " \t" and found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
        else:
            found.append((number, line))
    return found


def match(pattern: str, text: str) -> dict[str, str]:
    """The named parts of a line."""
    found = re.fullmatch(pattern, text)
    if found is None:
        raise Wrong(f"{text!r} is not of the form that README.md gives for it")
    return found.groupdict()


def check(true: bool, sentence: str) -> None:
    """Raises Wrong with the sentence."""
    if not true:
        raise Wrong(sentence)


def pairs(text: str) -> dict[str, str]:
    """`team=vision, project=x` as a mapping."""
    found = {}
    for part in re.split(r"[,\s]+", text.strip()):
        if part:
            name, _, value = part.partition("=")
            found[name] = value
    return found


def instant(text: str) -> int:
    """Unix milliseconds of an instant; UTC where it names no zone."""
    at = dt.datetime.fromisoformat(text)
    at = at if at.tzinfo is not None else at.replace(tzinfo=dt.UTC)
    return round(at.timestamp() * 1000)


def maybe(text: str | None) -> int | None:
    """The same, or None."""
    return None if text is None else instant(text)


def period_of(text: str) -> Period:
    """`in 2026-10`, or `from 2026-10-01 to 2026-10-03`."""
    found = re.fullmatch(
        r"in (?P<month>\d{4}-\d\d)|from (?P<start>\S+) to (?P<end>\S+)", text.strip()
    )
    if found is None:
        raise Wrong(f"{text!r} is no month and no range of days")
    return month(found["month"]) if found["month"] else date_range(found["start"], found["end"])


def hours(start: int, end: int):
    """A span cut at UTC hours, as agents cut theirs."""
    while start < end:
        stop = min(end, (start // HOUR + 1) * HOUR)
        yield start, stop
        start = stop
