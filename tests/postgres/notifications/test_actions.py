"""Giving back: off by default, shown first, never without a letter, audited, and each once whoever
dies.
"""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fakes.fleet import DAY, HOUR, OCTOBER, Held
from fakes.idle_day import minutes
from fakes.mail import Inbox, mail_server
from gpuledger_collector.insight.notifications.reclaim_rules import ReclaimAction
from gpuledger_collector.notifications import finding_mail as finding_mail
from gpuledger_collector.notifications.reclaim import (
    NotReclaimed,
    ReclaimBackend,
    SlurmBackend,
    WebhookBackend,
)
from gpuledger_collector.notifications.sender import Sender
from gpuledger_collector.notifications.smtp import SmtpTransport
from gpuledger_collector.notifications.webhooks import WebhookTransport
from gpuledger_collector.services.idle_search import find_idle
from gpuledger_collector.services.reclaim import ReclaimReport, reclaim_idle
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.notifications.outbox import Outbox

CONTACTS = """
[[contact]]
user = "*"
address = "{user}@example.org"
"""
OPTED_IN = """
[[action]]
name = "vision gives back"
team = "vision"
do = "scancel"
dry_run_hours = 2
notice_minutes = 60
confidence = 80
"""
SQUEUE = """#!/bin/sh
if grep -q "^1$" {log} 2>/dev/null; then echo "CANCELLED|ada"; else echo "RUNNING|ada"; fi
"""
SCANCEL = """#!/bin/sh
echo "$1" >> {log}
"""
DIES = """
import os, signal, sys
from gpuledger_collector.services.reclaim import reclaim_idle
from gpuledger_collector.notifications import finding_mail
from gpuledger_collector.notifications.reclaim import SlurmBackend
from gpuledger_collector.storage.database import Database
dsn, folder, now, last = sys.argv[1:]
def on_step(name):
    if name == last:
        os.kill(os.getpid(), signal.SIGKILL)
book = Database(dsn)
ways = {"scancel": SlurmBackend(folder + "/scancel", folder + "/squeue")}
reclaim_idle(book, int(now), ways, finding_mail.write_reclaim_mail, enabled=True, on_step=on_step)
"""


class Recorded:
    """A way that counts, and knows what it has ended."""

    def __init__(self) -> None:
        self.acted: list[str] = []

    def is_gone(self, action: ReclaimAction) -> bool:
        return action.key in self.acted

    def reclaim(self, action: ReclaimAction) -> str:
        self.acted.append(action.key)
        return "ended"


@pytest.fixture
def told(idle_day, apply, write, findings, dsn):
    """ada's letter was taken by the mail server at midnight; her job rests on for half a day."""
    assert apply(CONTACTS + OPTED_IN)[0] == 0
    write(1)
    with mail_server(Inbox()) as port:
        smtp = SmtpTransport("127.0.0.1", port, "ledger@example.com", "none", timeout_s=5.0)
        assert (
            Sender(Outbox(Database(dsn)), {"mail": smtp}, lambda: OCTOBER + DAY).send_due().sent
            == 1
        )
    minutes(idle_day, 1, DAY, DAY + 12 * HOUR, 0.0)
    idle_day.evidence([Held(1, 1, hour * HOUR, hour * HOUR + HOUR) for hour in range(24, 36)])
    find_idle(findings, OCTOBER + DAY + 12 * HOUR)
    return idle_day


@pytest.fixture
def act(dsn, told):
    """One round at an hour of the second day, in which the job is seen up to then."""

    def acted(
        hour: float, ways: Mapping[str, ReclaimBackend], *, enabled: bool = True
    ) -> ReclaimReport:
        at_ms = OCTOBER + DAY + round(hour * HOUR)
        told.connection.execute(
            "UPDATE finding SET until_ms = %s WHERE state = 'gone_idle'", (at_ms,)
        )
        return reclaim_idle(
            Database(dsn), at_ms, ways, finding_mail.write_reclaim_mail, enabled=enabled
        )

    return acted


def states(fleet) -> list[str]:
    return [str(state) for (state,) in fleet.rows("SELECT state FROM reclaim_action ORDER BY id")]


def test_it_is_shown_first_and_then_done_once(act, told) -> None:
    """Not before the notice is over, nor before the dry run has shown it for two hours; audited,
    and told.
    """
    way = Recorded()
    assert act(0.5, {"scancel": way}).shown == 0
    assert act(2, {"scancel": way}).shown == 1
    assert act(3.9, {"scancel": way}).done == 0
    assert act(4.1, {"scancel": way}).done == 1
    assert act(4.2, {"scancel": way}).done == 0
    assert len(way.acted) == 1
    rows = told.rows(
        "SELECT after->>'state', after->>'do' FROM audit WHERE what = 'give_back' ORDER BY number"
    )
    assert rows == [("doing", "scancel"), ("done", "scancel")]
    assert told.rows("SELECT recipient, urgent FROM outbox WHERE kind = 'action'") == [
        ("ada@example.org", True)
    ]


def test_off_only_shows(act, told) -> None:
    """Without `actions = true` it is shown for ever."""
    way = Recorded()
    for hour in (2, 5, 11):
        act(hour, {"scancel": way}, enabled=False)
    assert (way.acted, states(told)) == ([], ["shown"])


