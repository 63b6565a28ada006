"""The script that says independently what tenants pay: a day small enough to check by hand."""

import json
import subprocess
import sys

import pytest

from fakes import who_asked

AT_MS = 1_792_400_000_000
DAY = "2026-10-19"


def work(number, prompt, cached, output, outcome="stop"):
    tokens = {"prompt": prompt, "cached": cached, "output": output}
    return {"id": f"r{number}", "ended_ms": AT_MS + number, "outcome": outcome, **tokens}


def ask(folder, idle, charge_micro=1_000_000):
    """Vision asks for 100 computed and 100 cached tokens and 10 generated ones, a key without a team
    for 50 computed; a failed attempt computed 40 for nobody.

    Runs without any installed package, the product among them.
    """
    server = [work(1, 200, 100, 10), work(2, 50, 0, 0), work(3, 40, 0, 0, "error")]
    clients = [{"id": "r1", "team": "vision"}, {"id": "r2", "team": None}]
    for name, rows in {"server": server, "clients": clients}.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    question = {
        "server": str(folder / "server"),
        "clients": str(folder / "clients"),
        "weights": ["1", "0.1", "4"],
        "idle": idle,
        "days": {DAY: {"charge_micro": charge_micro, "busy_ms": 1_800_000, "held_ms": 3_600_000}},
    }
    (folder / "question.json").write_text(json.dumps(question))
    printed = subprocess.run(
        [sys.executable, "-IS", who_asked.__file__, folder / "question.json"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = [json.loads(line) for line in printed.splitlines()]
    return {row["tenant"]: (row["used_micro"], row["idle_micro"]) for row in rows}


def test_a_day_by_hand(tmp_path) -> None:
    """Weighted 100 + 10 + 40 = 150 of vision, 50 without a team, 40 of nobody: of 500,000 each way."""
    assert ask(tmp_path, "tokens") == {
        "vision": (312_500, 312_500),
        "(unattributed)": (104_167, 104_167),
        "(nobody)": (83_333, 83_333),
    }
    assert ask(tmp_path, "platform") == {
        "vision": (312_500, 0),
        "(unattributed)": (104_167, 0),
        "(nobody)": (83_333, 0),
        "(platform)": (0, 500_000),
    }


@pytest.mark.parametrize("charge_micro", [0, 1, 2, 999_999])
def test_nothing_is_lost(tmp_path, charge_micro) -> None:
    """Parts add up to the charge."""
    parts = ask(tmp_path, "tokens", charge_micro)
    assert sum(used + idle for used, idle in parts.values()) == charge_micro
