"""Lists of runs are narrowed by state and by a pool without a name, and grouped."""

from dataclasses import fields

import psycopg
import pytest

from gpuledger_collector.accounting.charged_runs import RecordedOutcome, RunFilter, RunSums
from gpuledger_collector.accounting.money import total_by_currency
from gpuledger_collector.accounting.period import HOUR_MS, UTC_DAYS
from gpuledger_collector.services.runs import list_run_places, list_runs, state_at
from gpuledger_collector.storage.database import Database

JOBS = """workload_id,start,end,gpus,state,pool,user,tag:team
1,2025-11-01T00:00:00Z,2025-11-01T10:00:00Z,1,COMPLETED,,ann,vision
2,2025-11-01T00:00:00Z,2025-11-02T10:00:00Z,2,FAILED,train,ann,vision
3,2025-11-02T00:00:00Z,,4,RUNNING,train,bob,speech
4,2025-11-02T00:00:00Z,2025-11-02T01:00:00Z,8,,train,,speech
"""
SUMS = [field.name for field in fields(RunSums)]
PERIOD = UTC_DAYS.date_range("2025-11-01", "2025-11-04")


@pytest.fixture
def ask(run, dsn, tmp_path):
    """Asks for the runs of three days."""
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    code, out, err = run("import", "usage", path)
    assert code == 0, out + err
    assert run("chargeback", "--from", "2025-11-01", "--to", "2025-11-04")[0] == 0

    def ask(*, owner=None, viewer=None, order="cost", top=None, split_by="", **wanted):
        with Database(dsn).transaction(read_only=True) as connection:
            return list_runs(
                connection,
                PERIOD,
                owner or {},
                viewer,
                order=order,
                top=top,
                wanted=RunFilter(**wanted),
                with_states=True,
                split_by=split_by,
            )

    return ask


def keys_of(found):
    return sorted(run.external_id for run in found.runs)


def test_a_run_has_the_state_that_its_scheduler_says(ask, dsn):
    """Where none says it: running while it is held in the last rated hour, ended else."""
    whole = ask()
    states = {run.external_id: whole.states[run.workload_id] for run in whole.runs}
    assert states == {"1": "completed", "2": "failed", "3": "running", "4": "ended"}
    for number, state in states.items():
        assert keys_of(ask(state=state)) == [number]
    assert set(ask(state="failed").states.values()) == set(states.values())
    assert keys_of(ask(state="no-such-state")) == []


@pytest.mark.parametrize("order", ["cost", "waste", "newest", "price"])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"owner": {"team": "vision"}},
        {"owner": {"team": ""}},
        {"owner": {"team": "speech"}, "viewer": {"team": "speech"}},
        {"pool": "train"},
        {"state": "running"},
        {"user": "ann"},
        {"words": "2"},
    ],
)
def test_the_first_runs_and_the_sums_of_the_others_are_those_of_the_whole_list(
    ask, dsn, order, asked
):
    """Also of a run that two teams and nobody pay for, of a correction, and of time without a
    price.
    """
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "UPDATE charge c SET owner_id = CASE WHEN c.day_ms % 172800000 = 0 THEN"
            " (SELECT min(id) FROM owner WHERE team = 'vision') END"
            " FROM workload w WHERE w.id = c.workload_id AND w.external_id = '3'"
        )
        connection.execute(
            "UPDATE charge SET owner_id = (SELECT min(id) FROM owner WHERE team = 'speech') WHERE ctid ="
            " (SELECT max(c.ctid) FROM charge c JOIN workload w ON w.id = c.workload_id"
            " WHERE w.external_id = '3')"
        )
        columns = (
            "day_ms, start_ms, end_ms, accelerator_id, workload_id, owner_id, state, pool,"
            " gpu_model, gpu_ns, busy_ns, idle_ns, unknown_ns"
        )
        for currency, micro in (("'USD'", 700), ("NULL", None)):
            connection.execute(
                f"INSERT INTO correction (booked_day_ms, recorded_ms, {columns}, currency,"
                " cost_micro, idle_cost_micro)"
                f" SELECT day_ms + 86400000, 0, {columns}, {currency}, %s, %s FROM charge"
                " WHERE workload_id IS NOT NULL ORDER BY start_ms, workload_id LIMIT 2",
                (micro, micro),
            )
    whole = ask(order=order, **asked)
    assert whole.runs or asked == {"owner": {"team": ""}}
    for top in range(len(whole.items) + 1):
        found = ask(order=order, top=top, **asked)
        assert found.items == whole.items[:top]
        left = whole.runs[top:]
        assert [(run.key, run.currency) for run in found.others] == [
            (run.key, run.currency) for run in left
        ]
        for run, own in zip(found.others, left, strict=True):
            assert {name: getattr(run, name) for name in SUMS} == {
                name: getattr(own, name) for name in SUMS
            }
        assert (found.others_gpu_ns, found.others_cost) == (
            sum(run.gpu_ns for run in left),
            total_by_currency(run.cost for run in left),
        )
        assert (found.states, found.workloads) == (whole.states, whole.workloads)


def test_a_pool_without_a_name_is_one_of_the_choices(ask, dsn):
    """An empty name in a filter asks for every pool."""
    with psycopg.connect(dsn) as connection:
        # As evidence of an agent has it that was told of no pool.
        connection.execute("UPDATE charge SET pool = '' WHERE pool = 'imported'")
    with Database(dsn).transaction(read_only=True) as connection:
        places = list_run_places(connection, PERIOD, {}, None)
    assert places["pool"] == ["(unnamed)", "train"]
    assert keys_of(ask(pool="(unnamed)")) == ["1"]
    assert keys_of(ask(pool="train")) == ["2", "3", "4"]


