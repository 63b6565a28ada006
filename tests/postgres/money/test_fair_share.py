"""From declared or read shares to what teams lent, borrowed and waited for, by command."""

import csv
import io
import json

import pytest

from fakes.fleet import DAY, HOUR, Held

pytestmark = pytest.mark.slow

PERIOD = ("--from", "2025-10-01", "--to", "2025-10-02")
SHARES = """
[[share]]
team = "team-1"
pool = "train"
fraction = 0.5

[[share]]
team = "team-2"
pool = "train"
gpus = 1
effective_from = 2025-10-01
"""
QUEUE = """at,workload_id,gpus,pool,team
2025-10-01T00:00:00Z,9,1,train,team-1
2025-10-01T01:00:00Z,,,,
"""


@pytest.fixture
def shared(fleet, run, written):
    """Four GPUs at 3.60 USD: team-2 holds all of them for an hour, then team-1 one of them, while
    three are free.
    """
    for number in range(1, 5):
        fleet.capacity(number, 0, DAY)
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('train', '', 'on_demand', 3.6, 'USD', 0, now())"
    )
    fleet.evidence([Held(number, 2, 0, HOUR, busy=HOUR) for number in range(1, 5)])
    fleet.evidence([Held(1, 1, HOUR, 2 * HOUR, busy=HOUR)])
    fleet.evidence([Held(number, None, HOUR, 2 * HOUR, "unallocated") for number in range(2, 5)])
    code, _, err = run("import", "queue", written("queue.csv", QUEUE))
    assert code == 0, err
    return fleet


def rows(run):
    code, out, err = run("chargeback", *PERIOD, "--by", "share", "--format", "csv")
    assert code == 0, err
    return {row["team"]: row for row in csv.DictReader(io.StringIO(out))}, err


def test_declared_shares(shared, run, written):
    """The second hour lends nothing: what is not held is not borrowed.

    Time is GPU-hours, cost the borrower's.
    """
    code, _, err = run("apply", written("shares.toml", SHARES))
    assert code == 0, err
    told, notes = rows(run)
    assert told == {
        "team-1": {
            "pool": "train",
            "team": "team-1",
            "gpu_hours_share": "4.000000",
            "gpu_hours_held": "1.000000",
            "used_of_share": "25.0%",
            "gpu_hours_lent": "2.000000",
            "gpu_hours_borrowed": "0.000000",
            "gpu_hours_waited": "1.000000",
            "cost_lent": "7.20",
            "cost_borrowed": "0.00",
            "currency": "USD",
        },
        "team-2": {
            "pool": "train",
            "team": "team-2",
            "gpu_hours_share": "2.000000",
            "gpu_hours_held": "4.000000",
            "used_of_share": "50.0%",
            "gpu_hours_lent": "0.000000",
            "gpu_hours_borrowed": "2.000000",
            "gpu_hours_waited": "0.000000",
            "cost_lent": "0.00",
            "cost_borrowed": "7.20",
            "currency": "USD",
        },
    }
    assert notes == ""
    assert len(json.loads(run("chargeback", *PERIOD, "--by", "share", "--format", "json")[1])) == 2
    again = json.loads(run("apply", written("shares.toml", SHARES), "--format", "json")[1])
    assert [(row["superseded"], row["unchanged"]) for row in again if row["what"] == "shares"] == [
        (0, 2)
    ]
    code, out, _ = run("export", "config")
    assert code == 0
    assert out.count("[[share]]") == 2


def test_shares_that_a_scheduler_prints(shared, run, written):
    """Read twice nothing changes; a newer reading supersedes the older, and declared shares stay."""
    assert run("apply", written("shares.toml", SHARES.split("\n\n")[0] + "\n"))[0] == 0
    printed = "Account|Par Name|User|Share|GrpTRES\nteam-2|root||1|gres/gpu={}\n"
    for gpus, words in (
        (1, "1 added, 0 updated, 0 unchanged"),
        (1, "0 added, 0 updated, 1 unchanged"),
    ):
        code, out, err = run(
            "import", "shares", written("assoc.txt", printed.format(gpus)), "--pool", "train"
        )
        assert (code, words in out) == (0, True), (out, err)
    assert rows(run)[0]["team-2"]["gpu_hours_borrowed"] == "2.000000"
    assert (
        run("import", "shares", written("assoc.txt", printed.format(3)), "--pool", "train")[0] == 0
    )
    # Three and two of four GPUs are 2.4 and 1.6.
    assert rows(run)[0]["team-2"]["gpu_hours_borrowed"] == "1.600000"
    assert rows(run)[0]["team-1"]["gpu_hours_share"] == "3.200000"
    code, _, err = run("import", "shares", written("assoc.txt", "nothing"), "--pool", "train")
    assert code == 2
    assert "sacctmgr -P show assoc" in err


def test_the_statement_of_an_open_month_shows_them(shared, run, written, tmp_path):
    """The team's own rows; a closed month's statement stays as it was, and has none."""
    assert run("apply", written("shares.toml", SHARES))[0] == 0
    page = tmp_path / "page.html"
    statement = ("statement", "--period", "2025-10", "--owner", "team-1", "-o", page)
    assert run(*statement)[0] == 0
    text = page.read_text()
    section = text[text.index('id="shares"') : text.index("</section>", text.index('id="shares"'))]
    assert all(
        cell in section for cell in (">train<", ">4.0<", ">1.0<", "25.0%", "2.0", "7.20 USD")
    ), section
    assert "(unattributed)" not in section
    code, _, err = run("close", "--period", "2025-10")
    assert code == 0, err
    assert run(*statement)[0] == 0
    assert 'id="shares"' not in page.read_text()


def test_without_shares_it_says_how_to_have_them(shared, run):
    """A table without rows, and the way to them."""
    code, out, err = run("chargeback", *PERIOD, "--by", "share")
    assert (code, "[[share]]" in err) == (0, True), out


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('team = "a"\npool = "p"', "fraction of the pool"),
        ('team = "a"\npool = "p"\nfraction = 0.5\ngpus = 3', "not both"),
        ('team = "a"\npool = "p"\nfraction = 1.5', "fraction"),
        ('team = "(unattributed)"\npool = "p"\ngpus = 1', "(unattributed)"),
        (
            'team = "a"\npool = "p"\ngpus = 1\n[[share]]\nteam = "a"\npool = "p"\ngpus = 2',
            "already",
        ),
    ],
)
def test_bad_shares_are_refused(shared, run, written, table, words):
    """One sentence with file, line and field, exit code 2."""
    code, _, err = run("apply", written("shares.toml", f"[[share]]\n{table}\n"))
    assert (code, words in err) == (2, True), err
