"""Overview, statements and assistants say what the proof said when it was asked, and never a flag
of rating in its place.
"""

import re

import psycopg
import pytest

from fakes import assistant
from fakes.fleet import DAY, HOUR, NOW_MS, Held
from fakes.pages import Page, text_for_machines, to_minutes
from gpuledger_collector.accounting.period import month
from gpuledger_collector.api import fleet_pages
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.page_routes import View
from gpuledger_collector.export.statement import as_html
from gpuledger_collector.services.close import close_period
from gpuledger_collector.services.month_proof import ASK_AGAIN_MS, prove_months
from gpuledger_collector.services.reconciliation import reconcile
from gpuledger_collector.services.statement import read_statement
from gpuledger_collector.storage import row_level_security
from gpuledger_collector.storage.billing import month_proofs, reports
from gpuledger_collector.storage.ledger import zones
from gpuledger_collector.storage.row_level_security import as_viewer

OCTOBER = ("--period", "2025-10")
OCTOBER_MS = month("2025-10").start_ms
ASKED = "proven at 2025-11-20T12:00:00Z for all that was told until then"
TAMPER = (
    "UPDATE ledger_day SET cost_micro = cost_micro + 1 WHERE ctid = (SELECT ctid FROM ledger_day"
    f" WHERE state = 'held' AND cost_micro > 0 AND day_ms >= {OCTOBER_MS} ORDER BY day_ms,"
    " owner_id, pool, gpu_model LIMIT 1)"
)
MEND = TAMPER.replace("+ 1", "- 1")


@pytest.fixture
def october(rated, monkeypatch):
    """October, rated on 20 November, of which the proof was not asked yet."""
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    return rated


@pytest.fixture
def said(ledger, dsn, overview):
    """What a statement and an answer say of October, which must be the same, and the overview in
    few words.
    """

    def read():
        page = text_for_machines(overview(period="2025-10"))
        with ledger.transaction(read_only=True) as connection:
            statement = text_for_machines(
                as_html(read_statement(connection, "team", "vision", "2025-10", NOW_MS))
            )
            _, known = month_proofs.checks_and_proof(
                connection, month("2025-10"), zones.calendar(connection)
            )
        proof = assistant.over(dsn, NOW_MS).ask("get_cost", period="2025-10").content["proof"]
        text, short = to_minutes(proof["text"]), to_minutes(known.short)
        assert f"That no GPU-second was lost or counted twice: {text}." in statement
        assert f"No GPU-second is lost or counted twice: {short}" in page
        assert "The proof, day by day" in page
        return proof | {"short": known.short}

    return read


def past_triggers(fleet, statement, table="ledger_day"):
    """Change a row as the owner of the tables may."""
    fleet.connection.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER")
    assert fleet.connection.execute(statement).rowcount == 1


def test_each_says_what_the_proof_said_and_when(october, ledger, run, said):
    """Waiting until it is asked; then its instant; a cell changed by SQL is told once it is asked
    again.
    """
    proof = said()
    assert (proof["standing"], proof["state"], proof["days_holding"]) == ("waiting", "open", None)
    assert proof["text"] == "waiting: the proof has not been asked yet"
    assert proof["short"] == "not proven yet"
    assert prove_months(ledger, NOW_MS) == 2  # September and October
    proof = said()
    assert (proof["standing"], proof["state"], proof["days_holding"]) == ("holds", "open", 31)
    assert (proof["text"], proof["short"]) == (ASKED, "proven at 2025-11-20T12:00:00Z")
    assert prove_months(ledger, NOW_MS + 1) == 0
    past_triggers(october, TAMPER)
    assert said()["text"] == ASKED  # true of what it was asked of
    assert run("reconcile", *OCTOBER)[0] == 1
    proof = said()
    assert (proof["standing"], proof["state"], proof["days_holding"]) == ("broken", "broken", 30)
    assert (
        proof["text"]
        == "the proof did NOT hold on 2025-10-01 when it was asked at 2025-11-20T12:00:00Z"
    )
    assert proof["short"] == "NOT proven on 2025-10-01"


