"""Plays a world through the product, batches over HTTP and everything else by the command line, and
reads its bill.
"""

from __future__ import annotations

import contextlib
import csv
import datetime as dt
import json
import re
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import msgspec
import psycopg
from typer.testing import CliRunner

from fakes.batches import HEARTBEAT, body_of, samples
from fakes.collector import JSON, Running, running
from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain
from gpuledger_collector.wiring import read_clock
from gpuledger_common.wire import Batch as WireBatch
from gpuledger_common.wire import (
    Count,
    TokenCount,
    WireAccelerator,
    WireUsageInterval,
    WireWorkload,
)
from oracle.charged import Moved, MovedKey, Share, bill_of
from oracle.inference import Answer, LineKey, answer_of
from oracle.model import (
    LEVELS,
    WHOLE,
    Asked,
    Bill,
    Dispute,
    Entry,
    Import,
    Job,
    Key,
    NodeCost,
    Page,
    Policy,
    Price,
    Reading,
    Row,
    Rule,
    Server,
    Sighting,
    Tenant,
    activity_of,
    midnight,
)
from oracle.money import Held, date_of
from oracle.worlds import MINUTE, Batch, World

OWNER_COLUMNS = "o.org, o.team, o.project, o.experiment, o.run, o.user_name"
BY = "org,team,project,experiment,run,user,pool,model"
GPU_COUNTERS = (
    "prefill_gpu_ms",
    "decode_gpu_ms",
    "other_gpu_ms",
    "computed_tokens",
    "decoded_tokens",
)
"""What an agent calls the GPU time of a server and the tokens computed in it."""
MINOR = {"USD": 10_000, "EUR": 10_000, "JPY": 1_000_000}
"""Micro-units of the minor unit."""


class Slipped(AssertionError):
    """A row that only a slip makes was taken."""


@dataclass
class Clock:
    """The collector's clock: counters are refused some days after they were read, so it stands
    there while they come.
    """

    stands_at: int | None = None

    def __call__(self) -> int:
        return read_clock() if self.stands_at is None else self.stands_at


