"""Findings of `gpuledger doctor` about what was declared: zones, commitments, budgets, queues, pools, disputes.

And about what runs out or drifts apart: certificates, clocks, versions.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpuledger_collector.cli.doctor import DAY_MS, Finding

if TYPE_CHECKING:
    from gpuledger_collector.settings import Settings
    from gpuledger_collector.storage.ledger.health import Declarations

SKEW_MS = 5_000
"""More than a slow answer of the database explains; jobs and leases go by both clocks."""
SOON_MS = 14 * DAY_MS
CLOSED_ONES = 31 * DAY_MS
"""Commitments that ended longer ago are history."""
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def remediation(found: Declarations, wanted: Settings, now_ms: int) -> Iterator[Finding]:
    """What of it needs a cure. `now_ms` is the collector's clock when `found` was read."""
    yield from clock(found.server_ms, now_ms)
    yield from zones(found.zones)
    yield from commitments(found.commitments, now_ms)
    yield from messages(found.recipients, wanted)
    yield from queues(found.queues, now_ms)
    for pool in found.acting:
        yield Finding(
            "bad",
            "scaling",
            f"pool {pool} is acted on, and no rate of the price book covers it",
            'gpuledger prices set --pool, or mode = "advice" in its [[pool]] table',
        )
    yield from disputes(found.disputed_ms, wanted.keep_usage_interval_days, now_ms)
    yield from versions(found.versions)
    if wanted.tls_certificate_file is not None:
        yield from certificate(wanted.tls_certificate_file, now_ms)


def clock(server_ms: int, now_ms: int) -> Iterator[Finding]:
    """The database's clock beside the collector's."""
    apart_ms = abs(server_ms - now_ms)
    if apart_ms > SKEW_MS:
        yield Finding(
            "bad",
            "clock",
            f"this machine and the database are {apart_ms / 1000:.0f} s apart",
            "keep both by NTP: timedatectl, or chronyc tracking, on each",
        )


def zones(names: tuple[str, ...]) -> Iterator[Finding]:
    """Billing zones that this machine has no data of: no month has bounds then."""
    from gpuledger_collector.storage.ledger.zones import zone_of

    for name in names:
        try:
            zone_of(name)
        except ValueError:
            yield Finding(
                "bad",
                "zone",
                f"this machine has no data of the billing zone {name}: no month can be made",
                "install the system's tzdata package, or pip install tzdata",
            )


def commitments(found: tuple[tuple[str, int], ...], now_ms: int) -> Iterator[Finding]:
    """Those that ended of late, and those that will soon: usage is on demand from then on."""
    from gpuledger_collector.accounting.period import format_date

    cure = "renew it as another [[commitment]] in the applied file, or let its GPUs be on demand"
    for name, ends_ms in found:
        day = format_date(ends_ms)
        if now_ms - CLOSED_ONES <= ends_ms <= now_ms:
            yield Finding(
                "bad", "commitment", f"{name} ended on {day}: what it covered is charged on demand since", cure
            )
        elif now_ms < ends_ms <= now_ms + SOON_MS:
            yield Finding("note", "commitment", f"{name} ends on {day}", cure)


def messages(recipients: tuple[tuple[str, tuple[str, ...]], ...], wanted: Settings) -> Iterator[Finding]:
    """Budgets that nobody hears of: nobody is named, or no way leads to whom they name."""
    from gpuledger_collector.notifications.sender import channel_of

    mails = bool(wanted.mail_server or wanted.mail_dir)
    for name, who in recipients:
        channels = {channel_of(one) for one in who}
        if not who:
            yield Finding(
                "bad",
                "messages",
                f"budget {name} tells nobody: it has no recipients",
                'recipients = ["lead@example.com"] in its [[budget]] table',
            )
        if "mail" in channels and not mails:
            yield Finding(
                "bad",
                "messages",
                f"budget {name} writes mails, and no way to send one is set",
                "set mail_server (or mail_dir), then gpuledger outbox send",
            )
        if channels - {"mail"} and wanted.hooks_file is None:
            yield Finding(
                "bad",
                "messages",
                f"budget {name} posts to a chat or webhook, and hooks_file is not set",
                "set hooks_file, and name the address in it (docs/guides/mails.md)",
            )


