"""Laws of shared inference: what was asked, and who pays for a server's day."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.token_records import fold_records
from gpuledger_collector.accounting.inference import (
    CLAIM,
    GPU_COUNTERS,
    Asker,
    TokenRecord,
    Tokens,
    spread_record,
)
from gpuledger_collector.accounting.inference_split import (
    BY_PLATFORM,
    BY_RESERVATIONS,
    BY_TOKENS,
    GPU_SECONDS,
    IDLE_RULES,
    IDLES,
    NOBODYS,
    Claimant,
    GpuTime,
    ServerCost,
    ServerCount,
    SharedServer,
    Weights,
    compare_tokens,
    parse_weights,
    price_per_million,
    split_day,
    spread_part,
    spread_tokens,
)
from gpuledger_collector.accounting.reserved_names import (
    booked_name,
    escape_name,
    unescape_name,
)

HOUR = 3_600_000
EVEN = Weights(1_000_000, 1_000_000, 1_000_000)
A, B = Claimant("gw", "a", "m"), Claimant("gw", "b", "m")

counts = st.integers(0, 10**9)


@st.composite
def token_counts(draw):
    given = draw(counts)
    return Tokens(given, draw(st.integers(0, given)), draw(counts), draw(st.integers(0, 100)))


claimants = st.builds(
    Claimant, st.sampled_from(["gw", "other"]), st.sampled_from("abcd"), st.sampled_from("mn")
)
asked_tokens = st.dictionaries(claimants, token_counts(), max_size=8)
server_counts = st.none() | st.builds(ServerCount, counts, counts, st.booleans())
costs = st.builds(
    ServerCost,
    st.integers(-(10**10), 10**12),
    st.integers(0, 10**15),
    st.integers(0, 10**15),
    st.integers(0, 10**15),
)
weights = st.builds(Weights, st.integers(1, 10**7), st.integers(0, 10**7), st.integers(0, 10**8))
reservations = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1_000_000), max_size=4)


@given(costs, asked_tokens, server_counts, weights, st.sampled_from(IDLE_RULES), reservations)
def test_parts_nobody_and_idle_are_the_charge(cost, asked, counted, weights, rule, reserved):
    parts = split_day(cost, compare_tokens(asked, counted), weights, rule, reserved)
    assert sum(part.micro for part in parts) == cost.cost_micro
    assert sum(part.borrowed_micro for part in parts) == sum(part.lent_micro for part in parts)
    if cost.cost_micro >= 0:
        assert all(part.used_micro >= 0 and part.idle_micro >= 0 for part in parts)
    assert len({part.claimant for part in parts}) == len(parts)


@given(costs, asked_tokens, server_counts, weights, st.sampled_from(IDLE_RULES), reservations)
def test_the_order_of_askers_changes_nothing(cost, asked, counted, weights, rule, reserved):
    backwards = dict(reversed(asked.items()))
    turned = dict(reversed(reserved.items()))
    assert split_day(cost, compare_tokens(asked, counted), weights, rule, reserved) == split_day(
        cost, compare_tokens(backwards, counted), weights, rule, turned
    )


@given(costs, asked_tokens, server_counts, weights)
def test_a_tenant_without_tokens_pays_nothing_by_tokens(cost, asked, counted, weights):
    idle = Claimant("gw", "idler", "m")
    tokens = compare_tokens({**asked, idle: Tokens()}, counted)
    parts = split_day(cost, tokens, weights, BY_TOKENS, {})
    assert idle not in {part.claimant for part in parts}


@given(
    st.dictionaries(claimants, st.builds(Tokens, counts, counts, counts), max_size=8),
    server_counts,
)
def test_more_cached_than_input_counts_as_all_cached(asked, counted):
    """A gateway's counters come one by one: those of input may be missing a part."""
    bounded = {
        claimant: Tokens(own.input, min(own.cached, own.input), own.output)
        for claimant, own in asked.items()
    }
    assert compare_tokens(asked, counted) == compare_tokens(bounded, counted)


@given(asked_tokens, server_counts)
def test_counts_are_scaled_down_and_never_up(asked, counted):
    tokens = compare_tokens(asked, counted)
    for claimant, own in asked.items():
        weighted = tokens.weighted.get(claimant, Tokens())
        assert weighted.input <= own.input
        assert weighted.cached <= min(own.cached, weighted.input)
        assert weighted.output <= own.output
    if counted is not None:
        total = sum(tokens.weighted.values(), Tokens())
        asked_total = sum(asked.values(), Tokens())
        if counted.is_whole:
            assert (total.input, total.output) == (counted.input, counted.output) or not asked
        else:
            assert total.input == max(counted.input, asked_total.input)
            assert total.output == max(counted.output, asked_total.output)
    else:
        assert NOBODYS not in tokens.weighted


