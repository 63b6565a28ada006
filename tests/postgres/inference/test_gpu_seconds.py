"""Servers whose output tokens weigh what SGLang's GPU seconds say, day by day."""

import json

import pytest

from fakes.shared_server import DECLARED, NLP, PERIOD, VISION, ask, compute, costs, count, rows
from gpuledger_collector.services.reconciliation import reconcile
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