def test_a_team_that_did_not_opt_in_is_left_alone(act, told, apply) -> None:
    """The rule of one team reaches no other."""
    apply(OPTED_IN.replace('team = "vision"', 'team = "robotics"'))
    way = Recorded()
    for hour in (2, 5):
        act(hour, {"scancel": way})
    assert (way.acted, states(told)) == ([], [])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE notification SET ack_until_ms = 9e12, acked_by = 'ada'", "acknowledged by ada"),
        ("UPDATE outbox SET state = 'waiting', sent_ms = NULL", "its people were not notified yet"),
        ("UPDATE finding SET confidence = 0.5", "confidence below 80 %"),
        ("UPDATE finding SET state = 'underused'", "in another state"),
        ('UPDATE workload SET tags = \'{"serving": "true"}\'', "a warm replica of a service"),
        ("UPDATE finding SET resolved_ms = until_ms", "no longer idle"),
        ("DELETE FROM notification_rule WHERE kind = 'action'", "no longer idle"),
    ],
)
def test_what_changes_meanwhile_spares_it_and_the_dry_run_begins_anew(
    change, why, act, told
) -> None:
    """A single round in which it is not to be ended is enough."""
    way = Recorded()
    act(2, {"scancel": way})
    told.connection.execute(change)
    assert act(4.5, {"scancel": way}).done == 0
    ((state, detail, first),) = told.rows(
        "SELECT state, detail, first_shown_ms FROM reclaim_action"
    )
    assert (state, way.acted) == ("spared", [])
    assert why in str(detail)
    assert first == OCTOBER + DAY + 2 * HOUR


def test_a_limit_of_an_hour_holds(act, told) -> None:
    """Others of the team were ended this hour: it waits for the next."""
    act(2, {"scancel": Recorded()})
    told.connection.execute(
        "INSERT INTO reclaim_action (key, notification_id, what, target, team, state,"
        " first_shown_ms, last_shown_ms, acted_ms) SELECT 'other' || n, l.id, 'scancel', '{}',"
        " 'vision', 'done', 0, 0, %s FROM notification l, generate_series(1, 5) n WHERE l.team ="
        " 'vision'",
        (OCTOBER + DAY + 4 * HOUR,),
    )
    way = Recorded()
    assert act(4.5, {"scancel": way}).waiting == 1
    assert act(5.1, {"scancel": way}).done == 1


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A folder with `scancel` that notes each call, and `squeue` that says what came of it."""
    for name, text in (("scancel", SCANCEL), ("squeue", SQUEUE)):
        path = tmp_path / name
        path.write_text(text.format(log=tmp_path / "log"))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return tmp_path


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("shown", marks=pytest.mark.long),
        "begun",
        "asked",
        "acted",
        pytest.param("recorded", marks=pytest.mark.long),
    ],
)
def test_whoever_dies_while_he_acts_it_is_done_once(step, act, told, slurm, dsn) -> None:
    """SIGKILL at the step, then two at once: one call of scancel, one message."""
    ways = {"scancel": SlurmBackend(str(slurm / "scancel"), str(slurm / "squeue"))}
    act(2, ways)
    now = OCTOBER + DAY + 4 * HOUR + HOUR // 2
    told.connection.execute("UPDATE finding SET until_ms = %s WHERE state = 'gone_idle'", (now,))
    done = subprocess.run(
        [sys.executable, "-c", DIES, dsn, str(slurm), str(now), step], check=False, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    book = Database(dsn)
    threads = [
        threading.Thread(
            target=reclaim_idle,
            args=(book, now, ways, finding_mail.write_reclaim_mail),
            kwargs={"enabled": True},
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (slurm / "log").read_text() == "1\n"
    assert states(told) == ["done"]
    assert told.rows("SELECT count(*) FROM outbox WHERE kind = 'action'") == [(1,)]
    assert told.rows("SELECT count(*) FROM audit WHERE what = 'give_back'") == [(2,)]


def action(**target: str) -> ReclaimAction:
    return ReclaimAction(1, "k", 1, "scancel", target, "vision", "doing", 0, 0)


def test_a_job_of_another_user_is_left_alone(slurm) -> None:
    """Job numbers come again: what is not the judged user's is never cancelled."""
    way = SlurmBackend(str(slurm / "scancel"), str(slurm / "squeue"))
    with pytest.raises(NotReclaimed, match="left alone") as caught:
        way.is_gone(action(workload="1", user="grace"))
    assert caught.value.permanent
    for strange in ("1; rm -rf /", "--user=ada", "", "1 2"):
        with pytest.raises(NotReclaimed, match="no Slurm job id"):
            way.reclaim(action(workload=strange))
    assert not (slurm / "log").exists()


def test_a_webhook_is_asked_under_one_key() -> None:
    """The same action again is the same request, by which its receiver knows it."""
    seen: list[tuple[str | None, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(
                (
                    self.headers["Idempotency-Key"],
                    self.rfile.read(int(self.headers["Content-Length"])),
                )
            )
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        way = WebhookBackend(
            WebhookTransport("webhook", {"ops": f"http://127.0.0.1:{server.server_port}/"})
        )
        one = ReclaimAction(
            1, "k", 1, "webhook:ops", {"workload": "48211", "user": "ada"}, "vision", "doing", 0, 0
        )
        assert way.reclaim(one) == way.reclaim(one)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert seen[0] == seen[1]
    assert json.loads(json.loads(seen[0][1])["text"])["workload"] == "48211"


def test_the_commands(act, told, run) -> None:
    """What is shown is shown, and `run` refuses while actions are off."""
    act(2, {})
    code, out, err = run("actions", "dry-run")
    assert code == 0
    assert "spared  scancel  vision  1  train-yolo  (not seen for 45 minutes)" in out
    assert "actions are off" in err
    assert run("actions", "run")[0] == 2
    assert "shown  scancel  vision  1" in " ".join(run("actions", "list")[1].split(" ")).replace(
        "   ", "  "
    )