@given(
    costs,
    st.lists(st.tuples(asked_tokens, server_counts), min_size=1, max_size=3),
    weights,
    st.sampled_from(IDLE_RULES),
    st.dictionaries(st.integers(0, 23), st.integers(0, 10**12), min_size=1),
)
def test_hours_add_up_to_their_day(cost, days, weights, rule, cost_by_hour):
    for asked, counted in days:
        for part in split_day(cost, compare_tokens(asked, counted), weights, rule, {"a": 300_000}):
            hours = spread_part(part, {3: weights.weigh(part.tokens)}, cost_by_hour)
            assert sum(used for used, _ in hours.values()) == part.used_micro
            assert sum(idle for _, idle in hours.values()) == part.idle_micro


any_tokens = st.builds(Tokens, counts, counts, counts, st.integers(0, 100))


@given(
    token_counts(),
    st.dictionaries(st.integers(0, 23), any_tokens),
    st.dictionaries(st.integers(0, 23), st.integers(0, 10**12), min_size=1),
    weights,
)
def test_tokens_of_hours_add_up_to_their_day(tokens, asked, cost, weights):
    hours = spread_tokens(tokens, asked, cost, weights)
    assert sum(hours.values(), Tokens()) == tokens
    assert all(each.cached <= each.input for each in hours.values())


@given(st.dictionaries(st.integers(0, 23), token_counts(), min_size=1), weights)
def test_tokens_whose_hours_are_known_lie_in_them(asked, weights):
    hours = spread_tokens(
        sum(asked.values(), Tokens()), asked, dict.fromkeys(range(24), 1), weights
    )
    assert {hour: each for hour, each in hours.items() if each} == {
        hour: each for hour, each in asked.items() if each
    }


@given(st.lists(st.tuples(st.integers(0, 3 * HOUR), st.integers(0, 5 * HOUR), token_counts())))
def test_records_in_hours_add_up_and_cached_is_a_part_of_input(rows):
    records = [
        TokenRecord(Asker("gw", "a", "m"), str(at), start, start + length, tokens)
        for at, (start, length, tokens) in enumerate(rows)
    ]
    for record in records:
        parts = [tokens for _, tokens in spread_record(record)]
        assert sum(parts, Tokens()) == record.tokens
        assert all(part.cached <= part.input for part in parts)
    folded = fold_records([*records, *reversed(records)])
    assert sum((hour.tokens for hour in folded), Tokens()) == sum(
        (record.tokens for record in records), Tokens()
    )


def test_weights_decide_what_tokens_cost():
    """A has 100 computed input, B 100 cached input and 10 output: 100 against 10 + 40."""
    weights = parse_weights("1 : 0.1 : 4")
    tokens = compare_tokens({A: Tokens(100), B: Tokens(100, 100, 10)}, None)
    parts = split_day(ServerCost(15_000, busy_ns=1), tokens, weights, BY_TOKENS, {})
    assert [(part.claimant, part.micro) for part in parts] == [(A, 10_000), (B, 5_000)]


def test_what_no_gateway_knows_is_nobodys():
    tokens = compare_tokens({A: Tokens(60, 0, 10)}, ServerCount(100, 10))
    parts = split_day(ServerCost(1_100, busy_ns=1), tokens, EVEN, BY_TOKENS, {})
    assert {part.claimant: part.micro for part in parts} == {NOBODYS: 400, A: 700}
    assert not tokens.is_scaled


def test_a_server_that_worked_for_no_known_token_worked_for_nobody():
    parts = split_day(ServerCost(900, 1, 2), compare_tokens({}, None), EVEN, BY_TOKENS, {})
    assert {part.claimant: part.micro for part in parts} == {NOBODYS: 300, IDLES: 600}


def test_unknown_activity_is_not_idle():
    tokens = compare_tokens({A: Tokens(1)}, None)
    parts = split_day(ServerCost(900, 1, 1, 1), tokens, EVEN, BY_PLATFORM, {})
    assert {part.claimant: part.micro for part in parts} == {A: 600, IDLES: 300}
    parts = split_day(ServerCost(900), tokens, EVEN, BY_PLATFORM, {})
    assert {part.claimant: part.micro for part in parts} == {A: 900}


