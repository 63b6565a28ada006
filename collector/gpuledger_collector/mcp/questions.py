"""Ten questions that people ask an assistant, each with the tool and the arguments that answer it.

Tests ask them of a ledger; the guide and the transcript show them. `{owner}` is a team and
`{month}` a month of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Question:
    """A question with the call that answers it."""

    text: str
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def fill_in(self, owner: str, month: str) -> Question:
        """The question about an owner and a month."""

        def fill(value: Any) -> Any:
            return value.format(owner=owner, month=month) if isinstance(value, str) else value

        return Question(
            fill(self.text),
            self.tool,
            {name: fill(value) for name, value in self.arguments.items()},
        )


QUESTIONS = (
    Question(
        "What did we spend on GPUs in {month}, by team?",
        "get_cost",
        {"period": "{month}", "group_by": "team"},
    ),
    Question(
        "Which GPU workloads wasted most money in {month}?",
        "get_gpu_waste",
        {"period": "{month}", "group_by": "workload"},
    ),
    Question("What should we right-size, and what would that save?", "get_rightsizing"),
    Question("Why did spending change in {month}?", "explain_change", {"period": "{month}"}),
    Question(
        "Give me one number for our GPU efficiency in {month}.",
        "get_efficiency",
        {"period": "{month}", "group_by": "team"},
    ),
    Question(
        "Which teams spend more in {month} than in the month before?",
        "compare_periods",
        {"period": "{month}", "group_by": "team"},
    ),
    Question(
        "What is on the bill of {owner} for {month}?",
        "get_statement",
        {"owner": "{owner}", "month": "{month}", "section": "jobs"},
    ),
    Question("Can I trust the bill of {month}?", "verify_statement", {"month": "{month}"}),
    Question(
        "Which GPUs are idle now, and whose are they?", "list_idle_gpus", {"ongoing_only": True}
    ),
    Question("What did our accelerators do in {month}?", "get_device_usage", {"period": "{month}"}),
)
