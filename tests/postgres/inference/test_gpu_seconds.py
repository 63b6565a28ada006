"""Servers whose output tokens weigh what SGLang's GPU seconds say, day by day."""

import datetime as dt
import json
import random
from dataclasses import astuple, replace
from decimal import Decimal
from fractions import Fraction

import pytest

from fakes.boards import panel_rows
from fakes.fleet import DAY, HOUR, OCTOBER, Held
from fakes.grafana import Range
from fakes.shared_server import (
    DECLARED,
    MODEL,
    NLP,
    PERIOD,
    VISION,
    ask,
    compute,
    costs,
    count,
    notes,
    rows,
)
from gpuledger_collector.accounting.inference import GPU_COUNTERS
from gpuledger_collector.accounting.inference_split import parse_weights
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.token_prices import PricedDay, TokenKinds, price_tokens
from gpuledger_collector.export.model_servers import price_rows
from gpuledger_collector.export.statement import as_html
from gpuledger_collector.services.inference_days import store_inference_days
from gpuledger_collector.services.model_servers import read_model_servers
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.services.statement import read_statement
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger import zones

pytestmark = pytest.mark.slow

BY_SECONDS = DECLARED.replace("weights =", 'weights_from = "gpu_seconds"\nweights =')
CHARGED = BY_SECONDS.replace("weights =", 'mode = "charged"\nweights =')
ASKED = ((VISION, 1, 4_000, 0, 0), (NLP, 2, 0, 0, 1_000))


def measure(served):
    """An answer token takes 8 times what a computed prompt token takes."""
    compute(served, (100, 200), (4_000, 1_000))


def shares(fleet):
    return dict(
        fleet.rows(
            "SELECT s.tenant, s.weights FROM charge c JOIN inference_share s ON s.id ="
            " c.inference_id ORDER BY 1"
        )
    )


def test_a_day_is_split_by_what_its_gpu_seconds_say(served, run, apply):
    """4,000 input tokens weigh as much as 1,000 of output at 4, and half as much at 8."""
    ask(served, *ASKED)
    count(served, 4_000, 1_000)
    assert apply(BY_SECONDS)[0] == 0
    assert costs(run) == {"t-vision": "36.00", "t-nlp": "36.00"}
    measure(served)
    assert costs(run) == {"t-nlp": "48.00", "t-vision": "24.00"}
    hours = rows(run, "--by", "tenant,hour")
    assert {row["tenant"] for row in hours} == {"t-nlp", "t-vision"}
    code, out, _ = run("export", "config")
    assert code == 0
    assert 'weights_from = "gpu_seconds"' in out
    assert apply(out)[0] == 0
    assert costs(run) == {"t-nlp": "48.00", "t-vision": "24.00"}


def test_a_declared_server_is_split_as_before(served, run, apply):
    ask(served, *ASKED)
    measure(served)
    assert apply(DECLARED)[0] == 0
    assert costs(run) == {"t-vision": "36.00", "t-nlp": "36.00"}


def test_what_is_charged_has_the_weights_of_its_day(served, run, apply):
    """Counters that come later rate the day again, the charge names the weights, and the proof
    holds.
    """
    ask(served, *ASKED)
    count(served, 4_000, 1_000)
    assert apply(CHARGED)[0] == 0
    run("chargeback", *PERIOD)
    declared = "1 : 0.1 : 4"
    assert shares(served) == {"": declared, "t-nlp": declared, "t-vision": declared}
    measure(served)
    code, out, err = run("chargeback", *PERIOD, "--by", "team", "--format", "json")
    assert code == 0, err
    assert '"48.00"' in out
    measured = "1 : 0.1 : 8"
    assert shares(served) == {"": measured, "t-nlp": measured, "t-vision": measured}
    day = zones.calendar(served.connection).day_of(1_759_276_800_000)
    assert reconcile(served.connection, day).mismatches == []
    code, out, err = run("reconcile", *PERIOD, "--evidence")
    assert code == 0, (out, err)


def test_a_close_keeps_the_weights_of_each_day(served, run, apply):
    served.connection.execute("UPDATE capacity SET out_ms = out_ms + 86400000")
    ask(served, *ASKED)
    count(served, 4_000, 1_000)
    measure(served)
    assert apply(CHARGED)[0] == 0
    code, out, err = run("close", "--period", "2025-10")
    assert code == 0, (out, err)
    kept = served.rows("SELECT DISTINCT weights FROM closed_inference_server")
    assert kept == [("1 : 0.1 : 8",)]
    compute(served, (100, 800), (4_000, 1_000))
    assert costs(run) == {"t-nlp": "48.00", "t-vision": "24.00"}
    assert run("periods", "--verify", "2025-10")[0] == 0


