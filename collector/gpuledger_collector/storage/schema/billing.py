"""Prices and commitments, closed periods, budgets, disputes, and the bills of providers."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from gpuledger_collector.accounting.personal_data import Person
from gpuledger_collector.storage.schema.columns import (
    BIG,
    INSTANT,
    JSONB,
    RATE,
    SUM,
    TEXT,
    column,
    foreign,
    identity,
    index,
    key,
    keys,
    optional,
    required_columns,
    table,
    texts,
    version_columns,
)
from gpuledger_collector.storage.schema.ledger import charge_columns, check_columns, job_columns

table(
    "price",
    "The price book: rows are superseded, never edited.",
    identity(),
    *texts("pool", "gpu_model"),
    *required_columns(TEXT, "purchase"),
    *required_columns(RATE, "rate_per_gpu_hour"),
    *optional(RATE, "list_rate"),
    *required_columns(TEXT, "currency"),
    *required_columns(BIG, "effective_from_ms"),
    *optional(BIG, "effective_to_ms"),
    *texts("region", "node"),
    *version_columns(),
    column("basis", JSONB, "inputs and parts of a derived rate", nullable=True),
)

table(
    "node_purchase",
    "How nodes are bought as the labels of their clouds say it: a row where that changes.",
    key("node", TEXT, "name"),
    key("from_ms", BIG, "the hour from which it holds"),
    *required_columns(TEXT, "purchase"),
)

table(
    "commitment",
    "Capacity paid for a term, used or not: rows are superseded, never edited.",
    identity(),
    *required_columns(TEXT, "name"),
    *texts("pool", "gpu_model", "node", "region"),
    *required_columns(BIG, "gpus"),
    column("upfront_micro", BIG, "micro-units of the currency, amortized over the term"),
    column("rate_per_gpu_hour", RATE, "recurring: paid for every committed GPU-hour"),
    *required_columns(TEXT, "currency"),
    *required_columns(BIG, "starts_ms", "ends_ms"),
    *version_columns(),
    sa.CheckConstraint(
        "ends_ms > starts_ms AND starts_ms % 3600000 = 0 AND ends_ms % 3600000 = 0", name="term"
    ),
)

table(
    "purchase_choice",
    "Which purchase applies where: the first match by position.",
    identity(),
    *texts("name"),
    *required_columns(sa.Integer, "position"),
    *texts("pool", "gpu_model", "node"),
    column("tags", JSONB, "workload tags; only for usage imported as counts"),
    *required_columns(TEXT, "purchase"),
    *optional(BIG, "effective_from_ms", "effective_to_ms"),
    *version_columns(),
)

table(
    "exchange_rate",
    "Exchange rates for reports; the ledger keeps its currencies.",
    identity(),
    *required_columns(TEXT, "from_currency", "to_currency"),
    *required_columns(RATE, "rate"),
    *required_columns(BIG, "effective_from_ms"),
    *version_columns(),
)

table(
    "shared_cost",
    "Costs that owners share by a declared key: rows are superseded, never edited.",
    identity(),
    *required_columns(TEXT, "name"),
    column("source", TEXT, "amount, or the state whose cost is shared"),
    column("amount_micro", BIG, "per month; null: a state's cost", nullable=True),
    *optional(TEXT, "currency"),
    column("pool", TEXT, "of the state's cost; empty: every pool", default=""),
    column("key", TEXT, "cost, gpu_hours, even or weights"),
    column("level", TEXT, "owner level that shares"),
    column("weights", JSONB, "owner -> integer, for key weights"),
    column("scope", JSONB, "level -> owner: only owners below share"),
    *optional(sa.Date, "from_on", "to_on"),
    *version_columns(),
)

table(
    "inference_server",
    "Model servers that tenants share: rows are superseded, never edited.",
    identity(),
    *required_columns(TEXT, "name"),
    *texts("gateway"),
    column("models", TEXT, "as the gateway calls them, with commas between; * as wildcard"),
    *texts("backends"),
    column("served_by", JSONB, "tags and facts of its workloads"),
    column("served_model", TEXT, "model_name of its counters; empty: any", default=""),
    column("weights", TEXT, "of an input, a cached and an output token"),
    column("idle", TEXT, "who pays for idle time: tokens, reservations or platform"),
    column("reserved", JSONB, "tenant -> share of the server", person=Person.WORDS),
    *required_columns(TEXT, "mode"),
    column("claims", TEXT, "charged; empty: what callers only claim is shown", default=""),
    column("weights_from", TEXT, "gpu_seconds: of each day; empty: declared", default=""),
    *optional(sa.Date, "from_on", "to_on"),
    *version_columns(),
    stays="declared in a file: put the pseudonym there and apply it",
)

table(
    "inference_share",
    "Tenants' parts of shared servers, which charges of the state inference name. Never changed.",
    identity(),
    *required_columns(TEXT, "server"),
    *texts("gateway"),
    column("tenant", TEXT, "as it is booked", default="", person=Person.NAME),
    column("trust", TEXT, "empty: what the payers of the server get back", default=""),
    column("weights", TEXT, "of an input, a cached and an output token"),
    sa.UniqueConstraint("server", "gateway", "tenant", "trust", "weights"),
    stays="a tenant of sealed months or of charges that are rated again soon",
)

table(
    "inference_tenant",
    "Owners of tenants of gateways: rows are superseded, never edited.",
    identity(),
    *texts("gateway"),
    column("tenant", TEXT, "as the gateway says", person=Person.NAME),
    column("owner", JSONB, "level -> owner"),
    *optional(sa.Date, "from_on", "to_on"),
    *version_columns(),
    stays="declared in a file: put the pseudonym there and apply it",
)

table(
    "closed_inference",
    "How days of closed months were split among tenants, as it stood at the close.",
    column("period_start_ms", BIG, "of the closed month"),
    column("day_ms", BIG, "start of the day in the billing zone"),
    column("server", TEXT, "name of the shared server"),
    column("gateway", TEXT, "empty: (nobody) or (idle)"),
    column("tenant", TEXT, "empty: a key without a team", person=Person.NAME),
    *required_columns(TEXT, "model", "trust"),
    column("owner", JSONB, "level -> owner; empty: none is declared"),
    *required_columns(BIG, "input", "cached", "output", "requests"),
    column("weighted", SUM, "tokens by their weights, scaled to those of the server"),
    column("currency", TEXT, "empty: it cost nothing"),
    *required_columns(BIG, "used_micro", "idle_micro", "borrowed_micro", "lent_micro"),
    column("is_charged", sa.Boolean, "to its owner", default="false"),
    index("period_start_ms"),
    stays="a record of a closed month",
)

table(
    "closed_inference_server",
    "What shared servers counted and cost on days of closed months, as it stood at the close.",
    column("period_start_ms", BIG, "of the closed month"),
    *required_columns(BIG, "day_ms"),
    *required_columns(TEXT, "server"),
    column("currency", TEXT, "empty: it cost nothing"),
    *required_columns(BIG, "cost_micro", "used_micro"),
    column("counted_input", BIG, "by the server; null: not known", nullable=True),
    column("counted_output", BIG, "by the server; null: not known", nullable=True),
    *required_columns(sa.Boolean, "is_scaled"),
    column("weights", TEXT, "of an input, a cached and an output token"),
    index("period_start_ms"),
)

table(
    "api_price",
    "What APIs charge for a million tokens, to compare with: rows are superseded, never edited.",
    identity(),
    *required_columns(TEXT, "name"),
    column("models", TEXT, "as gateways call them, with commas between; * as wildcard"),
    *required_columns(RATE, "input", "cached", "output"),
    *required_columns(TEXT, "currency"),
    *optional(sa.Date, "from_on", "to_on"),
    *version_columns(),
)

table(
    "inference_day",
    "What shared servers cost and counted by day, as last split; for dashboards.",
    key("server", TEXT),
    key("day_ms", BIG),
    key("currency", TEXT, "empty: it cost nothing"),
    *required_columns(BIG, "cost_micro", "used_micro"),
    column("asked", BIG, "input and output tokens of gateways"),
    column("counted", BIG, "the same by the server; null: not known", nullable=True),
    column("weighted", SUM, "tokens by their weights, scaled to those of the server"),
    column("weights", TEXT, "of an input, a cached and an output token"),
    column(
        "computed",
        SUM,
        "input tokens that were not cached, in millionths, scaled to those of the server, on the"
        " lines of all currencies; null: split before these were stored",
        nullable=True,
    ),
    column("cached", SUM, "cached input tokens, as computed", nullable=True),
    column("output", SUM, "output tokens, as computed", nullable=True),
    *required_columns(BIG, "split_ms"),
    index("day_ms"),
)

table(
    "pool_share",
    "Teams' shares of pools, to which reports compare what they held: rows are superseded, never"
    " edited.",
    identity(),
    *required_columns(TEXT, "team", "pool"),
    column("fraction", sa.Numeric(7, 6), "of the pool's capacity; null: gpus", nullable=True),
    *optional(sa.Integer, "gpus"),
    *optional(sa.Date, "from_on", "to_on"),
    column("read_from", TEXT, "scheduler and pool; empty: declared", default=""),
    *version_columns(),
)

table(
    "adjustment",
    "Markups, discounts and tiers, which are superseded; credits, debits and true-ups, to which"
    " rows are only added.",
    identity(),
    *required_columns(TEXT, "name"),
    column("kind", TEXT, "markup, discount or tiered; credit, debit or true_up"),
    column(
        "owner",
        JSONB,
        "level -> value: only this owner and below; of a credit or debit, who gets or pays it",
    ),
    *texts("pool", "gpu_model"),
    column("percent", sa.Numeric(12, 6), "of a markup or discount", nullable=True),
    column("steps", JSONB, "of a tier: GPU-hours of the month -> rate from there on"),
    column("per", TEXT, "of a tier: whose hours are counted, an owner level or fleet", default=""),
    column("amount_micro", BIG, "of a credit or debit", nullable=True),
    *optional(TEXT, "currency"),
    *optional(sa.Date, "from_on", "to_on"),
    *texts("reason", "approver"),
    column(
        "shares",
        JSONB,
        "of a true-up: owner levels, pool, model and micro-units of each part",
        nullable=True,
    ),
    column(
        "evidence", JSONB, "of a true-up: the bill, its lines and the differences", nullable=True
    ),
    column("reverses", BIG, "the entry that this one takes back", nullable=True),
    *version_columns(),
    sa.Index(
        "uq_adjustment_name", "name", unique=True, postgresql_where=sa.text("superseded_at IS NULL")
    ),
)

table(
    "node_cost",
    "What GPU nodes cost beside their accelerators: rows are superseded, never edited.",
    identity(),
    *required_columns(TEXT, "name", "currency"),
    column("pool", TEXT, "empty: any", default=""),
    column("node", TEXT, "name or pattern; empty: any", default=""),
    *required_columns(RATE, "per_node_hour", "per_core_hour"),
    column("cores", sa.Integer, "of a node", nullable=True),
    *required_columns(RATE, "per_gb_hour"),
    column("memory_gb", sa.Integer, "of a node", nullable=True),
    *optional(sa.Date, "from_on", "to_on"),
    *version_columns(),
)

table(
    "cost_center",
    "Cost centers and GL codes of owners: rows are superseded, never edited.",
    identity(),
    column("owner", JSONB, "level -> value: this owner and all below it"),
    *texts("cost_center", "gl_code"),
    *optional(sa.Date, "from_on", "to_on"),
    *version_columns(),
)

table(
    "carbon_intensity",
    "Dated carbon intensities of the grid by pool: rows are superseded, never edited.",
    identity(),
    column("region", TEXT, "display name of the grid", default=""),
    column("pool", TEXT, "empty: any", default=""),
    column("grams_per_kwh", sa.Numeric(12, 3), "CO2 equivalent"),
    column("pue", sa.Numeric(6, 3), "facility energy divided by machine energy, at least 1"),
    *optional(sa.Date, "from_on", "to_on"),
    *version_columns(),
)

table(
    "billing_period",
    "Closed months; a month without a row is open. Triggers refuse any change of a row.",
    *keys(BIG, "start_ms"),
    *required_columns(BIG, "end_ms"),
    column("name", TEXT, "such as 2026-10"),
    *required_columns(BIG, "closed_ms"),
    *required_columns(TEXT, "closed_by", person=Person.NAME),
    column("level", TEXT, "owner level that is invoiced"),
    *required_columns(BIG, "lines"),
    column("seal", TEXT, "Merkle root over its lines, hexadecimal"),
    *required_columns(JSONB, "receipt"),
    sa.UniqueConstraint("name"),
    stays="who closed a month is part of its receipt",
)

table(
    "invoice",
    "Amount billed to each owner at the close of a month.",
    foreign("period_start_ms", "billing_period.start_ms", primary_key=True),
    *keys(TEXT, "currency"),
    *keys(TEXT, "owner", person=Person.WORDS),
    column("micro", BIG, "the exact amount"),
    column("minor", BIG, "booked, in minor units of the currency"),
    stays="a bill of a closed month",
)

table(
    "closed_workload",
    "Names and tags of workloads at the close of their month, so that exports of it never change.",
    foreign("period_start_ms", "billing_period.start_ms", primary_key=True),
    *keys(BIG, "workload_id"),
    *optional(TEXT, "name"),
    *optional(TEXT, "user_name", person=Person.NAME),
    *required_columns(JSONB, "tags"),
    *job_columns(),
    stays="as it was sealed when its month was closed",
)

table(
    "correction",
    "Differences to the charges of closed days, booked in an open period; never changed.",
    identity(),
    column("booked_day_ms", BIG, "day of an open period in which it is billed"),
    *required_columns(BIG, "recorded_ms"),
    column("day_ms", BIG, "closed day that it amends"),
    *charge_columns(),
    index("booked_day_ms"),
    index("day_ms"),
)

table(
    "corrected_day",
    "Conservation check of a closed day with its corrections; the sealed one stays in"
    " conservation_check.",
    *keys(BIG, "day_ms"),
    *check_columns(),
)

table(
    "budget",
    "What an owner may spend or use in a period; changing amount, measure, owner or period"
    " supersedes the row.",
    identity(),
    *required_columns(TEXT, "name"),
    column("owner", JSONB, "level -> value; empty: the whole fleet"),
    column("period", TEXT, "month, quarter or range"),
    column("start_ms", BIG, "of a range", nullable=True),
    column("end_ms", BIG, "of a range", nullable=True),
    column("amount_micro", BIG, "millionths of the currency, or of a GPU-hour"),
    column("currency", TEXT, "empty: GPU-hours"),
    column("terms", JSONB, "thresholds and recipients"),
    column("measure", TEXT, "direct, total or gpu_hours", default="direct"),
    *version_columns(),
    sa.Index(
        "uq_budget_name", "name", unique=True, postgresql_where=sa.text("superseded_at IS NULL")
    ),
    stays="declared in a file: change it there and apply it",
)

table(
    "budget_share",
    "Shares of common costs that count against a budget on total cost, as of its last evaluation.",
    foreign("budget_id", "budget.id", primary_key=True),
    key("start_ms", BIG, "of a month, or of the budget's part of it"),
    *required_columns(BIG, "end_ms", "shared_micro"),
)


def _forecast_columns() -> list[sa.Column[Any]]:
    """What a stored forecast of spending says, in micro-units."""
    return [
        *required_columns(BIG, "period_end_ms"),
        column("known_ms", BIG, "the ledger was rated up to here"),
        *required_columns(BIG, "made_ms"),
        column("spent_micro", BIG, "of the period, up to known_ms"),
        column("low_micro", BIG, "at the end of the period; null: no forecast", nullable=True),
        *optional(BIG, "middle_micro", "high_micro"),
        column("days_of_history", sa.Integer, "null: no forecast", nullable=True),
    ]


table(
    "budget_forecast",
    "Where budgets stand and where their periods end, as said last on each day.",
    foreign("budget_id", "budget.id", primary_key=True),
    *keys(BIG, "period_start_ms"),
    key("day_ms", BIG, "the day up to which the ledger was rated"),
    *_forecast_columns(),
)

table(
    "owner_forecast",
    "Where the spending of owners ends with a month, as said last on each day.",
    key("owner", JSONB, "level -> value; {} is the fleet, with what no owner pays"),
    *keys(TEXT, "currency"),
    *keys(BIG, "period_start_ms"),
    key("day_ms", BIG, "the day up to which the ledger was rated"),
    *_forecast_columns(),
)

table(
    "budget_alert",
    "State of a threshold in a period; it fires once.",
    identity(),
    foreign("budget_id", "budget.id"),
    *required_columns(BIG, "period_start_ms"),
    column("rule", TEXT, "actual, forecast or pace"),
    *required_columns(sa.Integer, "percent"),
    column("state", TEXT, "pending, firing, acked or resolved"),
    column("seen", sa.Integer, "consecutive evaluations over the threshold"),
    *required_columns(BIG, "evaluated_ms"),
    *optional(BIG, "fired_ms", "escalated_ms"),
    column("spent_micro", BIG, "when it fired", nullable=True),
    *texts("acked_by", person=Person.NAME),
    sa.UniqueConstraint("budget_id", "period_start_ms", "rule", "percent"),
)

table(
    "dispute",
    "Charges that an owner contests, with the evidence at the opening; resolved once.",
    identity(),
    column("owner", JSONB, "level -> value: owner of the contested lines"),
    *required_columns(BIG, "start_ms", "end_ms"),
    column("accelerator_id", BIG, "null: any", nullable=True),
    column("workload_id", BIG, "null: any", nullable=True),
    column("line", TEXT, "hash of the contested line; null: all of them", nullable=True),
    *required_columns(TEXT, "reason", person=Person.WORDS),
    column("state", TEXT, "open, answered, accepted or rejected"),
    *required_columns(BIG, "opened_ms"),
    *required_columns(TEXT, "opened_by", person=Person.NAME),
    column("gpu_ns", SUM, "contested time, as billed at the opening"),
    column("cost", JSONB, "currency -> micro-units, as billed at the opening"),
    column("evidence", TEXT, "canonical JSON, at the opening", person=Person.WORDS),
    column("seal", TEXT, "SHA-256 of the evidence, hexadecimal"),
    *optional(BIG, "resolved_ms"),
    sa.CheckConstraint("end_ms > start_ms", name="order"),
    sa.CheckConstraint("state IN ('open', 'answered', 'accepted', 'rejected')", name="state"),
    sa.CheckConstraint(
        "(resolved_ms IS NOT NULL) = (state IN ('accepted', 'rejected'))", name="resolved"
    ),
    stays="evidence is sealed as it stood when the lines were contested",
)

table(
    "dispute_entry",
    "Entries of a dispute in order; rows are only added.",
    identity(),
    foreign("dispute_id", "dispute.id"),
    *required_columns(BIG, "at_ms"),
    *required_columns(TEXT, "who", person=Person.NAME),
    column("kind", TEXT, "opened, answered, accepted or rejected"),
    *required_columns(TEXT, "words", person=Person.WORDS),
    index("dispute_id"),
    stays="what was said in a dispute is only added to",
)

table(
    "reattribution",
    "Exceptions to attribution by accepted disputes; rating applies them in order. Never changed.",
    identity(),
    foreign("dispute_id", "dispute.id"),
    *required_columns(BIG, "start_ms", "end_ms"),
    column("accelerator_id", BIG, "null: any", nullable=True),
    *required_columns(BIG, "workload_id"),
    column("state", TEXT, "held: by another owner; unavailable: not usable"),
    column("owner", JSONB, "level -> value, for held; empty: unattributed", nullable=True),
    *required_columns(INSTANT, "recorded_at"),
    column(
        "contested",
        JSONB,
        "level -> value: owner whose time moves; null: the dispute's",
        nullable=True,
    ),
    sa.CheckConstraint("end_ms > start_ms", name="order"),
    sa.CheckConstraint("state IN ('held', 'unavailable')", name="state"),
    sa.CheckConstraint("(state = 'held') = (owner IS NOT NULL)", name="owner"),
    index("start_ms", "end_ms"),
    stays="what a dispute decided is never changed",
)

table(
    "bill",
    "Providers' bills by billing period; a newer file of a period supersedes the older.",
    identity(),
    *required_columns(TEXT, "provider"),
    *required_columns(BIG, "period_start_ms", "period_end_ms"),
    *required_columns(TEXT, "file_name"),
    column("sha256", TEXT, "of the file, hexadecimal"),
    *required_columns(BIG, "lines"),
    *required_columns(INSTANT, "imported_at"),
    *optional(INSTANT, "superseded_at"),
    index("provider", "period_start_ms"),
)

table(
    "bill_line",
    "Lines of providers' bills, amounts as written.",
    foreign("bill_id", "bill.id", primary_key=True),
    key("line", BIG, "line (CSV) or row (Parquet) of the file"),
    *required_columns(BIG, "start_ms", "end_ms"),
    column("category", TEXT, "ChargeCategory"),
    *texts(
        "charge_class",
        "description",
        "sku",
        "resource",
        "resource_name",
        "region",
        "service",
        "commitment",
    ),
    column(
        "quantity", sa.Numeric, "PricingQuantity, else ConsumedQuantity; null: none", nullable=True
    ),
    *texts("unit"),
    *required_columns(TEXT, "currency"),
    *required_columns(sa.Numeric, "billed"),
    *optional(sa.Numeric, "effective"),
)

table(
    "pool_provider",
    "Who provides a pool, in exports: rows are superseded, never edited.",
    identity(),
    column("pool", TEXT, "empty: every pool that no other row names", default=""),
    *required_columns(TEXT, "provider"),
    column("publisher", TEXT, "who made what it offers; empty: the provider", default=""),
    *version_columns(),
)

table(
    "pool_location",
    "Where pools stand: rows are superseded, never edited.",
    identity(),
    column("pool", TEXT, "empty: every pool that no other row names on a day", default=""),
    *required_columns(TEXT, "region"),
    column("region_name", TEXT, "empty: the region", default=""),
    *texts("availability_zone"),
    *optional(sa.Date, "from_on", "to_on"),
    *version_columns(),
)

table(
    "bill_match",
    "Pool or node that a line of a provider's bill is about: the first match by position.",
    identity(),
    *required_columns(sa.Integer, "position"),
    *texts("provider", "sku", "resource", "region", "service", "pool", "node"),
    column(
        "gpus",
        sa.Numeric(12, 6),
        "GPUs of a unit; null: the node's by inventory, else 1",
        nullable=True,
    ),
    column("leave_out", sa.Boolean, "not about our GPUs: listed, but not compared"),
    *version_columns(),
)
