"""The map of the fleet as people see it: inline SVG with a path for each color, a legend, tables, and
its rows as CSV.

Each board is a square, its MIG slices strips of it in proportion to their shares. Where boards are
drawn one by one, a strip is stacked by what it did in the hour, so that twenty idle minutes are a
third of it; of a large fleet it has the color of what it did most. What is not observed is hatched.
Colors have the names of classes in templates/style.css, and are those of the boards of Grafana.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from itertools import groupby
from urllib.parse import quote

from markupsafe import Markup, escape

from gpuledger_collector.accounting.money import decimal_text
from gpuledger_collector.accounting.period import HOUR_MS, format_instant
from gpuledger_collector.accounting.quantity import GPU_MICRO, hours_decimal
from gpuledger_collector.accounting.reserved_names import UNNAMED
from gpuledger_collector.accounting.usage import STRANDED, UNALLOCATED, UNAVAILABLE, UNOBSERVED
from gpuledger_collector.export.cells import hours_text
from gpuledger_collector.export.plots import number
from gpuledger_collector.export.report import Column, Kind, Report
from gpuledger_collector.export.site import FLEET, LIVE, address, gpu_path
from gpuledger_collector.insight.fleet_map import (
    ACTIVITY_UNKNOWN,
    BUSY,
    DEGRADED,
    FAILED,
    IDLE,
    NOT_RATED,
    OK,
    OTHER_TEAMS,
    SICK,
    SILENT_NODE,
    UNKNOWN,
    USES,
    ColorBy,
    FleetMap,
    Grain,
    Holder,
    MapGroup,
    MappedAccelerator,
    NodeName,
    Share,
    add_shares,
)
from gpuledger_common.escapes import escape_text
from gpuledger_common.instants import to_datetime
from gpuledger_common.plurals import plural

CLASSES = {
    BUSY: "busy",
    IDLE: "idle",
    ACTIVITY_UNKNOWN: "activity-unknown",
    UNALLOCATED: "unallocated",
    UNAVAILABLE: "unavailable",
    UNOBSERVED: "unobserved",
    STRANDED: "stranded",
    FAILED: "failed",
    DEGRADED: "degraded",
    OK: "ok",
    UNKNOWN: "unknown",
    NOT_RATED: "unknown",
    OTHER_TEAMS: "others",
    **{band: f"use{at}" for at, band in enumerate(USES)},
}
"""Categories, and the ends of the classes of their colors."""
SIDE, GAP, LABEL = 30, 4, 13
"""Of a board that is drawn by itself: its side, the gap to the next one, and the line under it."""
PER_ROW = 8
"""Boards of a node side by side."""
SMALL_ROWS, SMALL_WIDTH, SMALL_HEIGHT, SMALL_GAP = 2, 5, 6, 3
"""Of a node in a block: rows of boards, a board's size, and the gap to the next node."""
TOUCHING = 0.01
"""Rectangles that are less apart are one."""
BLOCK = 10
"""Nodes of a block, across and down."""
MOST_ROWS = 300
"""Rows of a table; the others are added up in one."""
Boards = Sequence[Sequence[tuple[MappedAccelerator, str]]]
"""The boards of a node with their parts, each with the category whose color it has."""
MOST_NAMED = 8
"""Names after a count of what needs attention."""


@dataclass(frozen=True, slots=True)
class MapAddress:
    """What an address of the map says; empty: as it is without."""

    at_ms: int | None = None
    color: ColorBy = ColorBy.STATE
    by: str = ""
    pool: str | None = None
    node: str | None = None

    @property
    def parameters(self) -> dict[str, str]:
        """As parameters of an address."""
        return {
            "at": "" if self.at_ms is None else hour_name(self.at_ms),
            "color": "" if self.color is ColorBy.STATE else self.color.value,
            "by": self.by,
            "pool": "" if self.pool is None else pool_choice(self.pool),
            "node": self.node or "",
        }

    @property
    def path(self) -> str:
        """The address."""
        return address(FLEET, self.parameters)

    @property
    def live_path(self) -> str:
        """Where a map of now hears what changes on what it shows."""
        names = {name: self.parameters[name] for name in ("pool", "node")}
        return address(LIVE, names)

    def with_changes(self, **changes: str) -> str:
        """The address with other parameters; empty: left out."""
        return address(FLEET, {**self.parameters, **changes})


