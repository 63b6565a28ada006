"""Tokens of gateways, from records and from counters to hours: each counted once."""

import random
from collections import Counter

import psycopg
import pytest

from fakes.fleet import DAY, HOUR, OCTOBER
from fakes.token_records import fold_records
from gpuledger_collector.accounting.inference import (
    Asker,
    TokenHour,
    TokenRecord,
    Tokens,
)
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.personal_data import is_pseudonym
from gpuledger_collector.accounting.token_counters import TokenSeries
from gpuledger_collector.storage.ledger import token_counters, token_usage
from gpuledger_collector.storage.ledger.token_counters import ReadPage, store_pages
from gpuledger_collector.storage.ledger.token_usage import StoredTokens, store_token_usage

MINUTE = 60_000
VISION = Asker("litellm", "vision", "qwen", "http://10.0.0.7:8000/v1")
NLP = Asker("litellm", "nlp", "qwen", "http://10.0.0.7:8000/v1")
ALWAYS = Period(0, OCTOBER + 400 * DAY)


@pytest.fixture
def connection(dsn):
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def record(number, asker=VISION, start=0, end=MINUTE, given=100, cached=40, output=50):
    return TokenRecord(
        asker, f"req-{number}", OCTOBER + start, OCTOBER + end, Tokens(given, cached, output, 1)
    )


def hours(connection):
    return token_usage.read_token_hours(connection, ALWAYS)


def page(minute, values, started=None, address="http://gw:4000/metrics"):
    """A reading of a page: values by asker and counter, or by series."""
    return ReadPage(
        "litellm",
        address,
        OCTOBER + round(minute * MINUTE),
        started if started is None else OCTOBER + round(started * MINUTE),
        {TokenSeries(asker, counter): value for (asker, counter), value in values.items()},
    )


def output_of(connection, asker=VISION):
    return sum(hour.tokens.output for hour in hours(connection) if hour.asker == asker)


def test_a_record_is_counted_once(connection):
    records = [record(1), record(2, NLP)]
    assert store_token_usage(connection, records) == StoredTokens(stored=2)
    assert store_token_usage(connection, [*records, *records]) == StoredTokens(unchanged=4)
    assert hours(connection) == [
        TokenHour(NLP, OCTOBER, Tokens(100, 40, 50, 1)),
        TokenHour(VISION, OCTOBER, Tokens(100, 40, 50, 1)),
    ]


def test_of_two_contents_of_an_id_the_greater_holds_in_any_order(connection):
    small, great = record(1, NLP, output=10), record(1, VISION, output=60)
    assert store_token_usage(connection, [great]).stored == 1
    assert store_token_usage(connection, [small]) == StoredTokens(conflicting=1)
    assert hours(connection) == fold_records([small, great])
    assert store_token_usage(connection, [record(2, NLP, output=10)]).stored == 1
    assert store_token_usage(connection, [record(2, output=60)]) == StoredTokens(conflicting=1)
    assert hours(connection) == fold_records([great, record(2, output=60)])


