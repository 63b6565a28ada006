"""Free GPUs by model: counts of the hourly ledger, in which what is not known is never zero."""

import csv
import io

import pytest

from fakes.collector import running
from fakes.fleet import DAY, HOUR, NOW_MS, OCTOBER, Held
from fakes.pages import Page
from fakes.two_teams import token
from gpuledger_collector.accounting.period import HOUR_MS, UTC_DAYS
from gpuledger_collector.api import fleet_pages
from gpuledger_collector.export.free_gpus import (
    FREE_MODELS,
    name_model,
    say_availability,
    say_fullest,
    say_tomorrow,
    say_unlisted,
)
from gpuledger_collector.insight.free_gpus import (
    WEEKDAY,
    WEEKEND,
    FreeHour,
    FullestHour,
    ModelNow,
    count_free,
    count_likely,
)
from gpuledger_collector.services import free_gpus as service
from gpuledger_collector.services.free_gpus import read_free_gpus, read_fullest_hour
from gpuledger_collector.storage.database import Database

H100, L4 = "NVIDIA H100 80GB HBM3", "NVIDIA L4"
FIRST = (NOW_MS - OCTOBER) // HOUR * HOUR - 7 * DAY
"""The first of the last 168 hours, after OCTOBER."""


@pytest.fixture
def seen(fleet, run):
    """Three H100 and an L4 in the week before now.

    Of the H100, one is free all week; one in the first day alone, and held for ten minutes of each
    later hour; one is not observed but in the first hour, in which it is free. The L4 came a day
    ago, and nobody observed it.
    """
    fleet.accelerator(4, model=L4)
    fleet.accelerator(5, gpu_micro=428_571)
    for number in (1, 2, 3, 5):
        fleet.capacity(number, FIRST - DAY, pool="train")
    fleet.capacity(4, FIRST + 6 * DAY, pool="serve")
    evidence = [Held(3, None, FIRST, FIRST + HOUR, "unallocated")]
    for hour in range(168):
        at = FIRST + hour * HOUR
        evidence.append(Held(1, None, at, at + HOUR, "unallocated"))
        if hour < 24:
            evidence.append(Held(2, None, at, at + HOUR, "unallocated"))
        else:
            evidence.append(Held(2, 4, at, at + HOUR // 6))
            evidence.append(Held(2, None, at + HOUR // 6, at + HOUR, "unallocated"))
    fleet.evidence(evidence)
    run("chargeback", "--from", "2025-11-12", "--to", "2025-11-21")
    return fleet


def ask(dsn, **question):
    with Database(dsn).transaction(read_only=True) as connection:
        return {item.now.model: item for item in read_free_gpus(connection, NOW_MS, **question)}


def week_of(item):
    week = item.at_once[item.wanted or 1].week
    return week.enough, week.undecided, week.hours, item.least, item.most


def test_hours_in_which_so_many_were_free(seen, dsn):
    """A part of a GPU is none, and one that is not observed is neither free nor held."""
    assert week_of(ask(dsn, wanted=1)[H100]) == (168, 0, 168, 3, 3)
    # The third may have been free whenever it was not observed.
    assert week_of(ask(dsn, wanted=2)[H100]) == (24, 144, 168, 3, 3)
    assert week_of(ask(dsn, wanted=3)[H100]) == (1, 23, 168, 3, 3)
    # There are but three.
    assert week_of(ask(dsn, wanted=4)[H100]) == (0, 0, 168, 3, 3)
    assert ask(dsn)[H100].now.gpus == 3


def test_hours_of_which_nothing_is_known_are_not_zero(seen, dsn):
    """A GPU that nobody observed since it came: there is no least and no most."""
    assert week_of(ask(dsn)[L4]) == (0, 24, 24, None, None)
    assert ask(dsn)[L4].other == 1


def test_the_same_hours_of_seven_days(seen, dsn):
    """Of each hour of the day there are seven, and they add up to the week."""
    item = ask(dsn, wanted=2)[H100]
    by_clock = item.asked.by_clock
    assert len(by_clock) == 24
    assert {found.hours for found in by_clock.values()} == {7}
    assert sum(found.enough for found in by_clock.values()) == item.asked.week.enough
    first = f"{FIRST // HOUR % 24:02}:00"
    assert by_clock[first].most == 3
    assert sum(found.most == 3 for found in by_clock.values()) == 1


def test_without_a_number_the_usual_ones_are_counted(seen, dsn):
    """As many as the model has, up to a node of eight."""
    found = ask(dsn)
    assert {gpus: item.week.enough for gpus, item in found[H100].at_once.items()} == {1: 168, 2: 24}
    assert list(found[L4].at_once) == [1]
    assert found[H100].asked is None
    assert list(ask(dsn, wanted=3)[H100].at_once) == [1, 2, 3]


def test_the_fullest_hour_of_the_week_is_named(seen, dsn):
    """In all but the first day a GPU is held for ten minutes of each hour: of equal hours the last.
    What nobody observed is in neither number.
    """
    with Database(dsn).transaction(read_only=True) as connection:
        found = read_fullest_hour(connection, NOW_MS)
        assert found == FullestHour(
            OCTOBER + FIRST + 167 * HOUR, HOUR // 6 * 1_000_000, 2 * HOUR * 1_000_000
        )
        assert read_fullest_hour(connection, NOW_MS, pool="train", model=H100) == found
        assert read_fullest_hour(connection, NOW_MS, model=L4) is None
        assert read_fullest_hour(connection, NOW_MS, words="serve") is None
    said = str(say_fullest(found, UTC_DAYS))
    assert said.startswith("Fullest of the last 7 days: the hour from <time ")
    assert said.endswith("in which 0.2 of 2 GPUs were held (8 %).")


def count(now, by_clock, wanted=None, tomorrow=WEEKDAY):
    """Free GPUs where each day was one of the kind of tomorrow."""
    mornings = [hour for clock, own in by_clock.items() if 8 <= int(clock[:2]) < 12 for hour in own]
    return count_free(now, by_clock, mornings, tomorrow, wanted)


def hours_of_three_days(*clocks):
    """Eight GPUs, of which all are free in these hours of the first day, and four otherwise."""
    return {
        f"{clock:02}:00": [
            FreeHour(
                (day * 24 + clock) * HOUR_MS,
                8 if day == 0 and clock in clocks else 4,
                0 if day == 0 and clock in clocks else 4,
                8,
            )
            for day in range(3)
        ]
        for clock in range(24)
    }


@pytest.mark.parametrize(
    ("clocks", "when"),
    [
        ((6, 7, 8), ", most often at 06:00 to 09:00 UTC, on 1 of 3 days"),
        (
            {*range(24)} - {9, 17},
            ", most often at all hours but 09:00 to 10:00 and 17:00 to 18:00 UTC, on 1 of 3 days",
        ),
        ((23, 0, 1, 5), ", most often at 23:00 to 02:00 and 05:00 to 06:00 UTC, on 1 of 3 days"),
        (range(24), ", at every hour of the day alike, on 1 of 3 days"),
        ((), ""),
    ],
)
def test_a_sentence_says_at_which_hours_so_many_were_free(clocks, when):
    """And how many are free now."""
    item = count(ModelNow(H100, 8, 5, 3), hours_of_three_days(*clocks), 8)
    sentence = f"8 {H100}: 3 free now; so many were free in {len(clocks)} of the last 72 hours"
    assert say_availability(item, item.asked, "UTC").startswith(f"{sentence}{when}. Tomorrow")


def mornings(free, *, days=3, gpus=8):
    """Hours of days of which all are free but the mornings', in which so many are, or None: unseen."""
    seen = {True: (gpus, 0), False: (0, gpus), None: (0, 0)}
    hours = iter(free)
    return {
        f"{clock:02}:30": [
            FreeHour(
                (day * 24 + clock) * HOUR_MS,
                *seen[next(hours) if 8 <= clock < 12 else True],
                gpus,
            )
            for day in range(days)
        ]
        for clock in range(24)
    }


@pytest.mark.parametrize(
    ("free", "said"),
    [
        ([True] * 12, "likely, as so many were in 12 of the 12 hours"),
        ([True] * 10 + [False] * 2, "likely, as so many were in 10 of the 12 hours"),
        ([True] * 9 + [False] * 3, "uncertain, as so many were in 9 of the 12 hours"),
        ([True] * 3 + [False] * 9, "uncertain, as so many were in 3 of the 12 hours"),
        ([True] * 2 + [False] * 10, "unlikely, as so many were in 2 of the 12 hours"),
        ([True] * 8 + [None] * 4, "likely, as so many were in 8 of the 8 hours"),
        ([True] * 7 + [None] * 5, ""),
    ],
)
def test_a_sentence_says_whether_tomorrows_morning_has_so_many(free, said):
    """By the mornings before, of which enough must be known."""
    item = count(ModelNow(H100, 8, 5, 3), mornings(free), 8)
    _, _, tomorrow = say_availability(item, item.asked, "UTC").partition(" Tomorrow morning: ")
    unknown = ", 4 not known" if None in free else ""
    remedy = (
        "" if said.startswith("likely") else " None is likely: 8 more would have to be given back."
    )
    assert tomorrow == (
        said and f"{said} between 08:00 and 12:00 UTC on weekdays{unknown}.{remedy}"
    )


@pytest.mark.parametrize(
    ("free", "likely"),
    [
        ([(5, 3)] * 12, 5),
        ([(5, 3)] * 2 + [(7, 1)] * 10, 7),
        ([(5, 3)] * 3 + [(7, 1)] * 9, 5),
        ([(9, 0)] * 12, 8),
        ([(0, 8)] * 12, 0),
        ([(2, 6)] * 8 + [(0, 0)] * 4, 2),
        ([(2, 6)] * 7 + [(0, 0)] * 5, None),
        ([(0, 0)] * 12, None),
        ([], None),
    ],
)
def test_as_many_are_likely_as_four_of_five_mornings_hours_had(free, likely):
    """Never more than there are now; too few known hours say nothing, which is not none."""
    hours = [FreeHour(at * HOUR_MS, *each, 8) for at, each in enumerate(free)]
    assert count_likely(hours, 8) == likely


@pytest.mark.parametrize(
    ("likely", "remedy"),
    [(1, "1 is likely: 7 more would have to be given back."), (5, "5 are likely: 3 more would")],
)
def test_what_would_have_to_happen_stands_beside_what_is_not_likely(likely, remedy):
    by_clock = {
        f"{clock:02}:00": [
            FreeHour((day * 24 + clock) * HOUR_MS, likely, 8 - likely, 8) for day in range(3)
        ]
        for clock in range(24)
    }
    item = count(ModelNow(H100, 8, 5, 3), by_clock, 8)
    assert f"12:00 UTC on weekdays. {remedy}" in say_availability(item, item.asked, "UTC")
    assert say_tomorrow([item], "UTC") == (
        "Likely to be free at once tomorrow from 08:00 to 12:00 UTC, as on weekdays before:"
        f" {likely} {H100}."
    )
    assert say_tomorrow([item] * 7, "UTC").endswith(f", {likely} {H100}, 2 more models.")


def test_nothing_is_said_of_tomorrow_where_no_morning_is_known():
    item = count(ModelNow(L4, 4, 1, 3), mornings([None] * 12, gpus=4), 2)
    assert item.likely_tomorrow is None
    assert say_tomorrow([item], "UTC") == ""


def test_more_than_there_are_is_said_in_a_word():
    item = count(ModelNow(L4, 4, 1, 3), hours_of_three_days(), 16)
    assert say_availability(item, item.asked, "UTC") == f"16 {L4}: 3 free now; there are but 4."


@pytest.mark.parametrize(
    ("days_later", "kind", "mornings"), [(0, WEEKDAY, 20), (1, WEEKEND, 8), (3, WEEKDAY, 20)]
)
def test_mornings_of_weekends_are_counted_apart(seen, dsn, days_later, kind, mornings):
    """NOW is a Thursday: the tomorrow of Friday is of a weekend, that of Sunday is not."""
    with Database(dsn).transaction(read_only=True) as connection:
        (item, *_) = read_free_gpus(connection, NOW_MS + days_later * DAY, 1)
    assert (item.tomorrow, item.asked.mornings.hours) == (kind, mornings)
    assert f" on {kind}s" in say_availability(item, item.asked, "UTC")


def test_what_is_free_now_is_the_latest_reading(seen, dsn):
    """One that is not well or not heard of is not free."""
    rows = (
        (1, NOW_MS - 1000, "unallocated", "ok"),
        (2, NOW_MS - 1000, "held", "degraded"),
        (3, NOW_MS - HOUR_MS, "unallocated", "ok"),
    )
    for number, at_ms, state, health in rows:
        seen.connection.execute(
            "INSERT INTO gpu_latest (accelerator_id, at_ms, state) SELECT id, %s, %s FROM"
            " accelerator WHERE uuid = %s",
            (at_ms, state, f"GPU-{number:04d}"),
        )
        seen.connection.execute(
            "UPDATE accelerator SET health = %s WHERE uuid = %s", (health, f"GPU-{number:04d}")
        )
    item = ask(dsn)[H100]
    assert (item.now.held, item.now.free, item.other) == (1, 1, 1)
    assert item.now.free_on_node == 1
    seen.connection.execute("UPDATE accelerator SET health = 'failed' WHERE uuid = 'GPU-0001'")
    assert (ask(dsn)[H100].now.free, ask(dsn)[H100].other) == (0, 2)


def test_the_scarcest_model_comes_first(seen, dsn):
    """By the share of its GPUs that is free, as headroom is in plans: two of three are more than half
    of four. A model of which nothing is known comes last, and equal ones go by name.
    """
    free = {1: "unallocated", 2: "unallocated", 3: "held"}
    for model, first, states in (
        ("NVIDIA A100", 10, ["unallocated", "unallocated", "held", "held"]),
        ("NVIDIA A10", 20, ["held"]),
        ("NVIDIA A30", 30, ["unallocated", "unallocated", "held", "held"]),
    ):
        for number, state in enumerate(states, first):
            seen.accelerator(number, model=model)
            seen.capacity(number, FIRST - DAY, pool="train")
            free[number] = state
    for number, state in free.items():
        seen.connection.execute(
            "INSERT INTO gpu_latest (accelerator_id, at_ms, state) SELECT id, %s, %s FROM"
            " accelerator WHERE uuid = %s",
            (NOW_MS - 1000, state, f"GPU-{number:04d}"),
        )
    names = ["NVIDIA A10", "NVIDIA A100", "NVIDIA A30", H100, L4]
    assert list(ask(dsn)) == names
    with Database(dsn).transaction(read_only=True) as connection:
        assert [model.model for model in service.count_free_now(connection, NOW_MS)] == names
    with running(dsn, clock=lambda: NOW_MS) as collector:
        text = collector.request("GET", "/demand?by=model&format=csv")[2]
        lines = text if isinstance(text, str) else text.decode()
    assert [row["model"] for row in csv.DictReader(io.StringIO(lines))] == names


def test_the_two_lists_of_free_gpus_say_how_they_differ(seen, dsn):
    """Demand counts readings of now, the list of idle GPUs those that were free for 15 minutes: both
    pages say the same sentence of it, and none where they agree.
    """
    seen.connection.execute(
        "INSERT INTO gpu_latest (accelerator_id, at_ms, state) SELECT id, %s, 'unallocated' FROM"
        " accelerator WHERE uuid IN ('GPU-0001', 'GPU-0002')",
        (NOW_MS - 1000,),
    )

    def find(uuid):
        seen.connection.execute(
            "INSERT INTO finding (key, kind, state, subject, accelerator_id, team, owner, since_ms,"
            " opened_ms, until_ms, confidence, evidence) SELECT uuid, 'idle', 'unallocated', uuid, id,"
            " '', '{}', %s, %s, %s, 0.9, '{}' FROM accelerator WHERE uuid = %s",
            (NOW_MS - HOUR_MS, NOW_MS - HOUR_MS, NOW_MS - 1000, uuid),
        )

    def said():
        """What both pages say; nothing where neither says it."""
        with Database(dsn).transaction(read_only=True) as connection:
            sentence = say_unlisted(service.count_free_now(connection, NOW_MS))
        with running(dsn, clock=lambda: NOW_MS) as collector:
            for path in ("/demand?reload=off", "/idle?reload=off"):
                text = Page(collector.request("GET", path)[2]).text
                is_said = (sentence or "not in the list of idle GPUs yet") in text
                assert is_said == bool(sentence), (path, text)
        return sentence

    find("GPU-0001")
    late = (
        f"1 {H100} is free now, and not in the list of idle GPUs yet, which has a GPU when nobody has"
        " held it for 15 minutes"
    )
    assert said() == f"{late}."
    find("GPU-0003")
    assert said() == f"{late}; 1 {H100} is in that list, and not free by the latest reading."
    seen.connection.execute("DELETE FROM finding WHERE subject = 'GPU-0003'")
    find("GPU-0002")
    assert said() == ""


def test_pools_are_chosen_by_name_or_a_part_of_it(seen, dsn):
    assert set(ask(dsn)) == {H100, L4}
    assert set(ask(dsn, pool="train")) == set(ask(dsn, words="RAI")) == {H100}
    assert not ask(dsn, pool="nowhere")


def test_the_page_answers_for_eight(seen, dsn):
    """One sentence, its rows as a file, and hours of the day of the model that is asked for."""
    with running(dsn, clock=lambda: NOW_MS) as collector:

        def get(path):
            status, _, text = collector.request("GET", path)
            assert status == 200, text
            return text

        page = Page(get("/demand?reload=off"))
        assert page.faults == []
        assert f"2 {H100}: 0 free now; so many were free in 24 of the last 168 hours" in page.text
        assert f"1 {L4}: " in page.text, "as many of each model as are asked for at most"
        (hours,) = [table for table in page.tables if table.rows[0][1:3] == ["1 free", "2"]]
        assert hours.rows[1][:4] == [H100, "168", "24 144 not known", "168"]
        assert hours.rows[2][:4] == [L4, "0 24 not known", "–", "24"]
        tomorrow = (
            "Likely to be free at once tomorrow from 08:00 to 12:00 UTC, as on weekdays before:"
            f" 1 {H100}."
        )
        assert tomorrow in page.text
        assert f"{tomorrow} How often more were free" in Page(get("/?reload=off")).text
        page = Page(get("/demand?gpus=8&reload=off"))
        assert page.faults == []
        assert f"8 {H100}: 0 free now; there are but 3." in page.text
        asked = Page(get("/demand?gpus=2&model=NVIDIA%20H100%2080GB%20HBM3&reload=off"))
        assert asked.faults == []
        assert (
            f"2 {H100}: 0 free now; so many were free in 24 of the last 168 hours, at every hour of"
            " the day alike, on 1 of 7 days; of 144 hours too little was observed to say."
            in asked.text
        )
        assert f"{L4}: " not in asked.text
        (clocks,) = [table for table in asked.tables if table.rows[0][-1] == "days with 2 free"]
        assert len(clocks.rows) == 25
        rows = list(csv.DictReader(io.StringIO(get("/demand?gpus=2&by=model&format=csv"))))
        assert [(row["model"], row["hours_enough"], row["hours_not_known"]) for row in rows] == [
            (H100, "24", "144"),
            (L4, "0", "0"),
        ]
        assert rows[1]["least_free"] == ""
        assert [(row["hours_1_free"], row["hours_2_free"]) for row in rows] == [
            ("168", "24"),
            ("0", ""),
        ]
        (row, _) = csv.DictReader(io.StringIO(get("/demand?by=model&format=csv")))
        assert (row["wanted"], row["hours_enough"], row["hours_2_not_known"]) == ("", "", "144")
        assert [
            collector.request("GET", f"/demand?{query}")[0] for query in ("gpus=0", "by=node")
        ] == [
            422,
            422,
        ]


def test_the_file_of_demand_reads_no_free_gpus(seen, dsn, monkeypatch):
    """A week of hours is read for the page and for its own file alone."""

    def count(*_):
        reads.append(1)
        return []

    reads = []
    monkeypatch.setattr(fleet_pages, "read_free_gpus", count)
    with running(dsn, clock=lambda: NOW_MS) as collector:
        for path, most in (
            ("/demand?format=csv", 0),
            ("/demand?by=model&format=csv", 1),
            ("/demand", 2),
        ):
            assert collector.request("GET", path)[0] == 200, path
            assert len(reads) == most, path


def test_a_model_that_is_not_known_has_one_name():
    """In the file as in the filter of the page, so that one leads to the other."""
    item = count(ModelNow("", 1, 0, 0), {})
    names, row = FREE_MODELS.csv_rows([item])
    assert dict(zip(names, row, strict=True))["model"] == name_model(item)


def test_a_viewer_is_refused(seen, dsn):
    """As all of the demand it is about the entire fleet."""
    with running(dsn, clock=lambda: NOW_MS) as collector:
        headers = {"Authorization": f"Bearer {token(dsn, 'viewer', owner={'team': 'vision'})}"}
        assert collector.request("GET", "/demand?by=model&format=csv", headers=headers)[0] == 403