def test_the_job_finds_a_change_that_no_rating_made(october, ledger, said):
    """An open month is asked again after a day, although nothing was told of it."""
    prove_months(ledger, NOW_MS)
    past_triggers(october, TAMPER)
    assert prove_months(ledger, NOW_MS + ASK_AGAIN_MS - 1) == 0
    assert prove_months(ledger, NOW_MS + ASK_AGAIN_MS) == 2
    assert said()["standing"] == "broken"


def test_late_evidence_waits_for_its_proof(october, ledger, run, said):
    """From its arrival on, also once it is rated at the same instant by the clock, until the proof
    is asked again.
    """
    prove_months(ledger, NOW_MS)
    october.evidence([Held(1, 4, 10 * DAY, 10 * DAY + HOUR)])
    waiting = f"{ASKED}; what was told since is waiting for its proof"
    assert (said()["standing"], said()["text"]) == ("waiting", waiting)
    assert said()["short"] == "proven at 2025-11-20T12:00:00Z, not for what came since"
    assert run("chargeback", *OCTOBER)[0] == 0
    assert october.rows("SELECT count(*) FROM day_recompute") == [(0,)]
    assert (said()["standing"], said()["text"]) == ("waiting", waiting)
    assert prove_months(ledger, NOW_MS + 5000) == 1
    assert said()["text"] == ASKED.replace("12:00:00", "12:00:05")


def test_the_overview_names_one_wrong_day_and_counts_the_others(october, ledger, overview):
    """Its sentence stays short, however many days are wrong; the page that it leads to names each."""
    day = (
        "ctid = (SELECT min(ctid) FROM ledger_day WHERE state = 'held' AND cost_micro > 0 AND"
        " day_ms = {})"
    )
    for number in (0, 1, 2):
        where = day.format(OCTOBER_MS + number * 86_400_000)
        past_triggers(october, f"UPDATE ledger_day SET cost_micro = cost_micro + 1 WHERE {where}")
    prove_months(ledger, NOW_MS)
    text = Page(overview(period="2025-10")).text
    assert "No GPU-second is lost or counted twice: NOT proven on 2025-10-01 and 2 more" in text


def test_the_overview_of_imported_usage_says_what_is_not_proven(
    fleet, run, written, ledger, overview, monkeypatch
):
    """Its hours are those of the rows; that the GPUs were held nobody knows. In one sentence."""
    monkeypatch.setattr("gpuledger_collector.wiring.read_clock", lambda: NOW_MS)
    row = "1,2025-10-02T00:00:00Z,2025-10-02T01:00:00Z,2"
    assert (
        run("import", "usage", written("usage.csv", f"workload_id,start,end,gpus\n{row}\n"))[0] == 0
    )
    assert run("chargeback", *OCTOBER)[0] == 0
    prove_months(ledger, NOW_MS)
    proof = (
        "No imported hour is lost or counted twice: proven at 2025-11-20T12:00Z; that the GPUs"
        " were held is not"
    )
    assert f"{proof} proven. The proof, day by day" in text_for_machines(overview(period="2025-10"))


def test_a_recorded_flag_is_not_the_proof(october, ledger, said):
    """The check of a day that says by itself that it holds, or not, changes nothing until the proof
    is asked.
    """
    prove_months(ledger, NOW_MS)
    past_triggers(
        october,
        "UPDATE conservation_check SET holds = false WHERE day_ms = (SELECT min(day_ms) FROM"
        f" conservation_check WHERE day_ms >= {month('2025-10').start_ms})",
        "conservation_check",
    )
    assert said()["standing"] == "waiting"  # its row was written since
    prove_months(ledger, NOW_MS)
    assert said()["standing"] == "broken"


