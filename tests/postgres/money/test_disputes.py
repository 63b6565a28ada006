"""Disputes by command: what is contested, on what evidence, what a decision changes; nothing is
lost on the way.
"""

import hashlib
import json
import re

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.accounting.reattribution import Reattribution, Reattributions, spans_of
from gpuledger_collector.accounting.usage import HELD, UNAVAILABLE, HourlyUsage
from gpuledger_collector.cli.session import Session

SPAN = ("--from", "2025-10-01", "--to", "2025-10-03")
OWN = ("--owner", "team-1", *SPAN)


@pytest.fixture
def october(fleet, run):
    """Two GPUs at 2.00; workloads 1 and 4 are of team-1, workload 2 of team-2."""
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, 0, 2 * DAY)
    fleet.capacity(2, 0, 2 * DAY)
    fleet.evidence([Held(1, 1, 0, HOUR, busy=HOUR // 2, idle=HOUR // 2), Held(2, 2, 0, 3 * HOUR)])
    fleet.evidence([Held(1, 4, 5 * HOUR, 7 * HOUR), Held(1, 1, DAY, DAY + HOUR)])
    return run


def costs(run, *more):
    text = run("chargeback", *(more or SPAN), "--format", "json")[1]
    return {row["team"]: row["cost"] for row in json.loads(text)["rows"]}


def opened(run, *arguments, reason="not ours"):
    code, told, wrong = run("disputes", "open", *arguments, "--reason", reason)
    assert code == 0, wrong
    return re.match(r"dispute (\d+) is open", told)[1]


def test_the_evidence_goes_back_to_the_batches_and_its_file_has_the_seal(october, tmp_path):
    """Lines, usage intervals with epoch and number, workload, price, proof: as one file whose
    SHA-256 is the seal.
    """
    number = opened(october, *OWN)
    code, page, _ = october("disputes", "show", number, "--evidence", tmp_path / "e.json")
    assert code == 0
    content = (tmp_path / "e.json").read_bytes()
    seal = hashlib.sha256(content).hexdigest()
    assert f"the evidence is as it was sealed: {seal}" in page
    evidence = json.loads(content)
    assert sorted((one["workload"], one["cost_micro"]) for one in evidence["lines"]) == [
        ("slurm::1", 2_000_000),
        ("slurm::1", 2_000_000),
        ("slurm::4", 4_000_000),
    ]
    usage_intervals = evidence["usage_intervals"]["rows"]
    assert [
        (one["workload"], one["seq"], one["record"], one["node"]) for one in usage_intervals
    ] == [
        ("slurm::1", 1, 0, "n1"),
        ("slurm::4", 2, 0, "n1"),
        ("slurm::1", 2, 1, "n1"),
    ]
    assert all(one["epoch"].startswith("0000") for one in usage_intervals)
    assert [one["rate_per_gpu_hour"] for one in evidence["prices"]] == ["2.000000000"]
    assert [one["holds"] for one in evidence["proofs"]] == [True, True]
    assert {one["key"]: one["tags"] for one in evidence["workloads"]}["slurm::4"] == {
        "team": "team-1"
    }
    assert "team-2" not in content.decode()
    assert "slurm::2" not in content.decode()


def test_minutes_that_retention_expired_are_unknown_in_the_evidence_and_not_none(
    october, fleet, tmp_path
):
    """An hour of before the bound has null; one that is kept, and of which nobody read anything,
    has 0.
    """
    fleet.connection.execute(
        "INSERT INTO retention_boundary VALUES ('gpu_minute', %s)", (OCTOBER + DAY,)
    )
    october("disputes", "show", opened(october, *OWN), "--evidence", tmp_path / "e.json")
    hours = json.loads((tmp_path / "e.json").read_text())["hours"]["rows"]
    assert [(one["hour_ms"] - OCTOBER, one["minutes"], one["power_watts"]) for one in hours] == [
        (0, None, None),
        (5 * HOUR, None, None),
        (6 * HOUR, None, None),
        (DAY, 0, None),
    ]


def test_a_line_is_named_by_its_hash_and_only_it_moves(october):
    """The other line of the same workload, on another day, stays where it is."""
    rows = json.loads(october("disputes", "lines", *OWN, "--format", "json")[1])
    mine = next(row for row in rows if row["from"].startswith("2025-10-02"))
    number = opened(october, *OWN, "--line", mine["id"][:12])
    code, told, _ = october(
        "disputes", "resolve", number, "--accept", "--to", "team=speech", "--note", "yes"
    )
    assert code == 0
    assert "team=team-1 pays 2.00 USD less, team=speech pays 2.00 USD more" in told
    found = costs(october)
    assert (found["team-1"], found["speech"], found["team-2"]) == ("6.00", "2.00", "6.00")


def test_a_closed_month_stays_and_the_correction_is_in_an_open_one(october, fleet):
    """The close's seal holds, the correction moves exactly the contested amount, and the proof of
    October holds.
    """
    assert october("close", "--period", "2025-10")[0] == 0
    before = costs(october)
    number = opened(october, *OWN, "--workload", "4")
    assert (
        october("disputes", "resolve", number, "--accept", "--unavailable", "--note", "Xid 79")[0]
        == 0
    )
    assert costs(october) == before
    assert october("periods", "--verify", "2025-10")[0] == 0
    assert october("reconcile", "--period", "2025-10")[0] == 0
    moved = dict(fleet.rows("SELECT state, sum(cost_micro)::bigint FROM correction GROUP BY 1"))
    assert moved == {"held": -4_000_000, "unavailable": 4_000_000}
    page = october("disputes", "show", number)[1]
    assert "2025-10 was closed, its seal is" in page
    assert "now team=team-1 pays 0.00 USD of it" in page


def test_what_was_said_is_listed_and_audited(october):
    """Opened, answered, contested again, rejected: each in the dispute and in the audit log, which
    still verifies.
    """
    number = opened(october, *OWN, reason="we were on holiday")
    assert "open " in october("disputes", "list")[1]
    assert (
        october("disputes", "answer", number, "--note", "job 1 is of your user")[1]
        == f"dispute {number} is answered\n"
    )
    assert (
        october("disputes", "answer", number, "--from-owner", "--note", "no")[1]
        == f"dispute {number} is open\n"
    )
    before = costs(october)
    assert (
        october("disputes", "resolve", number, "--reject", "--note", "evidence")[1]
        == f"dispute {number} is rejected\n"
    )
    assert costs(october) == before
    assert october("disputes", "list")[1] == "0 disputes\n"
    (one,) = json.loads(october("disputes", "list", "--all", "--format", "json")[1])
    assert one["cost_micro"] == {"USD": 8_000_000}
    page = october("disputes", "show", number)[1]
    for words in (
        "we were on holiday",
        "job 1 is of your user",
        "(contested): no",
        "(rejected): evidence",
    ):
        assert words in page
    assert october("audit", "verify")[0] == 0


REFUSED = [
    (
        ("open", "--owner", "nobody", *SPAN, "--reason", "x"),
        "nothing of this owner was charged then",
    ),
    (("open", *OWN, "--reason", "  "), "--reason: say it in words"),
    (
        ("open", *OWN, "--reason", "x", "--accelerator", "GPU-9"),
        "--accelerator: none is called GPU-9",
    ),
    (("open", *OWN, "--reason", "x", "--workload", "nine"), "--workload: none is called nine"),
    (("open", *OWN, "--reason", "x", "--line", "abc"), "--line: give at least 8 letters"),
    (("open", *OWN, "--reason", "x", "--line", "0" * 12), "nothing of this owner was charged then"),
    (("open", "--owner", "planet=earth", *SPAN, "--reason", "x"), "is not LEVEL=VALUE"),
    (("show", "9"), "there is no dispute 9"),
    (("answer", "9", "--note", "x"), "there is no dispute 9"),
    (("resolve", "1", "--note", "x"), "give either --accept or --reject"),
    (("resolve", "1", "--accept", "--note", "x"), "--accept: say who pays for the time"),
    (("resolve", "1", "--reject", "--to", "team=a", "--note", "x"), "--reject changes nothing"),
    (("resolve", "9", "--reject", "--note", "x"), "there is no dispute 9"),
]


def test_what_cannot_be_done_is_one_sentence(october):
    """Exit code 2, and nothing is opened."""
    for arguments, words in REFUSED:
        code, _, told = october("disputes", *arguments)
        assert code == 2, told
        assert words in told
    assert october("disputes", "list")[1] == "0 disputes\n"


def test_what_fails_in_rating_is_no_refusal_of_a_step(october, monkeypatch):
    """A mistake of ours is told as one, not as what the operator should have asked for."""
    number = opened(october, *OWN)

    def fail(*_arguments):
        raise ValueError("reason: rating lost its way")

    monkeypatch.setattr(Session, "rate", fail)
    arguments = (number, "--accept", "--to", "team=b", "--note", "lent")
    code, _, told = october("disputes", "resolve", *arguments)
    assert code == 3, told
    assert "a fault in gpuledger itself" in told


def test_evidence_and_words_cannot_be_rewritten(october, fleet):
    """Not by SQL; an administrator who takes the triggers away breaks the seal, also when it is
    written anew.
    """
    number = opened(october, *OWN)
    october("disputes", "resolve", number, "--accept", "--unattributed", "--note", "x")
    for query in (
        "UPDATE dispute SET evidence = '{}'",
        "UPDATE dispute SET seal = 'x'",
        "DELETE FROM dispute",
        "UPDATE dispute_entry SET words = 'x'",
        "DELETE FROM reattribution",
        "UPDATE reattribution SET end_ms = 0",
    ):
        with pytest.raises(psycopg.errors.RestrictViolation):
            fleet.connection.execute(query)
    text = fleet.rows("SELECT evidence FROM dispute")[0][0].replace("slurm::4", "slurm::5")
    fleet.connection.execute("ALTER TABLE dispute DISABLE TRIGGER USER")
    fleet.connection.execute("UPDATE dispute SET evidence = %s", (text,))
    assert october("disputes", "show", number)[0] == 1
    fleet.connection.execute(
        "UPDATE dispute SET seal = %s", (hashlib.sha256(text.encode()).hexdigest(),)
    )
    code, page, _ = october("disputes", "show", number)
    assert (code, "is NOT what was sealed" in page) == (1, True)


def test_counted_usage_can_change_owners_and_never_be_unavailable(fleet, run, tmp_path):
    """It has no accelerator; refused, the dispute stays open."""
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    (tmp_path / "u.csv").write_text(
        "workload_id,start,end,gpus,tag:team\n7,2025-10-01T00:00:00Z,2025-10-01T10:00:00Z,8,nlp\n"
    )
    assert run("import", "usage", tmp_path / "u.csv")[0] == 0
    number = opened(run, "--owner", "nlp", *SPAN)
    code, _, told = run("disputes", "resolve", number, "--accept", "--unavailable", "--note", "x")
    assert (code, "no accelerator that could be unavailable" in told) == (2, True)
    assert (
        run("disputes", "resolve", number, "--accept", "--to", "team=speech", "--note", "x")[0] == 0
    )
    assert costs(run) == {"speech": "160.00"}


PIECES = st.builds(
    lambda workload, hour, held, busy: HourlyUsage(
        1,
        hour * HOUR,
        hour * HOUR + HOUR,
        HELD,
        workload,
        held,
        busy * held // 100,
        0,
        held - busy * held // 100,
        held,
    ),
    st.integers(1, 3),
    st.integers(0, 8),
    st.integers(1, HOUR),
    st.integers(0, 100),
)
PATHS = st.builds(
    OwnerPath, team=st.sampled_from(["", "a", "b"]), project=st.sampled_from(["", "p", "q"])
)
CONTESTED = st.sampled_from(
    [{"team": "a"}, {"team": "b"}, {"team": "a", "project": "p"}, {"team": "a", "project": ""}]
)
DECISIONS = st.builds(
    lambda number, workload, accelerator, start, length, owner, contested: Reattribution(
        number,
        workload,
        accelerator,
        start * HOUR,
        (start + length) * HOUR,
        UNAVAILABLE if owner is None else HELD,
        owner,
        contested,
    ),
    st.integers(1, 50),
    st.integers(1, 3),
    st.sampled_from([1, 2, None]),
    st.integers(0, 8),
    st.integers(1, 5),
    PATHS | st.none(),
    CONTESTED,
)
RULED = st.lists(PATHS, min_size=9, max_size=9)
"""Whom tags and rules charge, hour by hour."""


@given(
    st.lists(PIECES, max_size=12),
    st.lists(DECISIONS, max_size=6, unique_by=lambda one: one.id),
    RULED,
    st.randoms(use_true_random=False),
)
def test_decisions_move_time_of_the_contesting_owner_and_never_make_or_lose_any(
    pieces, decisions, ruled, random
):
    """Length and energy stay, in whatever order decisions are read; each moves what was charged to
    its owner only.
    """

    def owner_of(_workload, at_ms, _attributes_id=None):
        return ruled[at_ms // HOUR]

    decided = Reattributions(decisions)
    after = decided.apply_to_pieces(pieces, owner_of)
    assert [(one.start_ms, one.held_ms, one.energy_mj) for one in after] == [
        (one.start_ms, one.held_ms, one.energy_mj) for one in pieces
    ]
    random.shuffle(decisions)
    assert Reattributions(decisions).apply_to_pieces(pieces, owner_of) == after
    for old, new in zip(pieces, after, strict=True):
        payer = owner_of(old.workload_id, old.start_ms)
        for one in sorted(decisions, key=lambda one: one.id):
            if payer is None or (one.workload_id, one.accelerator_id) != (old.workload_id, 1):
                continue
            inside = one.start_ms <= old.start_ms < one.end_ms
            if inside and all(
                getattr(payer, level) == value for level, value in one.contested.items()
            ):
                payer = one.owner
        assert (
            decided.payer(old.workload_id, 1, old.start_ms, owner_of(old.workload_id, old.start_ms))
            == payer
        )
        assert (new.state == UNAVAILABLE) == (payer is None)
        assert new.state == HELD or (
            new.workload_id,
            new.busy_ms + new.idle_ms + new.unknown_ms,
        ) == (None, 0)


def test_spans_are_whole_hours_put_together_within_what_was_contested():
    """Adjoining and overlapping lines are one span; a gap stays a gap."""
    lines = [
        ((1, 1), Period(at, end))
        for at, end in ((10, HOUR), (HOUR, 2 * HOUR + 1), (5 * HOUR, 6 * HOUR))
    ]
    assert spans_of(lines, Period(HOUR, 10 * HOUR)) == {
        (1, 1): [Period(HOUR, 3 * HOUR), Period(5 * HOUR, 6 * HOUR)]
    }
    assert spans_of(lines, Period(OCTOBER, OCTOBER + DAY)) == {}


RULE = """
[[rule]]
name = "mornings of alpha are lent to bravo"
match = { team = "alpha" }
assign = { team = "bravo" }
effective_from = 2025-10-01T06:00:00Z
effective_to = 2025-10-01T12:00:00Z
"""


@pytest.fixture
def lent(fleet, run, written):
    """Job 1 of alpha holds a GPU at 10.00 for 18 hours; a rule gives the hours 6 to 12 to bravo."""
    run("prices", "set", "--rate", "10", "--currency", "USD", "--from", "2025-01-01")
    fleet.capacity(1, 0, DAY)
    fleet.workload(1, team="alpha")
    fleet.evidence([Held(1, 1, 0, 18 * HOUR)])
    assert run("apply", written("rules.toml", RULE))[0] == 0
    return run


def test_an_accepted_dispute_leaves_what_the_rules_give_to_somebody_else(lent):
    """Alpha contests its 120.00 of a job; the 60.00 of the same job that a rule gives to bravo stay
    with bravo.
    """
    assert costs(lent) == {"alpha": "120.00", "bravo": "60.00", "(unobserved)": "60.00"}
    number = opened(lent, "--owner", "alpha", *SPAN)
    assert (
        lent("disputes", "resolve", number, "--accept", "--to", "team=zulu", "--note", "x")[0] == 0
    )
    assert costs(lent) == {"zulu": "120.00", "bravo": "60.00", "(unobserved)": "60.00"}


def test_unavailable_time_is_that_of_the_contesting_owner_alone(lent, fleet):
    """In a closed month too: the correction takes nothing from bravo."""
    assert lent("close", "--period", "2025-10")[0] == 0
    number = opened(lent, "--owner", "alpha", *SPAN)
    assert lent("disputes", "resolve", number, "--accept", "--unavailable", "--note", "x")[0] == 0
    moved = fleet.rows(
        "SELECT o.team, c.state, sum(c.cost_micro)::bigint FROM correction c LEFT JOIN owner o "
        "ON o.id = c.owner_id GROUP BY 1, 2 ORDER BY 3"
    )
    assert moved == [("alpha", "held", -120_000_000), (None, "unavailable", 120_000_000)]
    assert lent("reconcile", "--period", "2025-10")[0] == 0


def test_a_rule_of_after_the_decision_holds(lent, written):
    """What a later rule gives to charlie is no time of alpha any more, so the decision about alpha
    leaves it alone.
    """
    number = opened(lent, "--owner", "alpha", *SPAN)
    assert (
        lent("disputes", "resolve", number, "--accept", "--to", "team=zulu", "--note", "x")[0] == 0
    )
    later = RULE.replace("bravo", "charlie").replace("2025-10-01T06:00:00Z", "2025-10-01T00:00:00Z")
    assert lent("apply", written("rules.toml", later))[0] == 0
    assert costs(lent) == {"zulu": "60.00", "charlie": "120.00", "(unobserved)": "60.00"}


def bill(fleet):
    """Everything billed, corrections included: micro-units by team, state and currency, and
    GPU-nanoseconds.
    """
    rows = fleet.rows(
        "SELECT coalesce(o.team, ''), l.state, l.currency, sum(l.gpu_ns)::bigint,"
        " sum(l.cost_micro)::bigint FROM (SELECT owner_id, state, currency, gpu_ns, cost_micro FROM"
        " charge UNION ALL SELECT owner_id, state, currency, gpu_ns, cost_micro FROM correction) l"
        " LEFT JOIN owner o ON o.id = l.owner_id GROUP BY 1, 2, 3"
    )
    return {row[:3]: row[3:] for row in rows}


def change(before, after):
    """What differs between two bills."""
    less = {
        key: tuple(
            b - a for a, b in zip(before.get(key, (0, 0)), after.get(key, (0, 0)), strict=True)
        )
        for key in {*before, *after}
    }
    return {key: values for key, values in less.items() if any(values)}


@pytest.mark.parametrize("to", [("--to", "team=zulu"), ("--unattributed",), ("--unavailable",)])
@pytest.mark.parametrize("closed", [False, True])
def test_the_preview_is_what_the_bill_changes_by(lent, fleet, to, closed):
    """Hours, money, from whom and to whom, as said beforehand, in an open month and in a closed
    one.
    """
    fleet.evidence([Held(1, 1, 20 * HOUR, 20 * HOUR + 7)])
    if closed:
        assert lent("close", "--period", "2025-10")[0] == 0
    number = opened(lent, "--owner", "alpha", *SPAN)
    before = bill(fleet)
    page = lent("disputes", "show", number)[1]
    code, dry, _ = lent("disputes", "resolve", number, "--accept", *to, "--note", "x", "--dry-run")
    assert code == 0
    assert bill(fleet) == before
    assert lent("disputes", "resolve", number, "--accept", *to, "--note", "x")[0] == 0
    moved = 12 * HOUR * 1_000_000 + 7_000_000
    owner, state = {"--to": ("zulu", "held"), "--unattributed": ("", "held")}.get(
        to[0], ("", "unavailable")
    )
    assert change(before, bill(fleet)) == {
        ("alpha", "held", "USD"): (-moved, -120_000_019),
        (owner, state, "USD"): (moved, 120_000_019),
    }
    name = {"--to": "team=zulu", "--unattributed": "(unattributed)"}.get(to[0], "unavailable time")
    said = "  2025-10-01  12.000002 GPU-hours, 120.00 USD from team=alpha to "
    booked = " (a correction: the day is closed)" if closed else ""
    assert dry.splitlines()[1:] == [
        "this would move:",
        f"{said}{name}{booked}",
        "12.000002 GPU-hours, 120.00 USD in all",
    ]
    assert f"if it is accepted now, this changes:\n{said}(unattributed){booked}\n" in page


def test_the_preview_of_a_dispute_that_a_rule_overtook_is_nothing(lent, written):
    """The time is not alpha's any more: nothing moves, and that is said before."""
    number = opened(lent, "--owner", "alpha", *SPAN)
    assert lent("apply", written("rules.toml", RULE[: RULE.index("effective_from")]))[0] == 0
    said = lent(
        "disputes", "resolve", number, "--accept", "--to", "team=zulu", "--note", "x", "--dry-run"
    )[1]
    assert said.splitlines()[1:] == [
        "this would move:",
        "0.000000 GPU-hours, nothing priced in all",
    ]
    before = costs(lent)
    assert (
        lent("disputes", "resolve", number, "--accept", "--to", "team=zulu", "--note", "x")[0] == 0
    )
    assert costs(lent) == before == {"bravo": "180.00", "(unobserved)": "60.00"}
