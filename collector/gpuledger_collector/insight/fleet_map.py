"""The fleet as a map: what each accelerator did in an hour, or how it is now, and how many of them
are drawn one by one.

An accelerator's hour is divided into categories by what it is colored by: state, team, use or
health. Law: whatever it is colored by, its categories add up to its time in the hour, and those of
all accelerators to the capacity of the fleet. It takes the color of the category that had most of
the hour; what nobody observed is a category of its own, and never counts as something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from operator import attrgetter

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.period import HOUR_MS, Period
from gpuledger_collector.accounting.usage import STRANDED, UNALLOCATED, UNAVAILABLE, UNOBSERVED

BUSY, IDLE, ACTIVITY_UNKNOWN = "busy", "idle", "activity unknown"
HELD_STATES = (BUSY, IDLE, ACTIVITY_UNKNOWN)
FAILED, DEGRADED, OK, UNKNOWN = "failed", "degraded", "ok", "unknown"
NOT_RATED = "(not rated yet)"
"""Held time of which the ledger does not say yet who pays."""
SILENT_NODE = "silent node"
"""What is wrong with the accelerators of a node that does not report."""
FRESH_MS = 15 * 60_000
"""Time for which a reading is taken for now."""
IDLE_BELOW = 0.01
"""Activity under which the latest reading shows none."""
STATES = (
    FAILED,
    DEGRADED,
    UNAVAILABLE,
    UNOBSERVED,
    IDLE,
    ACTIVITY_UNKNOWN,
    BUSY,
    STRANDED,
    UNALLOCATED,
)
"""States, what needs most attention first: the order of the boards' matrix."""
HEALTHS = (FAILED, DEGRADED, UNAVAILABLE, UNOBSERVED, UNKNOWN, OK)
USES = ("unused", "up to 25 %", "up to 50 %", "up to 75 %", "more than 75 %")
"""Bands of the busy part of held time."""
_HELD = frozenset(HELD_STATES)
SICK = frozenset({FAILED, DEGRADED})
_TROUBLES = frozenset({UNAVAILABLE, UNOBSERVED, FAILED, DEGRADED})
OTHER_TEAMS = "(other teams)"
MOST_TEAMS = 8
"""Teams with a color of their own: as many as boards have."""
MOST_DEVICES = 400
"""Devices that are drawn one by one, with their numbers."""
MOST_NODES = 4_000
"""Nodes that are drawn one by one, each with its devices."""
_AT_ONCE = 1_000
"""Items after which names are counted."""


class ColorBy(StrEnum):
    """What an accelerator is colored by."""

    STATE = "state"
    OWNER = "owner"
    USE = "use"
    HEALTH = "health"


class Grain(StrEnum):
    """What is drawn as a unit of its own."""

    GPU = "gpu"
    NODE = "node"
    POOL = "pool"


@dataclass(slots=True)
class Holder:
    """Who held an accelerator for a part of the hour; `team` None: not rated yet. Where accelerators
    are not drawn one by one it is all workloads of a team, and those are not named.

    Not frozen, as a page makes tens of thousands.
    """

    team: str | None
    workload: str
    name: str
    held_ms: int

    @property
    def paying_team(self) -> str:
        """The team as pages call it."""
        return NOT_RATED if self.team is None else self.team or UNATTRIBUTED


