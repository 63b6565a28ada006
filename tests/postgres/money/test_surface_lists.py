"""Each address, mail and column that says an amount is compared somewhere, or has a reason not to
be.

`test_surfaces` compares them, and walks commands and tools; what is added to a list of the product
fails here until somebody says where its amounts are compared.
"""

import inspect

from fakes.surfaces import cited_nowhere, statement_cards
from gpuledger_collector.api import admission as routes
from gpuledger_collector.export import cells, chargeback, fair_share, focus, runs
from gpuledger_collector.insight.notifications.messages import Content
from gpuledger_collector.mcp import admission as assistants
from gpuledger_collector.notifications import budget_mail, digest_mail, finding_mail

ROUTES = {
    "GET /": "test_surfaces.py: what teams are charged",
    "GET /spend": "test_spend_series.py: the chargeback of the same range",
    "GET /models": "tests/pages/test_models.py: the lines of GET /v1/inference",
    "GET /statements": "leads to the list of a month",
    "GET /statements/{level}/{month}": "test_surfaces.py: what each owner pays",
    "GET /statements/{level}/{owner:name}/{month}": "tests/pages/test_statement.py",
    "GET /jobs": "test_surface_answers.py: GPU-time, without node costs, as it says",
    "GET /jobs/{job:name}": "test_surface_answers.py: the chargeback by workload",
    "GET /fleet/gpu/{gpu:name}": "tests/postgres/fleet/test_gpu_receipt.py: the charges of GPUs",
    "GET /trust": "test_surface_answers.py: the chargeback by state",
    "GET /v1/chargeback": "test_surfaces.py: the rows of the command",
    "GET /v1/budgets": "tests/postgres/budgets: what the command says",
    "GET /v1/inference": "tests/postgres/inference/test_split.py: the charges of servers",
    "GET /v1/runs": "tests/postgres/runs/test_ways.py",
    "GET /v1/disputes": "test_disputes.py: what was contested",
    "GET /v1/disputes/{number}": "test_disputes.py: what was contested",
    "POST /v1/disputes": "test_disputes.py: what was contested",
    "POST /v1/disputes/{number}/answers": "test_disputes.py: what was contested",
    "POST /v1/disputes/{number}/preview": "test_dispute_amounts.py: the difference of two ratings",
    "POST /v1/disputes/{number}/resolution": (
        "test_dispute_amounts.py: the difference of two ratings"
    ),
    "POST /mcp": "test_surfaces.py: tools",
    "standard input of gpuledger mcp": "test_surfaces.py: tools",
    "GET /statements/{level}": "leads to the list of a month",
    "GET /idle": "tests/postgres/findings: at the price book's rate",
    "GET /v1/idle": "tests/postgres/findings: at the price book's rate",
    "GET /anomalies": "test_surface_findings.py: a difference of two chargebacks",
    "GET /v1/anomalies": "test_surface_findings.py: a difference of two chargebacks",
    "GET /v1/recommendations": "test_surface_findings.py: a difference of two bills",
    "GET /pools/{pool:name}": "tests/pages/test_pool.py: estimates of a backtest",
    "GET /v1/scaling/{pool:name}": "advice at the price book's rate",
}
"""Ways in that say amounts, and where these are compared."""
NO_AMOUNTS = """
GET /assets/{name}, GET /demand, GET /docs, GET /favicon.ico, GET /fleet, GET /healthz,
GET /live, GET /queues,
GET /metrics, GET /openapi.json, GET /readyz,
GET /v1/accelerators, GET /v1/audit,
GET /v1/budgets/ack, POST /v1/budgets/ack, GET /v1/notifications/ack, POST /v1/notifications/ack, GET /v1/forecast,
GET /v1/forecast/history, GET /v1/nodes, GET /v1/queues, GET /v1/queues/quotas, GET /v1/queues/evictions,
GET /v1/samples, GET /v1/series, POST /api/v1/write, POST /v1/batches,
POST /v1/inference, POST /v1/queue, POST /v1/runs/{workload:name}/progress
"""
CARDS = {
    "bill": "test_surfaces.py: 'You pay' is the chargeback's row",
    "change": "tests/pages/test_statement.py: drivers, rates and parts add up to the change",
    "jobs": "tests/pages/test_statement.py: each table adds up to what is paid",
    "shared": "tests/pages/test_statement.py",
    "corrections": "tests/pages/test_statement.py",
    "shares": "tests/postgres/money: chargeback --by share",
    "models": "tests/postgres/inference/test_statements.py: the rows of `inference list`",
    "contested": "test_disputes.py: what was contested",
    "unpriced": "tests/pages/test_statement.py: hours without a price",
    "later": "tests/pages/test_statement.py: corrections booked after the close",
    "budgets": "tests/postgres/budgets: what the command says",
    "findings": "tests/postgres/findings: at the price book's rate",
}
"""Cards of a statement that say amounts, and where these are compared."""
CARDS_WITHOUT = {"nothing", "made"}
MAILS = {
    "budget_mail.write": "test_surfaces.py: what is spent",
    "digest_mail.write": "amounts of the mails that it joins",
    "finding_mail.idle": "tests/postgres/findings: at the price book's rate",
    "finding_mail.anomaly": "test_surface_findings.py: a difference of two chargebacks",
    "finding_mail.write_reclaim_mail": "tests/postgres/findings: at the price book's rate",
    "finding_mail.summary": "tests/postgres/findings: at the price book's rate",
}
COMPARED = {
    *("cost", "cost_total", "cost_micro"),
    *("cost_shared", "cost_nodes", "cost_cash", "cost_effective"),
}
"""Columns of the chargeback that test_surfaces or test_one_number compares."""
COLUMNS_ELSEWHERE = {
    "gpu_hours": "tests/oracle: hours to the nanosecond",
    "gpu_hours_held_idle": "tests/unit/accounting/test_report.py",
    "cost_held_idle": "test_one_number.py: waste of a corrected month",
    "energy_kwh": "tests/scenarios",
    "cost_list": "test_bill.py",
    "cost_contracted": "test_bill.py",
    "cost_compared": "test_bill.py",
    "cost_waste": "test_boards.py",
    "cost_adjustments": "test_true_up.py",
}
NAMES = {
    "currency",
    "correction_of",
    "billed",
    "cost_center",
    "gl_code",
    "co2e_grams",
    "notice",
    "exchange",
}
"""Columns of the chargeback that are no amounts of money, hours or energy."""


