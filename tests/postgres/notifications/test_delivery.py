"""What recipients asked for, applied to the outbox: nothing lost, nothing twice, whoever dies and
however many send.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from fakes.mail import Inbox, mail_server
from gpuledger_collector.insight.notifications.messages import Content, Message
from gpuledger_collector.notifications.sender import Sender
from gpuledger_collector.notifications.smtp import SmtpTransport
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.notifications import outbox
from gpuledger_collector.storage.notifications.outbox import Outbox

HOUR = 3_600_000
NIGHT = 1_795_302_000_000
"""2026-11-21T23:00:00Z, a Saturday."""
EIGHT = NIGHT + 9 * HOUR
RECIPIENT = """
[[recipient]]
address = "lead@example.com"
{}
"""
DIES = """
import os, signal, sys
from gpuledger_collector.notifications.sender import Sender
from gpuledger_collector.notifications.smtp import SmtpTransport
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.notifications.outbox import Outbox
dsn, port, now, last = sys.argv[1:]
def on_step(name):
    if name == last:
        os.kill(os.getpid(), signal.SIGKILL)
ways = {"mail": SmtpTransport("127.0.0.1", int(port), "ledger@example.com", "none")}
Sender(Outbox(Database(dsn)), ways, lambda: int(now), on_step=on_step).send_due()
"""


def put(
    connect, *numbers: int, at_ms: int = NIGHT, kind: str = "budget", urgent: bool = False
) -> None:
    with connect() as connection:
        for number in numbers:
            content = Content(
                f"Subject {number}", f"First words of {number}.\n\nThe rest of {number}.\n"
            )
            key = f"event-{number}"
            outbox.insert(
                connection,
                Message(key, kind, "lead@example.com", content, at_ms, at_ms, "", urgent),
            )


def sender(dsn, port: int, now_ms: int) -> Sender:
    smtp = SmtpTransport("127.0.0.1", port, "ledger@example.com", "none", timeout_s=5.0)
    return Sender(Outbox(Database(dsn)), {"mail": smtp}, lambda: now_ms)


def states(connect) -> list[str]:
    with connect() as connection:
        return [one.state for one in reversed(outbox.list_messages(connection))]


@pytest.mark.parametrize(
    "step",
    [
        "digest_put",
        "joined",
        "arranged",
        *(
            pytest.param(step, marks=pytest.mark.long)
            for step in ("planned", "claimed", "recorded")
        ),
    ],
)
def test_a_digest_is_sent_once_whoever_dies_while_it_is_made(step, dsn, connect, apply) -> None:
    """SIGKILL at the step, then two senders at once: one digest, with each message in it once."""
    assert apply(RECIPIENT.format('digest = "daily"'))[0] == 0
    put(connect, 1, 2, 3)
    inbox = Inbox()
    with mail_server(inbox) as port:
        assert sender(dsn, port, NIGHT).send_due().sent == 0
        command = [sys.executable, "-c", DIES, dsn, str(port), str(EIGHT), step]
        assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
        threads = [threading.Thread(target=sender(dsn, port, EIGHT).send_due) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        inbox.wait(1)
    (mail,) = inbox.mails
    assert mail["Subject"] == "[GPU Ledger] 3 messages of 21 Nov: 3 budget"
    whole = next(mail.iter_attachments()).get_content()
    assert [whole.count(f"The rest of {number}.") for number in (1, 2, 3)] == [1, 1, 1]
    assert sorted(states(connect)) == ["joined", "joined", "joined", "sent"]


def test_over_the_cap_joins_the_next_digest_and_is_counted(connect, apply, dsn) -> None:
    """Two a day: of six the first two go out by themselves, the other four in one; the next day
    counts anew.
    """
    apply(RECIPIENT.format("max_per_day = 2"))
    noon = NIGHT - 11 * HOUR
    put(connect, *range(1, 7), at_ms=noon)
    inbox = Inbox()
    with mail_server(inbox) as port:
        assert sender(dsn, port, noon).send_due().sent == 2
        assert sender(dsn, port, noon + HOUR).send_due().sent == 0
        put(connect, 7, at_ms=EIGHT)
        assert sender(dsn, port, EIGHT).send_due().sent == 2
        inbox.wait(4)
    assert [mail["Subject"] for mail in inbox.mails[:2]] == ["Subject 1", "Subject 2"]
    assert {mail["Subject"] for mail in inbox.mails[2:]} == {
        "[GPU Ledger] 4 messages of 21 Nov: 4 budget",
        "Subject 7",
    }


def test_quiet_hours_of_a_zone_hold_what_is_not_urgent(connect, apply, dsn) -> None:
    """At 23:00 UTC it is night in Berlin: what is urgent comes at once, the other one at seven
    there.
    """
    apply(RECIPIENT.format('quiet = "22:00-07:00"\nzone = "Europe/Berlin"'))
    put(connect, 1)
    put(connect, 2, urgent=True)
    inbox = Inbox()
    with mail_server(inbox) as port:
        assert sender(dsn, port, NIGHT).send_due().sent == 1
        assert sender(dsn, port, NIGHT + 7 * HOUR - 60_000).send_due().sent == 0
        assert sender(dsn, port, NIGHT + 7 * HOUR).send_due().sent == 1
        inbox.wait(2)
    assert [mail["Subject"] for mail in inbox.mails] == ["Subject 2", "Subject 1"]


def test_an_attempt_that_comes_due_at_night_waits_too(connect, apply, dsn) -> None:
    """What could not be sent at 21:59 is not tried again at 23:00."""
    apply(RECIPIENT.format('quiet = "22:00-07:00"'))
    put(connect, 1, at_ms=NIGHT - 61 * 60_000)
    inbox = Inbox()
    with mail_server(inbox) as port:
        inbox.rcpt_replies = ["451 later"]
        assert sender(dsn, port, NIGHT - 61 * 60_000).send_due().retried == 1
        assert sender(dsn, port, NIGHT).send_due().sent == 0
        assert sender(dsn, port, NIGHT + 8 * HOUR).send_due().sent == 1


def test_rules_that_end_lose_nothing(connect, apply, dsn) -> None:
    """What was held is told when its digest is due, also when nobody asks for digests any more."""
    apply(RECIPIENT.format('digest = "weekly"\ndigest_on = "mon"'))
    put(connect, 1)
    inbox = Inbox()
    with mail_server(inbox) as port:
        assert sender(dsn, port, NIGHT).send_due().sent == 0
        apply("recipient = []\n")
        assert sender(dsn, port, EIGHT).send_due().sent == 0
        assert sender(dsn, port, EIGHT + 24 * HOUR).send_due().sent == 1
        inbox.wait(1)
    assert inbox.mails[0]["Subject"] == "[GPU Ledger] 1 message of 21 Nov: 1 budget"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[recipient]]\naddress = "lead"\n', "is no mail address"),
        ('[[recipient]]\naddress = "*"\nzone = "Berlin"\n', "is not a time zone"),
        ('[[recipient]]\naddress = "*"\nquiet = "22-7"\n', "is not a span of the day"),
        ('[[recipient]]\naddress = "*"\ndigest = "hourly"\n', "is not one of daily, weekly"),
        ('[[recipient]]\naddress = "*"\nmax_per_day = -1\n', "is not a whole number from 0"),
        ('[[recipient]]\naddress = "*"\npass = ["all"]\n', "is not one of budget"),
        ('[[contact]]\nuser = "*"\naddress = "lead@example.org"\n', "must hold {user}"),
        ('[[contact]]\nuser = "*"\ntag = "mail"\n', "anybody can write a tag"),
        ('[[contact]]\nuser = "a"\nteam = "b"\n', "give one of them"),
        ('[[contact]]\nteam = "b"\nafter_minutes = 5\n', "from 20 to"),
        ('[[action]]\nname = "a"\nteam = "*"\ndo = "scancel"\n', "each opts in by itself"),
        ('[[action]]\nname = "a"\nteam = "b"\ndo = "rm -rf"\n', "is not one of scancel, evict"),
        ('[[action]]\nname = "a"\nteam = "b"\ndo = "scancel"\ndry_run_hours = 0\n', "from 1 to"),
    ],
)
def test_what_cannot_be_meant_is_refused(text, said, apply) -> None:
    """One sentence with file, line and field; nothing is applied."""
    code, _, err = apply(text)
    assert code == 2
    assert said in err
    assert "ledger.toml:1:" in err