@dataclass(slots=True, kw_only=True)
class MappedAccelerator:
    """One accelerator in an hour, or now; or what the slices of a board leave of it.

    `states` are milliseconds by state. Now has no length: the one present state has an hour.
    `use_permille` is the busy part of the time whose activity is known; None where none is.
    `health` is that of now; UNKNOWN in an hour that is over. Not frozen: a page makes tens of
    thousands, and frozen ones take three times as long to make.
    """

    node: str
    pool: str
    device: str
    uuid: str
    model: str
    gpu_index: int | None
    mig_instance: str | None
    gpu_micro: int
    states: Mapping[str, int]
    use_permille: int | None
    health: str = UNKNOWN
    cause: str = ""
    health_since_ms: int | None = None
    """Since when its reports say this health; None: not known."""
    is_silent: bool = False
    is_now: bool = False
    is_rest: bool = False
    """The part of a board that lies in no slice: no accelerator, but capacity."""
    holders: Sequence[Holder] = ()
    _prevailing_state: str | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def present_ms(self) -> int:
        """Its time in the hour."""
        return sum(self.states.values())

    @property
    def held_ms(self) -> int:
        """What of it was held."""
        known = self.states.get
        return known(BUSY, 0) + known(IDLE, 0) + known(ACTIVITY_UNKNOWN, 0)

    @property
    def prevailing_state(self) -> str:
        """The state that had most of the hour."""
        # Decided once: its color, what is wrong with it and its row of the table ask for it.
        if self._prevailing_state is None:
            self._prevailing_state = prevailing(self.states, STATES)
        return self._prevailing_state

    @property
    def main_holder(self) -> Holder | None:
        """Who held it longest."""
        if len(self.holders) == 1:
            return self.holders[0]
        return max(self.holders, key=lambda holder: holder.held_ms, default=None)

    @property
    def trouble(self) -> str:
        """What a person should look at, in a word; empty where nothing is wrong."""
        if self.is_rest:
            return ""
        if self.is_silent:
            return SILENT_NODE
        if self.is_now and self.health in SICK:
            return self.health
        state = self.prevailing_state
        return state if state in _TROUBLES else ""

    @property
    def is_idle_held(self) -> bool:
        """Whether it was held and idle for most of the hour."""
        return not self.is_rest and self.prevailing_state == IDLE

    def categories(self, color: ColorBy) -> Mapping[str, int]:
        """Its time by what it is colored by, in milliseconds; zeros are left out."""
        if color is ColorBy.STATE:
            return self.states
        if color is ColorBy.HEALTH:
            return self._by_health()
        return self.by_owner() if color is ColorBy.OWNER else self._by_use()

    def _by_health(self) -> Mapping[str, int]:
        if self.is_rest:
            return self.states
        if self.is_now:
            is_heard = self.health in {FAILED, DEGRADED} or UNOBSERVED not in self.states
            # What it was when its node fell silent is not known of now.
            is_known = is_heard and not self.is_silent
            return {self.health if is_known else UNOBSERVED: self.present_ms}
        apart = {
            state: ms for state, ms in self.states.items() if state in {UNAVAILABLE, UNOBSERVED}
        }
        rest = self.present_ms - sum(apart.values())
        # What the driver said of an hour that is over is not kept; that it worked is no proof.
        return {**apart, UNKNOWN: rest} if rest else apart

    def by_owner(self) -> Mapping[str, int]:
        """Its time by who pays for it; what nobody held by state."""
        parts: dict[str, int] = {}
        for holder in self.holders:
            team = holder.team or holder.paying_team
            if team in parts:
                parts[team] += holder.held_ms
            else:
                parts[team] = holder.held_ms
        missing_ms, apart = -sum(parts.values()), []
        for state, ms in self.states.items():
            if state in _HELD:
                missing_ms += ms
            else:
                apart.append(state)
        if missing_ms > 0:
            parts[NOT_RATED] = parts.get(NOT_RATED, 0) + missing_ms
        if not parts:
            return self.states
        for state in apart:
            parts[state] = self.states[state]
        return parts

    def _by_use(self) -> Mapping[str, int]:
        held_ms = self.held_ms
        if not held_ms:
            return self.states
        permille = self.use_permille
        band = ACTIVITY_UNKNOWN if permille is None else use_band(permille)
        return {band: held_ms} | {
            state: ms for state, ms in self.states.items() if state not in _HELD
        }