def pool_choice(pool: str) -> str:
    """How an address asks for a pool: an empty name there asks for all of them."""
    return pool or UNNAMED


def parse_pool(text: str) -> str | None:
    """The pool that an address asks for; None: all of them."""
    return None if not text else "" if text == UNNAMED else text


class NodeAddresses:
    """Addresses of many nodes, each from the same beginning."""

    def __init__(self, here: MapAddress) -> None:
        self._start = here.with_changes(node="", pool="", by="")
        self._start += "&" if "?" in self._start else "?"

    def path(self, pool: str, node: str) -> str:
        """The map of a node."""
        names = {"pool": pool, "node": node}
        return self._start + "&".join(
            f"{name}={quote(value, safe='')}" for name, value in names.items() if value
        )


def hour_name(at_ms: int) -> str:
    """An hour in an address: `2025-11-04T05:00Z`."""
    return f"{format_instant(at_ms)[:16]}Z"


def hour_text(at_ms: int) -> str:
    """An hour as people say it: `Tue 4 Nov 2025, 05:00 to 06:00 UTC`."""
    start, end = to_datetime(at_ms), to_datetime(at_ms + HOUR_MS)
    return f"{start:%a} {start.day} {start:%b %Y, %H:%M} to {end:%H:%M} UTC"


def color_class(fleet: FleetMap, name: str) -> str:
    """The class of a category's color."""
    team = fleet.colored_teams.get(name)
    return f"m-team{team}" if team is not None else f"m-{CLASSES.get(name, 'others')}"


@dataclass(frozen=True, slots=True)
class LegendRow:
    """A color with its word, its number of accelerators, and its GPU-hours (now: its GPUs)."""

    css: str
    name: str
    accelerators: int
    gpu_hours: Decimal


def legend(fleet: FleetMap) -> list[LegendRow]:
    """What the colors mean; the rows add up to the fleet."""
    hours = hours_decimal([share.gpu_ns for share in fleet.shares], 1 if fleet.hour is None else 2)
    return [
        LegendRow(color_class(fleet, share.name), share.name, share.accelerators, gpu_hours)
        for share, gpu_hours in zip(fleet.shares, hours, strict=True)
    ]


@lru_cache(maxsize=4096)
def _number(value: float) -> str:
    """A coordinate that is not whole: few differ, and there are tens of thousands."""
    return number(value)


class Ink:
    """Rectangles by class, each class drawn as one path; those that touch in a row are one."""

    def __init__(self) -> None:
        self._rows: dict[str, list[list[float]]] = defaultdict(list)

    def add(self, css: str, x: float, y: float, width: float, height: float) -> None:
        """Draw a rectangle."""
        own = self._rows[css]
        if own:
            last = own[-1]
            if last[1] == y and last[3] == height and abs(last[0] + last[2] - x) < TOUCHING:
                last[2] += width
                return
        own.append([x, y, width, height])

    def paths(self) -> Markup:
        """The paths, in the order in which their colors were first used; outlines last."""
        order = sorted(self._rows, key=lambda css: css == "m-trouble")
        return Markup("").join(
            Markup('<path class="{}" d="{}"/>').format(css, _shape(self._rows[css]))
            for css in order
        )


def _shape(rectangles: Iterable[Sequence[float]]) -> str:
    parts = []
    for x, y, width, height in rectangles:
        across = width if type(width) is int else _number(width)
        left = x if type(x) is int else _number(x)
        top = y if type(y) is int else _number(y)
        down = height if type(height) is int else _number(height)
        parts.append(f"M{left} {top}h{across}v{down}h-{across}z")
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class NodePicture:
    """A node with its boards, each of which leads to its receipt."""

    name: str
    path: str
    state: str
    picture: Markup
    words: str