@dataclass
class Ledger:
    """A fresh database, a collector that listens, and the command line, for one world."""

    collector: Running
    folder: Path
    closed: dict[str, dict[str, str]] = field(default_factory=dict)
    """What was said of a month right after its close, by form."""
    closed_at: dict[str, int] = field(default_factory=dict)
    """Steps that were played before a month was closed."""
    clock: Clock = field(default_factory=Clock)
    batches: int = 0

    def command(self, *arguments: str, ends: Sequence[int] = (0,)) -> str:
        """Standard output of a gpuledger command; another exit code than these is an error."""
        result = CliRunner().invoke(build(), [*arguments, "--dsn", self.collector.dsn])
        code, said = result.exit_code, result.output
        if isinstance(result.exception, Exception):
            said, code = explain(result.exception)
            if code not in ends:
                raise result.exception
        assert code in ends, f"{' '.join(arguments)} ended with {code}: {said}"
        return str(result.stdout)

    def play(self, world: World) -> None:
        """Tell everything, in the order of the world."""
        if world.zone != "UTC":
            self.apply(f'billing_zone = "{world.zone}"\n')
        for at, (kind, what) in enumerate(world.steps):
            if kind == "look":
                self.look(world, whole=bool(what))
            elif kind == "close":
                self.close(str(what))
                if str(what) in self.closed:
                    self.closed_at.setdefault(str(what), at)
            else:
                getattr(self, f"tell_{kind}")(what)

    def apply(self, text: str) -> None:
        path = self.folder / "declared.toml"
        path.write_text(text, encoding="utf-8")
        self.command("apply", str(path))

    def write(
        self,
        kind: str,
        rows: Sequence[dict[str, object]],
        *options: str,
        ends: Sequence[int] = (0,),
    ) -> None:
        """Import rows as a CSV file."""
        path = self.folder / f"{kind}.csv"
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(
                file, list({name: None for row in rows for name in row}), restval=""
            )
            writer.writeheader()
            writer.writerows(rows)
        self.command("import", kind, str(path), *options, ends=ends)

    def tell_batch(self, batch: Batch) -> None:
        status, answer = self.collector.post(body_of(wire_of(batch)))
        assert status == 200, answer

    def tell_prices(self, prices: Sequence[Price]) -> None:
        self.write("prices", [price_row(one) for one in prices])

    def tell_inventory(self, rows: Sequence[Row]) -> None:
        self.write(
            "inventory",
            [
                {
                    "node": one.node,
                    "uuid": one.uuid,
                    "gpu_model": one.model,
                    "pool": one.pool,
                    "in_at": instant(one.start),
                    "out_at": instant(one.end),
                }
                for one in rows
            ],
        )

    def tell_import(self, rows: Sequence[Import]) -> None:
        # A world's imports are of other GPUs than those that its agents see, whatever node they
        # name.
        self.write("usage", [import_row(one) for one in rows], "--also")

    def tell_doubled(self, rows: Sequence[Import]) -> None:
        """Each row stands twice, first without an end: with --skip-bad the one that has ended
        counts.
        """
        twice = [import_row(one) for row in rows for one in (row._replace(end=None), row)]
        self.write("usage", twice, "--skip-bad", "--also")

    def tell_second(self, row: Import) -> None:
        """Slurm's accounting of a job that a table brought, under another number: refused with the
        choice.
        """
        start, end = row.start // 1000, "Unknown" if row.end is None else row.end // 1000 + 1
        cells = (
            "900",
            "hpc",
            "alpha",
            "eve",
            row.pool,
            "normal",
            "COMPLETED",
            start,
            start,
            start,
            end,
            0,
        )
        more = ("00:00:00", "cpu=8,gres/gpu=1", row.node or "other", "", "", "train")
        self.account(cells, more, ends=(2,))

    def tell_replaced(self, rows: Sequence[Import]) -> None:
        """Slurm's accounting takes the place of what a table brought for its days."""
        for row in rows:
            assert row.end is not None
            start, end, account = row.start // 1000, row.end // 1000, dict(row.job.tags)["team"]
            cells = (
                row.id,
                "hpc",
                account,
                row.job.user,
                row.pool,
                "normal",
                "COMPLETED",
                start,
                start,
                start,
                end,
                0,
            )
            more = ("00:00:00", f"cpu=8,gres/gpu={row.share // WHOLE}", row.node, "", "", "train")
            self.account(cells, more, "--replace")

    def account(
        self,
        cells: Sequence[object],
        more: Sequence[object],
        *options: str,
        ends: Sequence[int] = (0,),
    ) -> None:
        """Import a line of sacct."""
        path = self.folder / "sacct.txt"
        path.write_text("|".join(str(cell) for cell in (*cells, *more)) + "\n", encoding="utf-8")
        self.command("import", "sacct", str(path), *options, ends=ends)

    def tell_declared(self, text: str) -> None:
        self.apply(text)

    def tell_true_up(self, entry: Entry) -> None:
        """A provider's bill of a month, which asks two more for each GPU-hour of one day than the
        ledger's 10.
        """
        month = f"{entry.day:%Y-%m}"
        following = (entry.day + dt.timedelta(days=32)).replace(day=1)
        hours = sum(micro for *_, micro in entry.shares) // (2 * WHOLE)
        self.apply('[[bill_match]]\nprovider = "big cloud"\nsku = "gpu.*"\npool = "train"\n')
        path = self.folder / "bill.csv"
        path.write_text(
            "ProviderName,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,ChargeCategory,ChargePeriodStart,"
            "ChargePeriodEnd,SkuId,PricingQuantity,PricingUnit,BilledCost\n"
            f"Big Cloud,{entry.currency},{entry.day}T00:00:00Z,{following}T00:00:00Z,Usage,{entry.day}T00:00:00Z,"
            f"{entry.day + dt.timedelta(days=1)}T00:00:00Z,gpu.1x,{hours},Hours,{12 * hours}\n",
            encoding="utf-8",
        )
        self.command("import", "bill", str(path))
        who = ("--reason", "as invoiced", "--approver", "oracle")
        self.command(
            "adjustments", "true-up", "--period", month, "--bill", "big cloud", "--by", "cost", *who
        )

    def tell_nodes(self, costs: Sequence[NodeCost]) -> None:
        self.apply(
            "".join(
                table_of(
                    "node_cost", one, {"rate": "price_per_node_hour"}, bare=("price_per_node_hour",)
                )
                for one in costs
            )
        )

    def tell_policies(self, policies: Sequence[Policy]) -> None:
        texts = []
        for one in policies:
            text = table_of("adjustment", one, {"model": "gpu_model"}, bare=("percent",))
            if one.steps:
                text += (
                    "steps = {"
                    f" {', '.join(f'{json.dumps(hours)} = {rate}' for hours, rate in one.steps)}"
                    " }\n"
                )
            texts.append(text)
        self.apply("".join(texts))

    def tell_entry(self, entry: Entry) -> None:
        """A credit or a debit of one owner."""
        ((owner, pool, model, micro),) = entry.shares
        place = (*(("--pool", pool) if pool else ()), *(("--model", model) if model else ()))
        days = ("--from", str(entry.day), "--to", str(entry.day + dt.timedelta(days=1)))
        amount = f"{abs(micro) // WHOLE}.{abs(micro) % WHOLE:06d}".rstrip("0").rstrip(".")
        who = ("--owner", f"team={owner[1]}", "--reason", "as agreed", "--approver", "oracle")
        self.command(
            *(
                "adjustments",
                entry.kind,
                entry.name,
                "--amount",
                amount,
                "--currency",
                entry.currency,
            ),
            *(*days, *who, *place),
        )

    def tell_slip(self, row: Import | Price) -> None:
        """A row that is refused, and changes nothing."""
        kind, cells = (
            ("usage", import_row(row)) if isinstance(row, Import) else ("prices", price_row(row))
        )
        try:
            self.write(kind, [cells], ends=(2,))
        except AssertionError as error:
            raise Slipped(str(error)) from error

    def tell_dispute(self, dispute: Dispute) -> None:
        """A team contests what it pays of some days, and is right; what it does not pay it cannot
        contest.
        """
        days = ("--from", str(dispute.first), "--to", str(dispute.last))
        said = self.command(
            "disputes", "open", "--owner", dispute.team, *days, "--reason", "not ours", ends=(0, 2)
        )
        if number := re.search(r"dispute (\d+) is open", said):
            decision = ("--accept", "--to", f"team={dispute.to}", "--note", "so it is")
            if not self.command("disputes", "resolve", number[1], *decision, ends=(0, 2)):
                # Refused to a team that only adjustments charge: they are no time that could move.
                self.command(
                    "disputes", "resolve", number[1], "--reject", "--note", "no time to move"
                )

    def tell_rules(self, rules: Sequence[Rule]) -> None:
        def table(pairs: Sequence[tuple[str, str]]) -> str:
            return "{ " + ", ".join(f"{name} = {json.dumps(value)}" for name, value in pairs) + " }"

        self.apply(
            "".join(
                f'[[rule]]\nname = "r{at}"\nmatch = {table(one.match)}\nassign ='
                f" {table(one.assign)}\n"
                + "".join(
                    f'{name} = "{instant(at_ms)}"\n'
                    for name, at_ms in (("effective_from", one.start), ("effective_to", one.end))
                    if at_ms is not None
                )
                for at, one in enumerate(rules)
            )
        )

    def tell_servers(self, declared: tuple[Sequence[Server], Sequence[Tenant]]) -> None:
        self.apply(text_of(*declared))

    def tell_refused(self, declared: tuple[Sequence[Server], Sequence[Tenant]]) -> None:
        """Servers in a zone whose days begin within an hour."""
        path = self.folder / "declared.toml"
        path.write_text(text_of(*declared), encoding="utf-8")
        self.command("apply", str(path), ends=(2,))

    def tell_csv(self, rows: Sequence[Asked]) -> None:
        gateway, trust = rows[0].asker.gateway, rows[0].asker.trust
        claims = ("--claims",) if trust == "claim" else ()
        self.write("inference", [asked_row(one) for one in rows], "--gateway", gateway, *claims)

    def tell_post(self, rows: Sequence[Asked]) -> None:
        records = [{"claim": one.asker.trust == "claim", **asked_row(one)} for one in rows]
        body = json.dumps({"gateway": rows[0].asker.gateway, "records": records}).encode()
        status, _, answer = self.collector.request("POST", "/v1/inference", body, JSON)
        assert status == 200, answer

    def tell_page(self, pages: Sequence[Page]) -> None:
        """Readings of a gateway's page, as an agent beside it sends them."""
        counts = []
        for page in pages:
            read = TokenCount(page.gateway, "http://gw/metrics", page.at, started_ms=page.started)
            counts.append(read)
            counts += [
                msgspec.structs.replace(
                    read,
                    counter=kind,
                    value=value,
                    tenant=asker.tenant,
                    model=asker.model,
                    backend=asker.backend,
                    claim=asker.trust == "claim",
                )
                for asker, kind, value in page.values
            ]
        self.count("gw-1", pages[-1].at, token_counts=counts)

    def tell_readings(self, readings: Sequence[Reading]) -> None:
        """Counters of a server, as the agent of its node sends them."""
        counts = [
            Count(
                0,
                "http://server/metrics",
                counter,
                one.at,
                value,
                engine="sglang" if one.gpu else "vllm",
            )
            for one in readings
            for counter, value in (
                ("prompt_tokens", one.input),
                ("generated_tokens", one.output),
                *zip(GPU_COUNTERS, one.gpu, strict=False),
            )
        ]
        first = readings[0]
        self.count(first.node, readings[-1].at, [wire_workload(first.job)], counts=counts)

    def count(self, node: str, at: int, workloads: Sequence[WireWorkload] = (), **counts) -> None:
        """Send counters, shortly after they were read."""
        self.batches += 1
        batch = WireBatch(
            version=1,
            node=node,
            epoch=str(uuid.uuid5(uuid.NAMESPACE_URL, node)),
            seq=self.batches,
            heartbeat=HEARTBEAT,
            workloads=list(workloads),
            **counts,
        )
        self.clock.stands_at = at + MINUTE
        try:
            status, answer = self.collector.post(body_of(batch))
        finally:
            self.clock.stands_at = None
        assert status == 200, answer
        assert not answer.get("rejected"), answer

    def look(self, world: World, *, whole: bool) -> None:
        """A report in between, of all days or of one."""
        last = world.last if whole else world.first + dt.timedelta(days=1)
        self.chargeback(world.first, last, "team")

    def chargeback(self, first: dt.date, last: dt.date, by: str, shape: str = "json") -> str:
        days = ("--from", str(first), "--to", str(last))
        return self.command("chargeback", *days, "--by", by, "--format", shape, ends=(0, 1))

    def inference(self, first: dt.date, last: dt.date) -> dict[str, list[dict[str, object]]]:
        """What tenants pay, in micro-units."""
        path = f"/v1/inference?from={first}&to={last}&by={LINES_BY}"
        status, _, answer = self.collector.request("GET", path)
        assert status == 200, answer
        assert not answer["left_out"], path
        return answer

    def close(self, month: str) -> None:
        """Close a month; without any charge there is nothing to close."""
        said = self.command(
            "close", "--period", month, "--allow-unpriced", "--by", "oracle", ends=(0, 1)
        )
        if "is closed" in said:
            self.closed[month] = self.sealed(month)

    def sealed(self, month: str) -> dict[str, str]:
        """A closed month in all its forms: they are to stay the same bytes."""
        first = dt.date.fromisoformat(f"{month}-01")
        last = (first + dt.timedelta(days=32)).replace(day=1)
        found = {shape: self.chargeback(first, last, BY, shape) for shape in ("csv", "focus")}
        found["seal"] = self.command("periods", "--verify", month)
        return found

    def bill(self, until_ms: int) -> Bill:
        """Booked lines and corrections of days before an instant, by the time of use."""
        columns = "day_ms, owner_id, state, pool, gpu_model, node, currency, gpu_ns, cost_micro"
        query = f"""
            SELECT day_ms, owner_id IS NULL, {OWNER_COLUMNS}, state, pool, gpu_model, node, coalesce(currency, ''),
                sum(gpu_ns)::text, coalesce(sum(cost_micro), 0)::text
            FROM (SELECT {columns} FROM charge UNION ALL SELECT {columns} FROM correction) c
            LEFT JOIN owner o ON o.id = c.owner_id WHERE day_ms < {until_ms}
            GROUP BY {", ".join(str(at) for at in range(1, 14))}
        """
        with psycopg.connect(self.collector.dsn) as connection:
            rows = connection.execute(query).fetchall()
        found = {
            Key(row[0], None if row[1] else tuple(row[2:8]), *row[8:13]): (
                int(row[13]),
                int(row[14]),
            )
            for row in rows
        }
        return {key: amounts for key, amounts in found.items() if any(amounts)}

    def moved(self, until_ms: int) -> Moved:
        """What moved from payers of servers to owners of tenants, booked and corrected."""
        columns = "day_ms, owner_id, pool, gpu_model, currency, cost_micro, inference_id"
        query = f"""
            SELECT day_ms, s.server, s.gateway, s.tenant, s.trust, {OWNER_COLUMNS}, pool, gpu_model,
                currency, sum(cost_micro)::bigint
            FROM (SELECT {columns} FROM charge UNION ALL SELECT {columns} FROM correction) c
            JOIN inference_share s ON s.id = c.inference_id JOIN owner o ON o.id = c.owner_id
            WHERE day_ms < {until_ms} GROUP BY {", ".join(str(at) for at in range(1, 15))}
        """
        with psycopg.connect(self.collector.dsn) as connection:
            rows = connection.execute(query).fetchall()
        return {
            MovedKey(day, Share(*row[:4]), Held(tuple(row[4:10]), *row[10:13])): row[13]
            for day, *row in rows
            if row[13]
        }


