"""Where each accelerator is, as what, and from when to when: the inventory time line of one board.

Problem: agents report, in any order and more than once, which accelerators they see, with
attributes that change; an inventory file states where some of them are; and a node may claim what
is not its own. Idea: the time line is a pure function of all usage intervals and all stated rows of
a board, swept once in the order of time. Ties are broken by content, never by a number that depends
on arrival. Law: the same evidence in any order gives the same time line, and at every instant the
parts of a board add up to at most one device. docs/decisions/0020-facts-with-dates.md has the
rules.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise

from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.accounting.quantity import GPU_MICRO

DEFAULT_POOL = "default"
# Decision 0020: sightings at most 24 hours before and after hold the device for its node.
RETURN_MS = DAY_MS
"""A device that its node sees again within this time has not moved to the node that claimed it in
between.
"""
FAR_MS = 2**62
"""An end for what has none yet."""
SEEN, STATED = "agent", "import"
OWNER = "owner"
"""Kind of a claim of a workload to be charged to an owner that its namespace does not allow."""


@dataclass(frozen=True, slots=True, order=True)
class Attributes:
    """What was reported of an accelerator: model, MIG instance (empty: none), share of its board,
    claimed pool.

    `id` is the row that keeps it, 0 where there is none; it takes no part in comparisons.
    """

    model: str
    mig_instance: str
    gpu_micro: int
    pool: str
    id: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Part:
    """An accelerator of a board: the device itself, or a MIG instance of it.

    `known` is what it counts as where evidence from before dated facts says nothing of it.
    """

    accelerator_id: int
    uuid: str
    is_device: bool
    known: Attributes = field(default=Attributes("", "", GPU_MICRO, ""), compare=False)


@dataclass(frozen=True, slots=True)
class Sighting:
    """An interval (unix milliseconds, start in, end out) in which a node saw an accelerator.

    `attributes` is None where the evidence is older than dated facts: it confirms what is there.
    """

    start_ms: int
    end_ms: int
    node: str
    node_id: int
    part: Part
    attributes: Attributes | None

    @property
    def order(self) -> tuple[object, ...]:
        """A key that does not depend on arrival."""
        return (
            self.start_ms,
            self.end_ms,
            self.node,
            self.part.uuid,
            self.attributes is not None,
            self.attributes,
        )


@dataclass(frozen=True, slots=True)
class StatedRow:
    """A row of the imported inventory; of a device it holds for its MIG instances as well."""

    part: Part
    node_id: int | None
    pool: str
    model: str
    in_ms: int
    out_ms: int | None

    def covers(self, at_ms: int) -> bool:
        """Whether the accelerator is there at an instant."""
        return self.in_ms <= at_ms and (self.out_ms is None or at_ms < self.out_ms)


@dataclass(frozen=True, slots=True)
class Retirement:
    """The end of a node: what agents saw on it is there until then, and again from its next
    sighting on.
    """

    node_id: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Placement:
    """An accelerator in one place for a time: a row of `capacity`.

    `out_ms` None: it is still there.
    """

    accelerator_id: int
    node_id: int | None
    pool: str
    model: str
    gpu_micro: int
    in_ms: int
    out_ms: int | None
    source: str
    attributes_id: int
    claimed_pool: str = field(default="", compare=False)
    reported_model: str | None = field(default=None, compare=False)
    """What agents call it where the inventory may state another model; None: nobody has reported
    it.
    """

    @property
    def place(self) -> tuple[object, ...]:
        """What rating goes by."""
        return self.node_id, self.pool, self.model, self.gpu_micro, self.source

    def reaches(self, at_ms: int) -> bool:
        """Whether the accelerator is there just before an instant, even if it leaves at that
        instant.
        """
        return self.in_ms < at_ms and (self.out_ms is None or at_ms <= self.out_ms)

    def holds(self, at_ms: int) -> bool:
        """Whether the accelerator is there at an instant."""
        return self.in_ms <= at_ms and (self.out_ms is None or at_ms < self.out_ms)


@dataclass(frozen=True, slots=True)
class PlacementClaim:
    """A claim that was refused: `kind` is node, pool, board, holder or owner, `subject` what was
    claimed.
    """

    accelerator_id: int
    node_id: int
    kind: str
    subject: str
    first_ms: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class RefusedClaim:
    """A claim that changed nothing, with names, for people; `holder` is the node where the
    accelerator is.
    """

    uuid: str
    node: str
    kind: str
    subject: str
    holder: str
    first_ms: int
    last_ms: int

    def sentence(self) -> str:
        """What was claimed, and what holds."""
        if self.kind == "pool":
            return (
                f"{self.node} puts {self.uuid} into pool {self.subject}, for which usage is"
                " imported; it does not count there"
            )
        if self.kind == "board":
            return (
                f"{self.node} reports {self.uuid} beside parts that make one whole device; it does"
                " not count"
            )
        if self.kind == OWNER:
            return (
                f"{self.node}: {self.subject}, whom its namespace does not allow; it does not count"
            )
        if self.kind == "holder":
            return (
                f"{self.node} gives {self.uuid} to {self.subject} and to another holder at once;"
                " the first counts"
            )
        return (
            f"{self.uuid} is reported by {self.holder} and {self.node} at once; it stays with the"
            " first"
        )


@dataclass(frozen=True, slots=True)
class Board:
    """Everything that the time line of a board follows from, from `since_ms` on.

    `carried` is what is there just before; `former_pools` by accelerator the pools it had until
    then, in order of time. `imported` has the days on which usage is imported for a pool. Sightings
    reach back RETURN_MS before `since_ms`.
    """

    device: str
    since_ms: int
    carried: Sequence[Placement]
    sightings: Iterable[Sighting]
    stated: Sequence[StatedRow] = ()
    imported: Mapping[str, Sequence[Period]] = field(default_factory=dict)
    former_pools: Mapping[int, Sequence[str]] = field(default_factory=dict)
    gone: Sequence[Placement] = ()
    """The last placements of parts that were there before and are not just before `since_ms`."""
    retired: Sequence[Retirement] = ()
    is_cut: bool = False
    """Whether stated rows may say something else than `carried`: there is no evidence any more from
    before.
    """


@dataclass(frozen=True, slots=True)
class TimeLine:
    """The placements of a board from `since_ms` on, by accelerator and time, and the claims that
    were refused.
    """

    placements: list[Placement]
    claims: list[PlacementClaim]


def place(board: Board) -> TimeLine:
    """The time line of a board."""
    sweep = _Sweep(board)
    sweep.run()
    placements: list[Placement] = []
    claims = list(sweep.claims)
    seen_ms: dict[int, int] = {}
    # A pool claim that still holds ends with the last sighting, not with today: the result must not
    # depend on the clock.
    for sighting in sweep.sightings:
        seen_ms[sighting.part.accelerator_id] = max(
            sighting.end_ms, seen_ms.get(sighting.part.accelerator_id, 0)
        )
    ordered = sorted(sweep.closed, key=lambda row: (row.accelerator_id, row.in_ms))
    for accelerator_id, rows in groupby(ordered, key=lambda row: row.accelerator_id):
        former = board.former_pools.get(accelerator_id, ())
        # Pools come after the sweep: a claimed pool changes neither which parts fit on a board nor
        # on which node it is.
        settled, refused = _settle_pools(
            list(rows), board.imported, former, seen_ms.get(accelerator_id, 0)
        )
        placements += merge_placements(settled)
        claims += refused
    return TimeLine(placements, _merged_claims(claims))


def merge_placements(rows: Sequence[Placement]) -> list[Placement]:
    """Rows of one accelerator in order of time, with those that follow each other and say the same
    as one.
    """
    joined: list[Placement] = []
    for row in rows:
        if (
            joined
            and joined[-1].out_ms == row.in_ms
            and replace(row, in_ms=joined[-1].in_ms, out_ms=None)
            == replace(joined[-1], out_ms=None)
        ):
            joined[-1] = replace(joined[-1], out_ms=row.out_ms)
        else:
            joined.append(row)
    return joined


def splice_placements(
    before: Sequence[Placement], placed: Sequence[Placement], at_ms: int
) -> list[Placement]:
    """Join the rows of `before` up to an instant with those of `placed`, which begin at it."""
    # Merged again at the seam: a row that goes on unchanged must not look as if it had ended.
    kept = [replace(row, out_ms=at_ms) if row.holds(at_ms) else row for row in before]
    return merge_placements([*kept, *placed])


def changes(old: Sequence[Placement], new: Sequence[Placement]) -> list[Period]:
    """The times in which two lists of rows of one accelerator place it differently."""
    rows = [*old, *new]
    # Between two edges neither list changes: comparing them at each edge is enough.
    edges = sorted(
        {row.in_ms for row in rows} | {FAR_MS if row.out_ms is None else row.out_ms for row in rows}
    )
    return [
        Period(start, end)
        for start, end in pairwise(edges)
        if [row.place for row in old if row.holds(start)]
        != [row.place for row in new if row.holds(start)]
    ]


@dataclass(slots=True)
class _There:
    """A part that is there: its row so far, and until when it has been seen."""

    part: Part
    row: Placement
    attributes: Attributes | None
    seen_until_ms: int = -1


class _Sweep:
    """Takes the events of a board in the order of time and keeps what is there."""

    def __init__(self, board: Board) -> None:
        self.board = board
        self.closed: list[Placement] = []
        self.claims: list[PlacementClaim] = []
        self.there: dict[int, _There] = {}
        # A set first: evidence that was delivered twice is one sighting.
        self.sightings = sorted(set(board.sightings), key=lambda sighting: sighting.order)
        self.starts: dict[int, list[int]] = defaultdict(list)
        self.seen_until: dict[int, int] = {}
        # Which parts a node shows at an instant, whatever the order in which its sightings of that
        # instant are taken.
        self.shown = {
            (sighting.part.accelerator_id, sighting.node_id, sighting.start_ms)
            for sighting in self.sightings
        }
        for sighting in self.sightings:
            self.starts[sighting.node_id].append(sighting.start_ms)
        parts = {sighting.part.accelerator_id: sighting.part for sighting in self.sightings}
        parts |= {row.part.accelerator_id: row.part for row in board.stated}
        self.last = {row.accelerator_id: row for row in (*board.gone, *board.carried)}
        self.stated_parts = {row.part.accelerator_id for row in board.stated}
        self.device_is_stated = any(row.part.is_device for row in board.stated)
        for row in board.carried:
            part = parts.get(row.accelerator_id, Part(row.accelerator_id, "", is_device=False))
            attributes = _reported_attributes(row, part)
            self.there[row.accelerator_id] = _There(
                part, replace(row, in_ms=board.since_ms, out_ms=None), attributes
            )

    def run(self) -> None:
        """Apply all events from `since_ms` on; what is there after the last one remains there."""
        # The inventory changes things at its own instants, also where nothing is seen.
        edges = {
            at for row in self.board.stated for at in (row.in_ms, row.out_ms) if at is not None
        }
        edges |= {retirement.at_ms for retirement in self.board.retired}
        begin = {self.board.since_ms} if self.board.is_cut else set()
        edges = {at for at in edges if at >= self.board.since_ms} | begin
        moments = sorted({sighting.start_ms for sighting in self.sightings} | edges)
        at = 0
        for moment in moments:
            end = at
            while end < len(self.sightings) and self.sightings[end].start_ms == moment:
                end += 1
            self._moment(moment, self.sightings[at:end])
            at = end
        for entry in self.there.values():
            self.closed.append(entry.row)

    def _moment(self, at_ms: int, sightings: Sequence[Sighting]) -> None:
        if at_ms >= self.board.since_ms:
            self._leave_as_stated(at_ms)
            self._leave_as_retired(at_ms)
        # Confirmations before news: a part that is seen at this instant must count as seen when
        # another one does not fit beside it.
        fresh = [sighting for sighting in sightings if not self._confirms(sighting)]
        if at_ms >= self.board.since_ms:
            self._enter_as_stated(at_ms)
            for sighting in fresh:
                self._see(sighting)
                self._note(sighting)

    def _note(self, sighting: Sighting) -> None:
        self.seen_until[sighting.node_id] = max(
            self.seen_until.get(sighting.node_id, 0), sighting.end_ms
        )

    def _confirms(self, sighting: Sighting) -> bool:
        """Whether a sighting shows what is there already, or is from before the time that is placed
        here.
        """
        # Sightings from before `since_ms` only say who saw the device until when; they place
        # nothing.
        if sighting.start_ms < self.board.since_ms:
            self._note(sighting)
        entry = self.there.get(sighting.part.accelerator_id)
        if entry is None or entry.row.node_id not in (None, sighting.node_id):
            return False
        # The inventory speaks of this part now, so what is there has to be placed again by its row.
        if entry.row.source == SEEN and self._stated_of(sighting.part):
            return False
        if sighting.attributes is not None and (
            entry.attributes is None or not _says(entry, sighting.attributes)
        ):
            return False
        entry.seen_until_ms = max(entry.seen_until_ms, sighting.end_ms)
        self._note(sighting)
        return True

    # stated rows

    def _stated_of(self, part: Part) -> bool:
        return part.accelerator_id in self.stated_parts or self.device_is_stated

    def _row_for(self, part: Part, at_ms: int) -> StatedRow | None:
        """The stated row that governs a part at an instant: its own, else its device's."""
        rows = [row for row in self.board.stated if row.part.accelerator_id == part.accelerator_id]
        # A row of its own hides those of the device even where it does not cover the instant: then
        # the part is not there.
        rows = rows or [row for row in self.board.stated if row.part.is_device]
        ordered = sorted(
            rows,
            key=lambda row: (row.in_ms, row.out_ms is None, row.out_ms or 0, row.pool, row.model),
        )
        return next((row for row in ordered if row.covers(at_ms)), None)

    def _leave_as_stated(self, at_ms: int) -> None:
        for entry in list(self.there.values()):
            if not self._stated_of(entry.part):
                continue
            row = self._row_for(entry.part, at_ms)
            if row is None:
                self._leave(entry.part.accelerator_id, at_ms)
                continue
            # An inventory without a model leaves it to the agents.
            model = row.model or (entry.attributes or entry.part.known).model
            stated = row.node_id, row.pool, model, STATED
            if stated != (entry.row.node_id, entry.row.pool, entry.row.model, entry.row.source):
                self._put(
                    entry.part, row.node_id, entry.attributes, at_ms, row, entry.seen_until_ms
                )

    def _leave_as_retired(self, at_ms: int) -> None:
        nodes = {
            retirement.node_id for retirement in self.board.retired if retirement.at_ms == at_ms
        }
        for number, entry in list(self.there.items()):
            # The inventory says itself when its accelerators leave.
            if entry.row.node_id in nodes and entry.row.source == SEEN:
                self._leave(number, at_ms)

    def _enter_as_stated(self, at_ms: int) -> None:
        self._return_as_stated(at_ms)
        for row in self.board.stated:
            part = row.part
            begins = row.in_ms == at_ms or (
                self.board.is_cut and at_ms == self.board.since_ms and row.covers(at_ms)
            )
            # Only a device is there by its row alone, and only while none of its parts is: the
            # share of a MIG instance is known from its first sighting on (decision 0020, limits).
            if (
                begins
                and part.is_device
                and part.accelerator_id not in self.there
                and not self.there
            ):
                governing = self._row_for(part, at_ms)
                if governing is not None:
                    self._put(part, governing.node_id, None, at_ms, governing, -1)

    def _return_as_stated(self, at_ms: int) -> None:
        """Have MIG instances that were there before return with a row of their own, where they fit."""
        returning = {
            row.part for row in self.board.stated if row.in_ms == at_ms and not row.part.is_device
        }
        for part in sorted(returning, key=lambda part: part.uuid):
            last, governing = self.last.get(part.accelerator_id), self._row_for(part, at_ms)
            if last is None or governing is None or part.accelerator_id in self.there:
                continue
            attributes = _reported_attributes(last, part)
            if _fit(attributes, self.there.values()):
                self._put(part, governing.node_id, attributes, at_ms, governing, -1)

    # sightings

    def _see(self, sighting: Sighting) -> None:
        stated = self._row_for(sighting.part, sighting.start_ms)
        if stated is None and self._stated_of(sighting.part):
            return  # the inventory says that it is not there
        if self._is_refused(sighting, stated):
            self._refuse(sighting, "node", sighting.node)
            return
        # Evidence from before dated facts says that it is there and nothing about how: it never
        # changes a row.
        if sighting.attributes is None and sighting.part.accelerator_id in self.there:
            self.there[sighting.part.accelerator_id].seen_until_ms = sighting.end_ms
            return
        if stated is None and any(
            entry.row.node_id != sighting.node_id for entry in self.there.values()
        ):
            for accelerator_id in list(self.there):
                self._leave(accelerator_id, sighting.start_ms)  # the board has moved
        attributes = sighting.attributes or sighting.part.known
        # A board is at most one device: a new part first displaces the parts that are not seen now,
        # and is refused if that is not enough.
        others = {
            number: entry
            for number, entry in self.there.items()
            if number != sighting.part.accelerator_id
        }
        if not _fit(attributes, others.values()):
            seen = {
                number: entry
                for number, entry in others.items()
                if self._is_seen(number, entry, sighting.start_ms)
            }
            if not _fit(attributes, seen.values()):
                self._refuse(sighting, "board", self.board.device)
                return
            for accelerator_id in others.keys() - seen.keys():
                self._leave(accelerator_id, sighting.start_ms)
        node_id = sighting.node_id if stated is None or stated.node_id is None else stated.node_id
        self._put(sighting.part, node_id, attributes, sighting.start_ms, stated, sighting.end_ms)

    def _is_seen(self, accelerator_id: int, entry: _There, at_ms: int) -> bool:
        """Whether its node sees a part at an instant; also by an interval that begins there and
        says something new.
        """
        return (
            entry.seen_until_ms > at_ms or (accelerator_id, entry.row.node_id, at_ms) in self.shown
        )

    def _is_refused(self, sighting: Sighting, stated: StatedRow | None) -> bool:
        """Whether another node has the device at the time of this sighting."""
        if stated is not None:
            return stated.node_id not in (None, sighting.node_id)
        # Without an inventory the first node keeps the device while it sees it, or has seen it and
        # sees it again within RETURN_MS. However long it was silent, a time in which it sees the
        # device is its own.
        holders = {entry.row.node_id for entry in self.there.values()} - {None, sighting.node_id}
        for holder in holders:
            until = self.seen_until.get(holder or 0, -1)
            # Looking ahead is allowed: the time line is a function of all evidence, and late
            # evidence makes it anew.
            starts = self.starts.get(holder or 0, [])
            at = bisect_left(starts, sighting.start_ms)
            following = starts[at] if at < len(starts) else FAR_MS
            sees = until > sighting.start_ms or following < sighting.end_ms
            returns = following <= sighting.end_ms + RETURN_MS
            if sees or (until >= sighting.start_ms - RETURN_MS and returns):
                return True
        return False

    def _refuse(self, sighting: Sighting, kind: str, subject: str) -> None:
        claim = PlacementClaim(
            accelerator_id=sighting.part.accelerator_id,
            node_id=sighting.node_id,
            kind=kind,
            subject=subject,
            first_ms=sighting.start_ms,
            last_ms=sighting.end_ms,
        )
        self.claims.append(claim)

    # rows

    def _leave(self, accelerator_id: int, at_ms: int) -> None:
        row = self.there.pop(accelerator_id).row
        # What was replaced in the instant in which it began never was there.
        if row.in_ms < at_ms:
            self.closed.append(replace(row, out_ms=at_ms))
            self.last[accelerator_id] = row

    def _put(
        self,
        part: Part,
        node_id: int | None,
        attributes: Attributes | None,
        at_ms: int,
        stated: StatedRow | None,
        seen_until_ms: int,
    ) -> None:
        if part.accelerator_id in self.there:
            self._leave(part.accelerator_id, at_ms)
        reported = attributes or replace(part.known, gpu_micro=GPU_MICRO, id=0)
        claimed = reported.pool or DEFAULT_POOL
        row = Placement(
            accelerator_id=part.accelerator_id,
            node_id=node_id,
            pool=claimed if stated is None else stated.pool,
            model=reported.model if stated is None or not stated.model else stated.model,
            gpu_micro=reported.gpu_micro,
            in_ms=at_ms,
            out_ms=None,
            source=SEEN if stated is None else STATED,
            attributes_id=reported.id,
            claimed_pool=claimed,
            reported_model=reported.model if reported.id else None,
        )
        self.there[part.accelerator_id] = _There(part, row, attributes, seen_until_ms)


