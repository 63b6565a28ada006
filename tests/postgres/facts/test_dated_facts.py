"""What is reported at an instant holds from that instant, and never before: the ways in which a
bill was rewritten.
"""

import json

from fakes.batches import accelerator, workload
from fakes.facts import AUGUST_MS, DAY, HOUR, SEPTEMBER_MS, mig


def test_a_share_or_model_told_later_leaves_a_closed_month_alone(world):
    """A closed August stays as it is when its GPU reports another share and another model in
    September.
    """
    world.price()
    world.hold(AUGUST_MS, 24)
    assert world.bill("2026-08")["alpha"] == ("24.000000", "240.00")
    world.run("close", "--period", "2026-08")
    world.hold(SEPTEMBER_MS, 2, gpu_micro=1, model="NVIDIA H100 HBM3 (renamed)")
    world.run(
        "prices",
        "set",
        "--rate",
        "3",
        "--currency",
        "USD",
        "--from",
        "2026-01-01",
        "--pool",
        "elsewhere",
    )
    assert (
        json.loads(
            world.run("corrections", "--period", "2026-08", "--by", "team", "--format", "json")
        )["rows"]
        == []
    )
    assert world.bill("2026-08")["alpha"] == ("24.000000", "240.00")
    assert world.rows("SELECT count(*) FROM correction") == [(0,)]
    assert world.bill("2026-09", "model")["NVIDIA H100 HBM3 (renamed)"][0] < "0.001"


def test_one_second_in_a_pool_takes_no_imported_bill(world, tmp_path):
    """A node that names a pool with imported usage changes nobody's bill: a finding, and exit 1 of
    doctor.
    """
    world.price()
    usage = tmp_path / "usage.csv"
    usage.write_text(
        "workload_id,start,end,gpus,pool,tag:team\nbig,2026-09-01T00:00Z,2026-09-11T00:00Z,100,cloud,bravo\n"
    )
    world.run("import", "usage", usage)
    before = world.bill("2026-09")
    assert before["bravo"] == ("24000.000000", "240000.00")
    world.hold(SEPTEMBER_MS + 5 * DAY, 1, pool="cloud")
    after = world.bill("2026-09")
    assert after["bravo"] == before["bravo"]
    assert after["alpha"] == ("1.000000", "10.00")
    assert world.rows(
        "SELECT DISTINCT pool FROM charge WHERE accelerator_id IS NOT NULL AND day_ms <"
        " 1788825600000"
    ) == [("default",)]
    assert "n1 puts GPU-n1-0 into pool cloud" in world.run(
        "reconcile", "--period", "2026-09", code=1
    )


def test_the_other_order_gives_the_same_bill(world, tmp_path):
    """The claim first and the import second: the imported bill stands in full, and the claim is
    refused.
    """
    world.price()
    world.hold(SEPTEMBER_MS + 5 * DAY, 1, pool="cloud")
    world.bill("2026-09")
    usage = tmp_path / "usage.csv"
    usage.write_text(
        "workload_id,start,end,gpus,pool,tag:team\nbig,2026-09-01T00:00Z,2026-09-11T00:00Z,100,cloud,bravo\n"
    )
    world.run("import", "usage", usage)
    assert world.bill("2026-09")["bravo"] == ("24000.000000", "240000.00")
    assert world.bill("2026-09")["alpha"] == ("1.000000", "10.00")
    assert world.rows("SELECT kind, subject FROM refused_claim") == [("pool", "cloud")]


def test_a_pool_that_the_inventory_grants_replaces_gpu_by_gpu(world, tmp_path):
    """Two seen GPUs take the place of two of three imported ones for the hour in which they are
    seen.
    """
    world.price()
    usage, inventory = tmp_path / "usage.csv", tmp_path / "inventory.csv"
    usage.write_text(
        "workload_id,start,end,gpus,pool,tag:team\nx,2026-09-01T00:00Z,2026-09-01T03:00Z,3,cloud,bravo\n"
    )
    inventory.write_text(
        "node,uuid,gpu_model,pool,in_at,out_at\n"
        "n1,GPU-n1-0,,cloud,2026-09-01T00:00Z,2026-09-02T00:00Z\nn1,GPU-n1-1,,cloud,2026-09-01T00:00Z,2026-09-02T00:00Z\n"
    )
    world.run("import", "usage", usage)
    world.run("import", "inventory", inventory)
    for number in (0, 1):
        world.hold(SEPTEMBER_MS + HOUR, 1, number=number)
    assert world.bill("2026-09")["bravo"] == ("7.000000", "70.00")
    assert world.bill("2026-09")["alpha"] == ("2.000000", "20.00")
    world.run("reconcile", "--period", "2026-09")


def test_a_bill_does_not_depend_on_when_somebody_looked(world):
    """A job that is tagged anew pays its past by the tags of its past, whether or not anybody
    looked in between.
    """
    world.price()
    for job in ("seen", "unseen"):
        number = int(job == "unseen")
        world.hold(SEPTEMBER_MS, 24, job=job, number=number, team="alpha")
        if job == "seen":
            world.bill("2026-09")
        world.hold(SEPTEMBER_MS + 3 * DAY, 1, job=job, number=number, team="beta")
    bill = world.bill("2026-09")
    assert (bill["alpha"], bill["beta"]) == (("48.000000", "480.00"), ("2.000000", "20.00"))


