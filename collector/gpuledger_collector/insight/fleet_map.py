"""The fleet as a map: what each accelerator did in an hour, or how it is now, and how many of them
are drawn one by one.

An accelerator's hour is divided into categories by what it is colored by: state, team, use or
health. Law: whatever it is colored by, its categories add up to its time in the hour, and those of
all accelerators to the capacity of the fleet. It takes the color of the category that had most of
the hour; what nobody observed is a category of its own, and never counts as something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

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
        held_ms = self.held_ms
        if not held_ms and not self.holders:
            return self.states
        parts = self._by_team(held_ms) if color is ColorBy.OWNER else self._by_use(held_ms)
        for state, ms in self.states.items():
            if state not in _HELD:
                parts[state] = ms
        return parts

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

    def _by_team(self, held_ms: int) -> dict[str, int]:
        # Most accelerators had one holder for all of their held time.
        if len(self.holders) == 1 and self.holders[0].held_ms >= held_ms:
            return {self.holders[0].paying_team: self.holders[0].held_ms}
        sums: dict[str, int] = {}
        missing = held_ms
        for holder in self.holders:
            team = holder.paying_team
            sums[team] = sums.get(team, 0) + holder.held_ms
            missing -= holder.held_ms
        if missing > 0:
            sums[NOT_RATED] = sums.get(NOT_RATED, 0) + missing
        return sums

    def _by_use(self, held_ms: int) -> dict[str, int]:
        if not held_ms:
            return {}
        permille = self.use_permille
        return {ACTIVITY_UNKNOWN if permille is None else use_band(permille): held_ms}


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


@dataclass(frozen=True, slots=True)
class Share:
    """A category: for how many accelerators it prevails, and its time in GPU-nanoseconds."""

    name: str
    accelerators: int
    gpu_ns: int


@dataclass(frozen=True, slots=True)
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
        for item, categories in zip(self.items, self._own_categories, strict=True):
            # As `gpu_ns` has it: tens of thousands of calls would take longer than the sum.
            gpu_micro = item.gpu_micro
            for name, ms in categories.items():
                sums[name] = sums.get(name, 0) + gpu_micro * ms
        sums = {name: time_ns for name, time_ns in sums.items() if name in self.teams}
        colored: dict[int, str] = {}
        for name in sorted(sums, key=lambda name: (-sums[name], name)):
            colored.setdefault(self.teams[name] % MOST_TEAMS, name)
        return {name: number for number, name in colored.items()}

    @cached_property
    def _own_categories(self) -> Sequence[Mapping[str, int]]:
        color = self.color
        return [item.categories(color) for item in self.items]

    @cached_property
    def _categories(self) -> Mapping[int, Mapping[str, int]]:
        # By identity: items are many, and each is drawn, counted and listed.
        others = set(self.teams) - set(self.colored_teams) if self.color is ColorBy.OWNER else set()
        return {
            id(item): _rename(categories, others)
            for item, categories in zip(self.items, self._own_categories, strict=True)
        }

    def categories(self, item: MappedAccelerator) -> Mapping[str, int]:
        """The time of an item of the map by what is colored; teams without a color are one."""
        return self._categories[id(item)]

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
    def _colors(self) -> Mapping[int, str]:
        order = self.order
        return {number: prevailing(own, order) for number, own in self._categories.items()}

    def color_of(self, item: MappedAccelerator) -> str:
        """The category whose color an item of the map has."""
        return self._colors[id(item)]

    @cached_property
    def _troubles(self) -> Mapping[int, str]:
        return {id(item): trouble for item in self.items if (trouble := item.trouble)}

    def trouble_of(self, item: MappedAccelerator) -> str:
        """What a person should look at; empty where nothing is wrong."""
        return self._troubles.get(id(item), "")

    @cached_property
    def shares(self) -> tuple[Share, ...]:
        """The legend: categories that occur; they add up to the accelerators and to the capacity."""
        return add_shares(self.nodes, self.order)

    def share_out(self, items: Iterable[MappedAccelerator]) -> tuple[Share, ...]:
        """The categories of these items, in the order of the legend."""
        counts: dict[str, int] = {}
        times: dict[str, int] = {}
        colors, categories = self._colors, self._categories
        for item in items:
            number, gpu_micro = id(item), item.gpu_micro
            if not item.is_rest:
                name = colors[number]
                counts[name] = counts.get(name, 0) + 1
            for name, ms in categories[number].items():
                times[name] = times.get(name, 0) + gpu_micro * ms
        return tuple(
            Share(name, counts.get(name, 0), times[name]) for name in self.order if name in times
        )

    @property
    def accelerators(self) -> int:
        """How many accelerators are on the map."""
        return sum(share.accelerators for share in self.shares)

    @property
    def capacity_ns(self) -> int:
        """All of their time."""
        return sum(share.gpu_ns for share in self.shares)

    @cached_property
    def by_node(self) -> Mapping[NodeName, Sequence[MappedAccelerator]]:
        """The items of each node, in order."""
        nodes: dict[tuple[str, str], list[MappedAccelerator]] = {}
        for item in self.items:
            nodes.setdefault((item.pool, item.node), []).append(item)
        return {
            NodeName(pool, node, self.node_states.get(node, "")): items
            for (pool, node), items in nodes.items()
        }

    @cached_property
    def nodes(self) -> Sequence[MapGroup]:
        """Each node of the map."""
        return [
            self._group(node.name, node.pool, node.state, items)
            for node, items in self.by_node.items()
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

    def _group(
        self, name: str, pool: str, state: str, items: Sequence[MappedAccelerator]
    ) -> MapGroup:
        shares = self.share_out(items)
        return MapGroup(
            name,
            pool,
            state,
            sum(share.accelerators for share in shares),
            sum(share.gpu_ns for share in shares),
            shares,
            sum(id(item) in self._troubles for item in items),
        )

    @cached_property
    def troubles(self) -> Mapping[str, Sequence[MappedAccelerator]]:
        """Accelerators that a person should look at, by what is wrong."""
        troubles: dict[str, list[MappedAccelerator]] = {}
        for item in self.items:
            if trouble := self.trouble_of(item):
                troubles.setdefault(trouble, []).append(item)
        idle = [item for item in self.items if item.is_idle_held]
        order = (SILENT_NODE, *STATES)
        found = {name: troubles[name] for name in order if name in troubles}
        return {**found, "held idle": idle} if idle else found


def _rename(categories: Mapping[str, int], others: Set[str]) -> Mapping[str, int]:
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
    if len({item.device for item in items}) <= MOST_DEVICES:
        return Grain.GPU
    return Grain.NODE if len({item.node for item in items}) <= MOST_NODES else Grain.POOL


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
