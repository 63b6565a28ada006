"""Letters to people: each episode once, to the right one, with the command that helps; never for
what is guarded.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
import threading
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from fakes.fleet import DAY, HOUR, OCTOBER, Fleet, Held
from fakes.idle_day import CHANGE, minutes
from gpuledger_collector.accounting.budgets import Budget
from gpuledger_collector.accounting.period import Period
from gpuledger_collector.api import acks
from gpuledger_collector.insight.notifications.finding_rules import Contact, owner_address
from gpuledger_collector.insight.notifications.messages import Content
from gpuledger_collector.notifications.links import AckLinks
from gpuledger_collector.services.finding_notifications import MailWriters, notify_findings
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.findings.idle_workloads import idle_of_budget, idle_workloads
from gpuledger_collector.storage.notifications import outbox as outbox_module
from gpuledger_common.instants import to_ms

LINKS = AckLinks("https://gpuledger.example.com/", b"k" * 32)
CONTACTS = """
[[contact]]
user = "*"
address = "{user}@example.org"
tag = "mail"
domains = ["example.org"]

[[contact]]
team = "vision"
leads = ["lead@example.org"]
escalate_days = 2

[[contact]]
team = "robotics"
recipients = ["robots@example.org"]
"""


def outbox(fleet: Fleet) -> list[tuple[str, str, str]]:
    return [
        (str(kind), str(recipient), str(text))
        for kind, recipient, text in fleet.rows(
            "SELECT kind, recipient, text FROM outbox ORDER BY id"
        )
    ]


def test_the_owner_is_told_once_with_what_helps(idle_day, apply, write) -> None:
    """ada by her own address, robotics as a team, nobody for the replica or the free card; again:
    nothing new.
    """
    apply(CONTACTS)
    first = write(1)
    assert (first.idle, first.unreachable) == (2, 0)
    told = {recipient: text for _, recipient, text in outbox(idle_day)}
    assert set(told) == {"ada@example.org", "robots@example.org"}
    text = told["ada@example.org"]
    for part in (
        "train-yolo (Slurm job 1, ada)",
        "scancel 1",
        "1 Oct, 06:00 UTC, for 18 hours",
        "was used, then went idle",
        "utilization 0 %",
        "60.0 GiB of memory held",
        "This is intended: https://gpuledger.example.com/v1/notifications/ack?",
    ):
        assert part in text
    assert "No address of the owner is known" in told["robots@example.org"]
    assert write(1.01).idle == 0
    assert len(outbox(idle_day)) == 2


def test_money_of_the_notification_is_that_of_the_finding(idle_day, apply, write) -> None:
    """Cost so far and per day, to the cent, and in the CSV to the micro-unit."""
    apply(CONTACTS)
    write(1)
    ((cost, per_day),) = idle_day.rows(
        "SELECT cost_micro, per_day_micro FROM finding WHERE state = 'gone_idle'"
    )
    ((text, attached),) = idle_day.rows(
        "SELECT text, attachments->>'idle.csv' FROM outbox WHERE recipient = 'ada@example.org'"
    )
    assert f"USD {cost / 1e6:.2f} so far" in str(text)
    assert f"USD {per_day / 1e6:.2f} for each further day" in str(text)
    row = str(attached).splitlines()[1].split(",")
    assert [round(float(cell) * 1e6) for cell in row[8:10]] == [cost, per_day]


def test_nothing_is_told_without_a_contact(idle_day, write) -> None:
    """Off until somebody says who is written to."""
    assert write(1).idle == 0
    assert outbox(idle_day) == []


@pytest.mark.parametrize("last", [1, 2, 3])
def test_a_writer_that_stops_anywhere_tells_once(
    last, idle_day, apply, dsn, write, monkeypatch
) -> None:
    """It ends after its first letter's words, after the message, in the second letter; two at once
    follow.
    """
    apply(CONTACTS)
    steps = itertools.count(1)

    def dies() -> None:
        if next(steps) == last:
            raise KeyboardInterrupt

    def words(_news: object) -> Content:
        dies()
        return Content("subject", "text")

    put = outbox_module.insert
    monkeypatch.setattr(outbox_module, "insert", lambda *given: (put(*given), dies())[0])
    with pytest.raises(KeyboardInterrupt):
        notify_findings(Database(dsn), OCTOBER + DAY, MailWriters(words, words, words, words))
    monkeypatch.undo()
    assert outbox(idle_day) == []
    threads = [threading.Thread(target=write, args=(1,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(recipient for _, recipient, _ in outbox(idle_day)) == [
        "ada@example.org",
        "robots@example.org",
    ]
    assert idle_day.rows("SELECT count(*) FROM notification") == [(2,)]


def test_leads_are_told_when_nobody_answers_and_only_once(idle_day, apply, write, findings) -> None:
    """Two days after the letter, while it goes on; not for a team without leads."""
    apply(CONTACTS)
    write(1)
    _go_on(idle_day, findings, 1, 4)
    assert write(2.9).escalated == 0
    assert write(3.1).escalated == 1
    assert write(3.2).escalated == 0
    (last,) = [one for one in outbox(idle_day) if one[1] == "lead@example.org" and one[0] == "idle"]
    assert "ada@example.org was notified on 2 Oct, 00:00 UTC" in last[2].replace("\n", " ")


def _go_on(fleet: Fleet, findings, first: int, last: int) -> None:
    for number in (1, 3):
        minutes(fleet, number, first * DAY, last * DAY, 0.0, processes=1 if number == 1 else 0)
    fleet.evidence(
        [
            Held(number, number, hour * HOUR, hour * HOUR + HOUR)
            for hour in range(24 * first, 24 * last)
            for number in (1, 3)
        ]
    )
    find_idle(findings, OCTOBER + last * DAY)


def test_it_is_acknowledged_for_a_while(idle_day, apply, write, findings, dsn) -> None:
    """Opening the link changes nothing, its button mutes for the days asked; after them it is told
    anew.
    """
    apply(CONTACTS)
    write(1)
    ((link,),) = idle_day.rows("SELECT link FROM outbox WHERE recipient = 'ada@example.org'")
    now = to_ms(dt.datetime(2025, 10, 2, 9, tzinfo=dt.UTC))
    app = FastAPI()
    app.include_router(acks.router(LINKS, Database(dsn), lambda: now))
    client = TestClient(app)
    parts = urlsplit(str(link))
    page = f"{parts.path}?{parts.query}"
    assert "train-yolo" in client.get(page).text
    assert idle_day.rows("SELECT count(*) FROM notification WHERE acked_ms IS NOT NULL") == [(0,)]
    assert "2025-10-03" in client.post(f"{page}&days=1").text
    for again in (client.get(page), client.post(f"{page}&days=30")):
        assert again.status_code == 410
        assert 'title="2025-10-02 09:00 UTC">2 Oct 2025, 09:00</time>' in again.text
    assert idle_day.rows(
        "SELECT ack_until_ms - acked_ms FROM notification WHERE acked_ms IS NOT NULL"
    ) == [(DAY,)]
    assert client.post(page.replace("notification=", "notification=9")).status_code == 403
    assert client.post(f"{page}&days=1000").status_code == 422
    assert idle_day.rows("SELECT what FROM audit ORDER BY number DESC LIMIT 1") == [
        ("notification",)
    ]
    _go_on(idle_day, findings, 1, 4)
    assert (write(2).idle, write(2).escalated) == (0, 0)
    assert write(3).idle == 1
    assert [one[1] for one in outbox(idle_day)].count("ada@example.org") == 2
    now = to_ms(dt.datetime(2025, 10, 17, tzinfo=dt.UTC))
    assert client.get(page).status_code == 410


def test_what_works_again_is_no_news_and_the_next_rest_is(idle_day, apply, write, findings) -> None:
    """The letter ends with its episode; another episode is another letter."""
    apply(CONTACTS)
    write(1)
    minutes(idle_day, 1, DAY, DAY + 3 * HOUR, 0.8)
    minutes(idle_day, 1, DAY + 3 * HOUR, DAY + 9 * HOUR, 0.0)
    idle_day.evidence([Held(1, 1, hour * HOUR, hour * HOUR + HOUR) for hour in range(24, 33)])
    find_idle(findings, OCTOBER + DAY + 9 * HOUR)
    write(1 + 9 / 24)
    assert [one[1] for one in outbox(idle_day)].count("ada@example.org") == 2


def test_missing_data_is_never_told(idle_day, apply, write) -> None:
    """Nobody has seen it for an hour: no letter, whatever the finding says."""
    apply(CONTACTS)
    assert write(1 + 1 / 24).idle == 0


@pytest.mark.parametrize("hour", [23, 9])
def test_a_job_of_which_others_work_is_not_to_be_ended(
    hour, idle_day, apply, write, connect
) -> None:
    """One of its two GPUs is idle: it is told, without a command that would end both.

    Nor where nobody has seen the other one since nine: its node is silent, and it may well work.
    """
    apply(CONTACTS)
    idle_day.connection.execute(
        "INSERT INTO usage_hour (accelerator_id, hour_ms, state, workload_id, held_ms, busy_ms,"
        " idle_ms, unknown_ms) SELECT id, %s, 'held', (SELECT id FROM workload WHERE external_id ="
        " '1'), 3600000, 0, 0, 0 FROM accelerator WHERE uuid IN ('GPU-0001', 'GPU-0002')",
        (OCTOBER + hour * HOUR,),
    )
    write(1)
    ((text,),) = idle_day.rows("SELECT text FROM outbox WHERE recipient = 'ada@example.org'")
    assert "1 of its 2 GPUs" in str(text)
    assert "scancel" not in str(text)


@pytest.mark.parametrize(
    ("user", "tags", "found"),
    [
        ("ada", {}, "ada@example.org"),
        ("grace", {}, "hopper@example.org"),
        ("ada", {"mail": "boss@example.org"}, "boss@example.org"),
        ("ada", {"mail": "boss@elsewhere.example"}, "ada@example.org"),
        ("ada", {"mail": "x@example.org\r\nBcc: all@example.org"}, "ada@example.org"),
        ("ada\r\nBcc: x", {}, None),
        ("", {}, None),
    ],
)
def test_addresses_of_owners(user, tags, found, idle_day, connect) -> None:
    """A tag of our own domains, else the user's contact, else that of any user; never what could
    break a header.
    """
    idle_day.connection.execute(
        "UPDATE workload SET user_name = %s, tags = %s WHERE external_id = '1'",
        (user, json.dumps(tags)),
    )
    contacts = [
        Contact(
            "user *", user="*", address="{user}@example.org", tag="mail", domains=("example.org",)
        ),
        Contact("user grace", user="grace", address="hopper@example.org"),
    ]
    with connect() as connection:
        holding = next(
            one for one in idle_workloads(connection, OCTOBER + DAY) if one.external_id == "1"
        )
    assert owner_address(holding, contacts) == found


def test_an_anomaly_is_told_once_also_when_its_beginning_moves(fleet, apply, write) -> None:
    """One mail for an episode, with the users of its workloads as they are now; a new look that finds
    it an hour earlier under another key tells nobody again.
    """
    apply(CONTACTS)
    workload = fleet.workload(77, team="robotics")
    fleet.connection.execute("UPDATE workload SET user_name = 'grace' WHERE id = %s", (workload,))

    def finding(since: int) -> None:
        fleet.connection.execute("DELETE FROM finding")
        fleet.connection.execute(
            "INSERT INTO finding (key, kind, state, subject, team, owner, since_ms, opened_ms,"
            " until_ms, confidence, currency, cost_micro, per_day_micro, evidence) VALUES (%s,"
            " 'anomaly', 'usage', 'robotics', 'robotics', '{}', %s, %s, %s, 0.9, 'USD', 1234567890,"
            " 9876543210, %s)",
            (
                f"anomaly:{since}",
                OCTOBER + since,
                OCTOBER + since + HOUR,
                OCTOBER + DAY,
                json.dumps(
                    {
                        "days_before": 7,
                        "price_micro": 0,
                        "volume_micro": 1234567890,
                        "mix_micro": 0,
                        "rates": [],
                        "drivers": [
                            {"workload": "sweep", "model": "H100", "change_micro": 1234567890}
                        ],
                        "cause": "runaway",
                        "sentence": "sweep has run for 44 hours",
                        "workloads": ["sweep"],
                        "workload_ids": [workload, workload + 1000],
                    }
                ),
            ),
        )

    finding(20 * HOUR)
    assert write(1).anomalies == 1
    finding(19 * HOUR)
    assert write(1.01).anomalies == 0
    ((kind, recipient, text),) = outbox(fleet)
    assert (kind, recipient) == ("anomaly", "robots@example.org")
    assert "robotics has spent USD 1,234.57 more" in text
    assert "all on H100" in text
    assert "Run by       grace" in text
    assert "Ask grace whether sweep should still run" in text


def test_an_anomaly_below_its_floor_is_in_no_mail(fleet, apply, run, write) -> None:
    """Until it has grown beyond it; the floor is of its currency, and the audit log has who changed
    it.
    """

    def finding(cost_micro: int, currency: str = "USD") -> None:
        fleet.connection.execute("DELETE FROM finding")
        parts = {"days_before": 7, "price_micro": 0, "volume_micro": cost_micro, "mix_micro": 0}
        evidence = json.dumps({**parts, "rates": [], "drivers": []})
        fleet.connection.execute(
            "INSERT INTO finding (key, kind, state, subject, team, owner, since_ms, opened_ms,"
            " until_ms, confidence, currency, cost_micro, per_day_micro, evidence) VALUES (%s,"
            " 'anomaly', 'usage', 'robotics', 'robotics', '{}', %s, %s, %s, 0.9, %s, %s, %s, %s)",
            (
                f"anomaly:{currency}",
                OCTOBER,
                OCTOBER,
                OCTOBER + DAY,
                currency,
                cost_micro,
                cost_micro,
                evidence,
            ),
        )

    floors = (
        '[[anomaly_floor]]\ncurrency = "USD"\namount = 50\n[[anomaly_floor]]\ncurrency ='
        ' "EUR"\namount = 2.4\n'
    )
    code, out, err = apply(CONTACTS + floors)
    assert code == 0, err
    assert "floors of anomalies: 2 added" in out
    for cost_micro, count in ((2_400_000, 0), (49_999_999, 0), (50_000_000, 1), (60_000_000, 0)):
        finding(cost_micro)
        assert write(1).anomalies == count, cost_micro
    finding(2_400_000, "EUR")
    assert write(1).anomalies == 1
    finding(1, "JPY")
    assert write(1).anomalies == 1
    assert "anomaly_floor" in run("audit", "list")[1]
    code, _, err = apply(floors + floors)
    assert code == 2
    assert "line 1 has a floor of this currency already" in err
    for amount in ("0", "-1", '"much"'):
        code, _, err = apply(f'[[anomaly_floor]]\ncurrency = "USD"\namount = {amount}\n')
        assert code == 2
        assert "amount" in err


def test_a_storm_hides_no_spending_of_its_team(fleet, apply, run, write) -> None:
    """A cheap storm that goes on, or is meant so, and a runaway of the same team: both are told;
    the storm, grown, not.

    The same overlap of time that joins two looks at one episode must not join two matters.
    """
    apply(CONTACTS)

    def finding(key: str, state: str, job: str, since: int) -> None:
        fleet.connection.execute(
            "INSERT INTO finding (key, kind, state, subject, team, owner, since_ms, opened_ms,"
            " until_ms, confidence, currency, cost_micro, per_day_micro, evidence) VALUES (%s,"
            " 'anomaly', %s, 'robotics', 'robotics', '{}', %s, %s, %s, 0.8, 'USD', 5000000,"
            " 5000000, %s)",
            (
                key,
                state,
                OCTOBER + since,
                OCTOBER + since + HOUR,
                OCTOBER + DAY,
                json.dumps({"workloads": [job]}),
            ),
        )

    finding("anomaly:storm:robotics:USD:eval:1", "storm", "eval", 2 * HOUR)
    assert write(1).anomalies == 1
    assert "spending of eval of robotics" in run("notifications", "list")[1]
    finding("anomaly:storm:robotics:USD:eval:2", "storm", "eval", HOUR)
    finding("anomaly:robotics:USD:2", "usage", "eval", 3 * HOUR)
    assert write(1.01).anomalies == 0
    assert run("notifications", "ack", "1")[0] == 0
    finding("anomaly:robotics:USD:3", "usage", "sweep", 20 * HOUR)
    assert write(1.02).anomalies == 1
    assert write(1.03).anomalies == 0
    assert [text.split(" has spent")[0] for _, _, text in outbox(fleet)] == [
        "eval of robotics",
        "robotics",
    ]


def test_what_is_acknowledged_is_an_episode_and_not_later_spending(
    fleet, apply, write, dsn
) -> None:
    """A sweep that was planned, as long as it grows and under whatever key, is not told again; the
    next runaway is.
    """
    apply(CONTACTS)

    def finding(key: str, since: float, until: float) -> None:
        fleet.connection.execute(
            "INSERT INTO finding (key, kind, state, subject, team, owner, since_ms, opened_ms,"
            " until_ms, confidence, currency, cost_micro, per_day_micro, evidence) VALUES (%s,"
            " 'anomaly', 'usage', 'robotics', 'robotics', '{}', %s, %s, %s, 0.8, 'USD', 5000000,"
            " 5000000, %s) ON CONFLICT (key) DO UPDATE SET until_ms = excluded.until_ms",
            (
                key,
                OCTOBER + int(since * DAY),
                OCTOBER + int(since * DAY) + HOUR,
                OCTOBER + int(until * DAY),
                json.dumps({"workloads": ["sweep"]}),
            ),
        )

    finding("anomaly:robotics:USD:1", 0.5, 1)
    assert write(1).anomalies == 1
    ((number,),) = fleet.rows("SELECT id FROM notification")
    parts = urlsplit(LINKS.notification(number, OCTOBER + 9 * DAY))
    app = FastAPI()
    app.include_router(
        acks.router(LINKS, Database(dsn), lambda: to_ms(dt.datetime(2025, 10, 2, 9, tzinfo=dt.UTC)))
    )
    assert (
        "Until then you are not notified of later episodes with the same cause."
        in TestClient(app).post(f"{parts.path}?{parts.query}&days=30").text
    )
    for day in (2, 3, 4, 5):
        finding("anomaly:robotics:USD:1", 0.5, day)
        assert write(day).anomalies == 0
    # A look that sees its last hours only gives it another key.
    fleet.connection.execute("DELETE FROM finding")
    finding("anomaly:robotics:USD:4", 4.5, 5.5)
    assert write(5.5).anomalies == 0
    fleet.connection.execute("UPDATE finding SET resolved_ms = until_ms")
    finding("anomaly:robotics:USD:7", 7, 7.5)
    assert write(7.5).anomalies == 1
    assert write(7.6).anomalies == 0
    assert [kind for kind, _, _ in outbox(fleet)] == ["anomaly", "anomaly"]


def test_what_is_the_new_normal_is_in_no_further_mail(fleet, apply, run, write) -> None:
    """Acknowledged until a day, a team's later episodes with the same cause and job are in no mail
    until then; another job's, another cause's and a dearer rate are.
    """
    apply(CONTACTS)

    def finding(number: int, cause: str, job: str, day: float, team: str = "robotics") -> None:
        fleet.connection.execute("UPDATE finding SET resolved_ms = until_ms")
        fleet.connection.execute(
            "INSERT INTO finding (key, kind, state, subject, team, owner, since_ms, opened_ms,"
            " until_ms, confidence, currency, cost_micro, per_day_micro, evidence) VALUES (%s,"
            " 'anomaly', 'usage', %s, %s, '{}', %s, %s, %s, 0.8, 'USD', 5000000, 10000000, %s)",
            (
                f"anomaly:{team}:USD:{number}",
                team,
                team,
                OCTOBER + int(day * DAY),
                OCTOBER + int(day * DAY) + HOUR,
                OCTOBER + int((day + 0.2) * DAY),
                json.dumps({"cause": cause, "workloads": [job]}),
            ),
        )

    def acknowledge(days: int) -> None:
        newest = fleet.rows("SELECT max(id) FROM notification")[0][0]
        fleet.connection.execute(
            "UPDATE notification SET acked_ms = %s, acked_by = 'ada', ack_until_ms = %s WHERE id ="
            " %s",
            (OCTOBER, OCTOBER + days * DAY, newest),
        )

    finding(1, "scale-up", "serve", 1)
    assert write(1.3).anomalies == 1
    acknowledge(20)
    finding(2, "scale-up", "serve", 4)
    assert write(4.3).anomalies == 0
    finding(3, "scale-up", "train", 6)
    assert write(6.3).anomalies == 1
    finding(4, "leak", "serve", 8)
    assert write(8.3).anomalies == 1
    finding(5, "price", "serve", 10)
    assert write(10.3).anomalies == 1
    acknowledge(20)
    finding(6, "price", "serve", 12)
    assert write(12.3).anomalies == 1
    finding(7, "scale-up", "serve", 21)
    assert write(21.3).anomalies == 1


def test_leads_get_the_sum_of_a_week(idle_day, apply, write, findings, monkeypatch) -> None:
    """On the first round of a week, once; its GPU-hours are of that week alone, and priced exactly."""
    apply(CONTACTS)
    _go_on(idle_day, findings, 1, 6)
    assert write(4.9).summaries == 0
    with monkeypatch.context() as patch:
        patch.setattr("gpuledger_collector.services.weekly_summaries.MIN_SUMMARY_GPU_HOURS", 10_000)
        assert write(5.1).summaries == 0, "a week with too little idle time is no mail"
    assert write(5.2).summaries == 1  # Monday, 6 October
    assert write(5.3).summaries == 0
    ((recipient, text),) = idle_day.rows(
        "SELECT recipient, text FROM outbox WHERE kind = 'summary'"
    )
    assert recipient == "lead@example.org"
    # From Wednesday 06:00 to Sunday's end, not to the sixth day's.
    assert "vision held 114.0 GPU-hours" in str(text)
    cost = 2.49 * (CHANGE - 6 * HOUR) / HOUR + 1.999999999 * (5 * DAY - CHANGE) / HOUR
    assert f"USD {cost:.2f}" in str(text)
    assert "Week before  not known: the ledger did not cover it" in str(text)


def test_a_week_is_compared_with_the_one_before(idle_day, apply, write, findings) -> None:
    """Three idle days after a week of seven: the mail says in words how much less that cost."""
    apply(CONTACTS)
    _go_on(idle_day, findings, 1, 15)
    refresh(findings, Period(OCTOBER, OCTOBER + 20 * DAY), OCTOBER + 20 * DAY)
    assert write(12.2).summaries == 1
    ((first,),) = idle_day.rows("SELECT text FROM outbox WHERE kind = 'summary'")
    assert "Week before  not known" in str(first), "the ledger begins in the middle of that week"
    assert write(19.2).summaries == 1
    ((text,),) = idle_day.rows(
        "SELECT text FROM outbox WHERE kind = 'summary' ORDER BY made_ms DESC LIMIT 1"
    )
    said = " ".join(str(text).partition("The week")[0].split())
    assert (
        said
        == "vision held 72.0 GPU-hours that were idle, 13 Oct to 19 Oct: USD 144.00, USD 192.00"
        " less than the week before."
    )
    assert "Week before  168.0 GPU-hours, USD 336.00" in str(text)


def test_the_week_is_priced_in_the_way_of_buying_that_was_chosen(
    idle_day, apply, write, findings
) -> None:
    """A spot rate that [[purchase]] chooses: the week's 114 GPU-hours are worth that, and not the
    on-demand rate.
    """
    idle_day.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('', 'H100', 'spot', 0.5, 'USD', 0, now())"
    )
    apply(CONTACTS + '\n[[purchase]]\nname = "all"\npurchase = "spot"\n')
    _go_on(idle_day, findings, 1, 6)
    assert write(5.2).summaries == 1
    ((text,),) = idle_day.rows("SELECT text FROM outbox WHERE kind = 'summary'")
    assert "USD 57.00" in str(text)


def test_a_budgets_mail_names_what_could_be_given_back(idle_day, connect) -> None:
    """The workload of its owner with the command, and none of another team's."""
    budgets = {
        team: Budget(1, team, {"team": team}, "month", None, 10**9, "USD")
        for team in ("vision", "nobody")
    }
    with connect() as connection:
        (one,) = idle_of_budget(connection, budgets["vision"], OCTOBER + DAY)
        assert idle_of_budget(connection, budgets["nobody"], OCTOBER + DAY) == []
    ((cost,),) = idle_day.rows("SELECT cost_micro FROM finding WHERE state = 'gone_idle'")
    assert (one.label, one.gpus, one.cost_micro, one.command) == (
        "train-yolo",
        1,
        cost,
        "scancel 1",
    )


def test_the_commands(idle_day, apply, run, dsn) -> None:
    """What was told is listed, can be said to be meant so, and a dry run writes to nobody."""
    apply(CONTACTS)
    notify_findings(Database(dsn), OCTOBER + DAY, MailWriters(*(4 * [lambda _: Content("s", "t")])))
    code, out, _ = run("notifications", "list")
    assert code == 0
    assert re.search(r"train-yolo +ada@example\.org", out)
    assert run("notifications", "ack", "1", "--why", "deadline")[0] == 0
    assert "acknowledged to" in run("notifications", "list")[1]
    assert run("notifications", "ack", "99")[0] == 2
    assert "dry run: nobody is notified" in run("notifications", "write", "--dry-run")[1]
