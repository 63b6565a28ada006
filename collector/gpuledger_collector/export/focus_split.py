"""FOCUS 1.4: the rows of 1.2 with its providers' new names, and shared devices as charges that were
split.

What was used of one physical device on one day at one rate is the *origin charge*. Where more than
one holder or state had a part of it, or a MIG instance did, each row is an *allocated charge*: its
resource is the device, the receiver is in the Allocated columns, and its ratio is its part of the
origin's GPU-time. Ratios are billionths by largest remainder, so that those of an origin add up to
exactly 1 (FOCUS 1.3, data generator-calculated split cost allocation).

What tenants of a shared model server pay for a day is an origin as well: the server is the
resource, each tenant a receiver, and its ratio its part of what all of them take over. What the
server's payers get back for it is a row of its own, as in 1.2.

The sub-account is that of the owner who pays the row: FOCUS has no other column for it. Corrections
amend charges that were split before, and are not split again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from gpuledger_collector.accounting.cash import Purchase
from gpuledger_collector.accounting.chargeback import UNATTRIBUTED, SharedPart
from gpuledger_collector.accounting.closing import BillingMonth
from gpuledger_collector.accounting.inference_share import InferenceShare
from gpuledger_collector.accounting.ledger import ExportedCharge
from gpuledger_collector.accounting.usage import HELD
from gpuledger_collector.export import focus
from gpuledger_collector.export.cells import names, neutral
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_common.largest_remainder import split

METHOD = "dominant-share-v1"
"""A MIG instance's part of a device is the larger of its shares of compute and memory; holders of
one accelerator share its time by what each of them held.
"""
SERVER_METHOD = "weighted-tokens-v1"
"""A tenant's part of a model server is that of its tokens, by the weights of the day; idle cost goes
by the declared rule.
"""
ALLOCATED = names("""
    AllocatedMethodDetails AllocatedMethodId AllocatedResourceId AllocatedResourceName AllocatedTags
    """)
COLUMNS = (
    *ALLOCATED,
    *(
        name
        for name in focus.COLUMNS
        if name not in {"ProviderName", "PublisherName"} and not name.startswith("x_")
    ),
    "HostProviderName",
    "ServiceProviderName",
    *(name for name in focus.COLUMNS if name.startswith("x_")),
)
BILLING_PERIODS: Report[BillingMonth] = Report(
    "billing-periods",
    (
        Column("BillingPeriodCreated", lambda month: month.period.start_ms, Kind.INSTANT),
        Column("BillingPeriodEnd", lambda month: month.period.end_ms, Kind.INSTANT),
        Column("BillingPeriodLastUpdated", lambda month: month.updated_ms, Kind.INSTANT),
        Column("BillingPeriodStart", lambda month: month.period.start_ms, Kind.INSTANT),
        Column("BillingPeriodStatus", lambda month: "Closed" if month.is_closed else "Open"),
        Column("InvoiceIssuerName", lambda _: focus.Issuer().name),
    ),
)
"""FOCUS 1.4's billing periods: a row for each month; a closed one never opens again."""
Pair = tuple[ExportedCharge, focus.Row]


def lines(
    book: focus.Book,
    charges: Iterable[ExportedCharge],
    payments: Iterable[Purchase],
    shares: Iterable[SharedPart],
) -> Iterator[focus.Row]:
    """The rows of `focus.lines` as FOCUS 1.4 has them; `charges` come day by day, as
    `reports.charges` gives them.
    """
    pairs = focus.usage_rows(book, charges)
    for (booked_ms, _), day in groupby(
        pairs, lambda pair: (pair[0].booked_day_ms, pair[0].charge.day_ms)
    ):
        pairs_of_day = list(day)
        # A correction amends a charge that was split already; splitting the difference again would
        # need its ratios.
        if booked_ms is None:
            _split(pairs_of_day)
            _split_servers(pairs_of_day)
        for _, row in pairs_of_day:
            yield _rename_columns(row)
    yield from map(_rename_columns, focus.purchase_rows(book, payments))
    yield from map(_rename_columns, focus.adjustments(book, shares))


def _rename_columns(row: focus.Row) -> focus.Row:
    """1.4 knows who offers a service and who hosts it: on a marketplace the seller offers what the
    provider hosts.
    """
    provider = row.pop("ProviderName")
    publisher = row.pop("PublisherName")
    return {**row, "ServiceProviderName": publisher, "HostProviderName": provider}


