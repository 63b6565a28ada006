"""What shared servers move is not read where nobody asks for it."""

import pytest

from fakes.fleet import DAY, OCTOBER
from fakes.shared_server import DECLARED, VISION, ask
from gpuledger_collector.services import rating
from gpuledger_collector.services.recommendation_window import ObservedWindow

pytestmark = pytest.mark.slow

CHARGED = DECLARED.replace("weights =", 'mode = "charged"\nweights =')


def test_recommendations_read_no_tokens(served, run, apply, monkeypatch):
    ask(served, (VISION, 1, 300, 0, 75))
    assert apply(CHARGED)[0] == 0
    assert run("chargeback", "--from", "2025-10-01", "--to", "2025-10-02")[0] == 0

    def read(*_):
        raise AssertionError("tokens were read")

    monkeypatch.setattr(rating, "read_shared_servers", read)
    observed = ObservedWindow(served.connection, OCTOBER + DAY)
    assert observed.window is not None
    assert observed.days
