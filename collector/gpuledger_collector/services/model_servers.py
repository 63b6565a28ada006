"""What each shared model server cost in a period, what a million of its tokens cost, and who asked:
from one reading.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuledger_collector.accounting.inference_lines import (
    DEFAULT_KEYS,
    GroupedLine,
    InferenceLine,
    group_lines,
    summarize_servers,
)
from gpuledger_collector.accounting.model_servers import ModelServer, list_model_servers, matches
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.services.api_prices import add_api_prices
from gpuledger_collector.services.billing_calendar import calendar_of
from gpuledger_collector.services.inference_costs import read_days
from gpuledger_collector.storage.locks import Connection


@dataclass(frozen=True, slots=True)
class ModelServers:
    """Shared servers of a period, and in sentences what moves nothing.

    `lines`: what tenants pay, as `gpuledger inference list` has them. `listed`: how many servers
    there are before a search; a viewer sees no server of which it pays nothing.
    """

    servers: Sequence[ModelServer]
    lines: Sequence[GroupedLine]
    notes: Sequence[str]
    listed: int


def read_model_servers(
    connection: Connection,
    period: Period,
    viewer: Mapping[str, str] | None = None,
    owner: Mapping[str, str] | None = None,
    words: str = "",
) -> ModelServers:
    """Read the shared servers of a period, narrowed to an owner and to names with these words.

    For a viewer the lines of its owner alone, without the sums of servers: those tell of others.
    What it is narrowed to opens nothing beyond that.
    """
    calendar = calendar_of(connection)
    days = read_days(connection, period)
    wanted = {**(owner or {}), **(viewer or {})}

    def is_own(line: InferenceLine) -> bool:
        return (viewer is None or bool(line.owner)) and all(
            line.owner.get(level, "") == name for level, name in wanted.items()
        )

    own, foreign = _partition(days.lines, is_own)
    lines, others = _partition(own, lambda line: matches(line, words))
    hidden = foreign + others
    summaries, notes = (
        ([], [])
        if viewer is not None
        else add_api_prices(connection, summarize_servers(days.servers, days.lines), days.lines)
    )
    names = {line.server for line in own} | (
        set() if wanted else {summary.server for summary in summaries}
    )
    shown = {line.server for line in lines} if words or wanted else names
    return ModelServers(
        list_model_servers(
            lines,
            [summary for summary in summaries if summary.server in shown],
            period,
            calendar,
            hidden,
        ),
        group_lines(lines, DEFAULT_KEYS, calendar, hidden),
        [] if viewer is not None else [*days.notes, *notes],
        len(names),
    )


def _partition(
    lines: Iterable[InferenceLine], is_wanted: Callable[[InferenceLine], bool]
) -> tuple[list[InferenceLine], list[InferenceLine]]:
    """The lines that are wanted, and the others."""
    wanted: list[InferenceLine] = []
    others: list[InferenceLine] = []
    for line in lines:
        (wanted if is_wanted(line) else others).append(line)
    return wanted, others