def test_counters_that_miss_a_part_of_the_day_scale_nothing_down():
    tokens = compare_tokens({A: Tokens(60)}, ServerCount(40, 0, is_whole=False))
    assert not tokens.is_scaled
    assert tokens.weighted == {A: Tokens(60)}
    tokens = compare_tokens({A: Tokens(60)}, ServerCount(40, 0))
    assert tokens.is_scaled
    assert tokens.weighted == {A: Tokens(40)}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (BY_TOKENS, {A: (300, 450), B: (100, 150)}),
        (BY_PLATFORM, {A: (300, 0), B: (100, 0), IDLES: (0, 600)}),
        # A used 300 of its 200 and B 100 of its 500; the 300 that nobody reserved cover what A is over.
        (BY_RESERVATIONS, {A: (300, 0), B: (100, 400), IDLES: (0, 200)}),
    ],
)
def test_who_pays_for_idle_time(rule, expected):
    """Of 1,000 a share of 400 was used, three quarters of it by A."""
    tokens = compare_tokens({A: Tokens(75), B: Tokens(25)}, None)
    reserved = {"a": 200_000, "b": 500_000} if rule == BY_RESERVATIONS else {}
    parts = split_day(ServerCost(1_000, 4, 6), tokens, EVEN, rule, reserved)
    assert {part.claimant: (part.used_micro, part.idle_micro) for part in parts} == expected


def test_borrowers_pay_and_lenders_do_not():
    """All is reserved in halves; A uses 700 and B 100: A borrows 200 of the 400 that B leaves."""
    tokens = compare_tokens({A: Tokens(7), B: Tokens(1)}, None)
    reserved = {"a": 500_000, "b": 500_000}
    a, b = split_day(ServerCost(1_000, 8, 2), tokens, EVEN, BY_RESERVATIONS, reserved)
    assert (a.micro, a.borrowed_micro, a.lent_micro) == (700, 200, 0)
    assert (b.micro, b.borrowed_micro, b.lent_micro) == (300, 0, 200)


def test_a_reservation_is_paid_for_without_a_token():
    parts = split_day(
        ServerCost(1_000, 0, 10), compare_tokens({}, None), EVEN, BY_RESERVATIONS, {"a": 250_000}
    )
    assert [(part.claimant.tenant, part.micro) for part in parts] == [("a", 250), ("(idle)", 750)]


def test_a_reservation_without_a_token_is_its_gateways():
    parts = split_day(
        ServerCost(1_000, 0, 10),
        compare_tokens({}, None),
        EVEN,
        BY_RESERVATIONS,
        {"a": 250_000},
        "gw",
    )
    assert parts[0].claimant == Claimant("gw", "a")


def test_whoever_claims_to_be_a_tenant_uses_nothing_of_its_reservation():
    """A reserved all; of the 800 that were used a stranger who calls itself a borrowed 600."""
    claim = Claimant("gw", "a", "m", CLAIM)
    tokens = compare_tokens({A: Tokens(2), claim: Tokens(6)}, None)
    parts = split_day(ServerCost(1_000, 8, 2), tokens, EVEN, BY_RESERVATIONS, {"a": 1_000_000})
    by_claimant = {part.claimant: part for part in parts}
    assert (by_claimant[A].micro, by_claimant[A].lent_micro) == (400, 600)
    assert (by_claimant[claim].micro, by_claimant[claim].borrowed_micro) == (600, 600)


def test_a_reservation_is_not_that_of_a_tenant_of_another_gateway():
    other = Claimant("other", "a", "m")
    tokens = compare_tokens({other: Tokens(6)}, None)
    parts = split_day(ServerCost(1_000, 6, 4), tokens, EVEN, BY_RESERVATIONS, {"a": 500_000}, "gw")
    assert {part.claimant: part.micro for part in parts} == {
        other: 600,
        Claimant("gw", "a"): 400,
    }


@given(st.text() | st.from_regex(r"(tag:){0,3}\(\w*\)", fullmatch=True))
def test_a_name_is_declared_as_it_is_or_as_it_is_shown(name):
    assert booked_name(escape_name(name)) == escape_name(name)
    if unescape_name(name) == name:
        assert booked_name(name) == escape_name(name)