def test_groups_add_up_to_the_list(ask):
    """By each dimension: jobs, GPU-time and cost; what is not known is not zero."""
    whole = ask()
    for by in ("team", "user", "model", "state", "day"):
        split = ask(split_by=by) if by in {"team", "model"} else whole
        groups = split.groups(by, UTC_DAYS).items
        assert sum(group.workloads for group in groups) == len(whole.runs), by
        assert sum(group.gpu_ns for group in groups) == sum(run.gpu_ns for run in whole.runs), by
        assert sum(group.cost.micro for group in groups) == sum(
            run.cost_micro for run in whole.runs
        ), by
        # A record of a scheduler says nothing of what the GPUs did.
        assert {group.idle_ns for group in groups} == {None}, by
    teams = ask(split_by="team").groups("team", UTC_DAYS).items
    assert [group.name for group in teams] == ["speech", "vision"]
    assert [group.name for group in whole.groups("day", UTC_DAYS).items] == [
        "2025-11-02",
        "2025-11-01",
    ]


def test_each_team_of_a_job_has_its_own_part_of_it(ask, dsn):
    """A job that a team and nobody pays for is in both groups, each with what is paid there, as
    statements say.
    """
    with psycopg.connect(dsn) as connection:
        parts = connection.execute(
            "SELECT c.ctid FROM charge c JOIN workload w ON w.id = c.workload_id"
            " WHERE w.external_id = '3' ORDER BY c.start_ms, c.accelerator_id LIMIT 2"
        ).fetchall()
        (speech,) = connection.execute("SELECT id FROM owner WHERE team = 'speech'").fetchone()
        (vision,) = connection.execute("SELECT id FROM owner WHERE team = 'vision'").fetchone()
        assert speech != vision
        for (part,), owner in zip(parts, (vision, None), strict=True):
            connection.execute("UPDATE charge SET owner_id = %s WHERE ctid = %s", (owner, part))
        paid = dict(
            connection.execute(
                "SELECT coalesce(o.team, ''), sum(c.cost_micro)::bigint FROM charge c"
                " LEFT JOIN owner o ON o.id = c.owner_id WHERE c.workload_id IS NOT NULL GROUP BY 1"
            ).fetchall()
        )
    assert paid.keys() == {"", "speech", "vision"}
    split = ask(split_by="team")
    groups = {group.name: group for group in split.groups("team", UTC_DAYS).items}
    assert {name: group.cost.micro for name, group in groups.items()} == paid
    assert {name: group.workloads for name, group in groups.items()} == {
        "": 1,
        "speech": 1,
        "vision": 3,
    }
    assert split.workloads == 4


LATE_JOBS = """workload_id,start,end,gpus,state,pool,user,tag:team
5,2025-11-03T20:00:00Z,2025-11-03T23:30:00Z,1,COMPLETED,train,ann,vision
6,2025-11-03T20:00:00Z,2025-11-04T12:00:00Z,1,COMPLETED,train,ann,vision
7,2025-11-03T20:00:00Z,2025-11-04T00:00:00Z,1,FAILED,train,ann,vision
"""


def test_a_job_that_ended_in_the_last_hour_has_its_outcome(ask, run, dsn, tmp_path):
    """One that goes on after the period is running at its end, whatever becomes of it later."""
    path = tmp_path / "late.csv"
    path.write_text(LATE_JOBS)
    code, out, err = run("import", "usage", path)
    assert code == 0, out + err
    assert run("chargeback", "--from", "2025-11-01", "--to", "2025-11-05")[0] == 0
    listed = ask()
    states = {run.external_id: listed.states[run.workload_id] for run in listed.runs}
    assert (states["5"], states["6"], states["7"]) == ("completed", "running", "failed")
    assert states["3"] == "running"


@pytest.mark.parametrize(
    ("charged_until", "recorded_end", "state"),
    [(10, 10, "node_fail"), (10, 9.5, "node_fail"), (10, 3, "running"), (4, 3, "node_fail")],
)
def test_a_run_that_was_started_again_is_running(charged_until, recorded_end, state):
    """Agents see it go on, and no newer record is imported."""
    recorded = RecordedOutcome("NODE_FAIL", int(recorded_end * HOUR_MS))
    assert state_at(10 * HOUR_MS, charged_until * HOUR_MS, recorded) == state


def test_each_model_of_a_job_has_its_own_part_of_it(ask, dsn):
    """A job on two models is in both groups, and each leads to the same list."""
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE charge SET gpu_model = 'A'")
        connection.execute(
            "UPDATE charge SET gpu_model = 'B' WHERE ctid = (SELECT c.ctid FROM charge c JOIN"
            " workload w ON w.id = c.workload_id WHERE w.external_id = '3' LIMIT 1)"
        )
    groups = ask(split_by="model").groups("model", UTC_DAYS).items
    assert sorted((group.name, group.workloads) for group in groups) == [("A", 4), ("B", 1)]
    for group in groups:
        narrowed = ask(model=group.name)
        assert narrowed.workloads == group.workloads
        assert sum(run.cost_micro for run in narrowed.runs) == group.cost.micro
    (joined,) = [run for run in ask().runs if run.external_id == "3"]
    assert joined.gpu_model == "A, B"


def test_a_user_is_a_whole_name(ask, dsn):
    """A search for ann finds hannah, too; the group of ann leads to hers alone."""
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE workload SET user_name = 'hannah' WHERE external_id = '2'")
    assert keys_of(ask(words="ann")) == ["1", "2"]
    assert keys_of(ask(user="ann")) == ["1"]
    assert keys_of(ask(user="ANN")) == []