def node_pictures(fleet: FleetMap, here: MapAddress) -> list[tuple[str, list[NodePicture]]]:
    """The nodes of each pool, board by board."""
    pictures = [
        (node.pool, _node_picture(fleet, here, node, items))
        for node, items in fleet.by_node.items()
    ]
    return [
        (pool, [picture for _, picture in group])
        for pool, group in groupby(pictures, key=lambda pair: pair[0])
    ]


def _node_picture(
    fleet: FleetMap, here: MapAddress, node: NodeName, items: Sequence[MappedAccelerator]
) -> NodePicture:
    boards = _boards(items)
    ink, links = Ink(), []
    for at, board in enumerate(boards):
        row, column = divmod(at, PER_ROW)
        x, y = column * (SIDE + GAP), row * (SIDE + LABEL + GAP)
        for item, left, width in _strips(board, SIDE):
            _stack(fleet, ink, item, x + left, y, width if width == SIDE else width - 0.7)
            shape = f"M{number(x + left)} {y}h{number(width)}v{SIDE}h-{number(width)}z"
            if fleet.trouble_of(item):
                ink.add("m-trouble", x + left + 1, y + 1, max(width - 2, 1), SIDE - 2)
            if not item.is_rest:
                links.append(draw_link(gpu_path(item.uuid), item_words(fleet, item), shape))
        links.append(
            Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(
                number(x + SIDE / 2), y + SIDE + LABEL - 2, escape_text(_board_name(board[0]))
            )
        )
    rows = (len(boards) + PER_ROW - 1) // PER_ROW
    width = min(len(boards), PER_ROW) * (SIDE + GAP) - GAP
    height = rows * (SIDE + LABEL + GAP) - GAP
    name = node.name or "no node"
    words = f"{name}: {counts_words(fleet.share_out(items))}"
    picture = draw_group(width, height, words, (ink.paths(), *links), fixed=True)
    path = here.with_changes(node=node.name, pool=pool_choice(node.pool))
    return NodePicture(name, path, node.state, picture, words)


def _stack(
    fleet: FleetMap, ink: Ink, item: MappedAccelerator, x: float, y: float, width: float
) -> None:
    """A strip of a board from the bottom up, by what it did; time in which it was not there is
    left blank.
    """
    categories, bottom = fleet.categories(item), y + SIDE
    for name in reversed(fleet.order):
        if ms := categories.get(name, 0):
            height = SIDE * ms / HOUR_MS
            bottom -= height
            ink.add(color_class(fleet, name), x, bottom, width, height)


def _boards(items: Sequence[MappedAccelerator]) -> list[list[MappedAccelerator]]:
    boards: dict[str, list[MappedAccelerator]] = {}
    for item in items:
        boards.setdefault(item.device, []).append(item)
    return list(boards.values())


def _strips(
    board: Sequence[MappedAccelerator], side: float
) -> list[tuple[MappedAccelerator, float, float]]:
    """The parts of a board from the left, each with its place and width."""
    if len(board) == 1 and board[0].gpu_micro == GPU_MICRO:
        return [(board[0], 0, side)]
    whole = max(GPU_MICRO, sum(item.gpu_micro for item in board))
    strips, left = [], 0.0
    for item in board:
        width = side * item.gpu_micro / whole
        strips.append((item, left, width))
        left += width
    return strips


def _board_name(item: MappedAccelerator) -> str:
    return "?" if item.gpu_index is None else str(item.gpu_index)


def draw_link(path: str, words: str, shape: str, *, is_reached: bool = True) -> Markup:
    """A link over a part of a picture; one of thousands is not reached by the tab key, and stands in
    the table or in the list of nodes.
    """
    reached = "" if is_reached else ' tabindex="-1"'
    # Escaped by hand: formatting of markup is what thousands of links would wait for.
    return Markup(  # noqa: S704 - the path and the words are escaped, the shape is of numbers
        f'<a href="{escape(path)}"{reached}><title>{escape(escape_text(words))}</title>'
        f'<path class="m-hit" d="{shape}"/></a>'
    )