def test_job_facts_of_one_node_do_not_change_what_another_node_costs(world):
    """A second node that reports the same job with other tags pays for its own time only."""
    world.price()
    world.hold(SEPTEMBER_MS, 2, job="7", team="alpha")
    world.hold(SEPTEMBER_MS + HOUR, 3, job="7", node="n2", team="mallory")
    bill = world.bill("2026-09")
    assert (bill["alpha"], bill["mallory"]) == (("2.000000", "20.00"), ("3.000000", "30.00"))


def test_a_divided_board_stays_one_board(world):
    """Whole for 12 hours, then a half and a quarter: 24 board-hours a day, the rest stranded, in
    CSV and JSON.
    """
    world.price()
    for hour in range(48):
        parts = [accelerator(0, "n1")] if hour < 12 else [mig(1, 500_000), mig(2, 250_000)]
        world.send(
            "n1",
            parts,
            SEPTEMBER_MS + hour * HOUR,
            workload("1", user=None, tags={"team": "alpha"}),
        )
    out = world.run("chargeback", "--from", "2026-09-01", "--to", "2026-09-03", "--format", "json")
    rows = {row["team"]: row for row in json.loads(out)["rows"]}
    assert rows["alpha"]["gpu_hours"] == "39.000000"
    assert rows["(stranded)"]["gpu_hours"] == "9.000000"
    assert rows["(stranded)"]["cost"] == "90.00"
    assert world.rows(
        "SELECT capacity_ns / 3600000000000, holds FROM conservation_check WHERE day_ms <"
        " 1788393600000"
    ) == [(24, True), (24, True)]
    assert "stranded" in world.run("reconcile", "--from", "2026-09-01", "--to", "2026-09-03")


def test_halves_that_are_told_late_still_divide_the_board(world):
    """The geometry of an instant is what was seen at it, in whatever order it is told."""
    world.price()
    job = workload("1", user=None, tags={"team": "alpha"})
    for hour in (0, 1, 2, 6, 7):
        world.send("n1", [accelerator(0, "n1")], SEPTEMBER_MS + hour * HOUR, job)
    world.bill("2026-09")
    for hour in (5, 3, 4):
        world.send("n1", [mig(1, 500_000), mig(2, 500_000)], SEPTEMBER_MS + hour * HOUR, job)
    bill = world.bill("2026-09")
    assert bill["alpha"] == ("8.000000", "80.00")
    assert world.rows(
        "SELECT min(capacity_ns)::bigint, bool_and(holds) FROM conservation_check"
    ) == [(24 * HOUR * 10**6, True)]


def test_a_rule_in_mid_hour_holds_from_its_instant(world, tmp_path):
    """A rule from 06:30 takes the half hour from 06:30 on, and an end at 08:15:00.250 is kept to
    the millisecond.
    """
    world.price("3600")
    world.hold(SEPTEMBER_MS, 10)
    world.bill("2026-09")
    rules = tmp_path / "rules.toml"
    rules.write_text(
        '[[rule]]\nname = "handover"\nmatch = {team = "alpha"}\nassign = {team = "bravo"}\n'
        'effective_from = "2026-09-01T06:30:00Z"\neffective_to = "2026-09-01T08:15:00.250Z"\n'
    )
    world.run("apply", rules)
    assert world.bill("2026-09")["bravo"] == ("1.750069", "6300.25")


def test_two_teams_on_one_hour_is_a_finding(world):
    """A node that gives the same hour to two jobs is told of; the first report by content keeps the
    time.
    """
    world.price()
    world.hold(SEPTEMBER_MS, 1, job="1", team="alpha")
    world.hold(SEPTEMBER_MS, 1, job="2", team="beta")
    held = [row for row in world.bill("2026-09").values() if row == ("1.000000", "10.00")]
    assert len(held) == 1
    assert "to another holder at once" in world.run("reconcile", "--period", "2026-09", code=1)


def test_a_device_of_another_node_stays_where_it_is(world):
    """A node that reports another's GPU between that node's own reports gets none of its time."""
    world.price()
    world.hold(SEPTEMBER_MS, 3)
    world.hold(SEPTEMBER_MS + HOUR, 1, node="n2", owner_node="n1", team="mallory", job="9")
    bill = world.bill("2026-09")
    assert bill["alpha"] == ("3.000000", "30.00")
    assert "mallory" not in bill
    assert "reported by n1 and n2 at once" in world.run("reconcile", "--period", "2026-09", code=1)


def test_a_claim_that_nothing_stands_against_any_more_is_forgotten(world, tmp_path):
    """Usage that is imported again for another pool leaves the first one to the node that claims
    it.
    """
    world.price()
    world.hold(SEPTEMBER_MS + 5 * DAY, 1, pool="cloud")
    usage, head = tmp_path / "usage.csv", "workload_id,start,end,gpus,pool,tag:team\n"
    usage.write_text(f"{head}big,2026-09-01T00:00Z,2026-09-11T00:00Z,100,cloud,bravo\n")
    world.run("import", "usage", usage)
    world.run("reconcile", "--period", "2026-09", code=1)
    usage.write_text(f"{head}big,2026-09-01T00:00Z,2026-09-11T00:00Z,100,rented,bravo\n")
    world.run("import", "usage", usage)
    world.run("reconcile", "--period", "2026-09")
    assert world.rows(
        "SELECT DISTINCT pool FROM charge WHERE accelerator_id IS NOT NULL AND state = 'held'"
    ) == [("cloud",)]
    assert world.rows("SELECT * FROM refused_claim") == []
