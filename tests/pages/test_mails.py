"""The mails as a phone and a desk show them: nothing hangs over the edge, and both parts tell the
same numbers.
"""

import email
import email.policy
import html
import re
from pathlib import Path

import pytest

POSTGRES = Path(__file__).parents[1] / "postgres"
MAILS = {
    "budget": POSTGRES / "budgets" / "golden" / "forecast-100.eml",
    "idle-owner": POSTGRES / "notifications" / "golden" / "idle-owner.eml",
    "week": POSTGRES / "notifications" / "golden" / "summary.eml",
    "digest": POSTGRES / "notifications" / "golden" / "digest.eml",
}


def parts(name):
    """The text part and the HTML part of a mail, as its golden file has them."""
    message = email.message_from_bytes(MAILS[name].read_bytes(), policy=email.policy.default)
    return tuple(message.get_body((kind,)).get_content() for kind in ("plain", "html"))


def numbers(text):
    """Every number that a reader sees, with its sign and its thousands; addresses are not read."""
    words = re.sub(r"\bhttps?://\S+", " ", text)
    return set(re.findall(r"[+-]?\d[\d,.:]*(?<![,.:])", words))


def shown(page):
    """What of a page of HTML stands before the reader's eyes."""
    body = page.partition("</head>")[2]
    return html.unescape(re.sub(r"<[^>]*>", " ", body))


@pytest.mark.parametrize("name", MAILS)
def test_both_parts_tell_the_same_numbers(name):
    """Neither says a number that the other leaves out, whichever of them is shown."""
    text, page = parts(name)
    assert numbers(text) == numbers(shown(page))
    assert len(numbers(text)) > 5


def test_a_number_that_one_part_lacks_is_noticed():
    """The comparison can fail: a cent more in one part."""
    text, page = parts("budget")
    assert numbers(text.replace("15,200.12", "15,200.13")) != numbers(shown(page))


@pytest.mark.parametrize(
    ("name", "width"),
    [
        *((name, width) for name in ("budget", "idle-owner", "week") for width in (390, 700)),
        ("digest", 390),
    ],
)
def test_it_is_good_to_look_at(pictured, name, width):
    """On a phone and in a desk's reading pane: nothing hangs over the edge, and there is something
    to see.
    """
    picture, wanted = pictured(parts(name)[1], width)
    assert wanted <= width
    assert picture.stat().st_size > 15_000