@contextlib.contextmanager
def opened(dsn: str, folder: Path) -> Iterator[Ledger]:
    """A ledger over this database until the block ends."""
    clock = Clock()
    with running(dsn, clock=clock, gateway_nodes="*") as collector:
        yield Ledger(collector, folder, clock=clock)


def differences(world: World, ledger: Ledger) -> list[str]:
    """What the ledger says otherwise than the oracle, after all has been told; and what it says
    otherwise of itself.
    """
    said = read(world, ledger)
    expected, wanted, _ = bill_of(world.facts(), world.first, world.last)
    until_ms = midnight(world.last, world.zone)
    actual, moved = ledger.bill(until_ms), ledger.moved(until_ms)
    found = [
        f"{named(key)}: {expected.get(key, (0, 0))} expected, {actual.get(key, (0, 0))} found"
        for key in sorted({*expected, *actual}, key=str)
        if expected.get(key) != actual.get(key)
    ]
    found += [
        f"moved {key}: {wanted.get(key, 0)} expected, {moved.get(key, 0)} found"
        for key in sorted({*wanted, *moved})
        if wanted.get(key, 0) != moved.get(key, 0)
    ]
    if said is not None:
        found += report_differences(said, expected)
    for month, before in ledger.closed.items():
        after = ledger.sealed(month)
        found += [
            f"{month} is closed, and its {shape} has changed"
            for shape in after
            if after[shape] != before[shape]
        ]
    proof = json.loads(
        ledger.command("reconcile", *days_of(world), "--format", "json", ends=(0, 1))
    )
    found += inference_differences(world, ledger)
    found += [
        f"the proof of {day['day']} does not hold" for day in proof["days"] if not day["holds"]
    ]
    return found


