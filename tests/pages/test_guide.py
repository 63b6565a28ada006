"""docs/guides/analyst.md: its commands run as they stand, and the example's numbers are what the
tool says.
"""

import re
import shlex
from pathlib import Path

import pytest

from fakes.fleet import DAY, HOUR, Held
from fakes.pages import Page

pytestmark = pytest.mark.slow

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "analyst.md"


@pytest.fixture
def example(fleet, run):
    """The guide's team: 100 hours of an H100 in both months, cheaper in the second, and 40 new
    hours of an L4.
    """
    run(
        "prices",
        "set",
        "--rate",
        "2.00",
        "--currency",
        "USD",
        "--model",
        "H100",
        "--from",
        "2025-01-01",
    )
    run(
        "prices",
        "set",
        "--rate",
        "1.90",
        "--currency",
        "USD",
        "--model",
        "H100",
        "--from",
        "2025-10-01",
    )
    run(
        "prices",
        "set",
        "--rate",
        "0.85",
        "--currency",
        "USD",
        "--model",
        "L4",
        "--from",
        "2025-01-01",
    )
    fleet.accelerator(2, model="NVIDIA L4")
    for number in (1, 2):
        fleet.capacity(number, -30 * DAY, 31 * DAY)
    for number, name in ((1, "train"), (2, "eval")):
        fleet.workload(number, team="vision", project="detector")
        fleet.connection.execute(
            "UPDATE workload SET name = %s WHERE external_id = %s", (name, str(number))
        )
    for start in (-30 * DAY, 0):
        fleet.evidence(
            [
                Held(1, 1, start + day * DAY, start + day * DAY + 10 * HOUR, busy=HOUR)
                for day in range(10)
            ]
        )
    fleet.evidence([Held(2, 2, day * DAY, day * DAY + 4 * HOUR, idle=HOUR) for day in range(10)])
    return fleet


def commands():
    """Every line of the guide's blocks that is a command."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```", GUIDE.read_text(), re.S | re.M)
    blocks = [text for language, text in fenced if not language]
    return [
        shlex.split(line, comments=True)
        for block in blocks
        for line in block.splitlines()
        if line.strip()
    ]


def test_the_guide_is_true(example, run, tmp_path, monkeypatch):
    """Every command ends well; the sentence that the guide quotes stands in the statement, number
    by number.
    """
    monkeypatch.chdir(tmp_path)
    found = commands()
    assert len(found) > 8
    for program, *arguments in found:
        assert program == "gpuledger"
        code, out, err = run(*arguments)
        assert code == 0, (arguments, out, err)
    page = Page((tmp_path / "vision.html").read_text())
    assert page.faults == []
    for words in (
        "You pay 224.00 USD",
        "2025-09-01 to 2025-09-30 200.00 USD",
        "Change +24.00 USD +12 %",
        "of it by price -10.00",
        "by volume (GPU-hours) +80.00",
        "by mix (dearer or cheaper GPUs) -46.00",
    ):
        assert words in page.text, page.text[:1500]
    (table,) = [one for one in page.tables if one.rows[0][-1] == "change, USD"]
    assert [(row[0].split()[0], row[-1]) for row in table.rows[1:]] == [
        ("eval", "+34.00"),
        ("train", "-10.00"),
    ]
    assert (tmp_path / "statements" / "vision.html").is_file()
    assert (tmp_path / "projects" / "detector.html").is_file()
