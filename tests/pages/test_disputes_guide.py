"""docs/guides/disputes.md: its commands run as they stand, one after the other, and end as it says."""

import hashlib
import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fakes.fleet import DAY, Held
from gpuledger_collector.accounting.provider_bill import KINDS
from gpuledger_collector.cli import build

pytestmark = pytest.mark.slow

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "disputes.md").read_text()
HEADER = (
    "ProviderName,BilledCost,EffectiveCost,BillingCurrency,BillingPeriodStart,BillingPeriodEnd,ChargeCategory,"
    "ChargePeriodStart,ChargePeriodEnd,SkuId,PricingQuantity,PricingUnit\n"
)
ROW = "Big Cloud,{cost},{cost},USD,2025-10-01T00:00:00Z,2025-11-01T00:00:00Z,{kind},{day}T00:00:00Z,{next}T00:00:00Z,"
BILL = (
    HEADER
    + (ROW + "gpu.2x.large,24,Hours\n").format(
        cost="100.00", kind="Usage", day="2025-10-01", next="2025-10-02"
    )
    + (ROW + "gpu.2x.large,30,Hours\n").format(
        cost="120.00", kind="Usage", day="2025-10-02", next="2025-10-03"
    )
    + (ROW + "network.out,7,GB\n").format(
        cost="0.70", kind="Usage", day="2025-10-01", next="2025-10-02"
    )
    + (ROW + ",,\n").format(cost="19.00", kind="Tax", day="2025-10-01", next="2025-11-01")
)


def commands():
    """Every command of the guide with the exit code that it is said to end with."""
    plain = re.sub(r"^```toml\n.*?^```\n", "", GUIDE, flags=re.S | re.M)
    for block in re.findall(r"^```\n(.*?)^```", plain, re.S | re.M):
        for line in filter(str.strip, block.splitlines()):
            said = re.search(r"# ends with (\d)", line)
            yield shlex.split(line, comments=True), int(said[1]) if said else 0


@pytest.fixture
def example(fleet, run, tmp_path, monkeypatch):
    """Two GPUs at 2.00 over two days, held by vision's jobs 1 and 2; the cloud billed more of both."""
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    for number in (1, 2):
        fleet.capacity(number, 0, 2 * DAY)
        fleet.workload(number, team="vision")
    fleet.evidence(
        [
            Held(1, 1, 0, 2 * DAY, busy=DAY),
            Held(2, 2, 0, DAY),
            Held(2, None, DAY, 2 * DAY, "unallocated"),
        ]
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bigcloud-2025-10.csv").write_text(BILL)
    (toml,) = re.findall(r"^```toml\n(.*?)^```", GUIDE, re.S | re.M)
    (tmp_path / "bill.toml").write_text(toml)
    return run


def test_the_guide_is_true(example, tmp_path):
    """The decisions move what the guide says, the seal is the file's, the bill's kinds are as
    reckoned by hand.
    """
    said = {}
    for (program, *arguments), code in commands():
        assert program == "gpuledger"
        if arguments[:2] == ["focus", "check"]:
            result = CliRunner().invoke(build(), arguments)
            ended, out, err = result.exit_code, result.stdout, result.stderr
        else:
            ended, out, err = example(*arguments)
        assert ended == code, (arguments, out, err)
        said[" ".join(arguments)] = out
    assert len(said) > 18
    page = said["disputes show 1 --evidence dispute-1.json"]
    assert hashlib.sha256((tmp_path / "dispute-1.json").read_bytes()).hexdigest() in page
    content = json.loads((tmp_path / "dispute-1.json").read_text())
    assert {row["workload"] for row in content["usage_intervals"]["rows"]} == {"slurm::2"}
    october = said["chargeback --from 2025-10-01 --to 2025-11-01"]
    assert re.search(r"vision +48\.0 .*96\.00", october)
    assert re.search(r"speech +24\.0 .*48\.00", october)
    second = said["disputes show 2"]
    assert "now team=vision pays 0.00 USD of it" in second
    assert "2025-10 was closed, its seal is" in second
    kinds = said["reconcile --period 2025-10 --bill Big Cloud"]
    for amount, kind in (("4", "price"), ("24", "unobserved"), ("19", "tax"), ("0.7", "left out")):
        assert re.search(rf"{kind} +{re.escape(amount)} USD", kinds), kinds
    assert (tmp_path / "october.parquet").stat().st_size > 0


def test_every_kind_of_difference_is_explained():
    """The table names those of the code and no other."""
    cells = re.findall(r"^\| (`.*?`) \|", GUIDE, re.M)
    assert {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)} == set(KINDS)
