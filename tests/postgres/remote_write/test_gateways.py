"""Counters of gateways by remote write: each tenant's tokens once, whoever sends them how often."""

import random
import re
import time
from pathlib import Path

import psycopg
import pytest

from fakes.collector import running
from fakes.gateways import page_text, scraped
from fakes.prometheus import WRITE, Point, headers, one, snappy, two
from gpuledger_collector.accounting.inference import CLAIM, Asker, Tokens
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.ingest.remote_write import gateway_counters
from gpuledger_collector.storage.ledger.token_usage import read_token_hours
from gpuledger_common.gateways.library import all_gateways

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "gateways.md").read_text()
MINUTE = 60_000
T = round(time.time()) // 3600 * 3_600_000 - 3 * 3_600_000
"""A whole hour, three hours ago."""
OLD = T / 1000 - 86_400
VISION = Asker("litellm", "e8d1", "hosted_vllm/qwen")
TARGET = {"instance": "10.0.0.5:4000", "job": "litellm", "namespace": "gateways", "pod": "proxy-0"}


@pytest.fixture
def collector(dsn):
    with running(dsn) as started:
        yield started


def tokens(collector):
    """Tokens by asker."""
    with psycopg.connect(collector.dsn) as connection:
        sums = {}
        for hour in read_token_hours(connection, Period(0, 10**13)):
            sums[hour.asker] = sums.get(hour.asker, Tokens()) + hour.tokens
        return sums


def write(collector, points, version=1):
    body = snappy(one(points) if version == 1 else two(points))
    status, answer, text = collector.request("POST", WRITE, body, headers(version))
    assert status == 204, text
    return int(answer["X-Prometheus-Remote-Write-Samples-Written"])


def line(value, team="e8d1", name="litellm_output_tokens_metric_total", **labels):
    given = {"model": "hosted_vllm/qwen", "team": team, "hashed_api_key": "88dc28", **labels}
    return f"{name}{{{','.join(f'{key}={chr(34)}{text}{chr(34)}' for key, text in given.items())}}} {value}\n"


def page(*lines, started=OLD):
    start = "" if started is None else f"process_start_time_seconds {started}\n"
    return start + "".join(lines)


def at(minute):
    return T + round(minute * MINUTE)


@pytest.mark.parametrize("version", [1, 2])
def test_tenants_are_counted_and_an_ha_pair_counts_once(collector, version):
    """Two replicas of a Prometheus read one page at different seconds, and each sends twice; the
    team of the key is the tenant, and a key without a team is the empty one.
    """
    for minute in range(6):
        for replica, offset in (("a", 0.0), ("b", 0.25)):
            text = page(
                line(100 * minute), line(7 * minute, "None"), line(3, name="litellm_spend_metric")
            )
            points = scraped(text, at(minute + offset), **TARGET, prometheus_replica=replica)
            assert write(collector, points, version) == 2
            assert write(collector, points, version) == 2
    assert tokens(collector) == {
        VISION: Tokens(output=500),
        Asker("litellm", "", "hosted_vllm/qwen"): Tokens(output=35),
    }


def test_a_new_tenant_counts_from_zero_on_a_page_that_was_read_before(collector):
    """The start of the process may come in a request of its own, before or after the series."""
    write(collector, scraped(page(line(1000)), at(0), **TARGET))
    start, vision, other = scraped(page(line(1000), line(20, "b")), at(1), **TARGET)
    for points in ([other], [vision], [start]):
        write(collector, points)
    assert tokens(collector) == {Asker("litellm", "b", "hosted_vllm/qwen"): Tokens(output=20)}


def test_a_restart_counts_what_came_since(collector):
    """The gateway began anew between two scrapes: both lives count, and nothing twice."""
    write(collector, scraped(page(line(1000)), at(0), **TARGET))
    write(collector, scraped(page(line(1010)), at(1), **TARGET))
    began = page(line(2000), started=at(1.5) / 1000)
    write(collector, scraped(began, at(2), **TARGET))
    assert tokens(collector) == {VISION: Tokens(output=2010)}


