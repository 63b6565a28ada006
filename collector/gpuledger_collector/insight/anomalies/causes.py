"""What stands behind an episode of spending, in words: the workloads that moved, and what is unlike before.

Problem: 'USD 412 more than a week ago' sends a person to search; 'reindex-all has gone on for 44 hours on 4 GPUs, such
workloads last 3' does not. Idea: the workload name that moved most is compared with what such runs looked like before:
those of its own name, else all of its owner. First match wins, the certain before the likely. Nothing here changes
what is found or what it costs: a nature is a reading of an episode.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from statistics import median

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MINUTE_MS = 60_000
GPU = 1_000_000
"""Micro-GPUs of a GPU."""

RUNAWAY, STORM, PLATEAU, LEAK = "runaway", "retry storm", "plateau", "leak"
NEW, PRICE, SCALE_UP, MANY = "new workload", "price", "scale-up", "many small"

COMPARABLE = 5
"""Fewer runs than this say nothing of how long such runs last."""
FAR_LONGER = 1.5
"""A run is far longer than such runs last when it is this many times as long as 19 of 20 of them."""
FAR_MORE = 2
"""A run holds far more GPUs than such runs when it holds this many times the most that any of them held."""
STORM_RUNS = 10
STORM_RUN_MS = 30 * MINUTE_MS
"""Runs of a storm are this short at the median, and at most half as long as such runs were before."""
STORM_TIMES = 3
"""A storm has this many times the runs that the name ever had in as long a time."""
STORM_GAP_MS = 2 * HOUR_MS
STORMS_THAT_ARE_NONE = 2
"""A name that has stormed so often works like that."""
UNUSED = 0.01
"""A plateau is busy for this part of the time that is known, at most."""
PLATEAU_MS = 8 * HOUR_MS
LEAK_MS = 48 * HOUR_MS
LEAK_DAYS = 4
LEAK_MOST_STEP, LEAK_MOST_FALL = 0.5, 0.1
"""No day of a leak makes more than the first part of its rise, or falls by more than the second."""
SCALED = 1.25
MOST_OF_IT = 0.5
"""A workload name that makes this part of the rise is what moved."""


@dataclass(frozen=True, slots=True)
class WorkloadRun:
    """One workload as it was held. Instants are unix ms; `gpu_micro`: the most that it held in one hour."""

    name: str
    start_ms: int
    end_ms: int
    gpu_micro: int
    gpu_ns: int
    busy_ms: int
    idle_ms: int
    cost_micro: int
    going_on: bool = False

    @property
    def length_ms(self) -> int:
        """From its first to its last evidence."""
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class RateChange:
    """A rate that differs from that of the same hours before, per GPU-hour."""

    pool: str
    model: str
    before: str
    now: str


@dataclass(frozen=True, slots=True)
class AnomalyCase:
    """An episode of one owner and everything that its nature is told from."""

    owner: str
    begin_ms: int
    until_ms: int
    runs: Sequence[WorkloadRun]
    """All runs of the owner that are known, before the episode and in it."""
    moved: Mapping[str, int]
    """Change by workload name against the same hours before, micro-units."""
    price_micro: int = 0
    currency: str = ""
    rates: Sequence[RateChange] = ()
    daily: Sequence[float] = ()
    """What an hour cost on average in each 24 hours of the episode and of the two days before it, in any unit."""


@dataclass(frozen=True, slots=True)
class AnomalyCause:
    """What an episode is, one sentence with its numbers, and the workload names that it is about, dearest first."""

    kind: str
    sentence: str
    workloads: tuple[str, ...] = ()


def explain(case: AnomalyCase) -> AnomalyCause:
    """The nature of an episode; first match wins."""
    change = sum(case.moved.values())
    if case.price_micro and case.price_micro >= MOST_OF_IT * max(change, 1):
        return _price(case)
    risen = sorted(((more, name) for name, more in case.moved.items() if more > 0), reverse=True)
    if not risen:
        return AnomalyCause(MANY, "no workload costs more than in the same hours before")
    rise = sum(more for more, _ in risen)
    names = [name for _, name in risen]
    if risen[0][0] >= MOST_OF_IT * rise:
        told = _of_name(case, names[0])
        if told is not None:
            return told
    return _leak(case, names) or _new(case, names, rise) or _scale_up(case, names) or _many(risen, rise)


def _of_name(case: AnomalyCase, name: str) -> AnomalyCause | None:
    """What one name that makes most of the rise is, if it is something of its own."""
    mine = [run for run in case.runs if run.name == name and _inside(run, case)]
    such, whose = comparable_runs(case, name)
    return _storm(name, mine, such, whose) or _plateau(name, mine) or _runaway(name, mine, such, whose)


def comparable_runs(case: AnomalyCase, name: str) -> tuple[list[WorkloadRun], str]:
    """Runs that began before the episode to compare with, of the name if there are enough, else of the owner."""
    before = [
        run
        for run in case.runs
        if run.start_ms < case.begin_ms - HOUR_MS and not (run.name == name and _inside(run, case))
    ]
    same = [run for run in before if run.name == name]
    if len(same) >= COMPARABLE:
        return same, f"runs of {name}"
    return before, f"workloads of {case.owner}"


def _inside(run: WorkloadRun, case: AnomalyCase) -> bool:
    return run.start_ms < case.until_ms and run.end_ms > case.begin_ms


def _price(case: AnomalyCase) -> AnomalyCause:
    said = [f"{rate.model} costs {rate.now} {case.currency} an hour instead of {rate.before}" for rate in case.rates]
    return AnomalyCause(PRICE, "; ".join(said) or "the same usage costs more than three days before")


def _storm(name: str, mine: Sequence[WorkloadRun], such: Sequence[WorkloadRun], whose: str) -> AnomalyCause | None:
    if len(mine) < STORM_RUNS:
        return None
    length = median(run.length_ms for run in mine)
    old = median([run.length_ms for run in such]) if such else None
    if length > STORM_RUN_MS or (old is not None and 2 * length > old):
        return None
    span = max(run.end_ms for run in mine) - min(run.start_ms for run in mine)
    usual = "" if old is None else f"; {whose} lasted {lasting(old)} before (median)"
    many = f"{len(mine)} runs of {name} of {lasting(length)} each in {lasting(span)}{usual}"
    return AnomalyCause(STORM, many, (name,))


def _plateau(name: str, mine: Sequence[WorkloadRun]) -> AnomalyCause | None:
    held = sum(run.gpu_ns for run in mine)
    known = sum(run.busy_ms + run.idle_ms for run in mine)
    first, last = min((run.start_ms for run in mine), default=0), max((run.end_ms for run in mine), default=0)
    if not held or not known or last - first < PLATEAU_MS:
        return None
    busy = sum(run.busy_ms for run in mine)
    if busy > UNUSED * known:
        return None
    gpus = gpus_text(sum(run.gpu_micro for run in mine) if _at_once(mine) else max(run.gpu_micro for run in mine))
    end = "and still holds them" if any(run.going_on for run in mine) else f"to {weekday(last)}"
    said = f"{name} has held {gpus} flat for {lasting(last - first)}, from {weekday(first)} {end}"
    return AnomalyCause(PLATEAU, f"{said}, and used {100 * busy / known:.1f} % of it", (name,))


def _at_once(runs: Sequence[WorkloadRun]) -> bool:
    """Whether all of them ran at the same time."""
    return max(run.start_ms for run in runs) < min(run.end_ms for run in runs)


def _runaway(name: str, mine: Sequence[WorkloadRun], such: Sequence[WorkloadRun], whose: str) -> AnomalyCause | None:
    if not mine:
        return None
    wild = max(mine, key=lambda run: (run.length_ms, run.gpu_micro))
    if not whose.startswith("runs of"):  # a notebook on one GPU says nothing of how long a training on eight lasts
        such = [run for run in such if FAR_MORE * run.gpu_micro >= wild.gpu_micro]
        whose += " as large"
    if len(such) < COMPARABLE:
        return None
    longest = nearly_all([run.length_ms for run in such])
    usual = median([run.length_ms for run in such])
    gpus, most = median([run.gpu_micro for run in such]), max(run.gpu_micro for run in such)
    long = wild.length_ms > FAR_LONGER * longest and wild.gpu_micro > gpus
    large = max(run.gpu_micro for run in mine) >= FAR_MORE * most and whose.startswith("runs of")
    if not (long or large):
        return None
    at = max(mine, key=lambda run: run.gpu_micro).gpu_micro
    goes = "has gone on" if wild.going_on else "went on"
    return AnomalyCause(
        RUNAWAY,
        f"{name} {goes} for {lasting(wild.length_ms)} on {gpus_text(at)}; {whose} lasted {lasting(usual)} (median), "
        f"19 of 20 at most {lasting(longest)}, on {gpus_text(round(gpus))} (median), {gpus_text(most)} at most",
        (name,),
    )


def _leak(case: AnomalyCase, names: Sequence[str]) -> AnomalyCause | None:
    """Slow growth over days: hardly a day below the one before, and no day that makes half of the rise."""
    days = case.daily
    if case.until_ms - case.begin_ms < LEAK_MS or len(days) < LEAK_DAYS:
        return None
    steps = [after - before for before, after in pairwise(days)]
    rise = days[-1] - days[0]
    if rise <= 0 or days[0] <= 0 or min(steps) < -LEAK_MOST_FALL * rise or max(steps) > LEAK_MOST_STEP * rise:
        return None
    each = 100 * ((days[-1] / days[0]) ** (1 / len(steps)) - 1)
    said = f"spending grows by {each:.0f} % a day for {len(days)} days, never by a leap; most by {names[0]}"
    return AnomalyCause(LEAK, said, tuple(names[:3]))


def _new(case: AnomalyCase, names: Sequence[str], rise: int) -> AnomalyCause | None:
    known = {run.name for run in case.runs if run.start_ms < case.begin_ms - HOUR_MS}
    new = [name for name in names if name not in known]
    part = sum(case.moved[name] for name in new)
    if not new or part < MOST_OF_IT * rise:
        return None
    mine = [run for run in case.runs if run.name in new and _inside(run, case)]
    gpus = gpus_text(max((run.gpu_micro for run in mine), default=0))
    first = min((run.start_ms for run in mine), default=case.begin_ms)
    said = (
        f"{new[0]} is new since {weekday(first)}, {len(mine)} run{'' if len(mine) == 1 else 's'} on up to {gpus} each"
    )
    others = f", with {len(new) - 1} other new names" if len(new) > 1 else ""
    return AnomalyCause(NEW, f"{said}{others}: {100 * part // rise} % of the rise", tuple(new[:5]))


def _scale_up(case: AnomalyCase, names: Sequence[str]) -> AnomalyCause | None:
    """The workloads of before on more GPUs at a time."""
    length = case.until_ms - case.begin_ms
    now: dict[str, int] = defaultdict(int)
    old: dict[str, int] = defaultdict(int)
    for run in case.runs:
        now[run.name] += _held(run, case.begin_ms, case.until_ms)
        old[run.name] += _held(run, case.begin_ms - 7 * DAY_MS, case.begin_ms)
    since = max(case.begin_ms - 7 * DAY_MS, min((run.start_ms for run in case.runs), default=case.begin_ms))
    for name in names:
        before = old[name] / max(1, case.begin_ms - since)
        after = now[name] / length
        if after > 0 and after >= SCALED * before:
            more = f"{name} holds {after / GPU:.1f} GPUs on average instead of {before / GPU:.1f} in the week before"
            return AnomalyCause(SCALE_UP, more, (name,))
    return None


def _held(run: WorkloadRun, begin_ms: int, until_ms: int) -> int:
    """Micro-GPU-milliseconds of a run in a window, as if it held evenly."""
    inside = max(0, min(run.end_ms, until_ms) - max(run.start_ms, begin_ms))
    return run.gpu_ns * inside // max(1, run.length_ms)


def _many(risen: Sequence[tuple[int, str]], rise: int) -> AnomalyCause:
    top, name = risen[0]
    part = f"{100 * top // rise} % of it"
    said = f"{len(risen)} workload names cost more than before; the largest, {name}, makes {part}"
    if len(risen) == 1:
        said = f"{name} costs more than in the same hours before, at no more GPUs than in the week before"
    return AnomalyCause(MANY, said, tuple(name for _, name in risen[:5]))


def nearly_all(lengths: Sequence[int]) -> int:
    """What 19 of 20 do not exceed; of fewer than 20 the most."""
    return sorted(lengths)[-1 - len(lengths) // 20]


@dataclass(frozen=True, slots=True)
class RetryStorm:
    """Many short runs of one name, one after the other: when, which, and what to call it."""

    name: str
    begin_ms: int
    until_ms: int
    opened_ms: int
    """End of the run with which it could be told."""
    runs: tuple[WorkloadRun, ...]
    cause: AnomalyCause


def find_storms(owner: str, runs: Sequence[WorkloadRun], since_ms: int) -> list[RetryStorm]:
    """Retry storms among the runs of an owner that ended after an instant, found by the runs alone, however cheap.

    Runs of one name no further apart than two hours are one row of runs. A row is a storm when it is long and its runs
    are short for that name (else: for that owner), and when the name never had a third as many in as long a time. What
    has stormed twice already is how it works: a sweep of every week is none.
    """
    by_name: dict[str, list[WorkloadRun]] = defaultdict(list)
    for run in runs:
        by_name[run.name].append(run)
    found = []
    for name in sorted(by_name):
        if len(by_name[name]) >= STORM_RUNS:
            found += _storms_of(owner, name, by_name[name], [run for run in runs if run.name != name])
    return [one for one in found if one.until_ms > since_ms]


def _storms_of(owner: str, name: str, mine: Sequence[WorkloadRun], others: Sequence[WorkloadRun]) -> list[RetryStorm]:
    found: list[RetryStorm] = []
    calm: list[WorkloadRun] = []
    for row in _rows(sorted(mine, key=lambda run: (run.start_ms, run.end_ms))):
        case = AnomalyCase(owner, row[0].start_ms, max(run.end_ms for run in row), [*others, *calm], {})
        such, whose = comparable_runs(case, name)
        told = _storm(name, row, such, whose) if len(such) >= COMPARABLE else None
        if told is None or not _unusual(row, calm):
            calm += row
            continue
        opened = max(run.end_ms for run in row[:STORM_RUNS])
        found.append(RetryStorm(name, case.begin_ms, case.until_ms, opened, tuple(row), told))
        if len(found) == STORMS_THAT_ARE_NONE:
            calm += [run for storm in found for run in storm.runs]
            calm.sort(key=lambda run: run.start_ms)
    return found


def _rows(runs: Sequence[WorkloadRun]) -> list[list[WorkloadRun]]:
    rows: list[list[WorkloadRun]] = []
    for run in runs:
        if rows and run.start_ms - rows[-1][-1].end_ms <= STORM_GAP_MS:
            rows[-1].append(run)
        else:
            rows.append([run])
    return rows


def _unusual(row: Sequence[WorkloadRun], before: Sequence[WorkloadRun]) -> bool:
    """Whether the name had far fewer runs in every window as long as this before it."""
    span = row[-1].end_ms - row[0].start_ms
    starts = [run.start_ms for run in before]
    most, first = 0, 0
    for at, start in enumerate(starts):
        while start - starts[first] > span:
            first += 1
        most = max(most, at - first + 1)
    return len(row) >= STORM_TIMES * most


def lasting(length_ms: float) -> str:
    """A length as people say it: minutes below three hours, hours below four days, else days."""
    minutes = length_ms / MINUTE_MS
    for unit, size, most in (("minute", 1, 180), ("hour", 60, 5760), ("day", 1440, None)):
        if most is None or minutes < most:
            count = round(minutes / size)
            return f"{count} {unit}" + ("" if count == 1 else "s")
    raise AssertionError


def gpus_text(gpu_micro: int) -> str:
    """`1 GPU`, `4 GPUs`, `0.5 GPUs`."""
    count = gpu_micro / GPU
    said = f"{count:.0f}" if count == round(count) else f"{count:.2f}".rstrip("0")
    return f"{said} GPU" + ("" if said == "1" else "s")


def weekday(at_ms: int) -> str:
    """`Friday 18:00 UTC`."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%A %H:%M UTC")