def test_time_that_mixes_both_keeps_the_declared_weights(served, run, apply):
    ask(served, *ASKED)
    count(served, 4_000, 1_000)
    compute(served, (100, 200), (4_000, 1_000), other=30)
    assert apply(BY_SECONDS)[0] == 0
    assert costs(run) == {"t-vision": "36.00", "t-nlp": "36.00"}


@pytest.mark.parametrize(
    "last",
    [{"decoded_tokens": 300}, {"prefill_gpu_ms": 300}, {"decode_gpu_ms": 300, "other_gpu_ms": 0}],
    ids=lambda last: " ".join(last),
)
def test_hours_that_only_some_counters_cover_weigh_nothing(served, run, apply, last):
    """A counter that is not read for the second half of the day would make an answer token take 16
    or 4 times a prompt token; the first half says 8, and the list says that it rests on that.
    """
    ask(served, *ASKED)
    count(served, 4_000, 1_000)
    compute(served, (200, 400), (4_000, 1_000), last=last)
    assert apply(CHARGED)[0] == 0
    code, out, err = run("chargeback", *PERIOD, "--by", "team", "--format", "json")
    assert code == 0, err
    assert set(shares(served).values()) == {"1 : 0.1 : 8"}
    assert costs(run) == {"t-nlp": "48.00", "t-vision": "24.00"}
    assert (
        "qwen: on 1 day output is weighed by GPU seconds of a part of the held time, 50 %"
        in notes(run)
    )
    code, out, err = run("inference", "weights", *PERIOD, "--format", "json")
    assert code == 0, err
    (row,) = json.loads(out)
    assert (row["measured"], row["hours"], row["left_out"]) == ("1 : 0.1 : 8", "5", "5")


def test_an_hour_that_counters_cover_differently_is_left_out(served, run, apply):
    """Of three hours the third has tokens of twenty minutes for the GPU seconds of an hour."""
    ask(served, *ASKED)
    count(served, 4_000, 1_000)
    compute(served, (900, 1_800), (4_000, 1_000), last={"decoded_tokens": 140})
    assert apply(BY_SECONDS)[0] == 0
    assert costs(run) == {"t-nlp": "48.00", "t-vision": "24.00"}
    assert "20 % at the least" in notes(run)


def test_weights_of_a_whole_day_need_no_note(served, run, apply):
    """Nor do those of a day that misses ten minutes."""
    ask(served, *ASKED)
    count(served, 4_000, 1_000)
    compute(served, (100, 200), (4_000, 1_000), last=dict.fromkeys(GPU_COUNTERS, 590))
    assert apply(BY_SECONDS)[0] == 0
    assert costs(run) == {"t-nlp": "48.00", "t-vision": "24.00"}
    assert "of a part of the held time" not in notes(run)


def test_weights_are_measured_by_gpu_seconds_and_can_be_declared(served, run, apply, tmp_path):
    measure(served)
    count(served, 4_000, 1_000)
    assert apply(DECLARED)[0] == 0
    weights = ("inference", "weights", *PERIOD)
    code, out, err = run(*weights, "--format", "json")
    assert code == 0, err
    (row,) = json.loads(out)
    assert (row["measured"], row["source"], row["reason"]) == ("1 : 0.1 : 8", "gpu_seconds", "")
    assert (row["output_low"], row["output_high"], row["hours"]) == ("8.0", "8.0", "10")
    code, out, err = run(*weights, "--suggest")
    assert code == 0, err
    assert "measured by GPU seconds in 10 hours" in out
    assert 'weights = "1 : 0.1 : 8"' in out
    assert apply(out)[0] == 0


def test_output_cannot_be_weighed_by_an_input_that_weighs_nothing(served, apply):
    text = BY_SECONDS.replace("1 : 0.1 : 4", "0 : 0 : 1")
    code, _, err = apply(text)
    assert code == 2
    assert "which must weigh something" in err


