"""A node that says how it is bought has the rate of that kind, from then on and where there is one."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.accounting.pricing import Price, PriceBook, PurchaseChoice

MODEL = "NVIDIA H100"


def price(purchase, rate, **place):
    fields = {"pool": "", "gpu_model": "", **place}
    return Price(
        None, purchase=purchase, rate=Decimal(rate), currency="USD", effective_from_ms=0, **fields
    )


BOTH = [price("on_demand", 10), price("spot", 3)]
SAID = {"n1": [(HOUR_MS, "spot"), (3 * HOUR_MS, "on_demand")]}


def rates(book, node, hours=5):
    return [
        int(found.rate)
        for at in range(hours)
        if (found := book.price_at("", MODEL, node, at * HOUR_MS))
    ]


def test_what_a_node_says_holds_from_then_on():
    book = PriceBook(BOTH, said=SAID)
    assert rates(book, "n1") == [10, 3, 3, 10, 10]
    assert rates(book, "n2") == [10] * 5


def test_it_cuts_no_hour():
    assert PriceBook(BOTH, said=SAID)._edges == PriceBook(BOTH)._edges


def test_a_node_that_says_what_no_rate_covers_has_the_rate_of_before():
    assert rates(PriceBook(BOTH[:1], said=SAID), "n1") == [10] * 5
    # And a rate of another pool is none.
    assert rates(PriceBook([BOTH[0], price("spot", 3, pool="x")], said=SAID), "n1") == [10] * 5


def test_it_goes_before_a_more_specific_rate_of_another_kind():
    """As what a choice names does."""
    book = PriceBook([price("on_demand", 12, gpu_model=MODEL), *BOTH], said=SAID)
    assert rates(book, "n1") == [12, 3, 3, 12, 12]


def test_who_declares_a_choice_decides():
    choice = PurchaseChoice(None, "all", 0, "on_demand")
    assert rates(PriceBook(BOTH, [choice], said=SAID), "n1") == [10] * 5


@pytest.mark.parametrize(("way", "rate"), [("on_demand", 10), ("spot", 3)])
def test_who_asks_for_a_kind_gets_it(way, rate):
    found = PriceBook(BOTH, said=SAID).price_at("", MODEL, "n1", HOUR_MS, way)
    assert int(found.rate) == rate


NODES = ["", "n1", "n2", "n3", "n4"]
NAMED = st.sampled_from(NODES)
PURCHASE = st.sampled_from(["on_demand", "spot", "reserved"])
BOOKS = st.builds(
    PriceBook,
    st.lists(
        st.builds(
            lambda kind, rate, node: price(kind, rate, node=node),
            PURCHASE,
            st.integers(1, 9),
            NAMED,
        ),
        max_size=4,
    ),
    st.lists(
        st.builds(
            lambda kind, node: PurchaseChoice(None, "choice", 0, kind, node=node), PURCHASE, NAMED
        ),
        max_size=2,
    ),
    said=st.dictionaries(
        NAMED,
        st.lists(
            st.tuples(st.integers(0, 4).map(lambda at: at * HOUR_MS), PURCHASE), max_size=2
        ).map(sorted),
    ),
)


@given(BOOKS)
def test_nodes_of_one_key_have_the_same_prices(book):
    """And a node has those that it would have in a book that was asked for no other one."""
    seen = {}
    for node in NODES:
        prices = [book.price_at("", MODEL, node, at * HOUR_MS) for at in range(5)]
        assert seen.setdefault(book.node_key(node), prices) == prices
        alone = PriceBook(
            [each for each in book.prices if each.node in {"", node}],
            [each for each in book.choices if each.node in {"", node}],
            said=book.said,
        )
        assert [alone.price_at("", MODEL, node, at * HOUR_MS) for at in range(5)] == prices


def test_nodes_that_nobody_names_have_one_key():
    """A fleet of many nodes is then few places, and each is priced once."""
    book = PriceBook([*BOTH, price("spot", 2, node="n3")], said={**SAID, "n2": list(SAID["n1"])})
    keys = [book.node_key(node) for node in ("n1", "n2", "n3", "n4", "n5")]
    assert (keys[0], keys[3], len(set(keys))) == (keys[1], keys[4], 3)
