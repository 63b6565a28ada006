"""The kinds of tables that a declared file may have, in the order in which they are applied and
exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpuledger_collector.accounting.ledger_rows import ImportOutcome
from gpuledger_collector.config import (
    adjustments,
    bill_matches,
    budgets,
    cost_centers,
    inference,
    locations,
    money,
    node_costs,
    notification_rules,
    pool_shares,
    prices,
    providers,
    scaling,
    shared_costs,
)
from gpuledger_collector.config.attribution import DeclaredRule
from gpuledger_collector.config.model import Declaration
from gpuledger_collector.insight.scaling.pools import ScalingTerms
from gpuledger_collector.storage.billing import adjustments as stored_adjustments
from gpuledger_collector.storage.billing import bills, commitments, declarations
from gpuledger_collector.storage.billing import budgets as stored_budgets
from gpuledger_collector.storage.billing import inference as stored_inference
from gpuledger_collector.storage.billing import locations as stored_locations
from gpuledger_collector.storage.billing import node_costs as stored_node_costs
from gpuledger_collector.storage.billing import prices as stored_prices
from gpuledger_collector.storage.billing import providers as stored_providers
from gpuledger_collector.storage.capacity import scaling as stored_pools
from gpuledger_collector.storage.ledger import rules
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.notifications import notification_rules as stored_notifications


@dataclass(frozen=True)
class Kind:
    """One kind of table: how it is called in messages, its model, and what storage does with its
    values.
    """

    title: str
    model: type[Declaration]
    replace: Callable[[Connection, Any, int], ImportOutcome]
    current: Callable[[Connection], Iterable[Any]] | None
    """What is in force; None for values that are stored as those of another kind."""
    adds_only: bool = False
    """Values that are not in the file stay in force."""


def _replace_recipients(
    connection: Connection, recipients: Iterable[tuple[str, Any]], now_ms: int
) -> ImportOutcome:
    return stored_notifications.replace_recipients(connection, dict(recipients), now_ms)


def _pools(connection: Connection) -> list[ScalingTerms]:
    rows = connection.execute(
        "SELECT pool, terms FROM scaling_pool WHERE superseded_at IS NULL ORDER BY pool"
    )
    return [ScalingTerms.from_facts(pool, terms) for pool, terms in rows]


KINDS: Mapping[str, Kind] = {
    "price": Kind(
        "prices", prices.DeclaredPrice, stored_prices.add, stored_prices.current, adds_only=True
    ),
    "owned": Kind("owned hardware", money.DeclaredHardware, stored_prices.add_derived, None),
    "commitment": Kind(
        "commitments",
        money.DeclaredCommitment,
        commitments.replace_commitments,
        commitments.COMMITMENTS.in_force,
    ),
    "purchase": Kind(
        "choices of purchase",
        money.DeclaredPurchase,
        commitments.replace_choices,
        commitments.CHOICES.in_force,
    ),
    "exchange": Kind(
        "exchange rates",
        money.DeclaredExchangeRate,
        commitments.EXCHANGE_RATES.replace,
        commitments.EXCHANGE_RATES.in_force,
    ),
    "provider": Kind(
        "providers",
        providers.DeclaredProvider,
        stored_providers.PROVIDERS.replace,
        stored_providers.PROVIDERS.in_force,
    ),
    "location": Kind(
        "locations",
        locations.DeclaredLocation,
        stored_locations.replace_locations,
        stored_locations.LOCATIONS.in_force,
    ),
    "rule": Kind("rules", DeclaredRule, rules.replace_rules, rules.current),
    "budget": Kind(
        "budgets", budgets.DeclaredBudget, stored_budgets.replace_budgets, stored_budgets.current
    ),
    "adjustment": Kind(
        "adjustments",
        adjustments.DeclaredAdjustment,
        stored_adjustments.replace_adjustments,
        stored_adjustments.list_declared,
    ),
    "node_cost": Kind(
        "node costs",
        node_costs.DeclaredNodeCost,
        stored_node_costs.replace_node_costs,
        stored_node_costs.NODE_COSTS.in_force,
    ),
    "shared_cost": Kind(
        "shared costs",
        shared_costs.DeclaredSharedCost,
        declarations.SHARED_COSTS.replace,
        declarations.SHARED_COSTS.in_force,
    ),
    "share": Kind(
        "shares",
        pool_shares.DeclaredShare,
        declarations.replace_shares,
        declarations.declared_shares,
    ),
    "inference": Kind(
        "shared model servers",
        inference.DeclaredInference,
        stored_inference.replace_servers,
        stored_inference.SERVERS.in_force,
    ),
    "tenant": Kind(
        "tenants of model servers",
        inference.DeclaredTenant,
        stored_inference.replace_tenants,
        stored_inference.TENANTS.in_force,
    ),
    "api_price": Kind(
        "prices of APIs",
        inference.DeclaredApiPrice,
        stored_inference.API_PRICES.replace,
        stored_inference.API_PRICES.in_force,
    ),
    "cost_center": Kind(
        "cost centers",
        cost_centers.DeclaredCostCenter,
        declarations.COST_CENTERS.replace,
        declarations.COST_CENTERS.in_force,
    ),
    "carbon": Kind(
        "carbon",
        shared_costs.DeclaredIntensity,
        declarations.CARBON.replace,
        declarations.CARBON.in_force,
    ),
    "recipient": Kind(
        "recipients",
        notification_rules.DeclaredRecipient,
        _replace_recipients,
        lambda connection: stored_notifications.recipients(connection).items(),
    ),
    "contact": Kind(
        "contacts",
        notification_rules.DeclaredContact,
        stored_notifications.replace_contacts,
        stored_notifications.contacts,
    ),
    "anomaly_floor": Kind(
        "floors of anomalies",
        notification_rules.DeclaredAnomalyFloor,
        stored_notifications.replace_anomaly_floors,
        stored_notifications.anomaly_floors,
    ),
    "action": Kind(
        "actions",
        notification_rules.DeclaredAction,
        stored_notifications.replace_actions,
        stored_notifications.actions,
    ),
    "bill_match": Kind(
        "bill matches", bill_matches.DeclaredBillMatch, bills.replace_matches, bills.matches
    ),
    "pool": Kind("pools", scaling.DeclaredPool, stored_pools.replace_terms, _pools),
}
