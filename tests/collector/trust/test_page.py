"""docs/security.md names tests; each of them is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_every_test_that_the_page_names_exists():
    """A row of the table without its proof would be a promise only."""
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/.]+)::(\w+)`", page)
    assert len(named) >= 25
    for file, name in named:
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), (file, name)
    table = page.split("## Threats")[1].split("## Not promised")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| Threat")]
    assert all("::" in row for row in rows)
