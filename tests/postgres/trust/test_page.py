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
        assert re.search(
            rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE
        ), (file, name)


def test_each_of_the_eighteen_threats_stands_once_with_its_tests():
    """Numbered as in the study of threats; each says whether it is held or mitigated, and every
    attack names a test.
    """
    page = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    chapter = page.split("## Threats, and what answers them")[1].split("\n## ")[0]
    threats = re.split(r"^### ", chapter, flags=re.MULTILINE)[1:]
    assert [int(threat.partition(".")[0]) for threat in threats] == list(range(1, 19))
    for threat in threats:
        name, said, *rest = [line for line in threat.splitlines() if line]
        assert re.match(r"Held\b|Mitigated\. [A-Z]", said), name
        attacks = [
            line for line in rest if line.startswith("| ") and not line.startswith("| Attack")
        ]
        assert attacks, name
        assert all("::" in line.split("|")[3] for line in attacks), name
