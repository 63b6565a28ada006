"""`gpuledger plan` as people call it: the guide's commands run, numbers agree, what is wrong is one
sentence.
"""

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from fakes.processes import BIN, environment
from gpuledger_collector.cli import build
from gpuledger_collector.cli.plan_forms import big, decimal_bytes, gib, span

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]
GUIDE = ROOT / "docs" / "guides" / "plan.md"


def plan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "gpuledger", "plan", *arguments],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def guide_commands() -> list[str]:
    """The guide's commands without a ledger; `plan capacity` reads one (tests/postgres/foresight)."""
    blocks = re.findall(r"```\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.strip()]
    return [line for line in lines if not line.startswith("gpuledger plan capacity ")]


def called(capsys, line: str) -> str:
    """Run a command line in this process and give what it printed."""
    name, *arguments = shlex.split(line)
    assert name == "gpuledger"
    build()(arguments, standalone_mode=False)
    return capsys.readouterr().out


@pytest.mark.parametrize("line", guide_commands())
def test_the_commands_of_the_guide_run(capsys, line):
    """Each prints a page that ends with its notes, and as JSON finite numbers and the same notes."""
    text = called(capsys, line)
    record = json.loads(called(capsys, f"{line} --format json"), parse_constant=pytest.fail)
    assert record["notes"]
    assert all(f"- {note}" in text for note in record["notes"])


def test_the_guide_shows_every_command():
    """Memory, training, storage and network each have an example there."""
    assert {shlex.split(line)[2] for line in guide_commands()} == {
        "memory",
        "training",
        "storage",
        "network",
    }


def test_every_example_in_help_runs(capsys):
    """The example in the help of each command is one that works."""
    for command in ("memory", "training", "storage", "network"):
        shown = plan(command, "--help").stdout
        assert "Example:" in shown
        example = re.sub(r"\s+", " ", shown[shown.index("Example:") + 8 :]).strip()
        assert called(capsys, example)


def test_the_page_says_what_the_formulas_say(capsys):
    """Llama 2 70B with ZeRO 3 over 64 GPUs: 16 bytes a parameter over 64 ranks, two gathered layers
    beside.
    """
    record = json.loads(
        called(
            capsys,
            "gpuledger plan memory --architecture llama-2-70b --zero 3 --gpus 64 --format json",
        )
    )
    need = record["need_per_gpu"]
    parameters = 68_976_648_192
    assert need["optimizer_bytes"] == 12 * parameters / 64
    assert need["weights_bytes"] == pytest.approx(2 * parameters * (1 / 64 + 2 / 80))
    parts = [value for name, value in need.items() if name != "total_bytes"]
    assert need["total_bytes"] == pytest.approx(sum(parts))
    by_name = {fit["gpu_model"]: fit for fit in record["fits"]}
    assert by_name["B200"]["fits"] is (need["total_bytes"] <= by_name["B200"]["memory_bytes"])


def test_money_follows_the_rate(capsys):
    """Cost is GPU-hours by rate in text of minor units; without a rate it is unknown, not zero."""
    line = "gpuledger plan training --parameters 7B --tokens 1T --gpus 64 --format json"
    free = json.loads(called(capsys, line))
    assert free["rate"] is None
    assert [one["cost"] for one in free["outcomes"]] == [None] * 3
    priced = json.loads(called(capsys, f"{line} --rate 2.49 --currency EUR"))
    for one in priced["outcomes"]:
        assert float(one["cost"]) == pytest.approx(one["gpu_hours"] * 2.49, abs=0.005)


def test_a_run_that_does_not_fit_is_told_so(capsys):
    """405 B parameters need more than 8 H100 however thrifty; on 1,024 nothing is said."""
    line = "gpuledger plan training --architecture llama-3.1-405b --tokens 1T --gpus"
    assert "does not fit on 8 x H100" in called(capsys, f"{line} 8")
    assert "does not fit" not in called(capsys, f"{line} 1024")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("memory", "--parameters"),
        ("memory --parameters seventy", "'seventy'"),
        ("memory --parameters -3", "'-3'"),
        ("memory --architecture llama-9", "llama-2-70b"),
        ("memory --parameters 1e300", "1e18"),
        ("memory --layers 4", "--hidden"),
        ("memory --parameters 7B --zero 4", "not 4"),
        ("memory --parameters 7B --gpus 3 --tensor 2", "no multiple"),
        ("memory --parameters 7B --precision fp3", "'fp3'"),
        ("memory --parameters 7B --context 1parsec", "'1parsec'"),
        ("memory --parameters 7B --inference --gpus 8", "--gpus 8"),
        ("training --parameters 7B --tokens 1T --gpu-model H900", "'H900'"),
        ("training --parameters 7B --tokens 1T --gpu-model V100-32GB", "no bf16"),
        ("training --parameters 7B --tokens 1T --mfu 1.2", "'1.2'"),
        ("training --parameters 7B --tokens 1T --mfu 0.5-0.3", "'0.5-0.3'"),
        ("training --parameters 7B --tokens 1T --rate nan", "'nan'"),
        ("training --parameters 7B --tokens 1T --rate 2 --currency usd", "'usd'"),
        ("training --parameters 7B --tokens 1T --gpus 900000 --mtbf 1", "would make no progress"),
        ("training --parameters 7B --tokens 1T --every soon", "'soon'"),
        ("training --parameters 7B --tokens 1T --owner team=x", "--save-budget"),
        ("training --parameters 7B --tokens 1T --save-budget b --owner team=x", "--rate"),
        ("training --parameters 7B --tokens 1T --rate 2 --save-budget b", "--owner"),
        (
            "training --parameters 7B --tokens 1T --rate 2 --save-budget b --owner tribe=x",
            "'tribe=x'",
        ),
        ("storage --parameters 7B --stall 2", "--stall"),
        ("storage --parameters 7B --optimizer lion", "'lion'"),
        ("network --parameters 7B --network string", "'string'"),
        ("network --message 0GB", "'0GB'"),
        ("network --parameters 7B --efficiency 3", "efficiency"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(line, said):
    """Exit code 2, the sentence names the option or what was wrong, no traceback, nothing on
    standard output.
    """
    answer = plan(*shlex.split(line))
    assert answer.returncode == 2, answer.stderr
    assert said in answer.stderr
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1


def test_numbers_are_written_with_units_that_suit_them():
    """Three digits or so, in the unit that makes them readable."""
    assert [decimal_bytes(value) for value in (0, 512, 999.6, 16384, 980e9, 5e15)] == [
        "0 B",
        "512 B",
        "1 kB",
        "16.4 kB",
        "980 GB",
        "5 PB",
    ]
    assert [big(value) for value in (7, 1500, 68_976_648_192, 1.4e12)] == [
        "7",
        "1.5 k",
        "68.98 B",
        "1.4 T",
    ]
    assert [span(value) for value in (3e-6, 0.0064, 4.65, 1091, 11135, 2e6)] == [
        "3 µs",
        "6.4 ms",
        "4.65 s",
        "18.2 min",
        "3.09 h",
        "23.1 days",
    ]
    assert [gib(value) for value in (2**30, 2**44)] == ["1.0 GiB", "16.0 TiB"]