def _reported_attributes(row: Placement, part: Part) -> Attributes:
    """What agents reported of a part by its row: the inventory may have stated another model, which
    is not compared.
    """
    model = row.reported_model
    if model is None:
        model = part.known.model if row.source == STATED else row.model
    return Attributes(
        model=model,
        mig_instance="",
        gpu_micro=row.gpu_micro,
        pool=row.claimed_pool or row.pool,
        id=row.attributes_id,
    )


def _fit(attributes: Attributes, others: Iterable[_There]) -> bool:
    """Whether the shares of a part with these attributes and of the others add up to at most one
    device.
    """
    return attributes.gpu_micro + sum(entry.row.gpu_micro for entry in others) <= GPU_MICRO


def _says(entry: _There, attributes: Attributes) -> bool:
    """Whether what is there was reported with the same attributes."""
    known = entry.attributes
    if known is None:
        return False
    # Stored attributes are found again by their content, so equal ids mean equal content.
    if known.id or attributes.id:
        return known.id == attributes.id
    return (known.model, known.gpu_micro, known.pool or DEFAULT_POOL) == (
        attributes.model,
        attributes.gpu_micro,
        attributes.pool or DEFAULT_POOL,
    )


def _settle_pools(
    rows: Sequence[Placement],
    imported: Mapping[str, Sequence[Period]],
    former: Sequence[str],
    seen_ms: int,
) -> tuple[list[Placement], list[PlacementClaim]]:
    """The rows of one accelerator in the pools that hold, cut where usage is imported for a claimed
    one.

    An ongoing claim lasts until `seen_ms`, when the accelerator was seen last.
    """
    settled: list[Placement] = []
    claims: list[PlacementClaim] = []
    pools = list(former)
    for row in rows:
        # Evidence from before dated attributes has none: the pool that it claimed was accepted, and
        # is kept.
        days = (
            imported.get(row.claimed_pool, ()) if row.source == SEEN and row.attributes_id else ()
        )
        # The pool that held last and is not the claimed one: on days of imported usage the
        # accelerator stays there (decision 0020).
        other = next((pool for pool in reversed(pools) if pool != row.claimed_pool), DEFAULT_POOL)
        other = other if row.claimed_pool != DEFAULT_POOL else DEFAULT_POOL
        for part, is_imported in _cut(row, days):
            pool = other if is_imported else row.claimed_pool if row.source == SEEN else row.pool
            settled.append(replace(part, pool=pool))
            # Where nothing else is left but the claimed pool, the claim changes nothing and nobody
            # has to decide it.
            if is_imported and other != row.claimed_pool:
                last_ms = max(part.in_ms, seen_ms) if part.out_ms is None else part.out_ms
                claims.append(
                    PlacementClaim(
                        accelerator_id=row.accelerator_id,
                        node_id=row.node_id or 0,
                        kind="pool",
                        subject=row.claimed_pool,
                        first_ms=part.in_ms,
                        last_ms=last_ms,
                    )
                )
            pools.append(pool)
    return settled, claims


