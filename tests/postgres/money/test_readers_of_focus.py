"""A month's FOCUS file in pandas and DuckDB, by the lines of the analysts' guide: the invoices'
cents, exactly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from fakes.fleet import DAY, HOUR, Fleet, Held

pytestmark = pytest.mark.slow
MONTH = ("--from", "2025-10-01", "--to", "2025-11-01")
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "analyst.md"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def invoices(
    fleet: Fleet, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[tuple[str, str], str]:
    """The invoices of a closed month as its receipt has them, with its FOCUS file in the working
    folder.
    """
    run("prices", "set", "--rate", "2.333333333", "--currency", "USD", "--from", "2025-01-01")
    run(
        "prices",
        "set",
        "--rate",
        "1.7",
        "--currency",
        "EUR",
        "--pool",
        "eu",
        "--from",
        "2025-01-01",
    )
    fleet.accelerator(3, gpu_micro=333_333)
    for number, pool in ((1, "us"), (2, "eu"), (3, "us")):
        fleet.capacity(number, 0, 3 * DAY, pool=pool)
    for day in range(3):
        at = day * DAY
        fleet.evidence(
            [
                Held(1, 1, at, at + HOUR - 7),
                Held(2, 2, at, at + 5 * HOUR + 1),
                Held(3, 1, at + HOUR, at + 2 * HOUR + 333),
                Held(3, 2, at + 3 * HOUR, at + 4 * HOUR - 1),
            ]
        )
    code, out, err = run("close", "--period", "2025-10", "--format", "json", "--allow-unpriced")
    assert code == 0, err
    monkeypatch.chdir(tmp_path)
    assert run("chargeback", *MONTH, "--format", "focus", "-o", tmp_path / "october.csv")[0] == 0
    found = {(one["owner"], one["currency"]): one["amount"] for one in json.loads(out)["invoices"]}
    assert len(found) > 4
    assert any(Decimal(amount) % 1 for amount in found.values())
    return found


def lines(language: str) -> str:
    """The guide's code in a language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return str(text)


def test_pandas_gives_the_cents(invoices: dict[tuple[str, str], str]) -> None:
    """Read as text and added up as decimals, nothing is left to round."""
    names: dict[str, Any] = {}
    exec(lines("python"), names)
    sums = names["owners"].to_dict()
    assert {
        (owner.removeprefix("'"), currency): amount for (owner, currency), amount in sums.items()
    } == {key: Decimal(amount) for key, amount in invoices.items()}
    assert all(isinstance(amount, Decimal) for amount in sums.values())


def test_duckdb_gives_the_cents(invoices: dict[tuple[str, str], str]) -> None:
    """Costs declared as DECIMAL are read exactly; the sums are DECIMAL too."""
    rows = duckdb.connect().execute(lines("sql")).fetchall()
    assert {(owner.removeprefix("'"), currency): amount for owner, currency, amount in rows} == {
        key: Decimal(amount) for key, amount in invoices.items()
    }
    assert all(isinstance(amount, Decimal) for *_, amount in rows)