def read(world: World, ledger: Ledger) -> dict[str, list[dict[str, object]]] | None:
    """The chargeback of all days.

    With closed months only of those that are open, and of today: what is late for a closed month is
    booked there, whether anybody has looked at that month or not.
    """
    if not ledger.closed:
        return json.loads(ledger.chargeback(world.first, world.last, BY))
    day = world.first
    while day < world.last:
        following = (day.replace(day=1) + dt.timedelta(days=32)).replace(day=1)
        if f"{day:%Y-%m}" not in ledger.closed:
            ledger.chargeback(day, min(following, world.last), "team")
        day = following
    today = dt.datetime.now(dt.UTC).date()
    ledger.chargeback(today - dt.timedelta(days=1), today + dt.timedelta(days=2), "team")
    return None


def days_of(world: World) -> tuple[str, ...]:
    """The days of a world as options of a command."""
    return ("--from", str(world.first), "--to", str(world.last))


def report_differences(said: dict[str, list[dict[str, object]]], expected: Bill) -> list[str]:
    """The chargeback's rows, exact and as printed, beside what the oracle makes of them."""
    wanted: dict[tuple[object, ...], list[int]] = defaultdict(lambda: [0, 0])
    # While nothing has a price the rows are hours by holder.
    has_price = any(key.currency for key in expected)
    for key, (ns, micro) in expected.items():
        entry = wanted[cells_of(key, has_price)]
        entry[0] += ns
        entry[1] += micro
    names = (*BY.split(","), "currency")
    rows = {
        tuple(row[name] or "" for name in names): (row["gpu_ns"], row["cost_micro"] or 0)
        for row in said["rows"]
    }
    found = [
        f"chargeback {cells}: {wanted.get(cells)} expected, {rows.get(cells)} found"
        for cells in sorted({*wanted, *rows}, key=str)
        if tuple(wanted.get(cells, (0, 0))) != rows.get(cells, (0, 0))
    ]
    for total in said["totals"]:
        mine = [
            micro
            for key, (_, micro) in expected.items()
            if key.currency == (total["currency"] or "")
        ]
        if total["currency"]:
            minor = MINOR[total["currency"]]
            if Fraction(str(total["cost"])) != Fraction(
                round(Fraction(sum(mine), minor)) * minor, WHOLE
            ):
                found.append(
                    f"chargeback prints {total['cost']} {total['currency']} for {sum(mine)}"
                    " micro-units"
                )
    return found