def test_a_page_without_a_process_start_counts_differences(collector):
    """Of Kong, Higress and others: a first reading counts nothing, and neither does a fall."""
    for minute, value in enumerate((1000, 1030, 5, 9)):
        write(collector, scraped(page(line(value), started=None), at(minute), **TARGET))
    assert tokens(collector) == {VISION: Tokens(output=34)}


def test_a_label_of_the_target_is_not_the_tenant(collector):
    """A team that the scrape configuration puts on every target is that of the platform; the page's
    own label comes as exported_team.
    """
    for minute in range(2):
        text = page(line(100 * minute))
        write(collector, scraped(text, at(minute), **TARGET, team="platform"))
    assert tokens(collector) == {VISION: Tokens(output=100)}


def test_deprecated_twins_count_once(collector):
    """Names of the endpoint picker of before and of now: in one request, and each in its own."""

    def text(value):
        labels = '{fairness_id="a",target_model_name="m"}'
        return (
            f"process_start_time_seconds {OLD}\n"
            f"inference_objective_output_tokens_sum{labels} {value}\n"
            f"llm_d_epp_request_output_tokens_sum{labels} {value}\n"
        )

    for minute in range(4):
        write(collector, scraped(text(100 * minute), at(minute), **TARGET))
    asker = Asker("llm-d-epp", "a", "m", "", CLAIM)
    assert tokens(collector) == {asker: Tokens(output=300)}
    start, old, new = scraped(text(400), at(4), **TARGET)
    for point in (start, old, new):
        write(collector, [point])
    assert tokens(collector) == {asker: Tokens(output=400)}


def test_sglang_counts_for_its_tenants_and_as_a_server(collector):
    """Its series with a tenant's label are both: the server's own, and the tenant's claim."""
    target = {**TARGET, "instance": "10.0.0.9:30000", "pod": "sglang-0", "namespace": "chat"}
    for minute in range(3):
        text = (
            f"process_start_time_seconds {OLD}\n"
            f'sglang:generation_tokens_total{{model_name="m",tenant="a"}} {100 * minute}\n'
            f'sglang:generation_tokens_total{{model_name="m"}} {7 * minute}\n'
        )
        write(collector, scraped(text, at(minute), **target))
    asker = Asker("sglang", "a", "m", "10.0.0.9:30000", CLAIM)
    assert tokens(collector) == {asker: Tokens(output=200)}
    with psycopg.connect(collector.dsn) as connection:
        (units,) = connection.execute("SELECT sum(units) FROM counter_hour").fetchone()
    assert units == 214


def test_no_person_address_or_key_is_stored(collector):
    """Of a page with users, e-mail addresses and keys, only the team is in the ledger."""
    for minute in range(2):
        write(collector, scraped(page_text("litellm"), at(minute), **TARGET))
    with psycopg.connect(collector.dsn) as connection:
        stored = "".join(
            str(connection.execute(f"SELECT * FROM {table}").fetchall())
            for table in ("token_asker", "token_series", "token_page", "token_hour", "workload")
        )
    assert "e8d1" in stored
    for secret in ("ana", "@example.com", "88dc28", "77aa01", "lab"):
        assert secret not in stored


def test_old_and_impossible_readings_are_refused(collector):
    """Readings that could not be compared any more are counted as refused; NaN and fractions count
    nothing.
    """
    status, _, text = collector.request(
        "POST",
        WRITE,
        snappy(one(scraped(line(5), T - 8 * 86_400_000, **TARGET))),
        headers(1),
    )
    assert (status, "1 counters of gateways are more than 7 days old" in text) == (400, True)
    for minute, value in enumerate((float("nan"), 0.5, -1.0, 2.0**60)):
        (point,) = scraped(line(0), at(minute), **TARGET)
        write(collector, [Point(point.labels, value, at(minute))])
    assert tokens(collector) == {}