def _split(day: Sequence[Pair]) -> None:
    """Fill in the Allocated columns of a day's rows, device by device and rate by rate."""
    origins: dict[tuple[str, ...], list[Pair]] = defaultdict(list)
    for exported, row in day:
        if exported.accelerator_uuid is not None:
            device = exported.device_uuid or exported.accelerator_uuid
            terms = (
                row["SkuPriceId"],
                row.get("CommitmentDiscountId", ""),
                row.get("RegionId", ""),
            )
            origins[device, *terms].append((exported, row))
    for (device, *_), pairs in origins.items():
        # A device used by one holder alone is not split; an instance of a device always is.
        if len(pairs) > 1 or pairs[0][0].accelerator_uuid != device:
            _allocate(device, pairs)


def _split_servers(day: Sequence[Pair]) -> None:
    """Fill in the Allocated columns of what tenants pay for shared model servers."""
    origins: dict[tuple[str, str], list[tuple[Pair, InferenceShare]]] = defaultdict(list)
    for exported, row in day:
        share = exported.charge.inference
        if share is not None and not share.is_payers:
            origins[share.server, row["BillingCurrency"]].append(((exported, row), share))
    for (server, currency), parts in origins.items():
        ratios = split(focus.NANO, [abs(pair[0].charge.cost_micro or 0) for pair, _ in parts])
        for ((_, row), share), ratio in zip(parts, ratios, strict=True):
            details = {
                "Elements": [{"AllocatedRatio": "ratio"}],
                "x_Weights": share.weights,
            }
            tenant = share.tenant or UNATTRIBUTED
            row |= {
                # What is paid in another currency is another origin.
                "ResourceId": neutral(f"{server}/{currency}"),
                "ResourceName": neutral(server),
                "ResourceType": "Model server",
                "Tags": "{}",
                "AllocatedMethodId": SERVER_METHOD,
                "AllocatedMethodDetails": json.dumps(details).replace(
                    '"ratio"', focus.fixed_decimal(ratio, 9)
                ),
                "AllocatedTags": row["Tags"],
                "AllocatedResourceId": neutral(f"{share.gateway}/{tenant}"),
                "AllocatedResourceName": neutral(tenant),
            }


def _allocate(device: str, pairs: Sequence[Pair]) -> None:
    # Billionths by largest remainder: rounded one by one, ratios would not add up to 1.
    ratios = split(focus.NANO, [exported.charge.gpu_ns for exported, _ in pairs])
    # All parts of an origin have the origin's charge period, which covers theirs.
    span = {
        "ChargePeriodStart": min(row["ChargePeriodStart"] for _, row in pairs),
        "ChargePeriodEnd": max(row["ChargePeriodEnd"] for _, row in pairs),
    }
    for (exported, row), ratio in zip(pairs, ratios, strict=True):
        node = exported.charge.node
        # Quantities are written as they stand in the row: JSON numbers made from floats would not
        # be exact.
        element = (
            f'{{"AllocatedRatio": {focus.fixed_decimal(ratio, 9)}, "UsageUnit": "GPU-Seconds", '
            f'"UsageQuantity": {row["ConsumedQuantity"]}}}'
        )
        row |= span | {
            "ResourceId": neutral(device),
            "ResourceName": neutral(f"{node}/{device}" if node else device),
            "ResourceType": "GPU",
            "Tags": "{}",
            "AllocatedMethodId": METHOD,
            "AllocatedMethodDetails": f'{{"Elements": [{element}]}}',
            "AllocatedTags": row["Tags"],
            **_receiver(exported, device),
        }


def _receiver(exported: ExportedCharge, device: str) -> Mapping[str, str]:
    """Who has the part: the MIG instance, else the workload; what nobody held is the unallocated
    part of its origin.
    """
    if exported.charge.state != HELD:
        return {}
    workload = exported.workload_key or "(no workload)"
    name = exported.workload_name or workload
    if exported.accelerator_uuid is not None and exported.accelerator_uuid != device:
        return {
            "AllocatedResourceId": neutral(exported.accelerator_uuid),
            "AllocatedResourceName": neutral(f"{exported.accelerator_uuid} ({name})"),
        }
    return {"AllocatedResourceId": neutral(workload), "AllocatedResourceName": neutral(name)}
