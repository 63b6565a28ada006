"""Budget mails as people get them: golden files, figures that add up, and nothing that can break
out of its place.
"""

from __future__ import annotations

import email
import email.policy
import os
import re
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuledger_collector.accounting.budget_status import Ahead, News, Spend, Status
from gpuledger_collector.accounting.budgets import (
    ACTUAL,
    FIRING,
    FORECAST,
    PACE,
    Alert,
    Budget,
    HolderSpend,
    Terms,
    drivers,
    top,
)
from gpuledger_collector.accounting.money import MICRO
from gpuledger_collector.accounting.period import (
    DAY_MS,
    HOUR_MS,
    Calendar,
    Period,
    Zone,
    date_range,
    parse_date,
    parse_instant,
)
from gpuledger_collector.insight.notifications.messages import (
    Content,
    Message,
    is_address,
    is_recipient,
)
from gpuledger_collector.notifications.budget_mail import write
from gpuledger_collector.notifications.links import AckLinks, PageLinks
from gpuledger_collector.notifications.mime import compose

GOLDEN = Path(__file__).parent / "golden"
NOVEMBER = date_range("2026-11-01", "2026-12-01")
NOON = parse_instant("2026-11-12T12:00:00Z")
TERMS = Terms((50, 80, 100), (100,), 200, ("lead@example.com",), ("head@example.com",))
HOUR = 3_600_000_000_000
NO_BREAK = "\u00a0"


def budget(name: str = "vision", amount: int = 40_000, currency: str = "USD") -> Budget:
    return Budget(7, name, {"team": "vision"}, "month", None, amount * MICRO, currency, TERMS)


def status(spent: int, of: Budget, *, ahead: bool = True, at_ms: int = NOON) -> Status:
    end = parse_date("2026-11-21")
    estimate = Ahead(
        57_000 * MICRO,
        61_234 * MICRO,
        66_400 * MICRO,
        58_000 * MICRO,
        41,
        end - DAY_MS,
        end,
        end + DAY_MS,
    )
    spend = Spend(spent * MICRO + 123_456, 4_321_987_654, 5_000 * HOUR, 12 * HOUR, 0)
    return Status(of, NOVEMBER, at_ms, at_ms, spend, estimate if ahead else None, (231, 204))


def held(label: str, model: str, hours: int, price_cents: int) -> HolderSpend:
    return HolderSpend(
        (label, "ada", "detector"), model, hours * HOUR, hours * price_cents * 10_000 + 7
    )


BEFORE = [
    held("train-yolo", "H100", 900, 595),
    held("eval-nightly", "A100", 300, 343),
    held("notebook-3", "L4", 40, 80),
]
AFTER = [
    held("train-yolo", "H100", 1_900, 688),
    held("eval-nightly", "A100", 290, 343),
    held("notebook-3", "L4", 44, 80),
    held("sweep-a", "H100", 210, 688),
    held("sweep-b", "H100", 190, 688),
    held("sweep-c", "H100", 17, 688),
]


def news(rule: str, percent: int, standing: Status, **more) -> News:
    changed = top(drivers(BEFORE, AFTER), 5)
    end = standing.known_ms - standing.known_ms % DAY_MS
    windows = (Period(end - 14 * DAY_MS, end - 7 * DAY_MS), Period(end - 7 * DAY_MS, end))
    alert = Alert(rule, percent, FIRING, 1, standing.at_ms, standing.at_ms)
    return News(
        alert, more.pop("also", ()), standing, *windows, tuple(changed), since_mail=True, **more
    )


CASES = {
    "forecast-100": news(FORECAST, 100, status(15_200, budget())),
    "actual-80": news(
        ACTUAL, 80, status(33_400, budget()), also=(Alert(ACTUAL, 50, FIRING, 1, NOON, NOON),)
    ),
    "actual-100": news(ACTUAL, 100, status(40_950, budget())),
    "escalated": news(
        ACTUAL, 100, status(41_800, budget(), at_ms=NOON + 25 * HOUR_MS), escalated=True
    ),
    "pace-200-young": news(PACE, 200, status(2_100, budget(), ahead=False)),
    "first-days": replace(
        news(ACTUAL, 80, status(33_400, budget())),
        before=None,
        drivers=tuple(top(drivers([], AFTER), 5)),
        since_mail=False,
        shortened=True,
    ),
    "few-days": replace(
        news(ACTUAL, 80, status(33_400, budget())), since_mail=False, shortened=True
    ),
    "yen": news(ACTUAL, 50, status(33_400, budget("視覚 Büro <b>", 60_000, "JPY"))),
}
COMPARED = [name for name, one in CASES.items() if one.before is not None]