def test_any_order_of_requests_counts_the_same(collector, postgres):
    """Scrapes of an hour with a restart, tenants that come and go, in requests of any size and
    order, doubled: what they count in order.
    """
    rng = random.Random(5)
    points, start, values = [], OLD, {}
    for minute in range(40):
        if minute == 20:
            start, values = at(minute - 0.5) / 1000, {}
        for team in "abc":
            if rng.random() < 0.7:
                values[team] = values.get(team, 0) + rng.randrange(100)
        text = page(*(line(value, team) for team, value in values.items()), started=start)
        points += scraped(text, at(minute), **TARGET)
    write(collector, points)
    expected = tokens(collector)
    assert len(expected) == 3
    with psycopg.connect(collector.dsn, autocommit=True) as connection:
        connection.execute(
            "TRUNCATE token_asker, token_hour, token_page, token_page_reading, token_series,"
            " token_reading, token_request RESTART IDENTITY CASCADE"
        )
    # The first page is read first: who joins a page later must know that it was not read before.
    rest = points[:]
    rng.shuffle(rest)
    while rest:
        size = rng.randrange(1, 40)
        write(collector, [*rest[:size], *points[:2]])
        rest = rest[size:]
    # A start that came before any series of its page was known is sent again.
    write(collector, points)
    assert tokens(collector) == expected


def picked(name, value, model, fairness="a"):
    return f'{name}_output_tokens_sum{{fairness_id="{fairness}",target_model_name="{model}"}} {value}\n'


def test_a_deprecated_name_counts_where_a_page_has_no_better_one_of_that_count(collector):
    """One service of an OpenTelemetry collector's page is older than the others: its tenants count
    under the old name, and those of the others once.
    """
    old, new = "inference_objective", "llm_d_epp_request"
    for minute in range(4):
        value = 1000 + 100 * minute
        text = page(
            picked(old, value, "m"), picked(new, value, "m"), picked(old, value, "older"), line(0)
        )
        for point in reversed(scraped(text, at(minute), **TARGET)):
            write(collector, [point])
    assert tokens(collector) == {
        Asker("llm-d-epp", "a", model, "", CLAIM): Tokens(output=300) for model in ("m", "older")
    }


def test_a_better_name_that_another_collector_received_counts_alone(dsn):
    """Requests of one scrape go to two collectors: one has the old names, the other the new ones."""
    with running(dsn) as first, running(dsn) as second:
        for minute in range(4):
            names = ("llm_d_epp_request", first), ("inference_objective", second)
            for name, receiver in names:
                text = page(picked(name, 100 * minute, "m"))
                write(receiver, scraped(text, at(minute), **TARGET))
        assert tokens(first) == {Asker("llm-d-epp", "a", "m", "", CLAIM): Tokens(output=300)}


def test_the_start_of_a_process_may_come_to_another_collector(dsn):
    """A tenant that is new on the page counts from zero all the same."""
    with running(dsn) as first, running(dsn) as second:
        for minute, lines in enumerate(([line(1000)], [line(1000), line(20, "b")])):
            start, *series = scraped(page(*lines), at(minute), **TARGET)
            write(first, series)
            write(second, [start])
        assert tokens(first) == {Asker("litellm", "b", "hosted_vllm/qwen"): Tokens(output=20)}


def test_a_label_of_the_scrape_configuration_names_no_tenant(collector):
    """Where the page lacks the label that names the tenant, a target's label of that name is all
    that comes: nobody at the gateway said it.
    """
    for minute in range(3):
        text = page(line(100 * minute)).replace('team="e8d1",', "")
        write(collector, scraped(text, at(minute), **TARGET, team="platform"))
    assert tokens(collector) == {}


def test_a_label_that_the_scrape_configuration_no_longer_has_refuses_nothing(collector):
    """Once the label is gone from the target, tokens without a tenant count again, in the collector
    that refused them.
    """
    for minute, target in enumerate(({**TARGET, "team": "platform"}, TARGET, TARGET)):
        text = page(line(100 * minute)).replace('team="e8d1",', "")
        if target is TARGET:
            text += line(100 * minute)
        write(collector, scraped(text, at(minute), **target))
    assert tokens(collector) == {
        asker: Tokens(output=100) for asker in (VISION, Asker("litellm", "", "hosted_vllm/qwen"))
    }


