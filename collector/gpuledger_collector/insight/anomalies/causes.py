"""The cause of an episode of spending, in words: the workloads that changed, and how they differ
from before.

Problem: 'USD 412 more than a week ago' sends a person to search; 'reindex-all has run for 44 hours
on 4 GPUs, its runs lasted 3' does not. Idea: the workload name whose cost rose most is compared
with what such runs looked like before: those of its own name, else all of its owner. The first
cause that matches wins, the certain before the likely. Causes change neither which episodes are
found nor what they cost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from itertools import pairwise
from statistics import median

from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS, MINUTE_MS
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.accounting.reserved_names import UNNAMED
from gpuledger_collector.insight.durations import lasting
from gpuledger_common.instants import to_datetime
from gpuledger_common.plurals import plural

RUNAWAY, STORM, PLATEAU, LEAK = "runaway", "retry storm", "plateau", "leak"
NEW, PRICE, SCALE_UP, MANY = "new workload", "price", "scale-up", "many small"

MIN_COMPARABLE = 5
"""Fewer runs than this say nothing about how long such runs last."""
FAR_LONGER = 1.5
"""A run is far longer than such runs when it lasts this many times as long as 19 of 20 of them."""
FAR_MORE = 2
"""A run is far larger than such runs when it holds this many times the most GPUs that any of them
held.
"""
STORM_RUNS = 10
STORM_RUN_MS = 30 * MINUTE_MS
"""Runs of a storm are this short at the median."""
STORM_TIMES = 3
"""A storm has this many times the runs that the name ever had in as long a time."""
STORM_GAP_MS = 2 * HOUR_MS
USUAL_STORMS = 2
"""After this many storms, many short runs are how a name works."""
UNUSED = 0.01
"""A plateau is busy for at most this share of its known time."""
PLATEAU_MS = 8 * HOUR_MS
LEAK_MS = 48 * HOUR_MS
"""A leak lasts so long at least; the last of its days may be a part of one."""
LEAK_DAYS = 4
"""A leak is seen over so many days, of which two are before its episode."""
LEAK_MAX_STEP = 0.5
"""No day of a leak makes more than this share of its rise."""
SCALED = 1.25
NEW_MS = DAY_MS
"""A name is new when its first run began at most so long before its episode: spending stands out
hours after what makes it.
"""
ARRIVALS = 4
"""Runs of new names that began one after the other, and have not ended, pile up from so many on."""
TENTH_DIGITS = 5
"""Digits of micro-GPUs below a tenth of a GPU."""
MOST_OF_RISE = 0.5
"""A cause explains an episode when it makes this share of the rise."""


@dataclass(frozen=True, slots=True)
class WorkloadRun:
    """One workload as it was held.

    Instants are unix ms; `gpu_micro` is the most that it held in one hour.
    """

    name: str
    start_ms: int
    end_ms: int
    gpu_micro: int
    gpu_ns: int
    busy_ms: int
    idle_ms: int
    cost_micro: int
    ongoing: bool = False
    workload_id: int = 0

    @property
    def length_ms(self) -> int:
        """From its first to its last evidence."""
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class RateChange:
    """A rate per GPU-hour that differs from that of the same hours before."""

    pool: str
    model: str
    before: str
    now: str


@dataclass(frozen=True, slots=True)
class AnomalyCause:
    """The kind of cause, one sentence with its numbers, and the workload names it is about, dearest
    first; `piles_up`: its runs begin one after the other, and none has ended.
    """

    kind: str
    sentence: str
    workloads: tuple[str, ...] = ()
    piles_up: bool = False


@dataclass(frozen=True)
class AnomalyCase:
    """An episode of one owner and all evidence for its cause.

    `runs` are all known runs of the owner, before the episode and in it. `moved` is the change of
    cost by workload name against the same hours `back_ms` before, in micro-units. `daily` is the mean hourly
    cost of each 24 hours of the episode and of the two days before it, in any unit.
    """

    owner: str
    begin_ms: int
    until_ms: int
    runs: Sequence[WorkloadRun]
    moved: Mapping[str, int]
    price_micro: int = 0
    currency: str = ""
    rates: Sequence[RateChange] = ()
    daily: Sequence[float] = ()
    back_ms: int = 7 * DAY_MS

    def contains(self, run: WorkloadRun) -> bool:
        """Whether a run overlaps the episode."""
        return run.start_ms < self.until_ms and run.end_ms > self.begin_ms

    @cached_property
    def risen(self) -> Sequence[str]:
        """Names that cost more than before, the largest change first."""
        more = [(-more, name) for name, more in self.moved.items() if more > 0]
        return [name for _, name in sorted(more)]

    @cached_property
    def rise(self) -> int:
        """Sum of their changes."""
        return sum(self.moved[name] for name in self.risen)

    @property
    def hours_before(self) -> str:
        """What the episode is compared with, in words."""
        days = self.back_ms // DAY_MS
        return f"the same hours {'a week' if days == 7 else plural(days, 'day')} before"

    @cached_property
    def dominant(self) -> Sequence[WorkloadRun]:
        """Runs, within the episode, of the name that makes most of the rise; empty without one."""
        if not self.risen or self.moved[self.risen[0]] < MOST_OF_RISE * self.rise:
            return ()
        return [run for run in self.runs if run.name == self.risen[0] and self.contains(run)]


@dataclass(frozen=True)
class ComparableRuns:
    """Runs that began before an episode to compare with: of the same name if there are enough, else
    of the owner.
    """

    runs: Sequence[WorkloadRun]
    same_name: bool
    description: str


def comparable_runs(case: AnomalyCase, name: str) -> ComparableRuns:
    """Select the runs that a workload name of an episode is compared with."""
    before = [
        run
        for run in case.runs
        # An hour of margin, since runs are known by the hour: what began right before the episode
        # is part of it.
        if run.start_ms < case.begin_ms - HOUR_MS and not (run.name == name and case.contains(run))
    ]
    same = [run for run in before if run.name == name]
    if len(same) >= MIN_COMPARABLE:
        return ComparableRuns(same, True, f"runs of {name}")
    return ComparableRuns(before, False, f"workloads of {case.owner}")


def explain(case: AnomalyCase) -> AnomalyCause:
    """Return the cause of an episode; the first rule that matches wins."""
    return next((cause for rule in RULES if (cause := rule(case)) is not None), _many(case))


def _price(case: AnomalyCase) -> AnomalyCause | None:
    # Against the net change, not the rise: where some names cost less, a dearer rate can still be
    # most of it.
    if not case.price_micro or case.price_micro < MOST_OF_RISE * max(sum(case.moved.values()), 1):
        return None
    rates = [
        f"a GPU-hour of {rate.model} in pool {rate.pool or UNNAMED} costs"
        f" {rate_text(rate.now, case.currency)} instead of {rate_text(rate.before, case.currency)}"
        for rate in case.rates
    ]
    return AnomalyCause(
        PRICE, "; ".join(rates) or "the same usage costs more than three days before"
    )


def _storm(case: AnomalyCase) -> AnomalyCause | None:
    return _storm_of(case.dominant, comparable_runs(case, case.risen[0])) if case.dominant else None


def _storm_of(runs: Sequence[WorkloadRun], comparable: ComparableRuns) -> AnomalyCause | None:
    """Many short runs of one name, next to how long such runs lasted before."""
    if len(runs) < STORM_RUNS:
        return None
    length = median(run.length_ms for run in runs)
    usual = median([run.length_ms for run in comparable.runs]) if comparable.runs else None
    if length > STORM_RUN_MS:
        return None
    span = max(run.end_ms for run in runs) - min(run.start_ms for run in runs)
    before = (
        ""
        if usual is None
        else f"; {comparable.description} lasted {lasting(usual)} before (median)"
    )
    name = runs[0].name
    sentence = f"{len(runs)} runs of {name} of {lasting(length)} each in {lasting(span)}{before}"
    return AnomalyCause(STORM, sentence, (name,))


def _plateau(case: AnomalyCase) -> AnomalyCause | None:
    """GPUs held for hours and hardly used."""
    runs = case.dominant
    known = sum(run.busy_ms + run.idle_ms for run in runs)
    if not known or not sum(run.gpu_ns for run in runs):
        return None
    first, last = min(run.start_ms for run in runs), max(run.end_ms for run in runs)
    busy = sum(run.busy_ms for run in runs)
    if last - first < PLATEAU_MS or busy > UNUSED * known:
        return None
    # Runs that overlap hold their GPUs together; runs in succession hold the same ones again.
    simultaneous = max(run.start_ms for run in runs) < min(run.end_ms for run in runs)
    gpus = gpus_text((sum if simultaneous else max)(run.gpu_micro for run in runs))
    end = "and still holds them" if any(run.ongoing for run in runs) else f"to {instant_text(last)}"
    name = runs[0].name
    sentence = (
        f"{name} has held {gpus} flat for {lasting(last - first)}, from {instant_text(first)} {end}"
    )
    return AnomalyCause(PLATEAU, f"{sentence}, and used {100 * busy / known:.1f} % of it", (name,))


def _runaway(case: AnomalyCase) -> AnomalyCause | None:
    """A run far longer, or far larger, than such runs were before."""
    runs = case.dominant
    if not runs:
        return None
    longest_run = max(runs, key=lambda run: (run.length_ms, run.gpu_micro))
    comparable = comparable_runs(case, longest_run.name)
    such, description = comparable.runs, comparable.description
    # A notebook on one GPU says nothing about how long a training on eight lasts.
    if not comparable.same_name:
        such = [run for run in such if FAR_MORE * run.gpu_micro >= longest_run.gpu_micro]
        description += " as large"
    if len(such) < MIN_COMPARABLE:
        return None
    lengths = [run.length_ms for run in such]
    limit = nearly_all(lengths)
    gpus, most = median([run.gpu_micro for run in such]), max(run.gpu_micro for run in such)
    largest = max(run.gpu_micro for run in runs)
    # Long and larger than usual: a long run on a small GPU is no reason for a rise.
    long = longest_run.length_ms > FAR_LONGER * limit and longest_run.gpu_micro > gpus
    if not (long or (comparable.same_name and largest >= FAR_MORE * most)):
        return None
    if not long:
        held = "holds" if any(run.ongoing for run in runs) else "held"
        sentence = f"one run of {longest_run.name} {held} {gpus_text(largest)}; {description} held"
        sentence += f" {gpus_text(most)} at most before"
        return AnomalyCause(RUNAWAY, sentence, (longest_run.name,))
    ran = "has run" if longest_run.ongoing else "ran"
    return AnomalyCause(
        RUNAWAY,
        f"{longest_run.name} {ran} for {lasting(longest_run.length_ms)} on {gpus_text(largest)};"
        f" {description} lasted {lasting(median(lengths))} (median), 19 of 20 at most"
        f" {lasting(limit)}, on {gpus_text(round(gpus))} (median), {gpus_text(most)} at most",
        (longest_run.name,),
    )


def _leak(case: AnomalyCase) -> AnomalyCause | None:
    """Slow growth over days: no day makes half of the rise."""
    days = case.daily
    if not case.risen or case.until_ms - case.begin_ms < LEAK_MS or len(days) < LEAK_DAYS:
        return None
    steps = [after - before for before, after in pairwise(days)]
    rise = days[-1] - days[0]
    # A leap is another cause.
    if rise <= 0 or days[0] <= 0 or max(steps) > LEAK_MAX_STEP * rise:
        return None
    each = 100 * ((days[-1] / days[0]) ** (1 / len(steps)) - 1)
    sentence = (
        f"spending grows by {each:.0f} % a day for {len(days)} days, never by a leap; most by"
        f" {case.risen[0]}"
    )
    return AnomalyCause(LEAK, sentence, tuple(case.risen[:3]))


def _new(case: AnomalyCase) -> AnomalyCause | None:
    known = {run.name for run in case.runs if run.start_ms < case.begin_ms - NEW_MS}
    new = [name for name in case.risen if name not in known]
    share = sum(case.moved[name] for name in new)
    if not new or share < MOST_OF_RISE * case.rise:
        return None
    runs = [run for run in case.runs if run.name in new and case.contains(run)]
    first = instant_text(min((run.start_ms for run in runs), default=case.begin_ms))
    sentence = (
        f"{new[0]} is new since {first}"
        if len(new) == 1
        else f"{len(new)} workload names, such as {new[0]}, are new, the first since {first}"
    )
    sentence += f": {plural(len(runs), 'run')} on {_sizes_text(runs)}"
    # All of what rose needs no number; others may cost less at the same time.
    if share < case.rise:
        sentence += f", {100 * share // case.rise} % of what rose"
    arrivals = _arrivals_text(runs)
    return AnomalyCause(NEW, sentence + arrivals, tuple(new[:5]), bool(arrivals))


def _arrivals_text(runs: Sequence[WorkloadRun]) -> str:
    """That runs pile up: none has ended, and they begin in even steps. Their pace so far says less
    than what comes of them.
    """
    starts = sorted(run.start_ms for run in runs)
    steps = [after - before for before, after in pairwise(starts)]
    if len(runs) < ARRIVALS or not all(run.ongoing for run in runs):
        return ""
    if not 0 < max(steps) <= 2 * min(steps):
        return ""
    return f"; none has ended, and another begins every {lasting(median(steps))}"


def _sizes_text(runs: Sequence[WorkloadRun]) -> str:
    sizes = {run.gpu_micro for run in runs}
    gpus = gpus_text(max(sizes, default=0))
    return f"{'up to ' if len(sizes) > 1 else ''}{gpus}{' each' if len(runs) > 1 else ''}"


def _scale_up(case: AnomalyCase) -> AnomalyCause | None:
    """Known workloads on more GPUs at a time, if these make most of the rise."""
    week_ms = case.begin_ms - 7 * DAY_MS
    now: dict[str, int] = defaultdict(int)
    before: dict[str, int] = defaultdict(int)
    for run in case.runs:
        now[run.name] += _held_in_window(run, case.begin_ms, case.until_ms)
        before[run.name] += _held_in_window(run, week_ms, case.begin_ms)
    # The week before, or as much of it as there is evidence for: a mean over unknown days would be
    # too low.
    since = max(week_ms, min((run.start_ms for run in case.runs), default=case.begin_ms))
    scaled = []
    for name in case.risen:
        old = before[name] / max(1, case.begin_ms - since)
        new = now[name] / (case.until_ms - case.begin_ms)
        if new > 0 and new >= SCALED * old:
            scaled.append(name)
    share = sum(case.moved[name] for name in scaled)
    if share < MOST_OF_RISE * case.rise or not scaled:
        return None
    # Where the first does not make most of it alone, they are told together.
    if case.moved[scaled[0]] >= MOST_OF_RISE * case.rise:
        return AnomalyCause(SCALE_UP, _means_text(case, scaled[0]), (scaled[0],))
    sentence = f"{len(scaled)} workloads hold more GPUs; {_means_text(case, scaled[0])}"
    return AnomalyCause(SCALE_UP, sentence, tuple(scaled[:5]))


def _means_text(case: AnomalyCase, name: str) -> str:
    """What a name holds on average beside the hours that its money is compared with."""
    now, before = (
        sum(
            _held_in_window(run, case.begin_ms - back_ms, case.until_ms - back_ms)
            for run in case.runs
            if run.name == name
        )
        // (case.until_ms - case.begin_ms)
        for back_ms in (0, case.back_ms)
    )
    # To a tenth, as one reads a mean.
    means = [round(mean, -TENTH_DIGITS) for mean in (now, before)]
    usual = gpus_text(means[1]).partition(" ")[0] if means[1] else "none"
    return (
        f"{name} holds {gpus_text(means[0])} on average instead of {usual} in {case.hours_before}"
    )


def _held_in_window(run: WorkloadRun, begin_ms: int, until_ms: int) -> int:
    """Micro-GPU-milliseconds of a run in a window, as if it held evenly."""
    inside = max(0, min(run.end_ms, until_ms) - max(run.start_ms, begin_ms))
    return run.gpu_ns * inside // max(1, run.length_ms)


def _many(case: AnomalyCase) -> AnomalyCause:
    """The fallback: no cause of its own."""
    if not case.risen:
        return AnomalyCause(MANY, "no workload costs more than in the same hours before")
    name = case.risen[0]
    sentence = (
        f"{name} costs more than in the same hours before, at no more GPUs than in the week before"
    )
    if len(case.risen) > 1:
        share = f"{100 * case.moved[name] // case.rise} % of it"
        sentence = (
            f"{len(case.risen)} workload names cost more than before; the largest, {name}, makes"
            f" {share}"
        )
    return AnomalyCause(MANY, sentence, tuple(case.risen[:5]))


# The certain before the likely: a rate is known from the price book, a new name may have any
# reason.
RULES: Sequence[Callable[[AnomalyCase], AnomalyCause | None]] = (
    _price,
    _storm,
    _plateau,
    _runaway,
    _leak,
    _new,
    _scale_up,
)


def nearly_all(lengths: Sequence[int]) -> int:
    """Return what 19 of 20 do not exceed; of fewer than 20 the largest."""
    return sorted(lengths)[-1 - len(lengths) // 20]


@dataclass(frozen=True, slots=True)
class RetryStorm:
    """Many short runs of one name in succession; it was recognizable at `opened_ms`, when its tenth
    run had ended.
    """

    name: str
    begin_ms: int
    until_ms: int
    opened_ms: int
    runs: tuple[WorkloadRun, ...]
    cause: AnomalyCause


def find_storms(owner: str, runs: Sequence[WorkloadRun], since_ms: int) -> list[RetryStorm]:
    """Find the retry storms of an owner that ended after an instant, from the runs alone, however
    cheap.

    Runs of one name no further apart than two hours are one series. A series is a storm when it is
    long and its runs are short, and when the name never had a third as many in as long a time. A
    name that has stormed twice works like that: a weekly sweep is no storm.
    """
    by_name: dict[str, list[WorkloadRun]] = defaultdict(list)
    for run in runs:
        by_name[run.name].append(run)
    return [
        storm
        for name in sorted(by_name)
        if len(by_name[name]) >= STORM_RUNS
        for storm in _storms_of(owner, by_name[name], [run for run in runs if run.name != name])
        if storm.until_ms > since_ms
    ]


def _storms_of(
    owner: str, runs: Sequence[WorkloadRun], others: Sequence[WorkloadRun]
) -> list[RetryStorm]:
    storms: list[RetryStorm] = []
    calm: list[WorkloadRun] = []
    for series in _series(sorted(runs, key=lambda run: (run.start_ms, run.end_ms))):
        begin_ms, until_ms = series[0].start_ms, max(run.end_ms for run in series)
        name = series[0].name
        comparable = comparable_runs(
            AnomalyCase(owner, begin_ms, until_ms, [*others, *calm], {}), name
        )
        cause = _storm_of(series, comparable) if len(comparable.runs) >= MIN_COMPARABLE else None
        # Series that are no storm are what the name usually does, and what later series are
        # compared with.
        if cause is None or not _unusual(series, calm):
            calm += series
            continue
        opened_ms = max(run.end_ms for run in series[:STORM_RUNS])
        storms.append(RetryStorm(name, begin_ms, until_ms, opened_ms, tuple(series), cause))
        # From here on its storms count as usual, so that a weekly sweep is not reported for good.
        if len(storms) == USUAL_STORMS:
            calm += [run for storm in storms for run in storm.runs]
            calm.sort(key=lambda run: run.start_ms)
    return storms


def _series(runs: Sequence[WorkloadRun]) -> list[list[WorkloadRun]]:
    series: list[list[WorkloadRun]] = []
    for run in runs:
        if not series or run.start_ms - series[-1][-1].end_ms > STORM_GAP_MS:
            series.append([])
        series[-1].append(run)
    return series


def _unusual(series: Sequence[WorkloadRun], before: Sequence[WorkloadRun]) -> bool:
    """Whether the name had far fewer runs in every window as long as this before it."""
    span = series[-1].end_ms - series[0].start_ms
    starts = [run.start_ms for run in before]
    most, first = 0, 0
    for at, start in enumerate(starts):
        # Two pointers: the window slides over the starts once, whatever its length.
        while start - starts[first] > span:
            first += 1
        most = max(most, at - first + 1)
    return len(series) >= STORM_TIMES * most


def rate_text(rates: str, currency: str) -> str:
    """Write the rates of an hour: `USD 2.50`, `USD 2.50 and 2.875`."""
    texts = [
        rate if len(rate.partition(".")[2]) > 1 else f"{Decimal(rate):.2f}"
        for rate in rates.split(", ")
    ]
    return f"{currency} {' and '.join(texts)}".strip()


def gpus_text(gpu_micro: int) -> str:
    """Write `1 GPU`, `4 GPUs`, `0.5 GPUs`."""
    count = gpu_micro / GPU_MICRO
    return plural(f"{count:.2f}".rstrip("0").rstrip("."), "GPU")


def instant_text(at_ms: int) -> str:
    """Write `20 Nov, 18:00 UTC`."""
    at = to_datetime(at_ms)
    return f"{at.day} {at:%b, %H:%M} UTC"
