"""Statements of those who asked shared servers: tokens, prices, coverage and idle cost by model."""

import json
from decimal import Decimal

import pytest

from fakes.fleet import DAY, OCTOBER
from fakes.pages import Page
from fakes.shared_server import DECLARED, MODEL, NLP, VISION, ask, count
from gpuledger_collector.export.statement import as_html
from gpuledger_collector.services.statement import read_statement

pytestmark = pytest.mark.slow

CHARGED = DECLARED.replace("weights =", 'mode = "charged"\nweights =')
NOW_MS = OCTOBER + 2 * DAY


def read(served, viewer=None, owner="vision"):
    return read_statement(
        served.connection, "team", owner, "2025-10", NOW_MS, viewer, may_be_empty=True
    )


def test_a_statement_shows_what_models_cost(served, run, apply):
    """Of 1,000 weighted tokens vision has 600 and nlp 200; the server counts 200 more."""
    ask(served, (VISION, 1, 400, 200, 95), (NLP, 2, 200, 0, 0))
    count(served, 800, 95)
    assert apply(CHARGED)[0] == 0
    assert run("chargeback", "--from", "2025-10-01", "--to", "2025-10-02")[0] == 0
    statement = read(served, {"team": "vision"})
    (use,) = statement.model_use
    line = use.line
    # vision: 200 computed + 20 cached + 380 of output = 600 of 1,000, at 72 USD.
    assert (use.server, use.model) == ("qwen", MODEL)
    assert [each.plain() for each in (line.cost, line.idle, line.charged)] == [
        "43.20",
        "21.60",
        "43.20",
    ]
    assert use.prices == (72_000, 7_200, 288_000)
    assert round(use.coverage, 4) == Decimal("0.7765")
    page = as_html(statement)
    assert "Models that you asked" in page
    for said in ("72,000.0000", "43.20 USD", "21.60 of it idle", "43.20 charged", "77.6 %"):
        assert said in page, said
    assert "t-nlp" not in page


def test_the_card_of_models_is_the_list_of_what_tenants_pay(served, run, apply):
    """Tokens, cost and what is charged of each team are the rows of `inference list`, and those of
    all teams its total of tenants.
    """
    ask(served, (VISION, 1, 400, 200, 95), (NLP, 2, 200, 0, 0))
    count(served, 800, 95)
    assert apply(CHARGED)[0] == 0
    period = ("--from", "2025-10-01", "--to", "2025-10-02")
    assert run("chargeback", *period)[0] == 0
    code, out, err = run(
        *("inference", "list", *period, "--by", "server,owner,model", "--format", "json")
    )
    assert code == 0, err
    rows = {
        team: row
        for row in json.loads(out)
        for team in ("vision", "nlp")
        if f"team={team}" in row["paid_by"].split()
    }
    assert set(rows) == {"vision", "nlp"}
    for owner, row in rows.items():
        (table,) = [
            table
            for table in Page(as_html(read(served, owner=owner))).tables
            if table.rows[0][1] == "input tokens"
        ]
        ((name, asked, answered, cost, *_),) = table.rows[1:]
        assert name == f"{row['model']} {row['server']}"
        assert asked == f"{int(row['input_tokens']):,} {int(row['cached_tokens']):,} cached"
        assert answered == f"{int(row['output_tokens']):,}"
        assert cost == (
            f"{row['cost']} USD {row['cost_idle']} of it idle {row['cost_charged']} charged"
        )


def test_a_statement_without_tokens_has_no_models(served, run, apply):
    ask(served, (VISION, 1, 300, 0, 75))
    assert apply(DECLARED)[0] == 0
    assert run("chargeback", "--from", "2025-10-01", "--to", "2025-10-02")[0] == 0
    statement = read(served, owner="platform")
    assert statement.model_use == ()
    assert "Models that you asked" not in as_html(statement)


def test_a_viewer_of_a_branch_sees_no_tokens_of_the_team(served, run, apply):
    ask(served, (NLP, 1, 300, 0, 75))
    assert apply(CHARGED)[0] == 0
    assert run("chargeback", "--from", "2025-10-01", "--to", "2025-10-02")[0] == 0
    assert len(read(served, owner="nlp").model_use) == 1
    assert read(served, {"team": "nlp", "project": "chat"}, "nlp").model_use == ()


def test_the_statement_of_a_closed_month_stays(served, run, apply):
    """A close that kept no split has no models for ever; one that kept it keeps what they cost."""
    assert run("close", "--period", "2025-10", "--allow-unpriced")[0] == 0
    ask(served, (VISION, 1, 300, 0, 75))
    assert apply(DECLARED.replace('team = "vision"', 'team = "platform"'))[0] == 0
    assert read(served, owner="platform").model_use == ()


def test_what_a_close_kept_stands_on_the_statement(served, run, apply):
    ask(served, (VISION, 1, 300, 0, 75))
    assert apply(CHARGED)[0] == 0
    assert run("close", "--period", "2025-10", "--allow-unpriced")[0] == 0
    before = read(served).model_use
    assert [use.line.cost.plain() for use in before if use.line.cost] == ["72.00"]
    ask(served, (NLP, 2, 600, 0, 0))
    assert read(served).model_use == before