def use_band(permille: int) -> str:
    """The band of a busy part."""
    return USES[0] if permille < 10 else USES[1 + min(3, max(0, permille - 1) // 250)]


def prevailing(categories: Mapping[str, int], order: Sequence[str]) -> str:
    """The category with most time; of equals the one that stands first in an order, then by name."""
    # Most accelerators of a large fleet did one thing.
    if len(categories) == 1:
        return next(iter(categories))
    most, first, is_alone = -1, "", True
    for name, ms in categories.items():
        if ms > most:
            most, first, is_alone = ms, name, True
        elif ms == most:
            is_alone = False
    if is_alone:
        return first
    equals = [name for name, ms in categories.items() if ms == most]
    return min(equals, key=lambda name: (order.index(name) if name in order else len(order), name))


def state_now(
    health: str, state: str | None, read_ms: int | None, activity: float | None, now_ms: int
) -> str:
    """The state of an accelerator by its latest reading, as in the boards' matrix."""
    if health in {FAILED, DEGRADED}:
        return health
    if read_ms is None or state is None or read_ms <= now_ms - FRESH_MS:
        return UNOBSERVED
    if state != "held":
        return state
    if activity is None:
        return ACTIVITY_UNKNOWN
    return IDLE if activity < IDLE_BELOW else BUSY


def hour_states(
    present_ms: int, busy_ms: int, idle_ms: int, unknown_ms: int, unallocated_ms: int, away_ms: int
) -> dict[str, int]:
    """States of an hour that add up to it: what no evidence speaks of is unobserved; zeros are left
    out.

    Evidence beyond the capacity was held all the same, as in rating.
    """
    states = {}
    if away_ms:
        states[UNAVAILABLE] = away_ms
    if idle_ms:
        states[IDLE] = idle_ms
    if unknown_ms:
        states[ACTIVITY_UNKNOWN] = unknown_ms
    if busy_ms:
        states[BUSY] = busy_ms
    if unallocated_ms:
        states[UNALLOCATED] = unallocated_ms
    rest_ms = present_ms - away_ms - idle_ms - unknown_ms - busy_ms - unallocated_ms
    if rest_ms > 0:
        states[UNOBSERVED] = rest_ms
    return states


@dataclass(slots=True)
class Share:
    """A category: for how many accelerators it prevails, and its time in GPU-nanoseconds.

    Not frozen, as a page makes ten thousand.
    """

    name: str
    accelerators: int
    gpu_ns: int


@dataclass(slots=True)
class MapGroup:
    """A node or a pool with what its accelerators did."""

    name: str
    pool: str
    state: str
    """Of a node: how it is now; empty for an hour that is over, and for a pool."""
    accelerators: int
    gpu_ns: int
    shares: tuple[Share, ...]
    troubled: int
    """Accelerators that a person should look at."""


@dataclass(frozen=True, slots=True)
class NodeName:
    """A node of the map: its pool, its name, and how it is now."""

    pool: str
    name: str
    state: str


@dataclass(frozen=True, kw_only=True)
class FleetMap:
    """The fleet in an hour (None: now), colored by something, in the order of pool, node and index.

    `grain` is the finest one that can be drawn, or the coarser one that was asked for.
    """

    hour: Period | None
    until_ms: int
    """Up to when the hour is rated, or else has passed."""
    is_rated: bool
    holds: bool | None
    """Whether the proof of the hour's day holds; None: its day is not rated."""
    color: ColorBy
    grain: Grain
    finest: Grain
    items: Sequence[MappedAccelerator]
    teams: Mapping[str, int] = field(default_factory=dict)
    """Number of the color of each team of the ledger, as on boards."""
    node_states: Mapping[str, str] = field(default_factory=dict)
    silent_since_ms: Mapping[str, int] = field(default_factory=dict)
    """The last sign of life of each node that is silent now."""
    has_imports: bool = False
    """Whether usage is known that was imported as counts, which has no accelerators; asked of a map
    without any.
    """
    first_ms: int | None = None
    """When the first accelerator of the ledger came; None: there is none."""

    @cached_property
    def colored_teams(self) -> Mapping[str, int]:
        """The teams with a color of their own here: of those that share one, the largest."""
        if self.color is not ColorBy.OWNER:
            return {}
        sums: dict[str, int] = {}
        for times in self._node_times:
            for name, time_ns in times.items():
                sums[name] = sums.get(name, 0) + time_ns
        sums = {name: time_ns for name, time_ns in sums.items() if name in self.teams}
        colored: dict[int, str] = {}
        for name in sorted(sums, key=lambda name: (-sums[name], name)):
            colored.setdefault(self.teams[name] % MOST_TEAMS, name)
        return {name: number for number, name in colored.items()}

    @cached_property
    def _own_categories(self) -> Sequence[Mapping[str, int]]:
        color, items = self.color, self.items
        if color is ColorBy.STATE:
            return [item.states for item in items]
        if color is ColorBy.OWNER:
            return [item.by_owner() for item in items]
        return [item.categories(color) for item in items]

    @cached_property
    def _others(self) -> Set[str]:
        """Teams without a color."""
        return set(self.teams) - set(self.colored_teams) if self.color is ColorBy.OWNER else set()

    @cached_property
    def _positions(self) -> Mapping[int, int]:
        # By identity: items are many, and of two alike each has a place of its own.
        return {id(item): at for at, item in enumerate(self.items)}

    def categories(self, item: MappedAccelerator) -> Mapping[str, int]:
        """The time of an item of the map by what is colored; teams without a color are one."""
        return _merge_others(self._own_categories[self._positions[id(item)]], self._others)

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Categories in the order of the legend."""
        if self.color is ColorBy.STATE:
            return STATES
        if self.color is ColorBy.HEALTH:
            return (*HEALTHS, STRANDED)
        apart = (FAILED, DEGRADED, UNAVAILABLE, UNOBSERVED, STRANDED, UNALLOCATED)
        if self.color is ColorBy.USE:
            return (*USES, ACTIVITY_UNKNOWN, *apart)
        return (*self.colored_teams, OTHER_TEAMS, NOT_RATED, *apart)

    @cached_property
    def _colors(self) -> Sequence[str]:
        if self.color is ColorBy.STATE:
            return [item.prevailing_state for item in self.items]
        order, others = self.order, self._others
        return [prevailing(_merge_others(own, others), order) for own in self._own_categories]

    def color_of(self, item: MappedAccelerator) -> str:
        """The category whose color an item of the map has."""
        return self._colors[self._positions[id(item)]]

    @cached_property
    def _troubles(self) -> Sequence[str]:
        return [item.trouble for item in self.items]

    def trouble_of(self, item: MappedAccelerator) -> str:
        """What a person should look at; empty where nothing is wrong."""
        return self._troubles[self._positions[id(item)]]

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """The legend: categories that occur; they add up to the accelerators and to the capacity."""
        return add_shares(self.nodes, self.order)

    def share_out(self, items: Iterable[MappedAccelerator]) -> tuple[Share, ...]:
        """The categories of these items, in the order of the legend."""
        places = [self._positions[id(item)] for item in items]
        return self._shares(places, self._add_times(places))

    def _add_times(self, places: Iterable[int]) -> dict[str, int]:
        """GPU-nanoseconds of the items in these places by category, each team by itself."""
        times: dict[str, int] = {}
        items, categories = self.items, self._own_categories
        for at in places:
            gpu_micro = items[at].gpu_micro
            for name, ms in categories[at].items():
                # As `gpu_ns` has it: tens of thousands of calls would take longer than the sum.
                if name in times:
                    times[name] += gpu_micro * ms
                else:
                    times[name] = gpu_micro * ms
        return times

    def _shares(self, places: Iterable[int], own_times: Mapping[str, int]) -> tuple[Share, ...]:
        """The categories of the items in these places, which have these times."""
        counts: dict[str, int] = {}
        items, colors = self.items, self._colors
        for at in places:
            if not items[at].is_rest:
                color = colors[at]
                counts[color] = counts[color] + 1 if color in counts else 1
        times = _merge_others(own_times, self._others)
        names = sorted(times.keys() & self._rank.keys(), key=self._rank.__getitem__)
        return tuple([Share(name, counts.get(name, 0), times[name]) for name in names])

    @cached_property
    def _rank(self) -> Mapping[str, int]:
        """Where each category stands in the legend."""
        return {name: at for at, name in enumerate(self.order)}

    @property
    def accelerators(self) -> int:
        """How many accelerators are on the map."""
        return sum(share.accelerators for share in self.shares)

    @property
    def capacity_ns(self) -> int:
        """All of their time."""
        return sum(share.gpu_ns for share in self.shares)

    @cached_property
    def _places(self) -> Mapping[NodeName, Sequence[int]]:
        """Where the items of each node are."""
        nodes: dict[tuple[str, str], list[int]] = {}
        pool = node = None
        own: list[int] = []
        for at, item in enumerate(self.items):
            # Items of a node follow each other.
            if item.node != node or item.pool != pool:
                pool, node = item.pool, item.node
                own = nodes.setdefault((pool, node), [])
            own.append(at)
        return {
            NodeName(pool, node, self.node_states.get(node, "")): places
            for (pool, node), places in nodes.items()
        }

    @cached_property
    def by_node(self) -> Mapping[NodeName, Sequence[MappedAccelerator]]:
        """The items of each node, in order."""
        items = self.items
        return {node: [items[at] for at in places] for node, places in self._places.items()}

    @cached_property
    def colored_boards(self) -> Sequence[Sequence[Sequence[tuple[MappedAccelerator, str]]]]:
        """Of each of `nodes` its boards with their parts, each with the category whose color it has."""
        items, colors = self.items, self._colors
        nodes = []
        for places in self._places.values():
            boards: dict[str, list[tuple[MappedAccelerator, str]]] = {}
            for at in places:
                item = items[at]
                device = item.device
                if device in boards:
                    boards[device].append((item, colors[at]))
                else:
                    boards[device] = [(item, colors[at])]
            nodes.append(list(boards.values()))
        return nodes

    @cached_property
    def _node_times(self) -> Sequence[Mapping[str, int]]:
        return [self._add_times(places) for places in self._places.values()]

    @cached_property
    def nodes(self) -> Sequence[MapGroup]:
        """Each node of the map."""
        return [
            self._group(node, places, times)
            for (node, places), times in zip(self._places.items(), self._node_times, strict=True)
        ]

    @cached_property
    def pools(self) -> Sequence[MapGroup]:
        """Each pool of the map."""
        pools: dict[str, list[MapGroup]] = {}
        for node in self.nodes:
            pools.setdefault(node.pool, []).append(node)
        return [
            MapGroup(
                pool,
                pool,
                "",
                sum(node.accelerators for node in nodes),
                sum(node.gpu_ns for node in nodes),
                add_shares(nodes, self.order),
                sum(node.troubled for node in nodes),
            )
            for pool, nodes in pools.items()
        ]

    def _group(self, node: NodeName, places: Sequence[int], times: Mapping[str, int]) -> MapGroup:
        shares, troubles = self._shares(places, times), self._troubles
        accelerators = time_ns = troubled = 0
        for share in shares:
            accelerators += share.accelerators
            time_ns += share.gpu_ns
        for at in places:
            if troubles[at]:
                troubled += 1
        return MapGroup(node.name, node.pool, node.state, accelerators, time_ns, shares, troubled)

    @cached_property
    def troubles(self) -> Mapping[str, Sequence[MappedAccelerator]]:
        """Accelerators that a person should look at, by what is wrong."""
        troubles: dict[str, list[MappedAccelerator]] = {}
        for item, trouble in zip(self.items, self._troubles, strict=True):
            if trouble:
                troubles.setdefault(trouble, []).append(item)
        idle = [item for item in self.items if item.is_idle_held]
        order = (SILENT_NODE, *STATES)
        found = {name: troubles[name] for name in order if name in troubles}
        return {**found, "held idle": idle} if idle else found


def _merge_others(categories: Mapping[str, int], others: Set[str]) -> Mapping[str, int]:
    """The same categories with those of the other teams as one."""
    if not others or others.isdisjoint(categories):
        return categories
    sums: dict[str, int] = {}
    for name, ms in categories.items():
        shown = OTHER_TEAMS if name in others else name
        sums[shown] = sums.get(shown, 0) + ms
    return sums


def add_shares(groups: Iterable[MapGroup], order: Sequence[str]) -> tuple[Share, ...]:
    """The shares of several groups, added up, in the order of the legend."""
    sums: dict[str, tuple[int, int]] = {}
    for group in groups:
        for share in group.shares:
            accelerators, time_ns = sums.get(share.name, (0, 0))
            sums[share.name] = accelerators + share.accelerators, time_ns + share.gpu_ns
    return tuple(Share(name, *sums[name]) for name in order if name in sums)


def finest_grain(items: Sequence[MappedAccelerator]) -> Grain:
    """The finest unit of which few enough are there to be told apart."""
    if not _has_more(items, attrgetter("device"), MOST_DEVICES):
        return Grain.GPU
    return Grain.POOL if _has_more(items, attrgetter("node"), MOST_NODES) else Grain.NODE


def _has_more(
    items: Sequence[MappedAccelerator], name_of: Callable[[MappedAccelerator], str], most: int
) -> bool:
    """Whether items have more different names than this; looks no further once that is known."""
    names: set[str] = set()
    for start in range(0, len(items), _AT_ONCE):
        names.update(map(name_of, items[start : start + _AT_ONCE]))
        if len(names) > most:
            return True
    return False


_DIGITS = re.compile(r"(\d+)")


def natural_order(name: str) -> tuple[tuple[int, str], ...]:
    """Order of names in which node-9 comes before node-10."""
    return tuple(
        (int(part), "") if part.isdigit() and part.isascii() else (-1, part)
        for part in _DIGITS.split(name)
        if part
    )


def now_states(state: str) -> dict[str, int]:
    """The one present state: now has no length, so it has an hour."""
    return {state: HOUR_MS}
