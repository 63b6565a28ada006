"""The mail of a week about unusual spending that was too small for mails of its own."""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_collector.accounting.money import Money, total_by_currency
from gpuledger_collector.insight.findings import AT_LISTED_RATES
from gpuledger_collector.insight.notifications.anomaly_floors import (
    PERCENT_OF_ALL,
    PERCENT_OF_TEAM,
)
from gpuledger_collector.insight.notifications.finding_rules import (
    LINK_MS,
    AnomalyNotice,
    SpendingWeek,
)
from gpuledger_collector.insight.notifications.messages import Content
from gpuledger_collector.notifications.finding_mail import (
    INTENDED,
    headline,
    pace_text,
    shown_change,
    spent_text,
    users_text,
)
from gpuledger_collector.notifications.links import AckLinks, PageLinks
from gpuledger_collector.notifications.templating import (
    CALM,
    MailBlock,
    MailPage,
    day,
    instant,
    safe_name,
)
from gpuledger_common.plurals import plural

MAX_EPISODES = 10
"""So many are told each by itself; the rest by a line."""


def spending_week(
    week: SpendingWeek, links: AckLinks | None = None, pages: PageLinks | None = None
) -> Content:
    """The mail about a week's episodes that were not mailed by themselves, the dearest first."""
    notices, cost = week.notices, _change_text(week.notices)
    teams = {notice.finding.subject for notice in notices}
    team = teams.pop() if len(teams) == 1 else ""
    blocks = [_block(notice, links) for notice in notices[:MAX_EPISODES]]
    if others := notices[MAX_EPISODES:]:
        rows = [(f"No. {each.notification_id}", _line(each)) for each in others[:MAX_EPISODES]]
        if left_out := others[MAX_EPISODES:]:
            rows.append((f"{len(left_out)} more", _change_text(left_out)))
        blocks.append(MailBlock("Cheaper ones", "", rows))
    return MailPage(
        subject=f"[GPU spending] {_subject(week, team)}, {cost}",
        verdict=_verdict(week, cost),
        blocks=blocks,
        why=(
            "You get this once a week at most, when the small episodes of the week before come to"
            " something together."
        ),
        tone=CALM,
        open=None if pages is None else ("Open the episodes", pages.anomalies(team)),
        actions=[("See all of them with their hours and workloads", "gpuledger anomalies")],
        notes=[
            f"Amounts are exact, {AT_LISTED_RATES}, against the same hours a week (or days) before."
            " That they are unusual is an estimate."
        ],
    ).content()


def _subject(week: SpendingWeek, team: str) -> str:
    """Whose episodes they are and how many; of one, what it is about, so that most need not open
    it. The days go back to the first of them: late evidence has earlier ones told as well.
    """
    first_ms = min(week.start_ms, *(notice.finding.since_ms for notice in week.notices))
    days = f"{day(first_ms, week.zone)} to {day(week.end_ms - 1, week.zone)}"
    if len(week.notices) == 1:
        return f"{headline(week.notices[0].finding)}, {days}"
    small = "small " if week.is_small else ""
    whose = f"{safe_name(team, 80)}, {days}" if team else days
    return f"{whose}: {plural(len(week.notices), f'{small}episode')}"


def _verdict(week: SpendingWeek, cost: str) -> str:
    """What they come to, and why each had no mail."""
    count = len(week.notices)
    came = "It came to" if count == 1 else "Together they came to"
    small = (
        f": a day of {'it' if count == 1 else 'each'} costs less than {PERCENT_OF_ALL} % of what a"
        f" day of all GPUs costs, and less than {PERCENT_OF_TEAM} % of a day of the team's"
        if week.is_small
        else ""
    )
    return (
        f"{plural(count, 'episode')} of unusual spending"
        f" {'was' if count == 1 else 'were'} not mailed by"
        f" {'itself' if count == 1 else 'themselves'}{small}. {came} {cost} than usual. Nothing has"
        " to be done now: what grows beyond that is mailed."
    )


def _block(notice: AnomalyNotice, links: AckLinks | None) -> MailBlock:
    finding = notice.finding
    began, until = instant(finding.since_ms), instant(finding.until_ms)
    is_over = finding.resolved_ms is not None
    rows = [("When", f"{began} to {until}" if is_over else f"since {began}, ongoing")]
    if notice.users:
        rows.append(("Run by", users_text(notice.users)))
    if sentence := safe_name(str(finding.evidence.get("sentence", "")), 400):
        rows.append(("Likely cause", sentence))
    rows.append(("Cost", spent_text(finding) or pace_text(finding)))
    if not is_over:
        rows.append(("If it goes on", pace_text(finding)))
    if links is not None:
        address = links.notification(notice.notification_id, notice.at_ms + LINK_MS)
        return MailBlock(headline(finding), "", rows, (), (INTENDED, address))
    acknowledge = f"gpuledger notifications ack {notice.notification_id}"
    return MailBlock(headline(finding), "", rows, [("If it is intended, say so", acknowledge)])


def _line(notice: AnomalyNotice) -> str:
    return f"{headline(notice.finding)}, {_change_text([notice])}"


def _change_text(notices: Sequence[AnomalyNotice]) -> str:
    """What they cost more, or less, than the same hours before."""
    totals = total_by_currency(shown_change(notice.finding) for notice in notices)
    return " and ".join(
        f"{Money(abs(total.micro), total.currency)} {'more' if total.micro >= 0 else 'less'}"
        for total in totals
    )
