"""Owners whose names are as long as a message may have them."""

import random

import pytest

from fakes.batches import accelerator, workload
from fakes.facts import AUGUST_MS
from gpuledger_collector.accounting.owner_tree import LEVELS

RARE = random.Random(1)


def rare(characters):
    """Characters of four bytes that nothing compresses."""
    return "".join(chr(RARE.randrange(0x20000, 0x2A6D0)) for _ in range(characters))


@pytest.mark.parametrize("levels", [("team",), LEVELS])
def test_no_name_keeps_others_from_their_bill(world, tmp_path, levels):
    """An index of owners holds none of these: each level is cut, and everybody is billed."""
    world.price()
    world.hold(AUGUST_MS, 1, team="alpha")
    tags = {level: rare(4000) for level in levels}
    facts = {"user": rare(1000), "account": rare(1000), "name": rare(1000), "job": rare(1000)}
    world.send("n2", [accelerator(1, "n2")], AUGUST_MS, workload(rare(250), tags=tags, **facts))
    bill = world.bill("2026-08")
    assert bill.pop("alpha") == ("1.000000", "10.00")
    (cut,) = {name for name in bill if not name.startswith("(")}
    assert tags["team"].startswith(cut)
    assert bill[cut] == ("1.000000", "10.00")
    world.run("runs", "--period", "2026-08", "--by", "job")
    world.run("statement", "--all", "--period", "2026-08", "--dir", tmp_path)
    world.run("close", "--period", "2026-08")
    world.run("periods", "--verify", "2026-08")
