"""The tools: one function a question, with flat scalar parameters.

None writes, and none takes SQL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuledger_collector.mcp.tools.changes import compare_periods, explain_change
from gpuledger_collector.mcp.tools.costs import get_cost, get_efficiency, get_gpu_waste
from gpuledger_collector.mcp.tools.fleet import (
    describe_ledger,
    get_device_usage,
    get_rightsizing,
    list_idle_gpus,
    list_values,
)
from gpuledger_collector.mcp.tools.foresight import forecast_demand, forecast_spend, list_budgets
from gpuledger_collector.mcp.tools.inference import get_inference_cost
from gpuledger_collector.mcp.tools.queues import list_queues
from gpuledger_collector.mcp.tools.statements import get_statement, verify_statement

TOOLS: tuple[Callable[..., Any], ...] = (
    describe_ledger,
    list_values,
    get_cost,
    get_gpu_waste,
    get_efficiency,
    compare_periods,
    explain_change,
    get_statement,
    verify_statement,
    list_idle_gpus,
    get_rightsizing,
    get_device_usage,
    get_inference_cost,
    list_queues,
    list_budgets,
    forecast_spend,
    forecast_demand,
)
"""In the order in which clients list them.

The first parameter of each is the ledger, which no client gives.
"""
