"""Ten teams, ten reasons for unusual spending, and the mail of each as it is sent in the hour in which
it is found.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fakes.spending_events import EVENT, findings_at, first_notices, furnish, usual_costs
from gpuledger_collector.accounting.period import HOUR_MS
from gpuledger_collector.insight.anomalies.spending_findings import BY_MINUTES
from gpuledger_collector.notifications import finding_mail

GOLDEN = Path(__file__).parent / "spending_mails.txt"
FOUND = {
    "ads": "new workload",
    "data": "runaway",
    "genomics": "scale-up",
    "inference": "scale-up",
    "nlp": "new workload",
    "research": "new workload",
    "robotics": "new workload",
    "search": "runaway",
    "speech": "retry storm",
    "vision": "price",
}


@pytest.fixture(scope="module")
def notices():
    return {notice.finding.subject: notice for notice in first_notices()}


@pytest.fixture(scope="module")
def texts(notices):
    """Subject and text by team, each in one line."""
    contents = {team: finding_mail.anomaly(notice) for team, notice in notices.items()}
    return {
        team: " ".join(f"{content.subject}\n{content.text}".split())
        for team, content in contents.items()
    }


def test_the_ten_mails_are_the_golden_ones(notices):
    """Byte for byte; GPULEDGER_GOLDEN=write writes them anew, for a person to look at."""
    mails = [finding_mail.anomaly(notice) for notice in notices.values()]
    text = "\n\n".join(f"Subject: {mail.subject}\n\n{mail.text}" for mail in mails)
    if os.environ.get("GPULEDGER_GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_each_is_found_with_what_is_behind_it(notices):
    """Within fifteen hours, by its cause: what began shortly before is new, not grown from nothing."""
    assert {team: notice.finding.evidence["cause"] for team, notice in notices.items()} == FOUND
    assert all(0 < notice.at_ms - EVENT <= 15 * HOUR_MS for notice in notices.values())


def test_what_is_small_beside_the_company_is_no_mail_of_its_own(notices):
    """A storm of USD 23 a day, where all GPUs cost USD 5,000 a day and the team's 85; without a
    declared floor.
    """
    usual = usual_costs(furnish())
    small = {team for team, notice in notices.items() if usual.is_small(notice.finding)}
    assert small == {"speech"}


def test_runs_that_pile_up_are_told_before_they_are_many(texts):
    """Five of forty: their pace so far is little."""
    assert "none has ended, and another begins every 3 hours" in texts["robotics"]
    assert "another begins" not in texts["ads"], "all began at once"


def test_each_says_what_it_costs_since_when_and_what_to_do(notices, texts):
    """Cost in all is that of before and the change, also its percentage as people compute it; who
    runs it is asked, if anybody is known.
    """
    for team, text in texts.items():
        change, spent, usual = (
            round(100 * float(amount.replace(",", "")))
            for amount in re.findall(
                r"has spent USD ([\d.,]+) more .* Cost USD ([\d.,]+) instead of USD ([\d.,]+)", text
            )[0]
        )
        assert abs(spent - usual - change) <= 1, team
        assert f"({round(100 * (spent - usual) / usual):+} %)" in text, team
        hour, day = (
            float(amount.replace(",", ""))
            for amount in re.findall(
                r"ause: .+ That is USD ([\d.,]+) an hour on average, USD ([\d.,]+) if a day", text
            )[0]
        )
        assert abs(24 * hour - day) < 0.25, team
        action = text.partition("What you can do - ")[2]
        asked = notices[team].users[-1] if team != "vision" else "the new rate"
        assert asked in action.partition(" - See the hours")[0], team


def test_amounts_of_what_changed_add_up_to_the_change(notices):
    for notice in notices.values():
        drivers = notice.finding.evidence["drivers"]
        assert sum(each["change_micro"] for each in drivers) == notice.finding.cost_micro


def test_several_that_grow_are_told_together(texts):
    """None of six makes most of the rise: the first alone would explain a fifth of it."""
    assert "6 workloads hold more GPUs; align-a holds 1 GPU on average" in texts["genomics"]
    assert "more GPUs for align-a and others" in texts["genomics"]


def test_what_has_ended_is_not_asked_to_be_ended(notices):
    """Once it is over, the question is whether it comes back; a price is as it was."""
    over = {
        team: finding_mail.anomaly(
            replace(
                notice, finding=replace(notice.finding, resolved_ms=notice.at_ms), users=("a", "b")
            )
        ).text
        for team, notice in notices.items()
    }
    text = " ".join(over["data"].split())
    assert "It has ended. Ask a and b whether it was meant" in text
    assert "if not, end it" not in text
    assert "on average" not in text
    assert "gpuledger prices list" in over["vision"]


def test_many_users_are_counted(notices):
    users = ("a", "b", "c", "d", "e")
    text = finding_mail.anomaly(replace(notices["data"], users=users)).text
    assert "Run by       a, b, c and 2 others" in text


def test_a_cause_and_the_list_have_one_baseline(notices, texts):
    """GPUs more, times hours, times the rate, is the change of the workload that is named."""
    now, usual = re.findall(r"holds (\d+) GPUs on average instead of (\d+)", texts["inference"])[0]
    finding = notices["inference"].finding
    hours = (finding.until_ms - finding.since_ms) // HOUR_MS
    driver = finding.evidence["drivers"][0]
    assert (int(now) - int(usual)) * hours * 2.5 == driver["change_micro"] / 1e6


def test_it_began_when_its_cause_did(notices):
    """Not when it had lasted for long enough to be far above usual: what it cost until then would
    be missing, and two instants in one mail read like a mistake. Of what grows step by step the
    first steps are as any night.
    """
    late = {
        team: (notice.finding.since_ms - EVENT) // HOUR_MS
        for team, notice in notices.items()
        if notice.finding.since_ms != EVENT
    }
    assert late == {"research": 1, "robotics": 6, "genomics": 9}
    for team in ("nlp", "search", "inference"):
        evidence = notices[team].finding.evidence
        hours = (notices[team].finding.until_ms - EVENT) // HOUR_MS
        assert 0 < evidence["unusual_hours"] < hours, team


@pytest.mark.parametrize(("hours", "same"), [(11, True), (13, False)])
def test_what_minutes_showed_is_confirmed_within_half_a_day(notices, hours, same):
    """Counted to the first flagged hour, not to the earlier one in which the rise began."""
    finding = notices["nlp"].finding
    flagged_ms = EVENT + 3 * HOUR_MS
    until_ms = flagged_ms - hours * HOUR_MS
    minutes = replace(
        finding,
        key="minutes",
        since_ms=until_ms - HOUR_MS,
        until_ms=until_ms,
        evidence={BY_MINUTES: True},
    )
    (found,) = [
        each
        for each in findings_at(furnish().team("nlp"), finding.until_ms, [minutes])
        if each.until_ms > EVENT
    ]
    assert (found.key == "minutes") == same


def test_what_does_nothing_is_asked_back(notices, texts):
    """Whatever it is for; subject and advice say what was found."""
    assert finding_mail.headline(notices["nlp"].finding) == (
        "nlp: new workload weekend-hold, which does nothing"
    )
    assert "Ask farah to end weekend-hold: its GPUs do nothing." in texts["nlp"]
    assert "does nothing" not in texts["research"]


def test_what_is_hardly_known_is_not_said_to_do_nothing(notices):
    """Readings that stopped after the start say nothing about the days after."""
    finding = notices["nlp"].finding
    evidence = {**finding.evidence, "idle_ms": finding.evidence["idle_ms"] // 3}
    text = finding_mail.anomaly(
        replace(notices["nlp"], finding=replace(finding, evidence=evidence))
    ).text
    assert "nothing" not in text
    assert "Ask farah what it is for" in text


def test_an_id_is_told_whole(notices):
    """One that is cut is found by no command."""
    run = f"container:node-17.cluster.example.com:{'ab' * 32}"
    text = finding_mail.anomaly(replace(notices["nlp"], runs=(run,))).text
    assert run in "".join(text.split())


def test_what_piles_up_says_that_it_will_be_more(texts):
    assert "replica-0 and others, which pile up" in texts["robotics"]
    assert "and more as long as runs pile up" in texts["robotics"]
    assert "Ask jonas why no run of replica-0 and others ends" in texts["robotics"]
    assert "pile up" not in texts["ads"]


def test_runs_are_named_by_their_ids(notices, texts):
    """What is to be ended needs a name that the scheduler takes; the latest first."""
    (run,) = notices["nlp"].runs
    assert f"Runs {run} Use" in texts["nlp"]
    latest = ", ".join(reversed(notices["ads"].runs[-3:]))
    assert f"Runs {latest} and earlier ones Use" in texts["ads"]


def test_how_sure_is_said_of_the_hours_so_far(texts):
    """Of few hours that it is early; of what a team's total does not show, by what it was seen."""
    assert "How sure early, from 2 hours: it may end by itself" in texts["ads"]
    assert "How sure over 11 hours, far above usual in 4 of them" in texts["inference"]
    assert "seen in what runs for over 12 hours" in texts["genomics"]


def test_lines_with_one_amount_are_one(texts):
    assert "sweep-0 and 7 more USD 10.00 each" in texts["ads"]
    assert "replica-0 and 2 more USD 9.80 each replica-3 USD 5.60" in texts["robotics"]


def test_it_is_said_whether_the_gpus_work(texts):
    """A hold that does nothing is another matter than a training."""
    assert "GPUs of weekend-hold were busy in 0 % of their time" in texts["nlp"]
    assert "GPUs of moe-13b were busy in 80 % of their time" in texts["research"]