def test_prices_of_a_million_tokens():
    """3.60 for 1.2 million weighted tokens."""
    assert price_per_million(3_600_000, 1_000_000, 1_200_000 * 1_000_000) == Decimal("3.000000")
    assert price_per_million(3_600_000, 4_000_000, 1_200_000 * 1_000_000) == Decimal("12.000000")
    assert price_per_million(3_600_000, 1_000_000, 0) is None


@pytest.mark.parametrize("text", ["1:2", "1 : x : 3", "1 : -1 : 2", "0 : 1 : 0", "1:1:0.0000001"])
def test_weights_that_are_none(text):
    with pytest.raises(ValueError, match="weigh"):
        parse_weights(text)


@pytest.mark.parametrize(
    ("pattern", "text", "is_answered"),
    [
        ("http://[fd00::7]:8000/*", "http://[fd00::7]:8000/v1", True),
        ("http://[fd00::7]:8000/*", "http://f:8000/v1", False),
        ("http://gw/?model=[a]*", "http://gw/?model=[a]", True),
        ("qwe?", "qwen", False),
        ("q*n", "qwen", True),
    ],
)
def test_a_star_is_the_only_wildcard_of_models_and_backends(pattern, text, is_answered):
    shared = SharedServer("qwen", "", "m", pattern, {"app": "qwen"}, "", "1 : 1 : 1", "tokens")
    assert shared.answers(Asker("gw", "a", "m", text)) is is_answered
    of_model = replace(shared, models=pattern, backends="")
    assert of_model.answers(Asker("gw", "a", text)) is is_answered


def by_gpu_seconds(weights="1 : 0.1 : 4"):
    return SharedServer(
        "qwen", "", "*", "", {"app": "qwen"}, "", weights, "tokens", weights_from=GPU_SECONDS
    )


def counting(gpu):
    return ServerCount(10, 10, gpu=gpu)


@pytest.mark.parametrize(
    ("weights", "gpu", "expected"),
    [
        # 90 s for 3 M prompt tokens are 30 s a million; 150 s for 1 M answer tokens are 5 times that.
        ("1 : 0.1 : 4", GpuTime(90_000, 150_000, 0, 3_000_000, 1_000_000), "1 : 0.1 : 5"),
        ("2 : 0.1 : 4", GpuTime(90_000, 150_000, 0, 3_000_000, 1_000_000), "2 : 0.1 : 10"),
        ("1 : 0 : 4", GpuTime(90_000, 100_000, 0, 2_000_000, 1_000_000), "1 : 0 : 2.222"),
        # A half of a thousandth is rounded to even.
        ("1 : 0 : 4", GpuTime(80_000, 80_000, 0, 10_005, 10_000), "1 : 0 : 1"),
        ("1 : 0 : 4", GpuTime(80_000, 80_000, 0, 10_015, 10_000), "1 : 0 : 1.002"),
        ("1 : 0 : 4", GpuTime(95_000, 95_000, 10_000, 5, 5), "1 : 0 : 1"),
    ],
)
def test_an_output_token_weighs_what_gpu_seconds_say(weights, gpu, expected):
    assert by_gpu_seconds(weights).weights_of(counting(gpu)) == expected
    assert parse_weights(expected).text == expected


@pytest.mark.parametrize(
    "gpu",
    [
        GpuTime(),
        GpuTime(59_999, 150_000, 0, 3_000_000, 1_000_000),
        GpuTime(90_000, 59_999, 0, 3_000_000, 1_000_000),
        GpuTime(90_000, 150_000, 0, 0, 1_000_000),
        GpuTime(90_000, 150_000, 0, 3_000_000, 0),
        # More than a twentieth is neither.
        GpuTime(90_000, 100_000, 10_001, 5, 5),
        # Beyond what can be declared, and so little that it rounds to nothing.
        GpuTime(60_000, 10**9, 0, 10**9, 1),
        GpuTime(10**9, 60_000, 0, 1, 10**9),
    ],
)
def test_a_day_that_does_not_say_keeps_the_declared_weights(gpu):
    server = by_gpu_seconds()
    assert server.weights_of(counting(gpu)) == server.weights
    assert server.weights_of(None) == server.weights


def test_a_server_that_declares_its_weights_does_not_follow_its_counters():
    gpu = GpuTime(90_000, 150_000, 0, 3_000_000, 1_000_000)
    declared = replace(by_gpu_seconds(), weights_from="")
    assert declared.weights_of(counting(gpu)) == "1 : 0.1 : 4"
    assert not set(GPU_COUNTERS) & set(declared.split_counters)
    assert set(GPU_COUNTERS) < set(by_gpu_seconds().split_counters)