LINES_BY = "server,day,gateway,tenant,model,owner"


def inference_differences(world: World, ledger: Ledger) -> list[str]:
    """Lines of tenants and sums of servers beside the oracle's; of all days together, and of each
    day alone.
    """
    closes = {month: world.facts(at) for month, at in ledger.closed_at.items()}
    expected = answer_of(world.facts(), closes, world.first, world.last)
    # The command brings what it reads up to date; the answers over HTTP do not.
    said = json.loads(ledger.command(*("inference", "list"), *days_of(world), "--format", "json"))
    cost = sum(Fraction(row["cost"] or 0) for row in said)
    wanted = Fraction(sum(line.used + line.idle for line in expected.lines.values()), WHOLE)
    found = []
    if abs(cost - wanted) > 2:
        found.append(f"inference list: {wanted} expected, {cost} found")
    whole = ledger.inference(world.first, world.last)
    found += line_differences("inference", expected, whole["items"], world.zone)
    found += server_differences(expected, whole["servers"])
    by_day = []
    for at in range((world.last - world.first).days):
        day = world.first + dt.timedelta(days=at)
        by_day += ledger.inference(day, day + dt.timedelta(days=1))["items"]
    return found + line_differences("inference of one day", expected, by_day, world.zone)


def line_differences(
    what: str, expected: Answer, items: Sequence[dict[str, object]], zone: str
) -> list[str]:
    """Lines of an answer beside the oracle's."""
    costs = ("used", "idle", "borrowed", "lent", "charged")
    names = [f"cost_{name}_micro" for name in costs]
    counts = ("input_tokens", "cached_tokens", "output_tokens", "requests")
    wanted: dict[tuple[object, ...], list[int]] = defaultdict(lambda: [0] * 9)
    for key, amounts in expected.lines.items():
        cells = cells_of_line(key, zone)
        for at, value in enumerate((*amounts, *expected.tokens[key])):
            wanted[cells][at] += value
    actual = {
        (*(item[name] for name in LINES_BY.split(",")), item["currency"] or ""): [
            item[name] or 0 for name in (*names, *counts)
        ]
        for item in items
    }
    return [
        f"{what} {cells}: {wanted.get(cells)} expected, {actual.get(cells)} found"
        for cells in sorted({*wanted, *actual}, key=str)
        if (wanted.get(cells) or [0] * 9) != (actual.get(cells) or [0] * 9)
    ]


