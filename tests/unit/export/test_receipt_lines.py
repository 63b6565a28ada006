"""A receipt has no line of 0.00 hours: what corrections leave is an amount, or nothing."""

from types import SimpleNamespace

from gpuledger_collector.accounting.measures import Measures
from gpuledger_collector.accounting.quantity import GPU_NS_PER_HOUR
from gpuledger_collector.cli.receipt import _held_line
from gpuledger_collector.export.runs import price_lines
from gpuledger_collector.insight.waste_receipt import make_receipt


def charge(price, hours, cost, currency="USD"):
    """A charge of so many hours at a price (its number and its rate)."""
    return SimpleNamespace(
        pool="us",
        gpu_model="NVIDIA L4",
        price=SimpleNamespace(id=price, rate=SimpleNamespace(normalize=lambda: price)),
        currency=currency,
        commitment=None,
        node_cost=None,
        amounts=Measures(gpu_ns=hours * GPU_NS_PER_HOUR, cost_micro=cost * 10**6).amounts,
    )


def test_what_a_correction_takes_back_whole_is_no_line():
    """At the price that was wrong nothing is left."""
    receipt = make_receipt([charge(2, 10, 20), charge(2, -10, -20), charge(3, 10, 30)], ())
    assert [(line.price_id, line.cost_micro) for line in receipt.held] == [(3, 30 * 10**6)]
    nothing = make_receipt([charge(2, 10, 20), charge(2, -10, -20)], ())
    assert len(nothing.held) == 1


def test_a_corrected_price_is_an_amount():
    """The hours stand once, at the price that they were charged at."""
    receipt = make_receipt([charge(2, 10, 20), charge(3, 0, 10)], ())
    said = price_lines(SimpleNamespace(receipt=receipt))["USD"]
    assert said == "10.00 h x 2.00 + 10.00 of corrections"
    assert "0.00" not in _held_line(receipt.held[1]).replace("10.00", "")
    assert "corrections at 3" in _held_line(receipt.held[1])


def test_a_correction_of_covered_time_names_what_covered_it():
    """No rate set its cost, so none is said."""
    covered = charge(2, 0, 10)
    covered.commitment = SimpleNamespace(name="reserved")
    (line,) = make_receipt([covered], ()).held
    assert _held_line(line) == "  corrections covered by commitment reserved  10.00 USD"