def draw_group(
    width: float, height: float, words: str, body: Iterable[Markup], *, fixed: bool = False
) -> Markup:
    """A picture whose parts are links, so that it is a group and no image; `fixed`: in pixels."""
    size = (
        Markup(' width="{}" height="{}"').format(number(width), number(height))
        if fixed
        else Markup("")
    )
    return Markup(
        '<svg class="plot fleet-map" viewBox="0 0 {} {}"{} role="group" aria-label="{}">{}</svg>'
    ).format(number(width), number(height), size, escape_text(words), Markup("").join(body))


def item_words(fleet: FleetMap, item: MappedAccelerator) -> str:
    """What one accelerator did, in words: `n1 / 3: busy 40 min, idle 20 min; vision, job-7`."""
    place = f"{item.node or 'no node'} / {_board_name(item)}"
    if item.mig_instance:
        place += f" {item.mig_instance}"
    categories = fleet.categories(item)
    named = [name for name in fleet.order if categories.get(name)]
    what = (
        ", ".join(named)
        if item.is_now
        else ", ".join(f"{name} {minutes(categories[name])}" for name in named)
    )
    holder = item.main_holder
    who = f"; {holder.paying_team}, {holder.name}" if holder is not None else ""
    why = f"; {item.cause}" if item.cause else ""
    return f"{place}: {what}{who}{why}"


def minutes(ms: int) -> str:
    """A part of an hour."""
    return f"{ms // 60_000} min" if ms >= 60_000 else f"{ms / 1000:.0f} s"


def counts_words(shares: Iterable[Share]) -> str:
    """How many accelerators are what, in words."""
    return ", ".join(f"{share.accelerators} {share.name}" for share in shares if share.accelerators)


@dataclass(frozen=True, slots=True)
class BlockPicture:
    """Up to a hundred nodes of a pool."""

    caption: str
    picture: Markup


def block_pictures(fleet: FleetMap, here: MapAddress) -> list[tuple[str, list[BlockPicture]]]:
    """The nodes of each pool in blocks, each with its boards, in the color of what they did most."""
    pools: dict[str, list[tuple[MapGroup, Boards]]] = {}
    for node, boards in zip(fleet.nodes, fleet.colored_boards, strict=True):
        pools.setdefault(node.pool, []).append((node, boards))
    css_of = {name: color_class(fleet, name) for name in fleet.order}
    pictures = []
    for pool, nodes in pools.items():
        most = max(len(boards) for _, boards in nodes)
        across = (most + SMALL_ROWS - 1) // SMALL_ROWS
        blocks = [nodes[at : at + BLOCK * BLOCK] for at in range(0, len(nodes), BLOCK * BLOCK)]
        pictures.append((pool, [_block(fleet, here, block, across, css_of) for block in blocks]))
    return pictures


def _block(
    fleet: FleetMap,
    here: MapAddress,
    nodes: Sequence[tuple[MapGroup, Boards]],
    across: int,
    css_of: Mapping[str, str],
) -> BlockPicture:
    width, height = across * SMALL_WIDTH, SMALL_ROWS * SMALL_HEIGHT
    ink, links, addresses = Ink(), [], NodeAddresses(here)
    for at, (node, boards) in enumerate(nodes):
        row, column = divmod(at, BLOCK)
        x, y = column * (width + SMALL_GAP) + 1, row * (height + SMALL_GAP) + 1
        _draw_boards(ink, boards, x, y, across, css_of)
        if node.troubled:
            ink.add("m-trouble", x - 0.5, y - 0.5, width + 1, height + 1)
        words = f"{node.name or 'no node'}: {counts_words(node.shares)}"
        path = addresses.path("" if node.name else pool_choice(node.pool), node.name)
        shape = f"M{x} {y}h{width}v{height}h-{width}z"
        links.append(draw_link(path, words, shape, is_reached=False))
    rows = (len(nodes) + BLOCK - 1) // BLOCK
    first, last = nodes[0][0].name or "no node", nodes[-1][0].name or "no node"
    caption = first if first == last else f"{first} to {last}"
    counted = counts_words(add_shares([node for node, _ in nodes], fleet.order))
    words = f"{plural(len(nodes), 'node')}, {caption}: {counted}"
    size = BLOCK * (width + SMALL_GAP), rows * (height + SMALL_GAP)
    return BlockPicture(caption, draw_group(*size, words, (ink.paths(), *links)))


