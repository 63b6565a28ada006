"""The benchmark of shared inference, small: its statements fit the schema, and its amounts add up."""

import pytest
from bench import inference
from bench._rating_owners import Step

from fakes.postgres import fresh_database, postgres
from gpuledger_collector.accounting.inference_split import CHARGED

__all__ = ["postgres"]
pytestmark = pytest.mark.slow


def test_a_small_month_adds_up(dsn, tmp_path):
    """Tenants change no bill; 20 of them ask three models each, and each server has a (nobody)."""
    options = ["--gpus=40", "--servers=4", "--tenants=20", "--dense-models=0", "--days=1"]
    sizes = inference.read_sizes(inference.read_options(options))
    inference.furnish(dsn, sizes)
    bill = inference.charge(dsn, sizes.period)
    inference.ask(dsn, sizes, sizes.models, sizes.hours)
    inference.declare(dsn, tmp_path, sizes)
    inference.rate(dsn, sizes.period)
    assert inference.charge(dsn, sizes.period) == bill
    sides = {inference.WITHOUT: dsn, inference.TENANTS: dsn}
    assert inference.check_amounts(sides, sizes.period) == {inference.TENANTS: 20 * 3 + 4}


def test_a_small_month_is_charged_what_tenants_are_shown(postgres, tmp_path):
    """Beside a month without tenants; a bill on which nothing moved is refused."""
    options = ["--gpus=40", "--servers=4", "--tenants=20", "--dense-models=0", "--days=1"]
    sizes = inference.read_sizes(inference.read_options(options))
    with fresh_database(postgres) as without, fresh_database(postgres) as charged:
        for dsn in (without, charged):
            inference.furnish(dsn, sizes)
        inference.ask(charged, sizes, sizes.models, sizes.hours)
        inference.declare(charged, tmp_path, sizes, CHARGED)
        sides = {inference.WITHOUT: without, inference.CHARGED: charged}
        with pytest.raises(SystemExit, match="charged: the bill is not what tenants are charged"):
            inference.check_amounts(sides, sizes.period)
        inference.rate(charged, sizes.period)
        assert inference.check_amounts(sides, sizes.period) == {inference.CHARGED: 20 * 3 + 4}


def test_a_fleet_without_room_for_its_servers_is_refused():
    """Sizes that contradict each other end before anything is written."""
    for words in ("--gpus=8 --servers=2", "--servers=2 --models=3 --dense-models=0"):
        with pytest.raises(SystemExit, match=r"GPUs|models"):
            inference.read_sizes(inference.read_options(words.split()))


def test_the_goal_is_for_the_whole_month_alone(capsys):
    """Ratios are of medians; all of what tenants cost counts, who asked included."""
    whole = inference.read_sizes(inference.read_options([]))
    assert inference.has_goal(whole)
    assert not inference.has_goal(inference.read_sizes(inference.read_options(["--days=29"])))
    taken = {
        (inference.WITHOUT, inference.RATING): [Step("", 0, 6, 2), Step("", 0, 9, 90)],
        (inference.WITHOUT, inference.CHARGEBACK): [Step("", 0, 1, 1)],
        (inference.TENANTS, inference.RATING): [Step("", 0, 54, 0), Step("", 0, 53.5, 0)],
        (inference.TENANTS, inference.CHARGEBACK): [Step("", 0, 2, 0)],
        (inference.TENANTS, inference.WHO_ASKED): [Step("", 0, 10, 1)],
    }
    ratios = inference.print_times([inference.WITHOUT, inference.TENANTS], taken, 1.3)
    assert ratios[inference.TENANTS] == pytest.approx((53.75 + 2 + 11) / (53.5 + 2))
    assert capsys.readouterr().out.count("| 1.3 |") == 2