def mail(name: str) -> bytes:
    links = AckLinks("https://gpuledger.example.com/", b"k" * 32) if name == "actual-100" else None
    pages = PageLinks("https://gpuledger.example.com/") if name in {"actual-100", "yen"} else None
    content = write(CASES[name], links, pages)
    made = Message(
        f"budget/7/{name}", "budget", "lead@example.com", content, NOON, NOON, "budget/7"
    )
    return bytes(compose(made, "ledger@example.com"))


@pytest.mark.parametrize("name", CASES)
def test_mails_are_the_golden_ones(name: str) -> None:
    """Byte for byte; GPULEDGER_GOLDEN=write writes them anew, for a person to look at."""
    path = GOLDEN / f"{name}.eml"
    if os.environ.get("GPULEDGER_GOLDEN") == "write":
        path.write_bytes(mail(name))
    assert mail(name) == path.read_bytes()


@pytest.mark.parametrize("name", COMPARED)
def test_the_shown_drivers_add_up(name: str) -> None:
    """The CSV's amounts add up to the change of the two windows, in micro-units."""
    rows = write(CASES[name]).attachments["drivers.csv"].splitlines()[1:]
    changes = [int(row.split(",")[6].replace(".", "")) for row in rows]
    assert sum(changes) == sum(one.cost_micro for one in AFTER) - sum(
        one.cost_micro for one in BEFORE
    )
    assert len(rows) == 6


@pytest.mark.parametrize("name", CASES)
def test_text_and_html_tell_the_same(name: str) -> None:
    """Every amount of the text stands in the HTML, which loads nothing from elsewhere."""
    content = write(CASES[name])
    for amount in re.findall(r"\d[\d,]*\.\d\d|\d+ %", content.text):
        assert amount in content.html.replace(NO_BREAK, " "), amount
    assert not re.search(r"(src|href|url)\s*[=(]", content.html)
    assert max(map(len, content.text.splitlines())) <= 88


def test_without_days_before_what_was_spent_is_told() -> None:
    """Rows and the shown sum are what was spent; nothing is called a change, and no cell of it is
    filled.
    """
    content = write(CASES["first-days"])
    spent = sum(one.cost_micro for one in AFTER)
    rows = [row.split(",") for row in content.attachments["drivers.csv"].splitlines()[1:]]
    assert sum(int(row[5].replace(".", "")) for row in rows) == spent
    assert {cell for row in rows for at, cell in enumerate(row) if at in {4, 6, 7, 8, 9}} == {""}
    assert f"Where it went since the period began: {spent / MICRO:,.2f} USD" in content.text
    assert not re.search(r"changed|no change|mix|\+\d", content.text)


@pytest.mark.parametrize("name", COMPARED)
def test_what_a_reader_adds_up_is_right(name: str) -> None:
    """The shown changes add up to the shown change, the shown parts to each of them and to the
    whole, to the cent.
    """

    def units(text: str) -> int:
        return int(re.sub(r"[^\d-]", "", text))

    text = write(CASES[name]).text
    amount, direction = re.search(r"cost\s+(\S+)\s+\S+\s+(more|less)\s+than", text).groups()
    total = units(amount) * (1 if direction == "more" else -1)
    changes = [
        units(found) for found in re.findall(r"^  ([+-]\S+) (?:USD|JPY)  ", text, re.MULTILINE)
    ]
    parts = [
        sum(units(part.split(" ")[1]) for part in line.split("; "))
        for line in re.findall(r"^      ((?:price|volume|mix) .*)$", text, re.MULTILINE)
    ]
    whole = sum(
        units(part.split(" ")[1])
        for part in re.search(r"^Of it: (.*)$", text, re.MULTILINE)[1].split("; ")
    )
    assert changes == parts
    assert sum(changes) == whole == total