def _draw_boards(
    ink: Ink, boards: Boards, x: int, y: int, across: int, css_of: Mapping[str, str]
) -> None:
    """The boards of a node from here on, in rows; neighbors of one color at once."""
    for start in range(0, len(boards), across):
        left = begun = x
        drawn = ""
        for board in boards[start : start + across]:
            item, color = board[0]
            is_whole = len(board) == 1 and item.gpu_micro == GPU_MICRO
            if drawn and not (is_whole and color == drawn):
                ink.add(css_of[drawn], begun, y, left - begun, SMALL_HEIGHT)
                drawn = ""
            if is_whole and not drawn:
                begun, drawn = left, color
            if not is_whole:
                strips = _strips([item for item, _ in board], SMALL_WIDTH)
                for (_, color_of_part), (_, shift, width) in zip(board, strips, strict=True):
                    ink.add(css_of[color_of_part], left + shift, y, width, SMALL_HEIGHT)
            left += SMALL_WIDTH
        if drawn:
            ink.add(css_of[drawn], begun, y, left - begun, SMALL_HEIGHT)
        y += SMALL_HEIGHT


@dataclass(frozen=True, slots=True)
class PoolPicture:
    """A pool as one bar."""

    name: str
    path: str
    words: str
    picture: Markup


def pool_pictures(fleet: FleetMap, here: MapAddress) -> list[PoolPicture]:
    """Each pool as a bar of its capacity by color; bars are as long as pools are large."""
    most = max((pool.gpu_ns for pool in fleet.pools), default=1) or 1
    return [_pool_picture(fleet, here, pool, most) for pool in fleet.pools]


