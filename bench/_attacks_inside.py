"""Attacks by names, links and webhooks; and whether the ledger is whole after all of them."""

from __future__ import annotations

import contextlib
import csv
import email
import email.policy
import io
import json
import re
import socket
import threading
import time
import unicodedata
from collections.abc import Iterator, Sequence
from urllib.parse import urlsplit

import msgspec

from bench._attacks_arena import BUDGET, HOOKS, Arena, Row
from bench._attacks_requests import NOW_MS
from fakes import two_teams
from fakes.batches import HOUR_MS, accelerator, batch, body_of, held, samples, workload
from fakes.mail import message
from fakes.pages import Page
from fakes.processes import MSGPACK
from fakes.two_teams import FOREIGN, OWN
from gpuledger_collector.notifications.transport import NotAccepted
from gpuledger_collector.notifications.webhooks import WebhookTransport
from gpuledger_common import http_exchange

HOSTILE = (
    "<script>alert(1)</script>",
    "=cmd|' /C calc'!A0",
    "+1+1",
    "@SUM(A1)",
    "＝1+1",
    "a\x1b[2J\x1b[8mb",
    "a\r\nBcc: eve@example.com",
    "a\nFORGED ok",
    "\u202evision",
    "../../etc/passwd",
    "{{ 7*7 }}",
    "a/b?c#d%2F",
    "\u2028x",
    "'; DROP TABLE charge; --",
    '"><img src=x onerror=alert(1)>',
    "x\x85y",
    "-2+3",
    "\u200bvision",
    "%0A%0Dx",
    "${jndi:ldap://x}",
)
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
FRAMED = {
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def acting(text: str) -> list[str]:
    """Every character that acts on what shows it, line feeds apart."""
    return sorted({sign for sign in text if sign != "\n" and unicodedata.category(sign) in HIDDEN})


def judge_shown(row: Row, where: str, text: str, *, markup: bool = True) -> None:
    """What is shown acts on nothing."""
    row.count(where.partition(" ")[0])
    row.expect(not acting(text), f"{where} shows {acting(text)}")
    row.expect("\nFORGED" not in text, f"{where} has a forged line")
    if markup:
        row.expect(
            "<script>alert" not in text and "<img src=x" not in text, f"{where} shows markup"
        )


def names(arena: Arena) -> None:
    """Teams, jobs, users and pools of hostile names; every page of theirs, every CSV, every mail."""
    with arena.attack(
        "hostile names on pages, in CSV, commands and mails", "agent of a node, finance"
    ) as row:
        for seq, name in enumerate(HOSTILE):
            node, at_ms = f"{OWN}-node", NOW_MS - (seq + 2) * HOUR_MS
            job = workload(
                f"{OWN}-h{seq}", user=name, name=name, tags={"team": name, "project": name}
            )
            made = batch(
                5000 + seq,
                node,
                0,
                workloads=[job],
                samples=samples(1, []),
                usage_intervals=[held(0, at_ms, at_ms + HOUR_MS)],
            )
            card = accelerator(0, f"hostile-{seq}", pool=name, model="NVIDIA L4")
            body = body_of(msgspec.structs.replace(made, accelerators=[card]))
            status, _, text = arena.ask("POST", "/v1/batches", "agent", body, MSGPACK)
            row.count(status)
            row.expect(status in {200, 422}, f"{name!r}: {status} {text[:100]}")
        teams = "SELECT count(DISTINCT team) FROM owner"
        arena.wait(
            lambda: arena.query(teams)[0][0] >= len(HOSTILE), 60, "hostile teams in the ledger"
        )
        arena.apply((arena.folder / "declared.toml").read_text() + "".join(_budgets()))
        _pages(arena, row)
        _commands(arena, row)
        mails = arena.folder / "mails"
        arena.wait(
            lambda: len(list(mails.iterdir())) >= len(HOSTILE) // 2, 90, "mails about hostile teams"
        )
        for path in mails.iterdir():
            _mail(row, path.read_bytes())


def _budgets() -> Iterator[str]:
    for number, name in enumerate(HOSTILE):
        yield (
            f"[[budget]]\nname = {json.dumps(f'hostile {number}')}\nteam ="
            f' {json.dumps(name)}\nperiod = "month"\namount = 1\ncurrency = "USD"\nrecipients ='
            ' ["lead@example.com"]\n'
        )


def _pages(arena: Arena, row: Row) -> None:
    month = two_teams.day(0)[:7]
    waiting, seen = ["/", f"/statements/team/{month}", "/docs"], set[str]()
    while waiting and len(seen) < 100:
        path = waiting.pop()
        if path in seen or not path.startswith("/"):
            continue
        seen.add(path)
        status, told, text = arena.ask("GET", path, "finance")
        row.expect(status == 200, f"our own link {path} leads to {status}")
        judge_shown(row, f"pages {path}", text)
        if "html" in told.get("Content-Type", ""):
            row.expect(
                "default-src 'none'" in told["Content-Security-Policy"], f"{path} has no policy"
            )
            waiting += Page(text).links


def _commands(arena: Arena, row: Row) -> None:
    days = ("--from", two_teams.day(-4), "--to", two_teams.day(1))
    for words in (
        ("chargeback", *days, "--by", "team,user"),
        ("chargeback", *days, "--by", "pool"),
        ("runs", *days),
        ("idle",),
        ("budgets",),
        ("outbox", "list"),
        ("doctor",),
    ):
        forms = ((), ("--format", "csv")) if words[0] in {"chargeback", "idle"} else ((),)
        for form in forms:
            text = arena.command(*words, *form).stdout
            judge_shown(row, f"commands {' '.join(words[:1])}", text, markup=False)
            for line in csv.reader(io.StringIO(text)) if form else ():
                formula = [cell for cell in line if re.match(r"[=+@\t\r＝＋－＠]|-\D", cell)]
                row.expect(not formula, f"{words[0]}: a formula in a cell: {formula}")


def _mail(row: Row, content: bytes) -> None:
    made = email.message_from_bytes(content, policy=email.policy.default)
    row.expect(
        made["Bcc"] is None and made["To"] == "lead@example.com",
        f"a mail to {made['To']} and {made['Bcc']}",
    )
    for part in made.walk():
        if part.get_content_maintype() == "text":
            text, markup = (
                part.get_content().replace("\r\n", "\n"),
                part.get_content_subtype() == "html",
            )
            judge_shown(row, f"mails {made['Subject']}", text, markup=markup)
    judge_shown(row, "mails", str(made["Subject"]), markup=False)


def links(arena: Arena) -> None:
    """The link of a mail: opened, pressed once, pressed again, at once, changed and framed."""
    mails = arena.folder / "mails"
    arena.wait(
        lambda: any("/v1/budgets/ack?" in path.read_text() for path in mails.iterdir()),
        60,
        "a mail with a link",
    )
    text = "".join(part for path in mails.iterdir() for part in _texts(path.read_bytes()))
    address = urlsplit(
        re.findall(r"https://ledger\.example(/v1/budgets/ack\?[^\s\"<>]+)", text)[0].replace(
            "&amp;", "&"
        )
    )
    link = f"{address.path}?{address.query}"
    states = "SELECT count(*) FROM budget_alert WHERE state = 'acked'"
    with arena.attack("links of mails: opened, used again, changed, framed", "nobody") as row:
        (before,) = arena.query(states)
        for _ in range(5):
            _press(arena, row, "GET", link, {200})
        row.expect(arena.query(states) == [before], "opening a link changed something")
        answers: list[int] = []
        threads = [
            threading.Thread(
                target=lambda: answers.append(_press(arena, row, "POST", link, {200, 410}))
            )
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        row.expect(answers.count(200) == 1, f"pressed at once: {sorted(answers)}")
        for _ in range(5):
            _press(arena, row, "POST", link, {410})
        wrong = [link.replace(name, f"{name}1") for name in ("budget=", "sent=", "period=")]
        wrong += [link[:-1] + ("0" if link[-1] != "0" else "1"), link[:-64], f"{link}&days=400"]
        for changed in (*wrong, link[:-64] + link[-64:].upper()):
            _press(arena, row, "POST", changed, {403, 404, 410, 422})


def _texts(content: bytes) -> list[str]:
    made = email.message_from_bytes(content, policy=email.policy.default)
    return [part.get_content() for part in made.walk() if part.get_content_maintype() == "text"]


def _press(arena: Arena, row: Row, method: str, link: str, allowed: set[int]) -> int:
    status, told, _ = arena.ask(method, link, "nobody")
    row.count(status)
    row.expect(status in allowed, f"{method} {link[:60]}: {status}")
    framed = all(
        told.get(name) == value for name, value in FRAMED.items()
    ) and "frame-ancestors 'none'" in told.get("Content-Security-Policy", "")
    row.expect(framed, f"{method} of a link can be framed: {told}")
    return status


def webhooks(arena: Arena) -> None:
    """Hooks that lead inside by every way to write an address, redirects, and names that change
    what they stand for.
    """
    with arena.attack("webhooks: private addresses, redirects, rebinding", "finance") as row:
        over = "SELECT recipient, state, error FROM outbox WHERE recipient LIKE 'webhook:%'"
        done = lambda: sum(state == "dead" for _, state, _ in arena.query(over)) >= len(HOOKS)  # noqa: E731
        arena.wait(lambda: done() and arena.listener.asked, 90, "messages to hooks")
        time.sleep(3)
        for recipient, state, error in arena.query(over):
            row.count(f"outbox: {state}")
            if str(recipient).partition(":")[2] in {receiver.name for receiver in arena.receivers}:
                continue  # private by the settings: `receivers` judges them
            inside = recipient != "webhook:moved"
            row.expect(
                not inside or (state == "dead" and "private network" in str(error)),
                f"{recipient}: {state}, {error}",
            )
        row.expect(
            set(arena.listener.asked) == {"/moved"},
            f"the listener inside was asked for {arena.listener.asked}",
        )
        _rebind(row)


def receivers(arena: Arena) -> None:
    """Receivers that drip, say nothing and never end: each was asked, and mails and other hooks
    went on meanwhile.
    """
    runs = (
        "SELECT max(extract(epoch FROM ended_at - started_at)) FROM job_run WHERE job ="
        " 'send_outbox'"
    )
    with arena.attack("hooks to hostile receivers", "finance") as row:
        arena.wait(
            lambda: all(receiver.asked for receiver in arena.receivers),
            120,
            "hostile receivers to be asked",
        )
        for receiver in arena.receivers:
            row.count(f"{receiver.name} asked", receiver.asked)
        budget = BUDGET.format(name="after", team=OWN, to='"after@example.com"')
        arena.apply((arena.folder / "declared.toml").read_text() + budget)
        mails, begun = arena.folder / "mails", time.monotonic()
        arena.wait(
            lambda: any(b"after@example.com" in path.read_bytes() for path in mails.iterdir()),
            120,
            "a mail",
        )
        row.count(f"a mail after {time.monotonic() - begun:.0f} s")
        longest = float(str(arena.query(runs)[0][0] or 0))
        row.count(f"longest run of the sender {longest:.0f} s")
        row.expect(longest < 150, f"a run of the sender took {longest:.0f} s")


def _rebind(row: Row) -> None:
    """The hook's code in this process, with a resolver that answers otherwise the second time."""
    true = http_exchange.socket, http_exchange._Socket  # type: ignore[attr-defined]
    for first, second in (
        ("8.8.8.8", "127.0.0.1"),
        ("10.0.0.1", "8.8.8.8"),
        ("::ffff:169.254.169.254", "8.8.8.8"),
    ):
        net = Resolver((first, second))
        http_exchange.socket, http_exchange._Socket = net, net.make_socket  # type: ignore[assignment, attr-defined, misc]
        try:
            hook = WebhookTransport("webhook", {"ops": "https://hooks.example.com/x"})
            with contextlib.suppress(NotAccepted):
                hook.deliver(message(recipient="webhook:ops"), lambda: None)
        finally:
            http_exchange.socket, http_exchange._Socket = true  # type: ignore[attr-defined, misc]
        row.count("rebinding resolver")
        row.expect(
            net.connected == ([("8.8.8.8", 443)] if first == "8.8.8.8" else []),
            f"connected to {net.connected}",
        )


class Resolver:
    """Stands for the module `socket`: a name is another address each time, and nothing is connected
    to.
    """

    SOCK_STREAM, AI_NUMERICHOST = socket.SOCK_STREAM, socket.AI_NUMERICHOST
    AF_INET, AF_INET6 = socket.AF_INET, socket.AF_INET6

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses, self.connected = iter(addresses), list[object]()

    def getaddrinfo(self, *_asked: object, flags: int = 0, **_more: object) -> list[object]:
        if flags:
            raise OSError("a name")
        return [(2, 1, 6, "", (next(self.addresses), 443))]

    def make_socket(self, *_kind: object) -> socket.socket:
        """A socket that connects to nothing."""
        connected = self.connected

        class Unplugged(socket.socket):
            def connect(self, place: object) -> None:
                connected.append(place)
                raise OSError("unplugged")

        return Unplugged()


def whole(arena: Arena) -> None:
    """After all of it: the other team's bill, the audit chain, the proof of the days, and no secret
    in a log.
    """
    with arena.attack("the ledger and the logs after all of it", "-") as row:
        for words in (
            ("audit", "verify"),
            ("reconcile", "--from", two_teams.day(-4), "--to", two_teams.day(-1)),
            ("db", "check"),
        ):
            done = arena.command(*words)
            row.count(f"{words[0]} {done.returncode}")
            named = (f"gives GPU-{FOREIGN}", f"GPU-{FOREIGN} is reported by")
            # What was forged.
            contested = words[0] == "reconcile" and any(text in done.stdout for text in named)
            row.expect(
                done.returncode == 0 or contested,
                f"{' '.join(words)}: {done.stdout[-300:]} {done.stderr[-300:]}",
            )
        bill = arena.bill(FOREIGN)
        row.count(f"the other team owes {bill}")
        row.expect(bill == "144.00", f"{FOREIGN} owes {bill}")
        log = (arena.folder / "collector.log").read_text(errors="replace")
        secrets = {
            name: secret
            for name, secret in arena.secrets.items()
            if name != "wrong token" and secret in log
        }
        row.seen[f"{log.count(chr(10)):,} lines of log"] += 1
        row.expect(not secrets, f"secrets in the log: {set(secrets)}")
        faults = re.findall(
            r"^ *((?:\w+\.)*\w*(?:Error|Exception|Disconnect)\b.{0,200})$", log, re.MULTILINE
        )
        row.expect(
            "Traceback" not in log,
            f"{log.count('Traceback')} tracebacks in the log: {sorted(set(faults))}",
        )
        row.expect(not acting(log), f"the log acts: {acting(log)}")


LOOKING = (names, links, webhooks, receivers)
LAST = (whole,)