def silent():
    return {name.strip() for name in NO_AMOUNTS.replace("\n", " ").split(",")}


def test_every_way_in_is_compared_or_has_no_amounts():
    """A page or an address that is added fails here; one that is gone does, too."""
    ways = {row.way_in for row in (*routes.ADMISSIONS, *assistants.ADMISSIONS)}
    assert set(ROUTES) | silent() == ways, (set(ROUTES) | silent()) ^ ways
    assert not set(ROUTES) & silent()


def test_every_card_of_a_statement_is_compared():
    """A card that is added fails here until somebody says where its amounts are compared."""
    cards = statement_cards()
    assert set(CARDS) | CARDS_WITHOUT == cards, (set(CARDS) | CARDS_WITHOUT) ^ cards
    assert not set(CARDS) & CARDS_WITHOUT


def test_every_cited_test_exists():
    """A reason that names a file or a folder of tests names one that is there."""
    reasons = [*ROUTES.values(), *CARDS.values(), *MAILS.values(), *COLUMNS_ELSEWHERE.values()]
    assert cited_nowhere(reasons) == set()


def test_every_mail_is_compared():
    """Functions of the modules of mails that write one."""
    mails = set()
    for module in (budget_mail, digest_mail, finding_mail):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            is_own = function.__module__ == module.__name__ and not name.startswith("_")
            if is_own and inspect.signature(function, eval_str=True).return_annotation is Content:
                mails.add(f"{module.__name__.rpartition('.')[2]}.{name}")
    assert mails == set(MAILS), mails ^ set(MAILS)


def test_every_column_of_the_chargeback_is_compared():
    """In table, CSV, JSON and Parquet the columns are these."""
    columns = {*(column.name for column in chargeback.COLUMNS), cells.NOTICE}
    assert columns <= COMPARED | set(COLUMNS_ELSEWHERE) | NAMES, (
        columns - COMPARED - set(COLUMNS_ELSEWHERE) - NAMES
    )
    assert set(COLUMNS_ELSEWHERE) | NAMES <= columns, (set(COLUMNS_ELSEWHERE) | NAMES) - columns


def test_every_amount_of_other_tables_is_compared():
    """FOCUS, receipts and shares of pools: columns that hold money."""
    assert {name for name in focus.COLUMNS if name.endswith("Cost")} == {
        *("BilledCost", "EffectiveCost", "ContractedCost", "ListCost"),
        *("PricingCurrencyEffectiveCost", "x_HeldIdleCost", "x_WasteCost"),
    }, "test_surfaces.py, test_focus_check.py"
    assert {column.name for column in fair_share.SHARES.columns if "cost" in column.name} == {
        "cost_lent",
        "cost_borrowed",
    }, "test_fair_share.py"
    assert {column.name for column in runs.receipt_report("").columns if "cost" in column.name} == {
        *("cost", "cost_held_idle", "node_cost"),
    }, "test_surfaces.py: a receipt"