def test_what_a_deeper_question_found_is_not_taken_back_by_a_shallower_one(
    october, ledger, run, said
):
    """A price changed by SQL is found by `reconcile`, stays found when the job asks, and is gone
    when asked as deep.
    """
    prove_months(ledger, NOW_MS)
    change = (
        "UPDATE price SET rate_per_gpu_hour = rate_per_gpu_hour {} 1 WHERE id = (SELECT min(id)"
        " FROM price)"
    )
    past_triggers(october, change.format("+"), "price")
    assert run("reconcile", *OCTOBER)[0] == 1
    assert said()["standing"] == "broken"
    prove_months(ledger, NOW_MS + ASK_AGAIN_MS)
    assert said()["standing"] == "broken"
    past_triggers(october, change.format("-"), "price")
    prove_months(ledger, NOW_MS + 2 * ASK_AGAIN_MS)
    assert said()["standing"] == "holds"


def test_the_trust_page_tells_the_others(october, reads, said):
    """Whoever opens it asks the proof."""
    past_triggers(october, TAMPER)
    view = View.narrow(Principal("admin", "a"), {"period": "2025-10"})
    assert "NOT equal" in fleet_pages.trust_page(reads, view).body.decode()
    assert said()["standing"] == "broken"


def test_nothing_that_decides_trusts_what_is_kept(october, ledger, run, said):
    """A kept result changed by SQL closes no wrong month and stops no right one; the next question
    replaces it.
    """
    prove_months(ledger, NOW_MS)
    past_triggers(october, TAMPER)
    assert said()["standing"] == "holds"
    code, _, error = run("close", "--period", "2025-10", "--by", "finance", "--allow-unpriced")
    assert code != 0
    assert "the proof does not hold" in error
    past_triggers(october, MEND)
    october.connection.execute("UPDATE month_proof SET holds = false")
    assert said()["standing"] == "broken"
    assert run("reconcile", *OCTOBER)[0] == 0
    assert said()["standing"] == "holds"


def test_the_statement_of_a_closed_month_keeps_its_bytes(october, ledger, run):
    """Whenever the proof is asked again; unless it does not hold any more."""

    def page():
        with ledger.transaction(read_only=True) as connection:
            return as_html(read_statement(connection, "team", "vision", "2025-10", NOW_MS))

    with ledger.transaction() as connection:
        close_period(
            connection, "2025-10", month("2025-10"), "team", "finance", NOW_MS, unpriced=True
        )
    before = page()
    assert "proven before the month was closed" in before
    prove_months(ledger, NOW_MS + DAY)
    assert page() == before
    past_triggers(october, TAMPER)
    assert run("reconcile", *OCTOBER)[0] == 1
    assert "did NOT hold on 2025-10-01" in page()


def test_a_viewer_sees_whether_it_holds(october, ledger):
    """Under row-level security, with no name of an owner in what is kept."""
    with ledger.transaction() as connection:
        row_level_security.enable(connection)
    past_triggers(october, TAMPER)
    prove_months(ledger, NOW_MS)
    with ledger.transaction(read_only=True) as connection:
        calendar = zones.calendar(connection)
        with as_viewer(connection, {"team": "vision"}):
            _, proof = month_proofs.checks_and_proof(connection, month("2025-10"), calendar)
            kept = connection.execute("SELECT m::text FROM month_proof m").fetchall()
    assert proof.wrong_days == ["2025-10-01"]
    assert not re.search(r"team|vision|script", str(kept))


def test_it_costs_a_page_no_statement(october, ledger, monkeypatch):
    """The checks of days and what the proof said come with one, however many months a period has."""
    prove_months(ledger, NOW_MS)
    asked = []
    execute = psycopg.Cursor.execute
    with ledger.transaction(read_only=True) as connection:
        calendar = zones.calendar(connection)
        two = calendar.date_range("2025-09-01", "2025-11-01")
        checks = reports.conservation_checks(connection, two)
        monkeypatch.setattr(
            psycopg.Cursor,
            "execute",
            lambda *given, **more: asked.append(1) or execute(*given, **more),
        )
        found, proof = month_proofs.checks_and_proof(connection, two, calendar)
        assert (found, len(asked), len(proof.months)) == (checks, 1, 2)
        assert reconcile(connection, two).holds
