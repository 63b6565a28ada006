"""What the surfaces of the rich ledger say of a month: commands, and sums of their rows by team and
currency.
"""

import ast
import csv
import io
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from fakes.rich_ledger import CLOSED, OPEN, TEAMS

OWNERS = sorted(team for team, _ in TEAMS.values())
MONTHS = [CLOSED, OPEN]
CENT, MICRO = Decimal("0.01"), Decimal(10) ** 6


class Surfaces:
    """What the surfaces of one ledger say of a month: amounts by team and currency."""

    def __init__(self, run, dsn, folder):
        self.run, self.dsn, self.folder = run, dsn, folder

    def out(self, *arguments):
        code, out, err = self.run(*arguments)
        assert code == 0, (arguments, out, err)
        return out

    def bill(self, month, by="team", *more):
        return json.loads(
            self.out("chargeback", "--period", month, "--by", by, "--format", "json", *more)
        )

    def rows(self, month, *more):
        """Sums of the rows of each team and currency: of the period's own time and of corrections
        together.
        """
        sums = defaultdict(lambda: defaultdict(Decimal))
        for row in self.bill(month, "team", *more)["rows"]:
            if row["team"] in OWNERS:
                for name in ("cost", "cost_total"):
                    sums[row["team"], row["currency"]][name] += Decimal(row[name])
                for name in ("cost_micro", "shared_cost_micro", "adjusted_cost_micro"):
                    sums[row["team"], row["currency"]][name] += row[name] or 0
        return sums

    def direct(self, month, *more):
        return {key: row["cost"] for key, row in self.rows(month, *more).items()}

    def total(self, month):
        return {key: row["cost_total"] for key, row in self.rows(month).items()}


@pytest.fixture
def ledger(rich, run, dsn, tmp_path):
    return Surfaces(run, dsn, tmp_path)


def table(text, delimiter=","):
    return list(csv.DictReader(io.StringIO(text), delimiter=delimiter))


def added(pairs):
    """Sums by team and currency of those who are teams."""
    sums = defaultdict(Decimal)
    for team, currency, amount in pairs:
        if team in OWNERS:
            sums[team, currency] += Decimal(amount)
    return dict(sums)


TESTS = Path(__file__).parent.parent


def cited_nowhere(reasons: Iterable[str]) -> set[str]:
    """Files and folders of tests that these reasons name and that do not exist."""
    named = set(re.findall(r"tests/[\w/.]*\w|\btest_\w+\.py", " ".join(reasons)))
    return {
        name for name in named if not ((TESTS.parent / name).exists() or any(TESTS.rglob(name)))
    }


PAGES = ("collector/gpuledger_collector/templates", "collector/gpuledger_collector/notifications")
"""Folders with templates of pages and mails."""
SPEAKING = ("export", "api", "cli", "notifications", "mcp", "insight", "services", "config")
"""Packages of the collector whose sentences people read."""
ANSWERS = TESTS / "postgres" / "golden" / "answers"


def spoken_texts() -> Iterator[tuple[str, str]]:
    """What the surfaces say, with where it stands: templates, boards, sentences in code, and whole
    answers of commands, addresses, pages and assistants.
    """
    root = TESTS.parent
    whole = [
        *(
            path
            for folder in PAGES
            for path in (root / folder).rglob("*.*")
            if path.suffix != ".py"
        ),
        *(root / "dashboards" / "json").glob("*.json"),
        *(path for path in ANSWERS.rglob("*") if path.is_file()),
    ]
    for path in whole:
        if "__pycache__" not in path.parts:
            yield str(path.relative_to(root)), path.read_text(encoding="utf-8")
    for package in SPEAKING:
        for path in (root / "collector" / "gpuledger_collector" / package).rglob("*.py"):
            for text in _sentences(ast.parse(path.read_text(encoding="utf-8"))):
                yield str(path.relative_to(root)), text


def statement_cards() -> set[str]:
    """The cards of a statement, by the ids of their headings."""
    template = (TESTS.parent / PAGES[0] / "statement.html").read_text(encoding="utf-8")
    return set(re.findall(r'<section[^>]* aria-labelledby="([a-z]+)', template))


def _sentences(module: ast.Module) -> Iterator[str]:
    """Texts of a module that are no docstrings."""
    docstrings = {id(node.value) for node in ast.walk(module) if isinstance(node, ast.Expr)}
    for node in ast.walk(module):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            yield node.value
