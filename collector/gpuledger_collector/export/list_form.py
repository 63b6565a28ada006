"""The form of a list: a range, filters, grouping and a search, in the address of what it shows.

It works without scripts; with them the list is swapped as soon as something changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuledger_collector.export.site import Site

MOST_CHOICES = 100
"""A fleet has nodes by the thousand: beyond this number a name is typed."""
LABELS = {
    "node": "node",
    "pool": "pool",
    "model": "GPU model",
    "state": "state",
    "username": "user",
}
FIRST_WORDS = {"by": "show", "sort": "order", "period": "month", "state": "rows"}
SEARCH = "name, user, GPU"
"""What a search looks through, if a list does not say otherwise."""


class Parameters(Protocol):
    """What the list is narrowed to."""

    def parameters(self) -> dict[str, str]:
        """By the names of the address."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A field of the form: its name, label, value, and what may be chosen: values with their words.

    `is_typed`: there are too many to choose from.
    """

    name: str
    label: str
    value: str
    options: Sequence[tuple[str, str]]
    is_typed: bool = False


@dataclass(frozen=True, slots=True)
class ListForm:
    """The fields of a form, and the parameters that it passes on."""

    path: str
    passed_on: Mapping[str, str]
    first: str
    after: str
    words: str
    choices: Sequence[Choice]
    is_narrowed: bool
    """Whether anything but the range and the owner is chosen."""
    search: str = SEARCH
    """What is searched; empty: the list has no search."""
    has_range: bool = True


def list_form(
    site: Site,
    narrowed: Parameters,
    found: Mapping[str, Sequence[str]],
    state_words: Mapping[str, str],
    views: Mapping[str, tuple[str, Mapping[str, str]]] | None = None,
    *,
    teams: Sequence[str] = (),
    search: str = SEARCH,
    has_range: bool = True,
    labels: Mapping[str, str] = FIRST_WORDS,
) -> ListForm:
    """The form of a list in which these values of node, pool, model, state and username are found,
    and whose owner is one of `teams`.

    `views` are other choices: the value that is shown, and the words of each; `labels` calls them.
    """
    parameters = narrowed.parameters()
    filters = site.filters
    choices = []
    team = filters.owner.get("team", "")
    if len(teams) > 1 or (team and teams):
        choices.append(_choice("team", "team", team, teams))
    choices += [
        _choice(name, LABELS[name], parameters[name], found[name], state_words)
        if name == "state"
        else _choice(name, LABELS[name], parameters[name], found[name])
        for name in LABELS
        if name in found and (len(found[name]) > 1 or parameters[name])
    ]
    choices += [
        Choice(name, labels[name], value, list(words.items()))
        for name, (value, words) in (views or {}).items()
    ]
    name = site.extra.get("name", "")
    passed_on = {"name": name}
    if site.is_filtered:
        passed_on |= {"period": filters.period, "days": filters.days, **filters.owner}
    offered = {choice.name for choice in choices}
    return ListForm(
        path=site.path,
        passed_on={key: value for key, value in passed_on.items() if value and key not in offered},
        first=filters.first,
        after=filters.after,
        words=parameters.get("q", ""),
        choices=choices,
        is_narrowed=any(parameters.values()),
        search=search,
        has_range=has_range,
    )


def _choice(
    name: str,
    label: str,
    value: str,
    found: Sequence[str],
    words: Mapping[str, str] | None = None,
) -> Choice:
    """A field of values that are found; `words` call some of them otherwise."""
    known = [*found, *([] if not value or value in found else [value])]
    texts = known if words is None else [words.get(item, item.replace("_", " ")) for item in known]
    options = [("", "any"), *zip(known, texts, strict=True)]
    return Choice(name, label, value, options, len(found) > MOST_CHOICES)
