"""The same day of a real vLLM page by declared weights and by OpenCost's formula: the guide's table
is computed here, in exact fractions.
"""

from decimal import Decimal
from fractions import Fraction
from pathlib import Path

from gpuledger_collector.accounting.inference import AUTHENTICATED, Tokens
from gpuledger_collector.accounting.inference_split import (
    BY_TOKENS,
    Claimant,
    ServerCost,
    ServerCount,
    compare_tokens,
    parse_weights,
    price_per_million,
    split_day,
)
from gpuledger_collector.accounting.money import MICRO

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "shared-inference.md"
PAGE = """\
vllm:prompt_tokens_by_source_total{source="local_cache_hit"} 71071168
vllm:prompt_tokens_by_source_total{source="local_compute"} 15376417
vllm:generation_tokens_total 2.014153e+06
vllm:request_prefill_time_seconds_sum 2853.42
vllm:request_decode_time_seconds_sum 37519.711
vllm:request_time_per_output_token_seconds_sum 30.848
"""
"""Of vLLM 0.28, Qwen3.8-27B on one card, one day; labels of model and engine left out."""
DAY_MICRO = 60 * MICRO
"""24 hours at 2.50 USD."""
DECLARED, OF_THIS_PAGE = "1 : 0.1 : 4", "1 : 0 : 100"
"""The example of the guide, and what this page's own seconds say, rounded."""
ASKER = Claimant("gateway", "everybody", "qwen", AUTHENTICATED)


def page_values() -> dict[str, Fraction]:
    """The page's values by the source of prompt tokens or by name, as exact as they are written."""
    values = {}
    for line in PAGE.splitlines():
        series, _, text = line.rpartition(" ")
        name, _, labels = series.removeprefix("vllm:").partition("{")
        values[labels.removeprefix('source="').removesuffix('"}') or name] = Fraction(text)
    return values


VALUES = page_values()
TOKENS = Tokens(
    int(VALUES["local_cache_hit"] + VALUES["local_compute"]),
    int(VALUES["local_cache_hit"]),
    int(VALUES["generation_tokens_total"]),
)
PREFILL_S = VALUES["request_prefill_time_seconds_sum"]
DECODE_S = VALUES["request_decode_time_seconds_sum"]
MEANS_S = VALUES["request_time_per_output_token_seconds_sum"]


def opencost_shares(output_s: Fraction) -> tuple[Fraction, Fraction]:
    """What prompts and output pay by OpenCost's formula, with a series as the time of decoding."""
    prompt = PREFILL_S / (PREFILL_S + output_s)
    return prompt, 1 - prompt


def opencost_prices(output_s: Fraction) -> tuple[Fraction, Fraction, Fraction]:
    """Of a million computed, cached and output tokens; cached ones cost what computed ones do."""
    prompt, output = (share * DAY_MICRO for share in opencost_shares(output_s))
    return prompt / TOKENS.input, prompt / TOKENS.input, output / TOKENS.output


def our_shares(text: str) -> tuple[Fraction, Fraction]:
    """What prompts and output pay by weighted tokens."""
    weights = parse_weights(text)
    output = Fraction(TOKENS.output * weights.output, weights.weigh(TOKENS))
    return 1 - output, output


def our_prices(text: str) -> tuple[Fraction, ...]:
    """Of a million computed, cached and output tokens, not rounded."""
    weights = parse_weights(text)
    return tuple(
        Fraction(DAY_MICRO * weight, weights.weigh(TOKENS))
        for weight in (weights.input, weights.cached, weights.output)
    )


def to_text(value: Fraction, places: int) -> str:
    """Digits of a fraction, rounded once."""
    return f"{Decimal(round(value * 10**places)).scaleb(-places):,f}"


def table_row(
    method: str, shares: tuple[Fraction, ...], prices: tuple[Fraction, ...], faulty: Fraction
) -> str:
    """A row of the guide."""
    factor = prices[2] / faulty
    cells = [
        *(f"{to_text(share * 100, 2)} %" for share in shares),
        *(to_text(price, 4) for price in prices),
        to_text(factor, 1),
    ]
    return f"| {method} | {' | '.join(cells)} |"


def test_the_table_of_the_guide_is_what_is_computed():
    """Shares and prices of a million tokens by method, and the factor between output's prices."""
    faulty = opencost_prices(MEANS_S)[2]
    rows = [
        table_row(method, shares, prices, faulty)
        for method, shares, prices in (
            (
                "OpenCost 1.121, with its series of means",
                opencost_shares(MEANS_S),
                opencost_prices(MEANS_S),
            ),
            (
                "the same formula with the seconds of decoding",
                opencost_shares(DECODE_S),
                opencost_prices(DECODE_S),
            ),
            (f"ours, weights `{DECLARED}`", our_shares(DECLARED), our_prices(DECLARED)),
            (f"ours, weights `{OF_THIS_PAGE}`", our_shares(OF_THIS_PAGE), our_prices(OF_THIS_PAGE)),
        )
    ]
    guide = GUIDE.read_text(encoding="utf-8")
    assert PAGE in guide
    assert "\n".join(rows) in guide, "\n".join(rows)


def test_the_sentences_of_the_guide_are_what_is_computed():
    """Tokens a second, how busy the card was with requests, and what the means leave out."""
    guide = " ".join(GUIDE.read_text(encoding="utf-8").split())
    prefill = VALUES["local_compute"] / PREFILL_S
    decode = TOKENS.output / DECODE_S
    for sentence in (
        f"{to_text(prefill, 0)} computed prompt tokens and {to_text(decode, 1)} output tokens a second",
        f"{to_text(Fraction(TOKENS.cached, TOKENS.input) * 100, 0)} % of the prompt tokens",
        f"`1 : {to_text(prefill / decode, 1)}`",
        f"{to_text((PREFILL_S + DECODE_S) / 86_400, 2)} requests at a time",
        f"{to_text(DECODE_S / MEANS_S, 0)} times less",
    ):
        assert sentence in guide, sentence


def test_our_column_is_what_the_product_splits():
    """The whole day goes to who asked, and prices are those of `gpuledger inference servers`."""
    for text in (DECLARED, OF_THIS_PAGE):
        weights = parse_weights(text)
        count = ServerCount(TOKENS.input, TOKENS.output)
        tokens = compare_tokens({ASKER: TOKENS}, count)
        parts = split_day(ServerCost(DAY_MICRO, 1), tokens, weights, BY_TOKENS, {})
        assert [(part.claimant, part.micro) for part in parts] == [(ASKER, DAY_MICRO)]
        weighted = weights.weigh(TOKENS)
        for weight, exact in zip(
            (weights.input, weights.cached, weights.output), our_prices(text), strict=True
        ):
            price = price_per_million(DAY_MICRO, weight, weighted)
            assert price == Decimal(round(exact * MICRO)).scaleb(-6)