def test_a_start_that_is_not_read_for_its_labels_is_said_once(collector, caplog):
    """External labels make it that of another process, maybe: whoever reads the log knows what to
    drop. Starts of targets that are no gateways say nothing.
    """
    other = {**TARGET, "instance": "10.0.0.6:9100"}
    for minute in range(3):
        write(collector, scraped(page(line(100)), at(minute), **TARGET, env="prod", region="eu"))
        write(collector, scraped(page(), at(minute), **other, env="prod"))
    (warning,) = [entry.getMessage() for entry in caplog.records if "start" in entry.getMessage()]
    assert warning.startswith("gateway page 10.0.0.5:4000: the start of its process is not read")
    assert "has the labels env, region:" in warning
    assert "labeldrop" in warning


def test_the_rules_of_the_guide_let_a_start_be_read(collector, caplog):
    """Without the labels that the guide drops, a new tenant counts from zero."""
    (dropped,) = re.findall(r"- regex: (\S+).*\n    action: labeldrop", GUIDE)
    labels = {"env": "prod", "region": "eu"}
    kept = {name: value for name, value in labels.items() if not re.fullmatch(dropped, name)}
    for minute, lines in enumerate(([line(1000)], [line(1000), line(20, "b")])):
        write(collector, scraped(page(*lines), at(minute), **TARGET, **kept))
    assert tokens(collector) == {Asker("litellm", "b", "hosted_vllm/qwen"): Tokens(output=20)}
    assert "is not read" not in caplog.text


def test_a_first_reading_that_a_better_name_repeated_is_forgotten(collector):
    """A deprecated name waits for its second reading, the better one comes, and is gone after more
    than a day: what the old one says by then is no rise since its first reading.
    """
    old, new = "inference_objective", "llm_d_epp_request"
    other = picked(new, 7, "other")
    for minute, lines in (
        (-1600, picked(old, 100, "m")),
        (-1599, picked(new, 100, "m") + picked(old, 100, "m")),
    ):
        write(collector, scraped(page(other, lines, started=None), at(minute), **TARGET))
    between = [
        scraped(page(other, started=None), at(minute), **TARGET) for minute in range(-1590, 0, 9)
    ]
    write(collector, [point for points in between for point in points])
    for minute in range(2):
        text = page(other, picked(old, 5000 + 10 * minute, "m"), started=None)
        write(collector, scraped(text, at(minute), **TARGET))
    assert tokens(collector) == {Asker("llm-d-epp", "a", "m", "", CLAIM): Tokens(output=10)}


def test_twins_hold_a_bounded_memory(dsn, monkeypatch):
    """Beyond the bound they are learned anew, and each count still counts once; kinds with one name
    hold nothing.
    """
    monkeypatch.setattr(gateway_counters, "MAX_TWIN_KEYS", 100)
    store, names = (
        gateway_counters.GatewayCounterStore(),
        ("llm_d_epp_request", "inference_objective"),
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        for minute in range(3):
            for number in range(12):
                text = page(
                    *(picked(name, 10 * minute, f"m{number}") for name in names),
                    line(minute),
                    started=None,
                )
                target = {**TARGET, "instance": f"10.0.0.{number}:9090"}
                store.store(connection, gateway_samples(scraped(text, at(minute), **target)), T)
                assert sum(map(len, store._twins.values())) <= 108
        hours = read_token_hours(connection, Period(0, 10**13))
    assert len({hour.asker.model for hour in hours}) == 13
    assert sum(hour.tokens.output for hour in hours) == 12 * 20 + 12 * 2
    assert {gateway for gateway, _ in store._twins} == {"llm-d-epp"}
    assert not any(store._waiting.values())


def gateway_samples(points):
    """Points as the reader of series hands them to the store."""
    profiles = all_gateways()
    return [
        gateway_counters.GatewaySample(counter, point.value, point.at_ms)
        for point in points
        for counter in gateway_counters.gateway_counters(
            profiles, dict(point.labels)["__name__"], dict(point.labels), None
        )
    ]