@pytest.fixture
def three_days(served):
    """72 USD on each of three days, whose output tokens weigh 8, 2 and, without GPU seconds, 4."""
    served.connection.execute("UPDATE capacity SET out_ms = out_ms + 2 * 86400000")
    served.evidence(
        [
            Held(number, 1, at, at + HOUR, busy=HOUR // 2, idle=HOUR // 2)
            for number in (1, 2)
            for day in (1, 2)
            for at in range(day * DAY, day * DAY + 10 * HOUR, HOUR)
        ]
    )
    # By hand, a weighted token costs 1, 2 and 3 thousandths: input 40 + 40 + 12 USD for 64,000 that
    # were computed, cached input 4 USD for 20,000, output 32 + 28 + 60 USD for 16,000.
    for day, (computed, cached, output, seconds) in enumerate(
        (
            (40_000, 0, 4_000, (100, 200)),
            (20_000, 20_000, 7_000, (200, 100)),
            (4_000, 0, 5_000, None),
        )
    ):
        asked = (
            (VISION, 24 * day + 1, computed + cached, cached, 0),
            (NLP, 24 * day + 2, 0, 0, output),
        )
        ask(served, *asked)
        count(served, computed + cached, output, day=day)
        if seconds:
            compute(served, seconds, (4_000, 1_000), day=day)
    return served


DAYS = ("--from", "2025-10-01", "--to", "2025-10-04")
PRICES = {"input": Decimal("1437.5"), "cached": Decimal(200), "output": Decimal(7500)}


def test_prices_of_days_of_other_weights_are_their_mean_by_tokens(three_days, run, apply):
    """What tokens of a kind cost, over how many they were; in every list, and per token for LiteLLM."""
    assert apply(BY_SECONDS)[0] == 0
    (server,) = rows(run, command="servers", period=DAYS)
    for kind, price in PRICES.items():
        assert Decimal(server[f"{kind}_price_held"]) == price
        assert Decimal(server[f"{kind}_price_used"]) == price / 2
    code, out, err = run("prices", "models", *DAYS, "--format", "csv")
    assert (code, err) == (0, "")
    header, row = (line.split(",") for line in out.splitlines())
    listed = dict(zip(header, row, strict=True))
    assert {kind: Decimal(listed[f"{kind}_price"]) for kind in PRICES} == PRICES
    code, out, err = run("prices", "models", *DAYS, "--format", "litellm")
    assert (code, err) == (0, "")
    assert json.loads(out, parse_float=Decimal) == {
        MODEL: {
            "input_cost_per_token": PRICES["input"] / 10**6,
            "output_cost_per_token": PRICES["output"] / 10**6,
            "cache_read_input_token_cost": PRICES["cached"] / 10**6,
        }
    }
    (shown,) = read_model_servers(three_days.connection, Period(OCTOBER, OCTOBER + 3 * DAY)).servers
    assert price_rows(shown) == [
        ("input", "1,437.5000", "718.7500"),
        ("cached input", "200.0000", "100.0000"),
        ("output", "7,500.0000", "3,750.0000"),
    ]


@pytest.mark.parametrize("is_closed", [False, True], ids=["open", "closed"])
def test_a_statement_has_the_mean_of_its_own_days(three_days, run, apply, is_closed):
    """Vision asked all of the input, of which it paid what it cost on each day; of output, of which
    it had none, its days of 8, 4 and 12 USD by all of its tokens.
    """
    assert apply(CHARGED)[0] == 0
    assert run("chargeback", *DAYS)[0] == 0
    if is_closed:
        code, out, err = run("close", "--period", "2025-10")
        assert code == 0, (out, err)
    statement = read_statement(
        three_days.connection, "team", "vision", "2025-10", OCTOBER + 40 * DAY, None
    )
    (use,) = statement.model_use
    assert use.line.cost.plain() == "96.00"
    of_output = Decimal(8 * 40 + 4 * 40 + 12 * 4) / 84 * 1000
    assert use.prices == (PRICES["input"], PRICES["cached"], round(of_output, 6))
    assert "1,437.5000" in as_html(statement)


BOARD_SPAN = Range(*(dt.datetime(2025, 10, day, tzinfo=dt.UTC) for day in (1, 5)))
STORED = OCTOBER + 4 * DAY


def assert_board_says_what_the_command_says(fleet, run):
    """To the sixth place: a price of the board is not rounded."""
    (server,) = rows(run, command="servers", period=("--from", "2025-10-01", "--to", "2025-10-05"))
    (shown,) = panel_rows(
        fleet.connection, "models", "A million tokens, by server ($currency)", BOARD_SPAN
    )
    assert shown["weights"] == "changed"
    for kind in PRICES:
        for cost in ("held", "used"):
            price = Decimal(server[f"{kind}_price_{cost}"])
            assert abs(shown[f"{kind}, {cost}"] - price) <= Decimal("0.000001"), (kind, cost)
    return shown


def test_the_board_says_the_mean_by_tokens_as_well(three_days, run, apply, dsn):
    assert apply(BY_SECONDS)[0] == 0
    assert run("chargeback", *DAYS)[0] == 0
    assert store_inference_days(Database(dsn), STORED) == 3
    shown = assert_board_says_what_the_command_says(three_days, run)
    assert {kind: shown[f"{kind}, held"] for kind in PRICES} == PRICES


def test_the_board_scales_tokens_and_lays_quiet_days_over_the_others(three_days, run, apply, dsn):
    """On a day gateways counted thrice what the server did; on another one nobody asked."""
    served = three_days
    served.connection.execute("UPDATE capacity SET out_ms = out_ms + 86400000")
    served.evidence([Held(1, 1, 3 * DAY, 3 * DAY + HOUR, busy=HOUR // 2, idle=HOUR // 2)])
    ask(served, (VISION, 26.5, 160_000, 41_000, 0), (NLP, 27, 0, 0, 14_001))
    text = BY_SECONDS.replace("1 : 0.1 : 4", "1 : 0.25 : 4")
    assert apply(text)[0] == 0
    assert run("chargeback", *DAYS[:3], "2025-10-05")[0] == 0
    assert store_inference_days(Database(dsn), STORED) == 4
    scaled = served.rows("SELECT sum(computed + cached), sum(output) FROM inference_day")
    assert scaled == [(84_000 * 10**6, 16_000 * 10**6)], "scaled to what the server counted"
    assert_board_says_what_the_command_says(served, run)


def test_days_that_were_stored_without_kinds_are_split_again_once(three_days, run, apply, dsn):
    """Until then they have no price, which is not zero; half a year later this month and the last
    one have none of them.
    """
    assert apply(BY_SECONDS)[0] == 0
    assert run("chargeback", *DAYS)[0] == 0
    store_inference_days(Database(dsn), STORED)
    three_days.connection.execute(
        "UPDATE inference_day SET computed = NULL, cached = NULL, output = NULL WHERE day_ms ="
        " (SELECT max(day_ms) FROM inference_day)"
    )
    (shown,) = panel_rows(
        three_days.connection, "models", "A million tokens, by server ($currency)", BOARD_SPAN
    )
    assert {shown[f"{kind}, held"] for kind in PRICES} == {None}
    assert store_inference_days(Database(dsn), OCTOBER + 180 * DAY) == 3
    assert_board_says_what_the_command_says(three_days, run)
    assert store_inference_days(Database(dsn), OCTOBER + 180 * DAY) == 0


def test_prices_of_the_board_are_those_of_accounting(served):
    """For days of all kinds: without tokens, cost or weight, of one set of weights and of several."""
    rng = random.Random(54)
    servers = {
        f"s{number}": [
            PricedDay(
                rng.choice((0, rng.randrange(900 * 10**6))),
                text := rng.choice(("1 : 0.1 : 4", "1 : 1 : 1", "0 : 0 : 1", "0.5 : 0.05 : 9.125")),
                int(
                    weigh(text, kinds := [rng.choice((0, rng.randrange(10**7))) for _ in range(3)])
                ),
                TokenKinds(*map(Fraction, kinds)),
            )
            for _ in range(rng.randrange(1, 5))
        ]
        for number in range(200)
    }
    with served.connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO inference_day (server, day_ms, currency, cost_micro, used_micro, asked,"
            " weighted, weights, computed, cached, output, split_ms) VALUES (%s, %s, 'USD', %s, %s, 0,"
            " %s, %s, %s, %s, %s, 0)",
            [
                (
                    *(name, OCTOBER + at * DAY, day.cost_micro, day.cost_micro // 2),
                    *(day.weighted, day.weights),
                    *(int(count) * 10**6 for count in astuple(day.tokens)),
                )
                for name, days in servers.items()
                for at, day in enumerate(days)
            ],
        )
    shown = panel_rows(
        served.connection, "models", "A million tokens, by server ($currency)", BOARD_SPAN
    )
    assert len(shown) == len(servers)
    unknown = 0
    for row in shown:
        days = servers[row["server"]]
        halves = [replace(day, cost_micro=day.cost_micro // 2) for day in days]
        for cost, priced in (("held", days), ("used", halves)):
            for kind, price in zip(PRICES, price_tokens(priced), strict=True):
                board = row[f"{kind}, {cost}"]
                unknown += price is None
                assert (board is None) == (price is None), (row["server"], days)
                assert price is None or abs(board - price) <= Decimal("0.000001")
    assert 0 < unknown < 600


def weigh(text, kinds):
    """Weighted tokens in millionths."""
    return sum(
        weight * count for weight, count in zip(astuple(parse_weights(text)), kinds, strict=True)
    )
