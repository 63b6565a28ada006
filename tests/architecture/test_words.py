"""One word for one thing: what is said otherwise on any surface is named with its place."""

import re

import pytest

from fakes.surfaces import spoken_texts
from gpuledger_collector.accounting.chargeback import WASTED_STATES
from gpuledger_collector.accounting.commitments import COMMITMENT_UNUSED
from gpuledger_collector.accounting.spend_series import ADJUSTMENTS, IDLE, SHARED
from gpuledger_collector.accounting.state_words import (
    MEANINGS,
    STATE_WORDS,
    word_of,
    word_of_unpaid,
)
from gpuledger_collector.accounting.usage import STATES
from gpuledger_collector.export import findings, html

OTHERWISE = {
    "GPU-hours": r"accelerator[- ]hours?\b|\b(?i:gpu) hours?\b|\bGPU-h\b|\bGPUh\b",
    "held idle": r"(?i:\bidle while held\b|\bheld but idle\b|\bheld and idle\b)",
    "unused commitments": r"(?i:\bcommitments? that nobody used\b|\bcommitments? unused\b)",
    "unobserved": r"(?i:\bnot observed\b)",
}
"""A word, and how else its thing has been called."""


@pytest.fixture(scope="module")
def texts():
    return list(spoken_texts())


def test_the_walk_reaches_every_surface(texts) -> None:
    """Templates of pages and mails, boards, answers, and sentences of the code."""
    places = {place for place, _ in texts}
    for part in (
        "templates/overview.html",
        "notifications/templates/",
        "dashboards/json/finops.json",
        "answers/command/chargeback.table",
        "answers/page/overview.html",
        "answers/assistant/get_cost",
        "export/proof.py",
        "services/chargeback.py",
    ):
        assert any(part in place for place in places), part
    assert any("GPU-hours" in text for _, text in texts)


@pytest.mark.parametrize("word", OTHERWISE)
def test_one_word_for_one_thing(word, texts) -> None:
    """On every page, board, list, mail and answer."""
    other = re.compile(OTHERWISE[word])
    said = [
        f"{place}: {text[max(0, hit.start() - 30) : hit.end() + 30]!r} (say {word!r})"
        for place, text in texts
        for hit in other.finditer(text)
    ]
    assert not said, "\n".join(said[:20])


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("GPU-hours", "7.0 accelerator-hours"),
        ("GPU-hours", "gpu hours held idle"),
        ("held idle", "Held but idle"),
        ("unused commitments", "commitment unused 1.00"),
        ("unobserved", "Not observed"),
    ],
)
def test_other_words_are_found(word, text) -> None:
    """The words that stood on surfaces before."""
    assert re.search(OTHERWISE[word], text)


def test_every_state_has_its_word() -> None:
    """The states of time, of spend, of waste and of the proof, from one table; each word is that of
    one state.
    """
    known = {*STATES, *WASTED_STATES, COMMITMENT_UNUSED, IDLE, ADJUSTMENTS, SHARED}
    assert known <= STATE_WORDS.keys()
    assert MEANINGS.keys() - {"owners"} <= STATE_WORDS.keys()
    assert len(set(STATE_WORDS.values())) == len(STATE_WORDS)
    assert findings.STATES["unallocated"] == word_of("unallocated")
    assert word_of("vision") == "vision"


@pytest.mark.parametrize("row", ["(commitment_unused)", "(commitment unused)"])
def test_a_row_that_nobody_pays_has_the_word_of_its_state(row) -> None:
    """On every page the same: parentheses are a mark of rows in files."""
    assert word_of_unpaid(row) == word_of(COMMITMENT_UNUSED)
    assert html.environment().filters["unpaid_word"](row) == word_of(COMMITMENT_UNUSED)
    assert word_of_unpaid("(no price)") == "no price"
