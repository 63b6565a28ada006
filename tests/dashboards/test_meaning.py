"""What numbers of the boards mean: unknown is never zero, a chart stays readable, and panels agree
with each other.
"""

import datetime as dt
import json
import re
from collections import defaultdict
from decimal import Decimal

import psycopg
import pytest
from dashboards.grafana import STATES

from fakes.boards import BOARDS, SINCE, SPAN, UNTIL, asked, chosen, options
from fakes.grafana import Range, expanded, interpolated
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.services.fair_share import read_share_use
from gpuledger_collector.services.run_report import compare_sizes
from gpuledger_collector.services.scheduler_queues import list_times

pytestmark = pytest.mark.slow

MONEY_BOARDS = ("finops", "team", "research", "demand", "pipeline")


@pytest.fixture
def ledger(seeded):
    """A connection that may change the ledger, until the end of the test."""
    with psycopg.connect(seeded) as connection:
        yield connection
        connection.rollback()


def rows(connection, board, title, *, span=SPAN, **choice):
    """The rows of a panel, by column, with all chosen but for `choice`."""
    values = {**chosen(BOARDS[board], options(connection, BOARDS[board], span), "all"), **choice}
    (query,) = [query for query in asked(board, values, span) if query.title == title]
    cursor = connection.execute(query.sql.encode())
    names = [column.name for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def test_a_day_that_nobody_observed_is_no_day_without_demand(ledger):
    """Its demand is unknown: the mean, the lowest of the baseline and the busiest day are those of
    the other days.
    """
    day_ms = "(SELECT min(day_ms) FROM ledger_day)"
    ledger.execute(f"UPDATE ledger_day SET state = 'unobserved' WHERE day_ms = {day_ms}")
    (unseen,) = rows(ledger, "demand", "Mean demand")
    fits = rows(ledger, "demand", "Does it fit?")
    ledger.execute(f"DELETE FROM ledger_day WHERE day_ms = {day_ms}")
    (others,) = rows(ledger, "demand", "Mean demand")
    assert unseen == others
    assert others["gpus"] > 5
    assert fits == rows(ledger, "demand", "Does it fit?") != []


def test_demand_answers_to_the_choice_of_a_model(ledger):
    """Held now, by the hour and by the day; the forecast is the whole pool's, as is the demand
    drawn with it.
    """
    ledger.execute("UPDATE gpu_latest SET at_ms = extract(epoch FROM now()) * 1000")
    for title in (
        "Held now",
        "Held and unallocated, hour by hour",
        "Demand, capacity and baseline",
    ):
        everything = rows(ledger, "demand", title)
        assert rows(ledger, "demand", title, model=["NVIDIA L4"]) != everything, title
    title = "Forecast and actual demand, all models"
    assert rows(ledger, "demand", title, model=["NVIDIA L4"]) == rows(ledger, "demand", title) != []


def test_runs_of_one_name_scale_as_the_command_says(ledger, seeded):
    """Time, cost and efficiency of a step by number of GPUs: the panel's numbers are those of `runs
    --scaling`.
    """
    held = ledger.execute(
        "SELECT workload_id, min(gpu_model), count(DISTINCT accelerator_id) FROM charge WHERE state"
        " = 'held' AND workload_id NOT IN (SELECT workload_id FROM correction WHERE workload_id IS"
        " NOT NULL) GROUP BY 1 HAVING count(DISTINCT gpu_model) = 1 AND bool_and(currency = 'USD'"
        " AND cost_micro > 0) ORDER BY 2, 1"
    ).fetchall()
    first, second = next((a, b) for a in held for b in held if a[1] == b[1] and a[2] < b[2])
    # The panel counts whole hours, the command exact times: these two held all of their GPUs in
    # whole hours alone.
    ledger.execute(
        "WITH seen AS (SELECT workload_id, hour_ms, count(DISTINCT accelerator_id) AS gpus FROM"
        " usage_hour GROUP BY 1, 2) DELETE FROM usage_hour u USING seen WHERE u.workload_id ="
        " ANY(%s) AND (seen.workload_id, seen.hour_ms) = (u.workload_id, u.hour_ms) AND seen.gpus <"
        " (SELECT max(gpus) FROM seen s WHERE s.workload_id = u.workload_id)",
        ([first[0], second[0]],),
    )
    ledger.execute(
        "UPDATE usage_hour SET held_ms = 3600000 WHERE workload_id = ANY(%s)",
        ([first[0], second[0]],),
    )
    ledger.execute(
        "UPDATE charge c SET gpu_ns = gpu_ns * whole / charged, cost_micro = cost_micro * whole /"
        " charged FROM (SELECT workload_id, sum(held_ms) * 1000000 AS whole FROM usage_hour GROUP"
        " BY 1) u JOIN (SELECT workload_id, sum(gpu_ns) AS charged FROM charge GROUP BY 1) b USING"
        " (workload_id) WHERE c.workload_id = u.workload_id AND u.workload_id = ANY(%s)",
        ([first[0], second[0]],),
    )
    ledger.execute(
        "UPDATE workload SET name = 'scaled' WHERE id = ANY(%s)", ([first[0], second[0]],)
    )
    ledger.execute(
        "UPDATE charge SET owner_id = (SELECT min(id) FROM owner) WHERE workload_id = ANY(%s)",
        ([first[0], second[0]],),
    )
    for (workload, *_), steps in ((first, 1000), (second, 1500)):
        ledger.execute(
            "WITH made AS (INSERT INTO counter_series (workload_id, via, source, part, counter,"
            " engine) VALUES (%s, 'reported', 'run', '', 'steps', 'run') RETURNING id) INSERT INTO"
            " counter_hour (series_id, hour_ms, units, covered_ms, restarts) SELECT id, hour_ms,"
            " %s, 3600000, 0 FROM made, (SELECT DISTINCT hour_ms FROM usage_hour WHERE workload_id"
            " = %s) hours",
            (workload, steps, workload),
        )
    (key,) = ledger.execute("SELECT key FROM workload WHERE id = %s", (first[0],)).fetchone()
    panel = rows(ledger, "workload", "By number of GPUs ($currency)", workload=key)
    period = Period(
        int(SPAN.since.timestamp() * 1000) - 40 * DAY_MS,
        int(SPAN.until.timestamp() * 1000) + DAY_MS,
    )
    (compared,) = [runs for runs in compare_sizes(ledger, period, {}) if runs.name == "scaled"]
    assert [row["GPUs"] for row in panel] == [first[2], second[2]]
    for row, point in zip(panel, compared.points, strict=True):
        assert (row["runs"], row["unit"], row["GPUs"]) == (point.runs, "step", point.accelerators)
        assert float(row["seconds a unit"]) == pytest.approx(float(point.seconds))
        assert float(row["efficiency"]) == pytest.approx(float(point.efficiency))
        assert float(row["cost of a unit"]) == pytest.approx(float(point.unit_cost), rel=1e-3)


def test_shares_of_pools_are_those_of_the_command(ledger):
    """What is lent, borrowed and used of a share: the panel's numbers are those of `chargeback --by
    share`.
    """
    pools = [row[0] for row in ledger.execute("SELECT DISTINCT pool FROM capacity ORDER BY 1")]
    teams = [
        row[0]
        for row in ledger.execute("SELECT DISTINCT team FROM owner WHERE team <> '' ORDER BY 1")
    ]
    for at, team in enumerate(teams[:3]):
        ledger.execute(
            "INSERT INTO pool_share (team, pool, fraction, gpus, recorded_at) SELECT %s, p, %s, %s,"
            " now() FROM unnest(%s::text[]) p",
            (team, None if at else 0.5, 3 * at if at else None, pools),
        )
    period = Period(int(SPAN.since.timestamp() * 1000), int(SPAN.until.timestamp() * 1000))
    expected = {(use.pool, use.team): use for use in read_share_use(ledger, period)}
    panel = rows(ledger, "team", "What was held of each share, lent and borrowed ($currency)")
    assert {(row["pool"], row["team"]) for row in panel} == expected.keys()
    assert sum(use.borrowed_ns for use in expected.values()) > 0
    for row in panel:
        use = expected[row["pool"], row["team"]]
        for name, ns in (
            ("share, GPU-hours", use.share_ns),
            ("GPU-hours held", use.held_ns),
            ("lent", use.lent_ns),
            ("borrowed", use.borrowed_ns),
        ):
            assert float(row[name] or 0) == pytest.approx(ns / 3.6e12, abs=1e-6), (row, name)
        if use.borrowed_micro.get("USD"):
            assert float(row["cost of borrowed"]) == pytest.approx(
                use.borrowed_micro["USD"] / 1e6, abs=0.01
            )


def test_queues_are_those_of_the_command(ledger):
    """Quota, borrowed, lent, waited for and lost: the panel's numbers and order are those of `queues
    list`, and its chart those of who waited beside unused quota.
    """
    period = Period(int(SPAN.since.timestamp() * 1000), int(SPAN.until.timestamp() * 1000))
    expected = list_times(ledger, period)
    panel = rows(ledger, "team", "Queues: quota, and who waited beside unused quota")
    assert [row["queue"] for row in panel] == [item.queue for item in expected] != []
    for row, item in zip(panel, expected, strict=True):
        for name, ns in (
            ("reserved", item.reserved_ns),
            ("used", item.used_ns),
            ("borrowed", item.borrowed_ns),
            ("lent", item.lent_ns),
            ("unused", item.unused_ns),
            ("waited", item.waiting_ns),
            ("beside unused quota", item.beside_unused_ns),
            ("lost", item.lost_ns),
        ):
            hours = None if ns is None else pytest.approx(ns / 3.6e12)
            assert row[name] == hours, (row, name)
        assert row["stopped"] == item.evictions
    chart = rows(ledger, "team", "GPUs that waited beside unused quota, by queue")
    assert [(row["metric"], row["gpus"]) for row in chart] == [("kueue / speech-cq", 8)]
    (evicted,) = rows(ledger, "team", "Who was stopped, and for whom")
    assert (evicted["made room for"], evicted["GPU-hours lost"]) == ("speech/urgent", 4)


def test_unknown_activity_is_not_busy(ledger):
    """Time whose activity nobody could read is a part of its own, in money as in hours."""
    ledger.execute(
        "UPDATE ledger_day SET unknown_ns = gpu_ns, busy_ns = 0, idle_ns = 0, idle_cost_micro ="
        " NULL"
    )
    by_state = defaultdict(Decimal)
    for row in rows(ledger, "finops", "Spend per day, by state ($currency)"):
        by_state[row["metric"]] += row["cost"]
    assert by_state["activity unknown"] > 0
    assert by_state["busy"] == 0
    by_day = rows(ledger, "team", "GPU-hours a day, by activity")
    assert sum(row["hours"] for row in by_day if row["metric"] == "busy") == 0
    assert sum(row["hours"] for row in by_day if row["metric"] == "activity unknown") > 0


@pytest.mark.parametrize("board", MONEY_BOARDS)
def test_a_chart_has_at_most_ten_series(ledger, board):
    """Also with more projects than that: the nine largest have their own, the others are one."""
    ledger.execute(
        "INSERT INTO owner (org, team, project, experiment, run, user_name) "
        "SELECT '', 'many', 'project ' || n, '', '', '' FROM generate_series(1, 20) n"
    )
    ledger.execute(
        "INSERT INTO ledger_day (day_ms, owner_id, state, pool, gpu_model, currency, gpu_ns,"
        " busy_ns, idle_ns, unknown_ns, cost_micro) SELECT (SELECT min(day_ms) FROM ledger_day),"
        " o.id, 'held', 'default', 'model ' || o.id, 'USD', 1, 1, 0, 0, 1000000000 FROM owner o"
        " WHERE o.team = 'many'"
    )
    charts = [panel["title"] for panel in BOARDS[board]["panels"] if panel["type"] == "timeseries"]
    for title in charts:
        names = {row["metric"] for row in rows(ledger, board, title) if "metric" in row}
        assert len(names) <= 10, title
    if board == "research":
        assert "all others" in {
            row["metric"] for row in rows(ledger, board, "Cost a day, by project ($currency)")
        }


def test_the_burn_up_ends_where_the_table_of_budgets_stands(ledger):
    """The last point of what is spent is the table's, and the amount is the budget's."""
    by_name = {
        row["budget"]: row
        for row in rows(ledger, "finops", "Budgets in money, and their forecasts")
    }
    lines, days = defaultdict(list), defaultdict(list)
    for row in burn_up(ledger, "fleet"):
        lines[row["metric"]].append(row["cost"])
        days[row["metric"]].append(row["time"].date())
    assert lines["spent"][-1] == by_name["fleet"]["spent"] > 0
    assert lines["spent"] == sorted(lines["spent"])
    assert set(lines["budget"]) == {by_name["fleet"]["amount"]}
    assert lines["forecast"][-1] == pytest.approx(by_name["fleet"]["forecast"])
    assert lines["low"][-1] <= lines["forecast"][-1] <= lines["high"][-1]


def burn_up(connection, budget):
    """The rows of the burn-up of a budget, over the range that its panel takes from that budget."""
    board = BOARDS["finops"]
    found = {variable["name"]: variable for variable in board["templating"]["list"]}
    own = {}
    for name in ("budget_days", "budget_gone"):
        text = interpolated(found[name]["query"], found, {"budget": budget})
        (own[name],) = (
            str(row[0]) for row in connection.execute(expanded(text, SPAN, 60).encode())
        )
    return rows(
        connection,
        "finops",
        "Burn-up of $budget, and its forecast ($currency)",
        budget=budget,
        **own,
    )


def test_the_burn_up_reaches_from_the_first_to_the_last_day_of_the_period(ledger):
    """Whatever range the board has: where the money ends is on the axis, and what is to come is no
    part of the past.
    """
    today = dt.datetime.now(dt.UTC).date()
    first = today.replace(month=(today.month - 1) // 3 * 3 + 1, day=1)
    last = (first + dt.timedelta(days=95)).replace(day=1) - dt.timedelta(days=1)
    days = defaultdict(list)
    for row in burn_up(ledger, "fleet"):
        days[row["metric"]].append(row["time"].date())
    assert (
        days["budget"]
        == days["even pace"]
        == [first + dt.timedelta(days=at) for at in range((last - first).days + 1)]
    )
    assert days["forecast"][-1] == days["low"][-1] == days["high"][-1] == last
    assert days["forecast"][0] >= days["spent"][-1]


def test_budgets_say_what_counts_and_in_which_unit(ledger):
    """Total cost is the direct cost and the stored shares; hours are in a table of their own, and
    in no money.
    """
    money = {
        row["budget"]: row
        for row in rows(ledger, "finops", "Budgets in money, and their forecasts")
    }
    assert {name: row["of what"] for name, row in money.items()} == {
        "fleet": "direct cost",
        "vision": "direct cost",
        "vision in all": "total cost",
    }
    assert money["vision in all"]["spent"] == pytest.approx(money["vision"]["spent"] + 25)
    assert money["vision in all"]["forecast"] > money["vision"]["forecast"]
    (hours,) = rows(ledger, "finops", "Budgets in GPU-hours, and their forecasts")
    held = ledger.execute(
        "SELECT sum(gpu_ns) / 3.6e12 FROM ledger_day l JOIN owner o ON o.id = l.owner_id WHERE"
        " o.team = 'vision' AND l.state = 'held' AND l.day_ms >= %s",
        (int(SINCE.timestamp() * 1000),),
    ).fetchone()[0]
    assert hours["of what"] == "GPU-hours"
    assert float(hours["spent"]) == pytest.approx(float(held))


def test_parts_of_a_dollar_are_the_spend(ledger):
    """Where the money went, by model ($currency), adds up to the spend, corrections included."""
    (spend,) = rows(ledger, "finops", "Spend ($currency)")
    parts = rows(ledger, "finops", "Where the money went, by model ($currency)")
    assert (
        sum(value for row in parts for name, value in row.items() if name != "model" and value)
        == spend["spend"]
    )


def test_a_pause_is_a_gap(ledger):
    """Half an hour without a minute of any GPU is a null in each line, not a straight one across
    it.
    """
    pause = UNTIL - dt.timedelta(hours=2)
    at_ms = int(pause.timestamp() * 1000)
    ledger.execute(
        "DELETE FROM gpu_minute WHERE minute_ms >= %s AND minute_ms < %s",
        (at_ms, at_ms + 1_800_000),
    )
    shown = rows(ledger, "node", "Utilization", span=Range(pause - dt.timedelta(hours=1), UNTIL))
    within = [row for row in shown if pause <= row["time"] < pause + dt.timedelta(minutes=30)]
    assert {row["metric"] for row in within} == {row["metric"] for row in shown}
    assert len(within) >= 10
    assert all(row["value"] is None for row in within)
    assert any(row["value"] is not None for row in shown)


def test_marks_name_prices_closes_and_alerts(ledger):
    """Each is one mark with its words, in the range in which it happened."""
    ledger.execute(
        "INSERT INTO billing_period (start_ms, end_ms, name, closed_ms, closed_by, level, lines,"
        " seal, receipt) VALUES (0, 1, '1970-01', %s, 'ada', 'team', 0, '', '{}')",
        (int(UNTIL.timestamp() * 1000) - 1,),
    )
    ledger.execute("UPDATE budget_alert SET fired_ms = %s", (int(UNTIL.timestamp() * 1000) - 1,))
    marks = {
        mark["name"]: mark["target"]["rawSql"] for mark in BOARDS["finops"]["annotations"]["list"]
    }
    texts = {
        name: [row[1] for row in ledger.execute(expanded(sql, SPAN, 60))]
        for name, sql in marks.items()
    }
    assert texts["Closes"] == ["1970-01 was closed by ada"]
    assert texts["Budget alerts"]
    assert all(
        re.fullmatch(r"Budget .+ crossed 80 % \(actual\)", text) for text in texts["Budget alerts"]
    )
    assert any(text.startswith("Price of ") and " USD" in text for text in texts["Prices"])


def whole_hour(connection):
    """A GPU, its node and the start of an hour in which one workload held it all the time, with
    measured energy.
    """
    return connection.execute(
        "SELECT u.hour_ms, n.name, 'GPU ' || a.gpu_index, u.energy_mj / 3.6e9 FROM usage_hour u"
        " JOIN accelerator a ON a.id = u.accelerator_id JOIN capacity c ON c.accelerator_id = a.id"
        " AND c.out_ms IS NULL JOIN node n ON n.id = c.node_id WHERE u.held_ms = 3600000 AND"
        " u.workload_id IS NOT NULL AND u.energy_mj > 0 AND a.gpu_micro = 1000000 AND u.hour_ms <="
        " %s ORDER BY 1 DESC, 2, 3 LIMIT 1 OFFSET 5",
        # The last quarter of an hour may still be on its way: it is counted for no board.
        (int(UNTIL.timestamp() * 1000) - 2 * 3_600_000,),
    ).fetchone()


def minutes_of(hour_ms, first, last):
    """The range from one minute of an hour to another."""
    start = dt.datetime.fromtimestamp(hour_ms / 1000, dt.UTC)
    return Range(start + dt.timedelta(minutes=first), start + dt.timedelta(minutes=last))


def test_holders_and_energy_of_a_part_of_an_hour_are_that_part(ledger):
    """A quarter of an hour is held for a quarter of an hour, and two parts are together the whole."""
    hour_ms, node, gpu, kwh = whole_hour(ledger)

    def held(first, last):
        span = minutes_of(hour_ms, first, last)
        return sum(
            row["held"]
            for row in rows(ledger, "node", "Holders", span=span, node=node, accelerator=[gpu])
        )

    def energy(first, last):
        span = minutes_of(hour_ms, first, last)
        return float(
            rows(ledger, "node", "Energy", span=span, node=node, accelerator=[gpu])[0]["energy"]
        )

    assert held(15, 30) == 900
    assert held(0, 20) + held(20, 60) == held(0, 60) == 3600
    assert energy(0, 15) == pytest.approx(float(kwh) / 4)
    assert energy(0, 60) == pytest.approx(float(kwh))


def test_an_hour_that_was_mostly_unobserved_is_unobserved(ledger):
    """33 minutes without evidence prevail over 27 busy ones, and an hour without any is no gap once
    it is counted.
    """
    hour_ms, node, gpu, _ = whole_hour(ledger)
    chosen_hours = {"span": minutes_of(hour_ms, 0, 60), "node": node, "accelerator": [gpu]}
    unobserved = STATES.index("unobserved") + 1

    def states(**choice):
        return [
            row["state"]
            for row in rows(ledger, "node", "State by hour", **{**chosen_hours, **choice})
        ]

    this = (
        "hour_ms = %s AND accelerator_id = (SELECT a.id FROM accelerator a JOIN capacity c ON"
        " c.accelerator_id = a.id "
    )
    this += (
        "JOIN node n ON n.id = c.node_id WHERE n.name = %s AND 'GPU ' || a.gpu_index = %s AND"
        " c.out_ms IS NULL)"
    )
    (before,) = states()
    assert before not in (None, unobserved)
    times = "held_ms = held_ms * 27 / 60, busy_ms = busy_ms * 27 / 60, idle_ms = idle_ms * 27 / 60"
    times += ", unknown_ms = unknown_ms * 27 / 60"
    ledger.execute(f"UPDATE usage_hour SET {times} WHERE {this}", (hour_ms, node, gpu))
    assert states() == [unobserved]
    ledger.execute(f"DELETE FROM usage_hour WHERE {this}", (hour_ms, node, gpu))
    assert states() == [unobserved]
    not_come = minutes_of(int(UNTIL.timestamp() * 1000) + 5 * 3_600_000, 0, 60)
    assert states(span=not_come) == [None]
    ledger.execute("UPDATE capacity SET in_ms = %s WHERE out_ms IS NULL", (hour_ms + 3_600_000,))
    assert states() == [None], "before the GPU came nobody is missed"


def test_a_cell_of_the_fleet_opens_the_gpu_that_was_clicked(ledger):
    """The matrix knows a GPU by its name on its node: that is what the board of the node offers and
    chooses.
    """
    for cell in rows(ledger, "fleet", "State of every GPU"):
        offered = options(ledger, BOARDS["node"], SPAN)
        values = {**chosen(BOARDS["node"], offered, "all"), "node": cell["node"]}
        (query,) = [
            query
            for query in asked("node", values | {"accelerator": [cell["gpu"]]}, SPAN)
            if query.title == "Selected GPUs"
        ]
        shown = {f"GPU {row[0].split()[0]}" for row in ledger.execute(query.sql.encode())}
        assert shown == {cell["gpu"]}
    node = offered["node"][0]
    names = {
        f"{cell['gpu']}"
        for cell in rows(ledger, "fleet", "State of every GPU")
        if cell["node"] == node
    }
    assert names <= set(offered["accelerator"])


def test_a_person_of_a_team_is_chosen_by_a_click(ledger):
    """Cost, projects and workloads are then those of that person alone."""
    people = {
        row["user"]: row["cost"]
        for row in rows(ledger, "team", "People ($currency)")
        if not row["correction of"]
    }
    user, cost = max(people.items(), key=lambda person: person[1])
    assert len(people) > 1
    for title in ("Projects ($currency)", "People ($currency)"):
        own = rows(ledger, "team", title, person=[user])
        assert sum(row["cost"] for row in own if not row["correction of"]) == cost, title


def test_demand_to_the_end_of_the_quarter_has_a_bar_for_each_week_that_is_left(ledger):
    """However few they are: the days of a plan are all there is, and a week's bar is the mean of
    its days.
    """
    days = [{"low": 1 + at, "likely": 2 + at, "high": 3 + at} for at in range(9)]
    monday = dt.datetime(2026, 3, 2, tzinfo=dt.UTC)
    plan = {"start_ms": int(monday.timestamp() * 1000), "days": days}
    ledger.execute("DELETE FROM capacity_plan")
    for name in ("one", "two"):
        ledger.execute(
            "INSERT INTO capacity_plan (pool, made_ms, plan) VALUES (%s, 0, %s)",
            (name, json.dumps(plan)),
        )
    shown = rows(ledger, "demand", "Demand to the end of the quarter")
    assert [tuple(row.values()) for row in shown] == [("03-02", 8, 10, 12), ("03-09", 17, 19, 21)]


def test_holders_are_those_of_the_hours_that_the_range_touches(ledger):
    """Of a range within an hour that hour's holders, and neither those of the next one nor none."""
    hour_ms, node, lane = ledger.execute(
        "SELECT u.hour_ms, n.name, min(w.key) FROM usage_hour u JOIN workload w ON w.id ="
        " u.workload_id JOIN capacity c ON c.accelerator_id = u.accelerator_id AND c.out_ms IS NULL"
        " JOIN node n ON n.id = c.node_id WHERE NOT EXISTS (SELECT FROM usage_hour next WHERE"
        " next.hour_ms = u.hour_ms + 3600000 AND next.workload_id = u.workload_id) GROUP BY 1, 2"
        " ORDER BY 1 DESC, 2 LIMIT 1 OFFSET 3"
    ).fetchone()

    def holders(first_minute, last_minute):
        start = dt.datetime.fromtimestamp(hour_ms / 1000, dt.UTC)
        span = Range(
            start + dt.timedelta(minutes=first_minute), start + dt.timedelta(minutes=last_minute)
        )
        return {row["workload"] for row in rows(ledger, "node", "Holders", span=span, node=node)}

    assert lane in holders(15, 30)
    assert lane in holders(45, 75)
    assert lane not in holders(61, 75)


def test_a_workload_does_not_last_beyond_now(ledger):
    """The hour that goes on is rated to its end; what it says of the workload ends now."""
    (key,) = ledger.execute(
        "SELECT min(w.key) FROM charge c JOIN workload w ON w.id = c.workload_id"
    ).fetchone()
    ledger.execute(
        "UPDATE charge SET end_ms = extract(epoch FROM now()) * 1000 + 900000 WHERE workload_id = "
        "(SELECT id FROM workload WHERE key = %s)",
        (key,),
    )
    (now,) = ledger.execute("SELECT now()").fetchone()
    told = rows(ledger, "workload", "The workload", workload=key)
    assert told
    assert all(row["until"] <= now for row in told)


def test_an_unused_commitment_is_no_capacity(ledger):
    """Its hours are paid; they neither add GPUs nor days without demand, as they did on the first
    boards.
    """
    titles = (
        ("demand", "Mean demand"),
        ("demand", "Busiest day"),
        ("demand", "Headroom of the scarcest models"),
    )
    titles += (("demand", "Pools over the range"), ("finops", "Held share"))
    before = {title: rows(ledger, board, title) for board, title in titles}
    ledger.execute(
        "INSERT INTO ledger_day (day_ms, state, pool, gpu_model, gpu_ns, busy_ns, idle_ns,"
        " unknown_ns, currency, cost_micro, owner_id) SELECT DISTINCT day_ms, 'commitment_unused',"
        " '', 'A100', 86400000000000 * 4, 0, 0, 0, 'USD', 90000000, NULL::bigint FROM ledger_day"
    )
    assert {title: rows(ledger, board, title) for board, title in titles} == before


ERRORS = {
    "gpu_nvlink_replay_errors_total": 4,
    "gpu_xid_errors_total": 2,
    "gpu_last_xid": 63,
    "gpu_ecc_uncorrected_volatile_total": 3,
    "gpu_remapped_rows_pending": 1,
    "gpu_remapped_rows_failure": 0,
}


def test_errors_of_a_gpu_are_words_in_one_cell_the_gravest_first(ledger):
    """The sick GPU comes first; others have retries of links alone, which is no error of theirs."""
    for metric, value in ERRORS.items():
        ledger.execute("DELETE FROM gpu_state WHERE metric = %s", (metric,))
        ledger.execute(
            "INSERT INTO gpu_state SELECT min(id), %s, 1, %s FROM accelerator", (metric, value)
        )
    sick, *others = rows(ledger, "fleet", "Errors that accelerators count")
    words = (
        "Xid errors 2, last Xid 63, ECC uncorrected 3, row remaps pending 1, PCIe replays 3, NVLink"
        " replays 4"
    )
    assert (sick["state"], sick["errors"]) == ("failed", words)
    assert {row["errors"] for row in others} == {"PCIe replays 3"}


MINUTES_5, HOUR_MS = 300_000, 3_600_000
OF_AN_HOUR = "An hour now ($currency)"


def count_an_hour(ledger, ago_ms):
    """The last hour that is counted ended so long ago: 24 held with a third idle, 6 free, 2 broken."""
    (now_ms,) = ledger.execute(
        "SELECT (extract(epoch FROM now()) * 1000)::bigint - %s", (ago_ms,)
    ).fetchone()
    until_ms = now_ms // MINUTES_5 * MINUTES_5
    ledger.execute("DELETE FROM owner_5min")
    ledger.execute("UPDATE conservation_check SET until_ms = least(until_ms, %s)", (until_ms,))
    ledger.execute(
        "UPDATE conservation_check SET until_ms = %s WHERE day_ms = (SELECT max(day_ms) FROM"
        " conservation_check)",
        (until_ms,),
    )
    ledger.execute(
        "INSERT INTO owner_5min (at_ms, state, pool, gpu_model, currency, gpu_ns, busy_ns, idle_ns,"
        " unknown_ns, cost_micro) SELECT %s - step * 300000::bigint, state, 'p', 'm', currency, 300,"
        " 0, idle, 0, cost FROM generate_series(0, 20) step, (VALUES ('held', 'USD', 100, 2000000),"
        " ('unallocated', 'USD', 0, 500000), ('unavailable', 'USD', 0, 166667), ('held', 'EUR', 0,"
        " 9000000)) v (state, currency, idle, cost)",
        (until_ms,),
    )


def test_the_rate_of_now_is_the_last_hour_that_is_counted(ledger):
    """Twelve steps of it, whatever is older or newer, in one currency."""
    count_an_hour(ledger, 1_000_000)
    (rate,) = rows(ledger, "finops", OF_AN_HOUR, currency="USD")
    assert float(rate["the fleet"]) == pytest.approx(12 * 2.666667)
    assert rate["of it free"] == 6
    assert float(rate["held idle"]) == pytest.approx(8, abs=1e-4)


def test_an_hour_of_yesterday_is_no_rate_of_now(ledger):
    """After six hours without a count nobody knows what the fleet costs now."""
    count_an_hour(ledger, 7 * HOUR_MS)
    assert rows(ledger, "finops", OF_AN_HOUR, currency="USD") == []


def test_a_team_is_compared_with_the_range_before(ledger):
    """The mean of its full days here against those of as many days before; nothing, where none is
    known.
    """
    last = Range(SINCE + dt.timedelta(days=2), SINCE + dt.timedelta(days=3))
    cost = dict(
        ledger.execute(
            "SELECT (o.team, l.day_ms = %s), sum(l.cost_micro) FROM ledger_day l JOIN owner o ON o.id"
            " = l.owner_id WHERE l.currency = 'USD' AND l.day_ms >= %s AND l.day_ms < %s GROUP BY 1",
            tuple(int((SINCE + dt.timedelta(days=days)).timestamp() * 1000) for days in (2, 1, 3)),
        ).fetchall()
    )
    cost = {(team, here == "t"): micro for (team, here), micro in cost.items()}
    shown = {
        row["team"]: row["change"] for row in rows(ledger, "finops", "Teams ($currency)", span=last)
    }
    compared = {team for team, change in shown.items() if change is not None}
    assert len(compared) > 3
    for team in compared:
        name = "" if team == "(unattributed)" else team
        expected = cost[name, True] / cost[name, False] - 1
        assert float(shown[team]) == pytest.approx(float(expected)), team
    first = Range(SINCE, SINCE + dt.timedelta(days=1))
    assert all(
        row["change"] is None for row in rows(ledger, "finops", "Teams ($currency)", span=first)
    )


def test_each_model_fits_or_not_by_itself(ledger):
    """One whose GPUs are all held may not fit, one without a GPU left does not, and free ones fit."""
    models = sorted(
        name
        for (name,) in ledger.execute(
            "SELECT DISTINCT gpu_model FROM ledger_day WHERE gpu_model <> '' AND gpu_model NOT IN"
            " (SELECT gpu_model FROM ledger_day WHERE state = 'stranded')"
        )
    )
    full, gone, free = models[:3]
    ledger.execute(
        "UPDATE ledger_day SET state = 'held' WHERE gpu_model = ANY(%s)", ([full, gone],)
    )
    ledger.execute("UPDATE ledger_day SET state = 'unallocated' WHERE gpu_model = %s", (free,))
    ledger.execute("UPDATE capacity SET out_ms = in_ms + 1 WHERE gpu_model = %s", (gone,))
    # Usage without a model lies two hours back, which is today for most of the day.
    ledger.execute(
        "UPDATE ledger_day SET day_ms = (SELECT min(day_ms) FROM ledger_day WHERE gpu_model <> '')"
        " WHERE gpu_model = ''"
    )
    told = rows(ledger, "demand", "Does it fit?")
    fits = {row["model"]: row["fits"] for row in told}
    assert (fits[full], fits[gone], fits[free]) == ("maybe", "no", "yes")
    assert next(row for row in told if row["model"] == free)["high"] == 0
    assert told[0]["model"] == gone, "the scarcest first"
    assert (told[-1]["model"], told[-1]["fits"], told[-1]["free"]) == ("(no model)", None, None)
    assert {row["model"] for row in rows(ledger, "demand", "Does it fit?", model=[free])} == {free}


def test_capacity_is_drawn_as_far_as_the_inventory_knows_it(ledger):
    """On the coming days too: a GPU that leaves in five days is missing from the sixth on."""

    def ahead():
        drawn = rows(ledger, "demand", "Demand, capacity and baseline")
        return {
            (row["time"].date() - dt.datetime.now(dt.UTC).date()).days: row["gpus"]
            for row in drawn
            if row["metric"] == "capacity" and row["time"].date() >= dt.datetime.now(dt.UTC).date()
        }

    before = ahead()
    assert set(before) == set(range(14))
    assert len(set(before.values())) == 1
    ledger.execute(
        "UPDATE capacity SET out_ms = extract(epoch FROM date_trunc('day', now() AT TIME ZONE"
        " 'UTC') + interval '5 days 1 hour') * 1000 WHERE id = (SELECT min(id) FROM capacity WHERE"
        " out_ms IS NULL AND gpu_micro = 1000000)"
    )
    after = ahead()
    assert [before[day] - after[day] for day in range(14)] == [0] * 6 + [1] * 8


def test_the_first_row_of_a_node_says_what_it_does(ledger):
    """Held, and held without activity, of the selected GPUs; nothing while the agent is silent."""
    node, held = ledger.execute(
        "SELECT n.name, count(*) FROM gpu_latest l JOIN capacity c ON c.accelerator_id ="
        " l.accelerator_id AND c.out_ms IS NULL JOIN node n ON n.id = c.node_id WHERE l.state ="
        " 'held' GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 1"
    ).fetchone()
    ledger.execute("UPDATE gpu_latest SET at_ms = 0")
    assert rows(ledger, "node", "GPUs held now", node=node) == []
    ledger.execute(
        "UPDATE gpu_latest SET at_ms = extract(epoch FROM now()) * 1000, gpu_sm_active_ratio = 0"
    )
    (now,) = rows(ledger, "node", "GPUs held now", node=node)
    assert (now["held"], now["idle"]) == (held, held)
    assert now["selected"] >= held > 0


def test_free_accelerators_are_one_row_a_model_and_reason(ledger):
    """However many there are: their number, nodes and cost a day together."""
    ledger.execute("DELETE FROM finding")
    ledger.execute(
        "INSERT INTO finding (key, kind, state, subject, accelerator_id, team, owner, since_ms,"
        " opened_ms, until_ms, confidence, currency, cost_micro, per_day_micro, evidence) SELECT"
        " a.uuid, 'idle', 'unallocated', a.uuid, a.id, '', '{}', a.id, 1, 1, 0.9, 'USD', 1000000,"
        " 2000000, '{}' FROM accelerator a JOIN capacity c ON c.accelerator_id = a.id AND c.out_ms"
        " IS NULL"
    )
    told = rows(ledger, "idle", "Accelerators that nobody holds")
    (count,) = ledger.execute("SELECT count(*) FROM finding").fetchone()
    (models,) = ledger.execute(
        "SELECT count(DISTINCT a.model) FROM accelerator a JOIN finding f ON f.accelerator_id = a.id"
    ).fetchone()
    assert len(told) == models < count
    assert sum(row["GPUs"] for row in told) == count
    assert all(row["cost a day"] == 2 * row["GPUs"] for row in told)
    assert all(row["nodes"] for row in told)


def test_a_workload_names_the_other_currency_that_it_is_charged_in(ledger):
    """Where the board opens on a currency in which it costs nothing, the other one is beside it."""
    workload, key = ledger.execute(
        "SELECT w.id, w.key FROM charge c JOIN workload w ON w.id = c.workload_id WHERE c.cost_micro"
        " > 0 ORDER BY 1 LIMIT 1"
    ).fetchone()
    ledger.execute("UPDATE charge SET currency = 'EUR' WHERE workload_id = %s", (workload,))
    ledger.execute("UPDATE correction SET currency = 'EUR' WHERE workload_id = %s", (workload,))
    choice = {"workload": key, "currency": "USD"}
    (cost,) = rows(ledger, "workload", "Cost ($currency)", **choice)
    assert cost["cost"] is None
    (other,) = rows(ledger, "workload", "In other currencies", **choice)
    assert other["currency"] == "EUR"
    (own,) = rows(ledger, "workload", "Cost ($currency)", **{**choice, "currency": "EUR"})
    assert other["cost"] == own["cost"] > 0
