"""Unusual spending that is small beside what GPUs usually cost: on the pages as ever, in one mail a
week, and mailed by itself once it has grown.

All GPUs cost USD 1,000 a day, those of robotics 60 and of tiny 4: a day is small below USD 10, which
is 1 % of all, and for tiny below USD 2, which is half of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Fleet
from fakes.pages import Page
from gpuledger_collector.api import list_pages
from gpuledger_collector.api.auth.keys import Keys
from gpuledger_collector.api.auth.principal import ANYBODY
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.narrowing import WHOLE
from gpuledger_collector.api.page_routes import View
from gpuledger_collector.services.tokens import TokenStore
from gpuledger_collector.storage.database import Database

CONTACTS = """
[[contact]]
team = "robotics"
recipients = ["robots@example.org"]

[[contact]]
team = "*"
recipients = ["all@example.org"]
"""
MICRO = 1_000_000
MONDAY = 5
"""6 October 2025, counted from the first."""


def rate(fleet: Fleet, days: range) -> None:
    """Rated days with what each team cost, and what nobody held."""
    for day in days:
        at_ms = OCTOBER + day * DAY
        fleet.connection.execute(
            "INSERT INTO conservation_check SELECT %s, 0, 0, 0, 0, 0, '{}'::jsonb, '{}'::jsonb, 0,"
            " %s, true, now()",
            (at_ms, at_ms + DAY),
        )
        for team, cost in (("robotics", 60), ("tiny", 4), ("vision", 700), (None, 236)):
            fleet.connection.execute(
                "INSERT INTO ledger_day (day_ms, owner_id, state, pool, gpu_model, currency,"
                " gpu_ns, busy_ns, idle_ns, unknown_ns, cost_micro) VALUES (%s, (SELECT id FROM"
                " owner WHERE team = %s), 'held', 'any', 'any', 'USD', 1, 1, 0, 0, %s)",
                (at_ms, team, cost * MICRO),
            )


@dataclass
class Episodes:
    """Writes what the search finds."""

    fleet: Fleet

    def put(
        self,
        number: int,
        per_day_micro: int,
        day: float,
        *,
        team: str = "robotics",
        until: float | None = None,
        over: bool = False,
        currency: str = "USD",
        state: str = "usage",
        evidence: dict[str, object] | None = None,
    ) -> None:
        """An episode that began on a day of October, or as it is now."""
        storm = "storm:" if state == "storm" else ""
        end_ms = OCTOBER + int((day + 0.2 if until is None else until) * DAY)
        since_ms = OCTOBER + int(day * DAY)
        self.fleet.connection.execute(
            "INSERT INTO finding (key, kind, state, subject, team, owner, since_ms, opened_ms,"
            " until_ms, resolved_ms, confidence, currency, cost_micro, per_day_micro, evidence)"
            " VALUES (%s, 'anomaly', %s, %s, %s, '{}', %s, %s, %s, %s, 0.8, %s, %s, %s, %s) ON"
            " CONFLICT (key) DO UPDATE SET until_ms = excluded.until_ms, resolved_ms ="
            " excluded.resolved_ms, cost_micro = excluded.cost_micro, per_day_micro ="
            " excluded.per_day_micro",
            (
                f"anomaly:{storm}{team}:{currency}:{'eval:' if storm else ''}{number}",
                state,
                team,
                team,
                since_ms,
                since_ms + HOUR,
                end_ms,
                end_ms if over else None,
                currency,
                per_day_micro * (end_ms - since_ms) // DAY,
                per_day_micro,
                json.dumps(
                    {
                        "days_before": 7,
                        "before_micro": MICRO,
                        "cause": "new workload",
                        "sentence": f"job-{number} was first seen",
                        "workloads": [f"job-{number}"],
                        **(evidence or {}),
                    }
                ),
            ),
        )


@pytest.fixture
def episodes(fleet: Fleet, apply: Callable[[str], tuple[int, str, str]]) -> Episodes:
    """Contacts, and owners without a rated day."""
    assert apply(CONTACTS)[0] == 0
    for team in ("robotics", "tiny", "vision"):
        fleet.connection.execute("INSERT INTO owner (team) VALUES (%s)", (team,))
    return Episodes(fleet)


def mails(fleet: Fleet) -> list[tuple[str, str]]:
    """Recipient and subject of every mail."""
    return [
        (str(recipient), str(subject))
        for recipient, subject in fleet.rows("SELECT recipient, subject FROM outbox ORDER BY id")
    ]


def last_text(fleet: Fleet) -> str:
    """The last mail in one line."""
    ((text,),) = fleet.rows("SELECT text FROM outbox ORDER BY id DESC LIMIT 1")
    return " ".join(str(text).split())


def test_a_small_day_is_in_no_mail_of_its_own(fleet, episodes, write):
    """Below both shares by a micro-unit; at one of them it is mailed. A share of the team's own is
    for who pays little; what costs less than before is small.
    """
    rate(fleet, range(-28, 0))
    episodes.put(1, 10 * MICRO - 1, 0)
    episodes.put(2, 2 * MICRO - 1, 0, team="tiny")
    episodes.put(3, -MICRO, 0, state="storm")
    assert write(0.3).anomalies == 0
    episodes.put(1, 10 * MICRO, 0)
    episodes.put(2, 2 * MICRO, 0, team="tiny")
    assert write(0.4).anomalies == 2
    assert write(0.5).anomalies == 0
    assert [recipient for recipient, _ in mails(fleet)] == ["robots@example.org", "all@example.org"]


@pytest.mark.parametrize(
    ("days", "currency", "team"),
    [(6, "USD", "robotics"), (28, "EUR", "robotics"), (28, "USD", "new")],
)
def test_where_what_is_usual_is_unknown_nothing_is_small(
    fleet, episodes, write, days, currency, team
):
    """In the first days of a ledger, in a currency and of a team that was charged nothing yet."""
    rate(fleet, range(-days, 0))
    episodes.put(1, 1, 0, currency=currency, team=team)
    assert write(0.3).anomalies == 1
    report = write(MONDAY + 0.3)
    assert (report.anomalies, report.collected) == (0, 0)


def test_small_ones_of_a_week_are_told_in_one_mail(fleet, episodes, write, run):
    """On Monday to the people of their teams, once: with what has ended, what goes on and what it
    costs; each can be acknowledged, and what is intended is in no later mail.
    """
    rate(fleet, range(-28, 0))
    episodes.put(1, 4 * MICRO, 0.5, over=True, until=1)
    episodes.put(2, 9 * MICRO, 2, until=MONDAY)
    episodes.put(3, MICRO, 1, team="tiny", over=True, until=2)
    episodes.put(4, 9 * MICRO, 1, team="vision", over=True, until=2)
    assert (write(3).anomalies, write(3).collected) == (0, 0)
    report = write(MONDAY + 0.01)
    assert (report.anomalies, report.collected) == (0, 4)
    assert [write(day).collected for day in (MONDAY + 0.02, MONDAY + 3)] == [0, 0]
    assert mails(fleet) == [
        ("all@example.org", "[GPU spending] 29 Sep to 5 Oct: 2 small episodes, USD 10.00 more"),
        (
            "robots@example.org",
            "[GPU spending] robotics, 29 Sep to 5 Oct: 2 small episodes, USD 29.00 more",
        ),
    ]
    text = last_text(fleet)
    assert "a day of each costs less than 1 % of what a day of all GPUs costs" in text
    assert text.index("job-2 was first seen") < text.index("job-1 was first seen")
    listed = run("notifications", "list", "--format", "json")[1]
    assert len(json.loads(listed)) == 4
    # The dearest of robotics is the third notification.
    assert run("notifications", "ack", "3", "--days", "30")[0] == 0
    episodes.put(2, 500 * MICRO, 2, until=MONDAY + 1)
    assert write(MONDAY + 1).anomalies == 0
    fleet.connection.execute("UPDATE finding SET resolved_ms = until_ms")
    episodes.put(5, 9 * MICRO, MONDAY + 2, evidence={"workloads": ["job-2"]})
    report = write(MONDAY + 7.1)
    assert (report.anomalies, report.collected) == (0, 0)


@pytest.mark.parametrize(("extra", "collected"), [(-1, 0), (0, 2)])
def test_a_week_of_next_to_nothing_is_in_no_mail(fleet, episodes, write, extra, collected):
    """Of two episodes that come to USD 10 together, which one day must for a mail; or to a
    micro-unit less.
    """
    rate(fleet, range(-28, 0))
    episodes.put(1, 4 * MICRO, 1, until=2, over=True)
    episodes.put(2, 6 * MICRO + extra, 2, until=3, team="vision", over=True)
    fleet.connection.execute("UPDATE finding SET team = 'vision'")
    assert [write(day).collected for day in (MONDAY + 0.1, MONDAY + 1)] == [collected, 0]


def test_what_cost_less_takes_nothing_from_the_others(fleet, episodes, write):
    """A storm may cost less than the job did before."""
    rate(fleet, range(-28, 0))
    episodes.put(1, 9 * MICRO, 1, until=4, over=True)
    episodes.put(2, -9 * MICRO, 1, until=4, over=True, state="storm")
    assert write(MONDAY + 0.1).collected == 2


def test_a_week_that_is_much_to_its_team_is_mailed(fleet, episodes, write):
    """USD 2 are half a day of a small team."""
    rate(fleet, range(-28, 0))
    episodes.put(1, MICRO, 1, until=3, team="tiny", over=True)
    assert write(MONDAY + 0.1).collected == 1


def test_what_has_grown_is_mailed_by_itself(fleet, episodes, write):
    """Before it was told, however old; and once more after it was told in the mail of a week, which
    the mail says.
    """
    rate(fleet, range(-28, 20))
    episodes.put(1, 9 * MICRO, 0.5, until=4.9)
    assert write(4.9).anomalies == 0
    episodes.put(1, 12 * MICRO, 0.5, until=4.95)
    assert write(4.95).anomalies == 1
    assert "You are notified of each such episode once." in last_text(fleet)
    episodes.put(2, 9 * MICRO, 6, team="vision", until=12)
    assert write(12.1).collected == 1
    episodes.put(2, 12 * MICRO, 6, team="vision", until=18)
    report = write(18.1)
    assert (report.anomalies, report.collected) == (1, 0)
    assert "it has grown after the mail of 13 Oct" in last_text(fleet)
    report = write(19.1)
    assert (report.anomalies, report.collected, len(mails(fleet))) == (0, 0, 3)


def test_a_declared_floor_overrides_what_is_usual(fleet, episodes, write, apply):
    """What is below it is in no mail, of a week neither; a floor of a cent mails each."""
    rate(fleet, range(-28, 0))
    floor = '[[anomaly_floor]]\ncurrency = "USD"\namount = {}\n'
    assert apply(CONTACTS + floor.format("50"))[0] == 0
    episodes.put(1, 60 * MICRO, 0, until=0.5)
    assert write(0.5).anomalies == 0
    report = write(MONDAY + 0.1)
    assert (report.anomalies, report.collected) == (0, 0)
    assert apply(CONTACTS + floor.format("0.01"))[0] == 0
    episodes.put(2, MICRO, MONDAY + 1)
    assert write(MONDAY + 1.3).anomalies == 1


def test_the_page_marks_what_is_small(fleet, episodes, write, apply, dsn):
    """By the rule of the mails: before it is told and after; not what is mailed by itself, has grown,
    is below a declared floor or was too old for the last mail, nor where there is nobody to tell.
    """
    rate(fleet, range(-28, 0))
    shown = {f"{part}_micro": 0 for part in ("price", "volume", "mix", "spent")}
    put = partial(episodes.put, evidence={**shown, "drivers": [], "rates": []})

    def marked(day: float) -> set[int]:
        now_ms = OCTOBER + int(day * DAY)
        database = Database(dsn)
        keys = Keys(TokenStore(database), lambda: now_ms)
        reads = ReadContext(database, lambda: now_ms, keys)
        page = Page(
            list_pages.anomalies_page(reads, View.narrow(ANYBODY, {}), WHOLE, "none").body.decode()
        )
        assert page.faults == []
        return set(map(int, re.findall(r"no mail of its own job-(\d) was", page.text)))

    assert marked(3) == set()
    put(1, 9 * MICRO, 0.5, until=2)
    put(2, 12 * MICRO, 0.5, team="vision", until=2)
    put(3, MICRO, 0.5, team="tiny", over=True, until=2.5)
    put(4, 9 * MICRO, -18, team="vision", over=True)
    assert marked(3) == {1, 3}
    assert write(3).anomalies == 1
    assert marked(3) == {1, 3}
    assert write(MONDAY + 0.01).collected == 2
    assert marked(MONDAY + 3) == {1, 3}
    put(1, 12 * MICRO, 0.5, until=MONDAY + 1)
    assert write(MONDAY + 1).anomalies == 1
    assert marked(MONDAY + 3) == {3}
    put(5, 9 * MICRO, MONDAY + 1, team="vision")
    assert marked(MONDAY + 3) == {3, 5}
    floor = '[[anomaly_floor]]\ncurrency = "USD"\namount = 50\n'
    assert apply(CONTACTS + floor)[0] == 0
    assert marked(MONDAY + 3) == {3}
    assert apply(CONTACTS.partition('[[contact]]\nteam = "*"')[0])[0] == 0
    assert marked(MONDAY + 3) == {3}


def test_a_mail_of_a_week_that_is_interrupted_is_written_once(fleet, episodes, write, monkeypatch):
    """Its notifications and messages are one transaction."""
    rate(fleet, range(-28, 0))
    episodes.put(1, 5 * MICRO, 1, until=3)
    with monkeypatch.context() as patch:
        patch.setattr(
            "gpuledger_collector.services.finding_notifications.outbox.insert",
            lambda *_: 1 / 0,
        )
        with pytest.raises(ZeroDivisionError):
            write(MONDAY + 0.1)
    assert mails(fleet) == []
    assert write(MONDAY + 0.2).collected == 1
    assert len(mails(fleet)) == 1
