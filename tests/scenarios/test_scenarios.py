"""Every scenario of this folder comes true, on a real Postgres and through the product's own jobs."""

from pathlib import Path

import pytest

from fakes.postgres import database, dsn, postgres
from scenarios.language import Wrong, statements, tell

__all__ = ["database", "dsn", "postgres"]
FILES = sorted(Path(__file__).parent.glob("*.scenario"))


LONG_STORIES = (
    "ten_teams_a_month",
    "zone_",
    "closed_months",
    "idle_pool",
    "outage",
    "cost_",
    "owned",
    "disputed",
    "contest",
)
"""What the names of stories begin with that bill many days."""


def story(path: Path) -> object:
    """A story as a parameter, marked slow when it bills many days."""
    return pytest.param(
        path, id=path.stem, marks=[pytest.mark.slow] if path.stem.startswith(LONG_STORIES) else []
    )


@pytest.mark.parametrize("path", map(story, FILES))
def test_the_scenario_comes_true(path, dsn):
    """Each expectation of the story holds; a story without any is none."""
    assert tell(path, dsn) >= 1


def test_there_are_at_least_forty():
    """A number to keep: the corpus only grows."""
    assert len(FILES) >= 40


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("expect vision in 2026-10: 1 h", "0 rows of 'vision'"),
        (
            (
                "node n1: 1 x H100 from 2026-10-01\nprice any 1.00 USD from 2026-01-01\nnow"
                " 2026-10-02\nrate\nexpect (unobserved) in 2026-10: 23 h"
            ),
            "h is 24.000000, not 23",
        ),
        ("sing a song", "'sing' is no word that a line begins with"),
        ("price any one USD from 2026-01-01", "is not of the form"),
        (
            "node n1: 1 x H100 from 2026-10-01\njob 1 on n1/3 from 2026-10-01 to 2026-10-02",
            "n1/3 is not there",
        ),
        (
            'now 2026-10-02\nexpect refused "never": close 2026-10',
            "refused, but because 2026-10 is not over",
        ),
    ],
)
def test_what_does_not_come_true_fails_with_its_line(text, words, dsn, tmp_path):
    """A wrong expectation, an unknown word, a line that cannot be read: each names file and line."""
    path = tmp_path / "wrong.scenario"
    path.write_text(text)
    with pytest.raises(Wrong, match=r"wrong\.scenario:\d+: ") as error:
        tell(path, dsn)
    assert words in str(error.value)


def test_comments_and_continued_lines_are_one_statement():
    """The number is that of the line on which a statement begins."""
    assert statements("# a\nnow 2026-10-01 # b\n\njob 1 on n1/0\n  from 2026 to 2027\n") == [
        (2, "now 2026-10-01"),
        (4, "job 1 on n1/0 from 2026 to 2027"),
    ]