def test_a_long_record_is_spread_over_its_hours(connection):
    store_token_usage(connection, [record(1, start=HOUR // 2, end=2 * HOUR, given=3, cached=2)])
    assert [(hour.hour_ms - OCTOBER, hour.tokens) for hour in hours(connection)] == [
        (0, Tokens(1, 1, 17, 0)),
        (HOUR, Tokens(2, 1, 33, 1)),
    ]


def test_order_and_repetition_change_nothing(connection, dsn):
    rng = random.Random(7)
    records = [
        record(
            rng.randrange(60),
            rng.choice((VISION, NLP)),
            start := rng.randrange(0, 3 * HOUR),
            start + rng.randrange(0, 2 * HOUR),
            given := rng.randrange(0, 500),
            rng.randrange(0, given + 1),
            rng.randrange(0, 500),
        )
        for _ in range(200)
    ]
    for _ in range(3):
        rng.shuffle(records)
        for at in range(0, len(records), 17):
            store_token_usage(connection, records[at : at + 17])
        assert hours(connection) == fold_records(records)


def test_bad_records_are_refused(connection):
    for bad, why in (
        (record(1, output=-1), "negative"),
        (record(1, given=3, cached=4), "cached"),
        (record(1, start=MINUTE, end=0), "ends before"),
    ):
        with pytest.raises(ValueError, match=why):
            store_token_usage(connection, [bad])
    assert hours(connection) == []


def test_a_request_whose_id_expired_is_not_counted_again(connection):
    store_token_usage(connection, [record(1), record(2, end=3 * DAY, start=3 * DAY)])
    before = hours(connection)
    assert token_usage.expire_requests(connection, 1, OCTOBER + 3 * DAY) == 1
    assert store_token_usage(connection, [record(1)]) == StoredTokens(too_old=1)
    assert hours(connection) == before


def test_a_first_reading_of_a_page_counts_nothing(connection):
    store_pages(connection, [page(0, {(VISION, "output"): 500})])
    assert output_of(connection) == 0
    store_pages(connection, [page(1, {(VISION, "output"): 530})])
    assert output_of(connection) == 30


def test_a_page_of_a_process_that_just_began_counts_from_zero(connection):
    store_pages(connection, [page(5, {(VISION, "output"): 70}, started=1)])
    assert output_of(connection) == 70


def test_a_new_tenant_on_a_page_that_was_read_before_counts_from_zero(connection):
    store_pages(connection, [page(0, {(VISION, "output"): 500}, started=-90)])
    store_pages(connection, [page(1, {(VISION, "output"): 500, (NLP, "output"): 20}, started=-90)])
    assert output_of(connection, NLP) == 20


def test_an_empty_page_is_read_too(connection):
    store_pages(connection, [page(0, {}, started=-90)])
    store_pages(connection, [page(1, {(NLP, "output"): 20}, started=-90)])
    assert output_of(connection, NLP) == 20


def test_a_new_tenant_after_a_long_silence_counts_nothing(connection):
    store_pages(connection, [page(0, {(VISION, "output"): 500}, started=-90)])
    store_pages(connection, [page(60, {(NLP, "output"): 20}, started=-90)])
    assert output_of(connection, NLP) == 0


def test_a_restart_of_the_gateway_counts_what_came_since(connection):
    store_pages(connection, [page(0, {(VISION, "output"): 500}, started=-90)])
    store_pages(connection, [page(1, {(VISION, "output"): 530}, started=-90)])
    store_pages(connection, [page(3, {(VISION, "output"): 9}, started=2)])
    assert output_of(connection) == 39


def test_a_restart_is_seen_although_the_value_rose(connection):
    store_pages(connection, [page(0, {(VISION, "output"): 5}, started=-90)])
    store_pages(connection, [page(2, {(VISION, "output"): 9}, started=1)])
    assert output_of(connection) == 9


def test_a_series_that_expired_comes_back_from_zero(connection):
    store_pages(connection, [page(0, {(VISION, "output"): 500, (NLP, "output"): 40}, started=-90)])
    for minute in range(1, 70):
        store_pages(connection, [page(minute, {(VISION, "output"): 500}, started=-90)])
    store_pages(connection, [page(70, {(VISION, "output"): 500, (NLP, "output"): 7}, started=-90)])
    assert output_of(connection, NLP) == 7


def test_a_series_that_was_away_counts_by_the_difference(connection):
    store_pages(connection, [page(0, {(NLP, "output"): 40})])
    store_pages(connection, [page(1, {})])
    store_pages(connection, [page(2, {(NLP, "output"): 45})])
    assert output_of(connection, NLP) == 5


def test_two_readers_of_one_page_count_it_once(connection):
    for minute in range(5):
        for offset in (0, 0.25):
            store_pages(connection, [page(minute + offset, {(VISION, "output"): 10 * minute})])
    assert output_of(connection) == 40


def test_two_replicas_of_a_gateway_add_up(connection):
    for address in ("http://a/metrics", "http://b/metrics"):
        for minute, value in ((0, 5), (1, 15)):
            store_pages(connection, [page(minute, {(VISION, "output"): value}, address=address)])
    assert output_of(connection) == 20


def test_parts_of_a_page_come_one_after_the_other(connection):
    """Prometheus may send the series of one scrape in several requests, in any order."""
    store_pages(connection, [page(0, {(VISION, "output"): 5})])
    store_pages(connection, [page(1, {(VISION, "output"): 8})])
    store_pages(connection, [page(1, {(NLP, "output"): 500})])
    store_pages(connection, [page(0, {(NLP, "output"): 490})])
    assert output_of(connection) == 3
    assert output_of(connection, NLP) == 10


def test_readings_in_any_order_and_doubled_count_the_same(dsn, postgres):
    """Restarts, gaps, series that come and go: what one transaction counts in order, any order of
    parts counts too.
    """
    rng = random.Random(3)
    pages = []
    totals, started = {VISION: 0, NLP: 0}, -30.0
    minute = 0.0
    while minute < 240:
        minute += rng.choice((0.5, 1, 1, 1, 4, 14))
        if rng.random() < 0.1:
            totals, started = {VISION: 0, NLP: 0}, minute - 0.25
        for asker in totals:
            totals[asker] += rng.choice((0, 3, 40))
        present = {asker: value for asker, value in totals.items() if rng.random() < 0.8}
        # each series comes in a part of its own
        pages += [page(minute, {}, started)]
        pages += [
            page(minute, {(asker, "output"): value}, started) for asker, value in present.items()
        ]
    with psycopg.connect(dsn, autocommit=True) as connection:
        store_pages(connection, pages)
        expected = hours(connection)
        assert expected
        for _ in range(2):
            _empty(connection)
            rng.shuffle(pages)
            at = 0
            while at < len(pages):
                size = rng.randrange(1, 9)
                store_pages(connection, [*pages[at : at + size], *pages[:1]])
                at += size
            assert hours(connection) == expected


def _empty(connection):
    connection.execute(
        "TRUNCATE token_asker, token_hour, token_request, token_page, token_page_reading,"
        " token_series, token_reading RESTART IDENTITY CASCADE"
    )


def test_old_readings_expire_and_hours_stay(connection):
    store_pages(connection, [page(0, {(VISION, "output"): 5}), page(1, {(VISION, "output"): 8})])
    token_counters.expire_readings(connection, OCTOBER + 30 * DAY)
    assert output_of(connection) == 3
    # What could pair with readings that are gone is left out.
    assert store_pages(connection, [page(2, {(VISION, "output"): 900})]) == 0
    assert output_of(connection) == 3


def test_a_tenant_that_pauses_for_weeks_is_not_counted_again(connection):
    """An agent sends only the counters that changed: its page is read all the time."""
    series = {(VISION, "output"): 500}
    store_pages(connection, [page(0, {}, started=-1), page(1, series, started=-1)])
    day = DAY // MINUTE
    for days in (12, 24):
        store_pages(connection, [page(days * day, {}, started=-1)])
        token_counters.expire_readings(connection, OCTOBER + days * DAY)
    store_pages(connection, [page(24 * day + 1, {(VISION, "output"): 530}, started=-1)])
    assert output_of(connection) == 530


def test_what_ended_leaves_nothing_but_its_hours(connection):
    """Series of a process that answers no more, pages that are not read any more, and askers that
    never had a token.
    """
    day = DAY // MINUTE
    gone = [page(0, {(NLP, "output"): 5}, address=f"http://{number}/") for number in range(3)]
    series = {(VISION, "output"): 9}
    store_pages(connection, [*gone, page(0, {}, started=-1), page(1, series, started=-1)])
    store_pages(connection, [page(12 * day, {}, started=11 * day)])
    token_counters.expire_readings(connection, OCTOBER + 12 * DAY)
    tables = ("token_series", "token_reading", "token_page", "token_page_reading")
    counts = [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
    assert counts == [0, 0, 1, 1]
    assert connection.execute("SELECT tenant FROM token_asker").fetchall() == [("vision",)]
    assert output_of(connection) == 9


def test_an_asker_of_an_empty_request_stays(connection):
    """Else the request would be unknown, and counted again when it comes with more."""
    empty = TokenRecord(VISION, "empty", OCTOBER, OCTOBER, Tokens())
    store_token_usage(connection, [empty, record(1, NLP)])
    token_counters.expire_readings(connection, OCTOBER + 30 * DAY)
    assert store_token_usage(connection, [empty, record(1, NLP)]) == StoredTokens(unchanged=2)


def test_askers_are_deleted_without_a_scan_of_all_requests(connection):
    """Nothing of gateways is stored meanwhile."""
    connection.execute(
        "INSERT INTO token_asker (gateway, tenant, model, backend, trust) SELECT 'gw', n::text, 'm',"
        " '', 'claim' FROM generate_series(1, 200) n"
    )
    connection.execute(
        "INSERT INTO token_hour SELECT id, %s, 100, 0, 100, 100 FROM token_asker", (OCTOBER,)
    )
    connection.execute(
        "INSERT INTO token_request SELECT 'gw', id || '-' || n, id, 1, 1, 1, 0, 1, 1 FROM"
        " token_asker, generate_series(1, 100) n"
    )
    connection.execute("ANALYZE token_asker, token_hour, token_request, token_series")
    rows = connection.execute(f"EXPLAIN {token_counters._DELETE_ASKERS}").fetchall()
    plan = "\n".join(line for (line,) in rows)
    assert "token_request" in plan
    assert "Seq Scan on token_request" not in plan


@pytest.mark.parametrize("knows_start", [True, False])
def test_readers_in_the_wrong_order_count_the_same_in_any_order(connection, knows_start):
    """Two readers seconds apart, processes that take turns: any order of parts counts the same."""
    rng = random.Random(11)
    minute, value, pages = 0.0, 100, []
    for number in range(120):
        minute += rng.choice((0.01, 0.05, 0.5, 1, 3, 12))
        value = rng.randrange(50) if number == 70 else value + rng.randrange(40)
        shown = {(VISION, "output"): value - rng.choice((0, 0, 20)), (NLP, "output"): value}
        if not knows_start and rng.random() < 0.4:
            shown[VISION, "output"] += 90_000
        started = -30.0 if knows_start or rng.random() < 0.1 else None
        pages += [
            page(minute, {key: max(0, each)}, started if rng.random() < 0.8 else None)
            for key, each in shown.items()
        ]
        pages.append(page(minute, {}, started))
    store_pages(connection, pages)
    expected = hours(connection)
    assert expected
    for _ in range(3):
        _empty(connection)
        rng.shuffle(pages)
        at = 0
        while at < len(pages):
            size = rng.randrange(1, 9)
            store_pages(connection, [*pages[at : at + size], *pages[:1]])
            at += size
        assert hours(connection) == expected


def test_tenants_of_a_page_beyond_the_limit_add_up_as_other(connection, monkeypatch):
    """Threat: a label that any caller may fill with what they like. Who is known stays known, and
    nothing is lost or counted twice.
    """
    monkeypatch.setattr(token_counters, "MAX_ASKERS", 3)
    askers = [Asker("litellm", f"t{number}", "qwen") for number in range(8)]
    store_pages(connection, [page(0, {}, started=-90)])
    for minute in (1, 2, 3):
        for some in (askers[:2], askers):
            values = {(asker, "output"): 10 * minute for asker in some}
            store_pages(connection, [page(minute, values, started=-90)])
    tokens = Counter()
    for hour in hours(connection):
        tokens[hour.asker.tenant] += hour.tokens.output
    assert tokens == {"t0": 30, "t1": 30, "t2": 30, "(other)": 5 * 30}
    # Where there is room again, who is among the others stays there.
    monkeypatch.setattr(token_counters, "MAX_ASKERS", 30)
    store_pages(connection, [page(4, {(each, "output"): 40 for each in askers}, started=-90)])
    assert output_of(connection, askers[7]) == 0
    assert sum(hour.tokens.output for hour in hours(connection)) == 8 * 40


def test_a_tenant_whose_name_was_erased_is_not_counted_again(connection, run):
    """Its page goes on with the name: a new asker would count all of its history once more."""
    ada = Asker("litellm", "ada", "qwen")
    store_pages(connection, [page(0, {(ada, "output"): 9_000}, started=-90)])
    store_pages(connection, [page(1, {(ada, "output"): 9_010}, started=-90)])
    assert run("privacy", "erase", "ada")[0] == 0
    values = {(ada, "output"): 9_030, (ada, "input"): 7, (NLP, "output"): 5}
    store_pages(connection, [page(2, values, started=-90)])
    tokens = Counter()
    for hour in hours(connection):
        tokens[hour.asker.tenant] += hour.tokens.output
    (pseudonym,) = set(tokens) - {"nlp"}
    assert is_pseudonym(pseudonym)
    assert tokens == {pseudonym: 30, "nlp": 5}
    # Erased once more, the page is still told from a new one.
    assert run("privacy", "erase", pseudonym)[0] == 0
    store_pages(connection, [page(3, {(ada, "output"): 9_040}, started=-90)])
    stored = connection.execute("SELECT tenant FROM token_asker ORDER BY tenant").fetchall()
    assert len(stored) == 2
    assert sum(hour.tokens.output for hour in hours(connection)) == 45