def test_a_name_cannot_break_out() -> None:
    """Newlines, tags and formulas in names stay text: in the subject, in the HTML and in the CSV."""
    evil = "x\r\nBcc: all@example.com\n\n<script>alert(1)</script>"
    standing = status(33_400, budget(evil))
    told = news(ACTUAL, 80, standing)
    label = ("=HYPERLINK(1)", "<img src=x>", "p\nq")
    told = News(
        told.alert,
        (),
        standing,
        told.before,
        told.after,
        tuple(drivers([], [HolderSpend(label, "H100", HOUR, 9)])),
        True,
    )
    content = write(told)
    made = compose(Message("k", "budget", "lead@example.com", content, 0, 0), "ledger@example.com")
    read = email.message_from_bytes(bytes(made), policy=email.policy.default)
    assert read["Bcc"] is None
    assert "\n" not in read["Subject"]
    assert "<script>" not in content.html
    assert "<img" not in content.html
    assert "'=HYPERLINK(1)" in content.attachments["drivers.csv"]


@settings(deadline=None)
@given(st.text(max_size=300), st.text(max_size=80))
def test_any_text_makes_a_mail_with_its_own_headers_only(subject: str, key: str) -> None:
    """Whatever a subject holds, the headers are ours, and the mail can be read back."""
    made = Message(
        key.encode("utf-8", "replace").decode(), "test", "a@b.example", Content(subject, "x"), 0, 0
    )
    read = email.message_from_bytes(
        bytes(compose(made, "ledger@example.com")), policy=email.policy.default
    )
    wanted = {
        "From",
        "To",
        "Subject",
        "Date",
        "Message-ID",
        "Auto-Submitted",
        "X-Auto-Response-Suppress",
    }
    assert (
        set(read.keys()) - {"MIME-Version", "Content-Type", "Content-Transfer-Encoding"} == wanted
    )
    assert read.get_content().strip() == "x"


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("a@b.example", True),
        ("a.b+c@mail.b.example", True),
        ("a@b\nBcc: c@d", False),
        ("A <a@b>", False),
        ("a@", False),
        ("a@b,c@d", False),
        ("", False),
        ("@b", False),
        ("ä@b.example", False),
    ],
)
def test_addresses(text: str, good: bool) -> None:
    """Only plain ASCII addresses are recipients; hooks are named."""
    assert is_address(text) is good
    assert is_recipient("slack:ops")
    assert not is_recipient("slack:https://x")


def test_days_are_those_of_the_billing_zone() -> None:
    """A month of Berlin with the night that has 25 hours: its first, its last and today's date, and
    its command.
    """
    days = Calendar((Zone("Europe/Berlin", ZoneInfo("Europe/Berlin")),))
    october = days.month("2026-10")
    of = replace(budget(), calendar=days)
    noon = october.end_ms - DAY_MS // 2
    standing = replace(status(33_400, of, ahead=False), period=october, at_ms=noon, known_ms=noon)
    one = replace(news(ACTUAL, 80, standing), before=october, after=october)
    content = write(one)
    assert "on day 31 of 31" in content.subject
    assert "1 Oct to 31 Oct, day 31 of 31" in content.text
    assert "--from 2026-10-01 --to 2026-11-01" in content.text


@pytest.mark.parametrize(
    ("spent", "ahead", "more", "words"),
    [
        (40_950, True, False, "USD less than the week before, still over the budget"),
        (40_950, True, True, "USD more than the week before, over the budget"),
        (33_400, True, False, "USD less than the week before, still heading over the budget"),
        (33_400, False, False, "USD less than the week before"),
    ],
)
def test_a_comparison_is_said_in_words(spent: int, ahead: bool, more: bool, words: str) -> None:
    """That a week was cheaper does not hide that the budget is spent, or will be."""
    changed = drivers(BEFORE, AFTER) if more else drivers(AFTER, BEFORE)
    told = replace(news(ACTUAL, 80, status(spent, budget(), ahead=ahead)), drivers=tuple(changed))
    line = next(
        part
        for part in write(told).text.split("\n\n")
        if part.startswith("The week since the last mail cost")
    )
    assert " ".join(line.partition("(")[0].split()).endswith(words)


def test_the_first_link_is_the_page() -> None:
    """The owner's month, before everything else; for the whole fleet the overview, and none without
    an address.
    """
    pages = PageLinks("https://gpuledger.example.com/")
    told = CASES["actual-80"]
    content = write(told, AckLinks("https://gpuledger.example.com", b"k" * 32), pages)
    assert re.findall(r"https://\S+", content.text)[0] == content.page
    assert content.page == "https://gpuledger.example.com/statements/team/vision/2026-11"
    assert re.findall(r'href="([^"]+)', content.html)[0] == content.page
    fleet = replace(told, status=replace(told.status, budget=replace(told.status.budget, owner={})))
    assert write(fleet, None, pages).page == "https://gpuledger.example.com/"
    assert "https://" not in write(told).text
