"""GPU-time of quotas: nothing is counted twice, and time without a reading not at all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.accounting.queue_quotas import (
    VALID_MS,
    QueuedWorkload,
    QueueReading,
    QueueTime,
    QueueUse,
    QueueWait,
    Quota,
    QuotaPlace,
    ResourceTime,
    add_up_queues,
    evictions,
    in_cluster,
    integrate,
    lend,
    rank_by_waiting,
)

GPU = 1_000_000
RESOURCE = "nvidia.com/gpu"


def place(queue: str) -> QuotaPlace:
    return QuotaPlace("kueue", queue, "h100", RESOURCE)


def quota(queue: str, gpus: int | None, lending: int | None = None, tree: str = "gpus") -> Quota:
    return Quota(
        place(queue),
        tree,
        quota_micro=None if gpus is None else gpus * GPU,
        lending_micro=None if lending is None else lending * GPU,
    )


def use(queue: str, gpus: int, borrowed: int = 0) -> QueueUse:
    return QueueUse(place(queue), gpus * GPU, borrowed * GPU)


def wait(queue: str, gpus: int) -> QueueWait:
    return QueueWait("kueue", queue, RESOURCE, gpus * GPU)


def test_an_hour_by_hand() -> None:
    """vision has 64, uses 16 and would lend 40; speech has 32, uses 48 and waits for 40 more."""
    reading = QueueReading(
        0,
        (quota("vision", 64, lending=40), quota("speech", 32)),
        (use("vision", 16), use("speech", 48, borrowed=16)),
        (wait("speech", 40),),
    )
    hours = integrate(reading, 60_000)
    minute = {name: gpu_ns(GPU * gpus, 60_000) for name, gpus in (("16", 16), ("32", 32))}
    vision, speech = hours.places[place("vision"), 0], hours.places[place("speech"), 0]
    assert (vision.lent_ns, vision.borrowed_ns) == (minute["16"], 0)
    assert vision.unused_ns == minute["32"]
    assert (speech.lent_ns, speech.borrowed_ns, speech.unused_ns) == (0, minute["16"], 0)
    waiting = hours.waits[("kueue", "speech", RESOURCE), 0]
    assert waiting.waiting_ns == gpu_ns(40 * GPU, 60_000)
    # Of the 40, what vision leaves unused would have served 32.
    assert waiting.beside_unused_ns == minute["32"]


counts = st.integers(0, 200)


@st.composite
def readings(draw: st.DrawFn) -> QueueReading:
    """Queues in up to two trees, whose borrowing is what they use beyond their quota."""
    quotas, uses, waits = [], [], []
    for number in range(draw(st.integers(1, 6))):
        name, used = f"q{number}", draw(counts)
        gpus = draw(st.none() | counts)
        lending = None if gpus is None else draw(st.none() | st.integers(0, gpus))
        quotas.append(quota(name, gpus, lending, tree=draw(st.sampled_from("ab"))))
        uses.append(use(name, used, 0 if gpus is None else max(0, used - gpus)))
        waits.append(wait(name, draw(counts)))
    return QueueReading(draw(st.integers(0, 2 * HOUR_MS)), tuple(quotas), tuple(uses), tuple(waits))


@given(readings(), st.integers(0, 2 * VALID_MS))
def test_a_quota_is_used_lent_or_unused(reading: QueueReading, ms: int) -> None:
    """And no more is lent than is borrowed, or than its queue would lend."""
    hours = integrate(reading, reading.at_ms + ms)
    for entry in hours.places.values():
        if entry.reserved_ns is not None:
            own = entry.used_ns - entry.borrowed_ns
            assert own + entry.lent_ns + entry.unused_ns == entry.reserved_ns
    assert sum(entry.known_ms for entry in hours.places.values()) == min(ms, VALID_MS) * len(
        reading.quotas
    )
    lent = lend(reading.quotas, reading.uses)
    assert sum(lent.values()) <= sum(use.borrowed_micro for use in reading.uses)
    for one in reading.quotas:
        if one.lending_micro is not None:
            assert lent[one.place] <= one.lending_micro
    for entry in hours.waits.values():
        assert 0 <= entry.beside_unused_ns <= entry.waiting_ns


@given(readings(), st.integers(0, VALID_MS), st.integers(0, VALID_MS))
def test_a_reading_repeated_adds_up_to_one(reading: QueueReading, cut: int, more: int) -> None:
    """Where a second reading of the same state lies changes no sum."""
    end_ms = reading.at_ms + min(VALID_MS, cut + more)
    cut_ms = min(reading.at_ms + cut, end_ms)
    whole = integrate(reading, end_ms)
    parts = integrate(reading, cut_ms), integrate(replace(reading, at_ms=cut_ms), end_ms)
    for at, entry in whole.places.items():
        halves = [part.places[at] for part in parts if at in part.places]
        assert sum(half.used_ns for half in halves) == entry.used_ns
        assert sum(half.lent_ns for half in halves) == entry.lent_ns
        assert sum(half.reserved_ns or 0 for half in halves) == (entry.reserved_ns or 0)


def test_a_reading_holds_for_two_and_a_half_minutes() -> None:
    """What comes later is not known: a reader that slept for a day has not seen a day."""
    reading = QueueReading(HOUR_MS - 60_000, (quota("vision", 8),), (use("vision", 8),))
    hours = integrate(reading, reading.at_ms + 24 * HOUR_MS)
    assert {hour: entry.known_ms for (_, hour), entry in hours.places.items()} == {
        0: 60_000,
        HOUR_MS: VALID_MS - 60_000,
    }


def test_a_quota_whose_use_is_not_said_is_reserved_and_no_more() -> None:
    """Unknown is not zero: neither used nor unused."""
    hours = integrate(QueueReading(0, (quota("vision", 8),)), 60_000)
    entry = hours.places[place("vision"), 0]
    assert (entry.known_ms, entry.observed_ms) == (60_000, 0)
    assert entry.reserved_ns == gpu_ns(8 * GPU, 60_000)


def test_queues_above_others_are_their_sums_and_count_once() -> None:
    reading = QueueReading(
        0,
        (replace(quota("research", 8), has_children=True), quota("nlp", 8)),
        (use("research", 8), use("nlp", 8)),
    )
    assert {at[0].queue for at in integrate(reading, 60_000).places} == {"nlp"}


def queued(**changes: object) -> QueuedWorkload:
    return replace(QueuedWorkload("u1", "vision/train", "vision", 8 * GPU), **changes)  # type: ignore[arg-type]


def test_an_eviction_is_what_its_start_was() -> None:
    """The preemptor by its name where it is known; the queue and GPUs of the start that ended."""
    known = {"u1": queued(admitted_ms=1_000)}
    now = [
        queued(queue="", evicted_ms=3_601_000, reason="Preempted", preemptor_uid="u2"),
        QueuedWorkload("u2", "speech/asr", "speech", 8 * GPU, admitted_ms=3_601_000),
    ]
    (found,) = evictions(now, known)
    assert (found.queue, found.preempted_by, found.reason) == ("vision", "speech/asr", "Preempted")
    assert found.lost_ns == gpu_ns(8 * GPU, 3_600_000)


@pytest.mark.parametrize("started", [None, 4_000_000])
def test_an_eviction_of_a_start_that_nobody_saw_lost_an_unknown_time(started: int | None) -> None:
    known = {} if started is None else {"u1": queued(admitted_ms=started)}
    (found,) = evictions([queued(evicted_ms=3_600_000, reason="Preempted")], known)
    assert found.lost_ns is None


def test_a_start_that_ended_between_two_readings_is_an_eviction() -> None:
    known = {"u1": queued(admitted_ms=1_000)}
    (found,) = evictions([queued(admitted_ms=50_000)], known)
    assert (found.evicted_ms, found.reason, found.lost_ns) == (50_000, "", None)
    assert evictions([queued(admitted_ms=1_000)], known) == []


def test_queues_of_several_clusters_have_its_name_before_theirs() -> None:
    reading = QueueReading(0, (quota("vision", 8),), (use("vision", 8),), (wait("vision", 1),))
    named = in_cluster("west", reading)
    assert named.quotas[0].place.queue == named.uses[0].place.queue == "west/vision"
    assert named.waits is not None
    assert named.waits[0].queue == "west/vision"
    assert in_cluster("", reading) == reading


def time_of(queue: str, beside_ns: int | None = None, scheduler: str = "kueue") -> QueueTime:
    """A queue of which nothing else is known."""
    return QueueTime(scheduler, queue, "", 0, *[None] * 5, beside_ns, beside_ns, 0, None)


def test_who_waited_most_beside_unused_quota_comes_first() -> None:
    """With the queue that left most of that unused: of the same resource, scheduler and cluster."""
    times = [
        time_of("a"),
        time_of("b", 5),
        time_of("c", 9),
        time_of("west/d", 7),
        time_of("f", 3, "kai"),
    ]
    waited = [
        ResourceTime("kueue", "b", RESOURCE, 5),
        ResourceTime("kueue", "c", RESOURCE, 1),
        ResourceTime("kueue", "c", "mig", 8),
        ResourceTime("kueue", "west/d", RESOURCE, 7),
        ResourceTime("kai", "f", RESOURCE, 3),
    ]
    unused = [
        ResourceTime("kueue", "a", RESOURCE, 10),
        ResourceTime("kueue", "b", RESOURCE, 40),
        ResourceTime("kueue", "a2", "mig", 4),
        ResourceTime("kueue", "east/e", RESOURCE, 90),
    ]
    ranked = rank_by_waiting(times, waited, unused)
    assert [(item.queue, item.spare_queue) for item in ranked] == [
        ("c", "a2"),
        ("west/d", ""),
        ("b", "a"),
        ("f", ""),
        ("a", ""),
    ]


def test_sums_of_queues_leave_out_what_is_not_known() -> None:
    """And of what is known of none, nothing is known: it is not 0."""
    sums = add_up_queues([time_of("a"), time_of("b", 5), time_of("c", 9)])
    assert (sums.waiting_ns, sums.beside_unused_ns, sums.evictions) == (14, 14, 0)
    assert {sums.used_ns, sums.reserved_ns, sums.lost_ns} == {None}