def _cut(row: Placement, days: Sequence[Period]) -> list[tuple[Placement, bool]]:
    """A row cut at the edges of some periods, with whether each part lies in one."""
    parts: list[tuple[Placement, bool]] = []
    cursor = row.in_ms
    for day in days:
        if day.end_ms <= cursor:
            continue
        if row.out_ms is not None and day.start_ms >= row.out_ms:
            break
        if day.start_ms > cursor:
            parts.append((replace(row, in_ms=cursor, out_ms=day.start_ms), False))
        cursor = max(cursor, day.start_ms)
        # Both are open-ended: the rest of the row lies in the period, and has no end either.
        if row.out_ms is None and day.end_ms >= FAR_MS:
            return [*parts, (replace(row, in_ms=cursor), True)]
        end_ms = day.end_ms if row.out_ms is None else min(day.end_ms, row.out_ms)
        parts.append((replace(row, in_ms=cursor, out_ms=end_ms), True))
        cursor = end_ms
    if row.out_ms is None or cursor < row.out_ms:
        parts.append((replace(row, in_ms=cursor), False))
    return parts


def _merged_claims(claims: Iterable[PlacementClaim]) -> list[PlacementClaim]:
    """One claim for each accelerator, node, kind and subject, from the first to the last time."""
    merged: dict[tuple[int, int, str, str], PlacementClaim] = {}
    for claim in claims:
        key = (claim.accelerator_id, claim.node_id, claim.kind, claim.subject)
        old = merged.get(key, claim)
        merged[key] = replace(
            claim,
            first_ms=min(old.first_ms, claim.first_ms),
            last_ms=max(old.last_ms, claim.last_ms),
        )
    return [merged[key] for key in sorted(merged)]