def cells_of_line(key: LineKey, zone: str) -> tuple[object, ...]:
    """The cells of a line of tenants."""
    is_tenant = key.tenant not in ("(nobody)", "(idle)")
    owner = f"team={key.team}" if key.team else "(unattributed)" if is_tenant else key.tenant
    return (
        key.server,
        str(date_of(key.day, zone)),
        key.gateway,
        key.tenant or "(unattributed)",
        key.model,
        owner,
        key.currency,
    )


def server_differences(expected: Answer, items: Sequence[dict[str, object]]) -> list[str]:
    """Sums of servers beside the oracle's."""
    wanted: dict[tuple[str, str], dict[str, object]] = {}
    for name, currency in {(name, currency) for name, _, currency in expected.servers}:
        days = [
            day for (own, _, of), day in expected.servers.items() if (own, of) == (name, currency)
        ]
        known = [day for day in days if day.counted is not None]
        counted = [sum(day.counted[at] for day in known) for at in (0, 1)]
        asked = sum(day.asked for day in known)
        left = sum(
            line.idle
            for key, line in expected.lines.items()
            if (key.server, key.currency, key.tenant) == (name, currency, "(idle)")
        )
        wanted[name, currency] = {
            "cost_micro": sum(day.cost for day in days) if currency else None,
            "cost_used_micro": sum(day.used for day in days) if currency else None,
            "cost_platform_micro": left if currency else None,
            "server_input_tokens": counted[0] if known else None,
            "server_output_tokens": counted[1] if known else None,
            "coverage": (
                None if not sum(counted) else Fraction(asked * 10_000 // sum(counted), 10_000)
            ),
            "scaled_days": sum(day.is_scaled for day in days),
        }
    actual = {
        (item["server"], item["currency"] or ""): {
            **item,
            "coverage": None if item["coverage"] is None else Fraction(item["coverage"]),
        }
        for item in items
    }
    if wanted.keys() != actual.keys():
        return [f"servers: {sorted(wanted)} expected, {sorted(actual)} found"]
    return [
        f"server {key}: {name} {value} expected, {actual[key][name]} found"
        for key, values in sorted(wanted.items())
        for name, value in values.items()
        if actual[key][name] != value
    ]


def cells_of(key: Key, has_price: bool) -> tuple[object, ...]:
    """The cells of a chargeback's row: what nobody holds, nobody is known to pay or no rate covers
    has a marker.

    `has_price`: something in the period has a price.
    """
    width = len(BY.split(","))
    if has_price and not key.currency:
        return ("(unpriced)", *[""] * (width - 1), "")
    if key.owner is None:
        return (f"({key.state})", *[""] * (len(LEVELS) - 1), key.pool, key.model, key.currency)
    return (*(level or "(unattributed)" for level in key.owner), key.pool, key.model, key.currency)


def named(key: Key) -> str:
    """A key for people."""
    owner = "nobody" if key.owner is None else "/".join(key.owner)
    where = f"{key.pool}, {key.model or 'no model'}, {key.node or 'no node'}"
    return f"{instant(key.day)} {owner} {key.state} in {where}, {key.currency or 'unpriced'}"


def table_of(
    name: str, one: NodeCost | Policy, names: dict[str, str], *, bare: Sequence[str]
) -> str:
    """A declaration as TOML: what is empty is left out, and a team is its owner."""
    lines = [f"[[{name}]]"]
    for field_name, value in one._asdict().items():
        key = {"first": "effective_from", "last": "effective_to", **names}.get(
            field_name, field_name
        )
        if key == "team" and value:
            lines.append(f"owner = {{ team = {json.dumps(value)} }}")
        elif value and key != "steps":
            lines.append(
                f"{key} ="
                f" {value if key in bare or isinstance(value, dt.date) else json.dumps(value)}"
            )
    return "\n".join(lines) + "\n"


def price_row(one: Price) -> dict[str, object]:
    return {
        "pool": one.pool,
        "gpu_model": one.model,
        "purchase": one.purchase,
        "rate_per_gpu_hour": one.rate,
        "currency": one.currency,
        "effective_from": instant(one.start),
        "effective_to": instant(one.end),
        "node": one.node,
    }


def text_of(servers: Sequence[Server], tenants: Sequence[Tenant]) -> str:
    """Servers and tenants as TOML."""

    def quoted(names: Sequence[str]) -> str:
        return f"[{', '.join(map(json.dumps, names))}]"

    lines = []
    for server in servers:
        lines += ["[[inference]]", f"name = {json.dumps(server.name)}"]
        lines += [f"gateway = {json.dumps(server.gateway)}"] if server.gateway else []
        lines.append(f"models = {quoted(server.models)}")
        lines += [f"backends = {quoted(server.backends)}"] if server.backends else []
        match = ", ".join(f"{name} = {json.dumps(text)}" for name, text in server.served_by)
        lines += [f"served_by = {{ {match} }}", f'weights = "{" : ".join(server.weights)}"']
        lines.append(f'weights_from = "{server.weights_from}"')
        lines.append(f'idle = "{server.idle}"')
        lines += [f'mode = "{server.mode}"', f'claims = "{server.claims}"']
        if server.reserved:
            shares = ", ".join(f"{json.dumps(name)} = {share}" for name, share in server.reserved)
            lines.append(f"reserved = {{ {shares} }}")
        lines += dates_of(server)
    for tenant in tenants:
        lines += ["[[tenant]]", f"tenant = {json.dumps(tenant.tenant)}"]
        lines += [f"gateway = {json.dumps(tenant.gateway)}"] if tenant.gateway else []
        lines.append(f"owner = {{ team = {json.dumps(tenant.team)} }}")
        lines += dates_of(tenant)
    return "\n".join(lines) + "\n"


def dates_of(one: Server | Tenant) -> list[str]:
    """Days on which it holds, as lines."""
    dates = {"effective_from": one.first, "effective_to": one.last}
    return [f"{name} = {date}" for name, date in dates.items() if date is not None]


def asked_row(one: Asked) -> dict[str, object]:
    given, cached, output, requests = one.tokens
    return {
        "id": one.id,
        "start": instant(one.start),
        "end": instant(one.end),
        "model": one.asker.model,
        "tenant": one.asker.tenant,
        "backend": one.asker.backend,
        "input_tokens": given,
        "cached_tokens": cached,
        "output_tokens": output,
        "requests": requests,
    }


def import_row(one: Import) -> dict[str, object]:
    return {
        "workload_id": one.id,
        "start": instant(one.start),
        "end": instant(one.end),
        "gpus": f"{one.share // WHOLE}.{one.share % WHOLE:06d}",
        "gpu_model": one.model,
        "pool": one.pool,
        "node": one.node,
        "user": one.job.user,
        **{f"tag:{name}": value for name, value in one.job.tags},
    }


def instant(at_ms: int | None) -> str:
    """RFC 3339 with milliseconds; empty for none."""
    if at_ms is None:
        return ""
    at = dt.datetime.fromtimestamp(at_ms // 1000, dt.UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"


def wire_of(batch: Batch) -> WireBatch:
    """A batch as the agent sends it."""
    uuids = list(dict.fromkeys(one.uuid for one in batch.sightings))
    jobs = list(dict.fromkeys(job for one in batch.sightings for job, _ in one.holders))
    faces = {one.uuid: one for one in batch.sightings}
    seen = [one for one in batch.sightings if one.state == "present"]
    rows = samples(0, ())
    if seen:
        instants = [
            (uuids.index(one.uuid), at)
            for one in seen
            for at in (*range(one.start, one.end - 1, MINUTE), one.end - 1)
        ]
        made = samples(1, [at for _, at in instants])
        rows = type(made)([place for place, _ in instants], made.at_ms, made.columns)
    return WireBatch(
        version=1,
        node=batch.node,
        epoch=str(uuid.uuid5(uuid.NAMESPACE_DNS, batch.node)),
        seq=batch.seq,
        heartbeat=HEARTBEAT,
        accelerators=[wire_accelerator(at, faces[one]) for at, one in enumerate(uuids)],
        workloads=[wire_workload(job) for job in jobs],
        usage_intervals=[
            usage_interval
            for one in batch.sightings
            for usage_interval in usage_intervals_of(one, uuids, jobs)
        ],
        samples=rows,
    )


def wire_accelerator(index: int, one: Sighting) -> WireAccelerator:
    return WireAccelerator(
        uuid=one.uuid,
        device_uuid=one.device,
        index=index,
        model=one.model,
        mig_instance=one.mig or None,
        gpu_micro=one.share,
        pool=one.pool,
    )


def wire_workload(job: Job) -> WireWorkload:
    return WireWorkload(
        id=job.id,
        kind=job.kind,
        user=job.user or None,
        account=job.account or None,
        name=job.name or None,
        tags=dict(job.tags),
    )


def usage_intervals_of(
    one: Sighting, uuids: Sequence[str], jobs: Sequence[Job]
) -> Iterator[WireUsageInterval]:
    place = uuids.index(one.uuid)
    if one.state == "held":
        for job, ms in one.holders:
            yield WireUsageInterval(
                place,
                "held",
                one.start,
                one.end,
                jobs.index(job),
                ms,
                *activity_of(ms),
            )
    elif one.state != "present":
        yield WireUsageInterval(place, one.state, one.start, one.end)