def queues(found: tuple[tuple[str, int], ...], now_ms: int) -> Iterator[Finding]:
    """Queues of which nothing was heard for longer than a reading counts, and that were not taken away."""
    from gpuledger_collector.insight.demand import QUEUE_EXPIRED_MS, QUEUE_VALID_MS

    for source, at_ms in found:
        silent_ms = now_ms - at_ms
        if QUEUE_VALID_MS < silent_ms <= 7 * QUEUE_EXPIRED_MS:
            yield Finding(
                "bad",
                "queue",
                f"the queue of {source} was last read {silent_ms // 60_000} min ago",
                "on its controller: systemctl status gpuledger-queue.timer",
            )


def disputes(found: tuple[tuple[int, int], ...], keep_days: int, now_ms: int) -> Iterator[Finding]:
    """Disputes that wait about days of which the evidence is let go."""
    for number, start_ms in found:
        if keep_days and start_ms < now_ms - keep_days * DAY_MS:
            yield Finding(
                "bad",
                "retention",
                f"dispute {number} is open about days before those that keep_usage_interval_days = {keep_days} keeps",
                "decide it (gpuledger disputes resolve), or keep evidence for longer",
            )


def versions(found: tuple[tuple[str, str], ...]) -> Iterator[Finding]:
    """Agents of another minor version than the collector's; what is no version (a test's) is left alone."""
    from gpuledger_collector import __version__

    ours = _numbers(__version__)
    newer: list[str] = []
    older: list[str] = []
    for node, version in found:
        theirs = _numbers(version)
        if theirs is None or ours is None or theirs[:2] == ours[:2]:
            continue
        (newer if theirs > ours else older).append(f"{node} ({version})")
    if newer:
        yield Finding(
            "bad",
            "versions",
            f"agents newer than this collector ({__version__}): {_some(newer)}",
            "upgrade the collector first: a newer agent may say what this one refuses",
        )
    if older:
        yield Finding(
            "note",
            "versions",
            f"agents older than this collector ({__version__}): {_some(older)}",
            "upgrade them when it suits: apt install ./gpuledger-agent_*.deb",
        )


def _numbers(text: str) -> tuple[int, ...] | None:
    found = _VERSION.match(text)
    return None if found is None else tuple(int(number or 0) for number in found.groups())


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def certificate(path: Path, now_ms: int) -> Iterator[Finding]:
    """How long the server's certificate holds."""
    cure = "put a new certificate and key in place; the collector takes them at its next start"
    try:
        ends = expiry(path.read_text(encoding="ascii"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        yield Finding("bad", "certificate", f"{path} cannot be read: {said}", cure)
        return
    days = (round(ends.timestamp() * 1000) - now_ms) // DAY_MS
    sentence = f"{path} holds until {ends:%Y-%m-%d}"
    if days < 0:
        yield Finding("bad", "certificate", f"{path} ended on {ends:%Y-%m-%d}: agents refuse the collector", cure)
    elif days * DAY_MS < SOON_MS:
        yield Finding("bad", "certificate", f"{sentence}, {days} days", cure)
    else:
        yield Finding("ok", "certificate", sentence)


def expiry(pem: str) -> dt.datetime:
    """When the first certificate of a PEM text ends (notAfter, RFC 5280 4.1.2.5). Raises ValueError where none is."""
    body = re.search(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", pem, re.DOTALL)
    if body is None:
        raise ValueError("it holds no certificate")
    try:
        fields = _parts(_parts(_parts(base64.b64decode(body[1]))[0][1])[0][1])
        # version [0] is optional; then serial number, signature, issuer, validity
        validity = fields[4 if fields[0][0] == 0xA0 else 3][1]
        tag, text = _parts(validity)[1]
        form = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"
        return dt.datetime.strptime(text.decode("ascii"), form).replace(tzinfo=dt.UTC)
    except (IndexError, ValueError) as error:
        raise ValueError("its certificate is not X.509") from error


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Tags and contents of the DER values that follow one another here (ITU-T X.690 8.1)."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        if at + length > len(der):
            raise ValueError("a value is cut short")
        found.append((tag, der[at : at + length]))
        at += length
    return found