def _pool_picture(fleet: FleetMap, here: MapAddress, pool: MapGroup, most: int) -> PoolPicture:
    width, height = 720, 22
    ink, x = Ink(), 0.0
    for share in pool.shares:
        size = width * share.gpu_ns / most
        ink.add(color_class(fleet, share.name), x, 0, size, height)
        x += size
    words = counts_words(pool.shares)
    label = f"Pool {pool.name}: {words}"
    picture = Markup(
        '<svg class="plot pool-bar" viewBox="0 0 {} {}" role="img" aria-label="{}"'
        ' preserveAspectRatio="none">{}</svg>'
    ).format(width, height, escape_text(label), ink.paths())
    path = here.with_changes(pool=pool_choice(pool.name), by="")
    return PoolPicture(pool.name, path, words, picture)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A node or a pool as a row: its cells follow the legend."""

    name: str
    path: str
    note: str
    cells: tuple[int, ...]
    accelerators: int


def group_rows(
    fleet: FleetMap, groups: Sequence[MapGroup], here: MapAddress
) -> tuple[list[GroupRow], GroupRow | None]:
    """Nodes or pools as rows, those first that have something to look at; and the others added up."""
    names = [share.name for share in fleet.shares]

    def row(group: MapGroup) -> GroupRow:
        counts = {share.name: share.accelerators for share in group.shares}
        is_pool = group.name == group.pool and fleet.grain is Grain.POOL
        path = here.with_changes(
            pool=pool_choice(group.pool), by="", **({} if is_pool else {"node": group.name})
        )
        return GroupRow(
            group.name or "no node",
            path,
            "" if group.state in {"", "ok"} else group.state,
            tuple(counts.get(name, 0) for name in names),
            group.accelerators,
        )

    ordered = sorted(groups, key=lambda group: -group.troubled)
    shown, others = [row(group) for group in ordered[:MOST_ROWS]], ordered[MOST_ROWS:]
    if not others:
        return shown, None
    counts = {share.name: share.accelerators for share in add_shares(others, fleet.order)}
    cells = tuple(counts.get(name, 0) for name in names)
    return shown, GroupRow(f"{len(others):,} others", "", "", cells, sum(cells))


@dataclass(frozen=True, slots=True)
class TroubleRow:
    """What needs attention: the word, how many, on how many nodes, and the first of them, each with
    its address and since when it is silent; `sick` are the first accelerators that are not well,
    `others` counts those beyond.
    """

    name: str
    css: str
    accelerators: int
    nodes: int
    links: tuple[tuple[str, str, int | None], ...]
    left_out: int
    sick: tuple[MappedAccelerator, ...]
    others: int


def trouble_rows(fleet: FleetMap, here: MapAddress) -> list[TroubleRow]:
    """What needs attention, with the first nodes."""
    return [
        _trouble(name, items, here, fleet.silent_since_ms if name == SILENT_NODE else {})
        for name, items in fleet.troubles.items()
    ]


def _trouble(
    name: str,
    items: Sequence[MappedAccelerator],
    here: MapAddress,
    silent_since_ms: Mapping[str, int],
) -> TroubleRow:
    nodes = list(dict.fromkeys((item.pool, item.node) for item in items))
    links = tuple(
        (
            node or "no node",
            here.with_changes(pool=pool_choice(pool), node=node, by=""),
            silent_since_ms.get(node),
        )
        for pool, node in nodes[:MOST_NAMED]
    )
    css = CLASSES.get({SILENT_NODE: UNOBSERVED, "held idle": IDLE}.get(name, name), "")
    sick = tuple(items[:MOST_NAMED]) if name in SICK else ()
    return TroubleRow(
        name=name,
        css=f"m-{css}",
        accelerators=len(items),
        nodes=len(nodes),
        links=links,
        left_out=max(0, len(nodes) - MOST_NAMED),
        sick=sick,
        others=len(items) - len(sick) if sick else 0,
    )


@dataclass(slots=True)
class MapRow:
    """An accelerator of a map with the hour that it is about, and who held it longest."""

    item: MappedAccelerator
    hour_ms: int | None
    holder: Holder | None


def map_rows(fleet: FleetMap) -> Iterator[MapRow]:
    """Every accelerator of the map, and what slices leave of boards."""
    hour_ms = None if fleet.hour is None else fleet.hour.start_ms
    return (MapRow(item, hour_ms, item.main_holder) for item in fleet.items)


@lru_cache(maxsize=4096)
def _hours_text(ms: int) -> str:
    # Most of a large fleet did the same for the whole hour, or not at all.
    return hours_text(ms, 6)


def _hours_in(state: str) -> Column[MapRow]:
    def hours(row: MapRow) -> str | None:
        item = row.item
        return None if item.is_now else _hours_text(item.states.get(state, 0))

    return Column(f"{state.replace(' ', '_')}_h", hours, Kind.HOURS, in_table=False)


FLEET_MAP = Report[MapRow](
    "fleet",
    (
        Column("hour", lambda row: row.hour_ms, Kind.INSTANT, about="empty: now", in_table=False),
        Column("pool", lambda row: row.item.pool),
        Column("node", lambda row: row.item.node),
        Column("index", lambda row: row.item.gpu_index, Kind.NUMBER, heading="GPU"),
        Column("uuid", lambda row: row.item.uuid, in_table=False),
        Column("device", lambda row: row.item.device, in_table=False),
        Column("model", lambda row: row.item.model),
        Column("mig_instance", lambda row: row.item.mig_instance),
        Column(
            "gpus",
            lambda row: decimal_text(row.item.gpu_micro),
            Kind.DECIMAL,
            in_table=False,
        ),
        Column("state", lambda row: row.item.prevailing_state),
        Column("health", lambda row: row.item.health if row.item.is_now else None),
        Column(
            "use_percent",
            lambda row: (
                None if row.item.use_permille is None else f"{row.item.use_permille / 10:.1f}"
            ),
            Kind.DECIMAL,
            heading="busy %",
        ),
        *map(
            _hours_in,
            (BUSY, IDLE, ACTIVITY_UNKNOWN, UNALLOCATED, UNAVAILABLE, UNOBSERVED, STRANDED),
        ),
        Column("team", lambda row: row.holder and row.holder.paying_team),
        Column("workload", lambda row: row.holder and row.holder.workload, in_table=False),
        Column("workload_name", lambda row: row.holder and row.holder.name, heading="job"),
    ),
)
"""A row for each accelerator, and for what the slices of a board leave of it."""
