"""Findings of `gpuledger doctor`, and those about declarations: zones, commitments, budgets,
queues, pools, disputes.

And about what expires or drifts apart: certificates, clocks, versions.
"""

from __future__ import annotations

import base64
import datetime as dt
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from gpuledger_collector import __version__
from gpuledger_collector.accounting.period import DAY_MS, format_date
from gpuledger_collector.insight.ledger_health import Declarations
from gpuledger_collector.insight.queue_rows import QUEUE_EXPIRED_MS, QUEUE_VALID_MS
from gpuledger_collector.notifications.sender import channel_of
from gpuledger_collector.settings import Settings
from gpuledger_common.bounded_file import MAX_SECRET_BYTES, read_bounded
from gpuledger_common.instants import to_ms

MAX_SKEW_MS = 5_000
"""More than a slow answer of the database explains; jobs and leases depend on both clocks."""
SOON_MS = 14 * DAY_MS
ENDED_MS = 31 * DAY_MS
"""Commitments that ended longer ago are history."""
MAX_NAMES = 5
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing looked at: `bad` needs a remedy, `note` is worth knowing, `ok` is as it should be."""

    verdict: Literal["ok", "note", "bad"]
    topic: str
    sentence: str
    remedy: str = ""


ok, note, bad = (partial(Diagnosis, verdict) for verdict in ("ok", "note", "bad"))


def remediation(declared: Declarations, chosen: Settings, now_ms: int) -> Iterator[Diagnosis]:
    """What of the declarations needs a remedy.

    `now_ms` is the collector's clock when `found` was read.
    """
    yield from clock(declared.server_ms, now_ms)
    yield from zones(declared.unknown_zones)
    yield from commitments(declared.commitments, now_ms)
    yield from messages(declared.recipients, chosen)
    yield from queues(declared.queues, now_ms)
    for region in declared.unknown_regions:
        yield bad(
            "region",
            f"rates or commitments name region {region}, and no pool stands there",
            "declare where its pools stand ([[location]]), or correct the name",
        )
    for pool in declared.acting:
        yield bad(
            "scaling",
            f"pool {pool} is acted on, and no rate of the price book covers it",
            'gpuledger prices set --pool, or mode = "advice" in its [[pool]] table',
        )
    yield from disputes(declared.disputed_ms, chosen.keep_usage_interval_days, now_ms)
    yield from versions(declared.versions)
    if chosen.tls_certificate_file is not None:
        yield from certificate(chosen.tls_certificate_file, now_ms)


def clock(server_ms: int, now_ms: int) -> Iterator[Diagnosis]:
    """Whether the clocks of database and collector agree."""
    apart_ms = abs(server_ms - now_ms)
    if apart_ms > MAX_SKEW_MS:
        yield bad(
            "clock",
            f"this machine and the database are {apart_ms / 1000:.0f} s apart",
            "keep both by NTP: timedatectl, or chronyc tracking, on each",
        )


def zones(names: Sequence[str]) -> Iterator[Diagnosis]:
    """Billing zones that this machine has no data of: their months have no bounds."""
    for name in names:
        yield bad(
            "zone",
            f"this machine has no data of the billing zone {name}: its months have no bounds",
            "install the system's tzdata package, or pip install tzdata",
        )


def commitments(ends: Sequence[tuple[str, int]], now_ms: int) -> Iterator[Diagnosis]:
    """Commitments that ended recently or will soon: their usage is charged on demand afterwards."""
    remedy = "renew it as another [[commitment]] in the applied file, or let its GPUs be on demand"
    for name, ends_ms in ends:
        day = format_date(ends_ms)
        if now_ms - ENDED_MS <= ends_ms <= now_ms:
            yield bad(
                "commitment",
                f"{name} ended on {day}: what it covered is charged on demand since",
                remedy,
            )
        elif now_ms < ends_ms <= now_ms + SOON_MS:
            yield note("commitment", f"{name} ends on {day}", remedy)


def messages(
    budgets: Sequence[tuple[str, tuple[str, ...]]], chosen: Settings
) -> Iterator[Diagnosis]:
    """Budgets without recipients, or with recipients that no configured channel reaches."""
    for name, recipients in budgets:
        channels = {channel_of(recipient) for recipient in recipients}
        if not recipients:
            yield bad(
                "messages",
                f"budget {name} notifies nobody: it has no recipients",
                'recipients = ["lead@example.com"] in its [[budget]] table',
            )
        if "mail" in channels and not (chosen.mail_server or chosen.mail_dir):
            yield bad(
                "messages",
                f"budget {name} sends mails, and no way to send one is set",
                "set mail_server (or mail_dir), then gpuledger outbox send",
            )
        if channels - {"mail"} and chosen.hooks_file is None:
            yield bad(
                "messages",
                f"budget {name} posts to a chat or webhook, and hooks_file is not set",
                "set hooks_file, and name the address in it (docs/guides/mails.md)",
            )


def queues(readings: Sequence[tuple[str, int]], now_ms: int) -> Iterator[Diagnosis]:
    """Queues that were not read for longer than a reading is valid, and not long enough to be
    forgotten.
    """
    for source, at_ms in readings:
        silent_ms = now_ms - at_ms
        if QUEUE_VALID_MS < silent_ms <= 7 * QUEUE_EXPIRED_MS:
            yield bad(
                "queue",
                f"the queue of {source} was last read {silent_ms // 60_000} min ago",
                "on its controller: systemctl status gpuledger-queue.timer",
            )


def disputes(starts: Sequence[tuple[int, int]], keep_days: int, now_ms: int) -> Iterator[Diagnosis]:
    """Open disputes about days whose evidence expires."""
    for number, start_ms in starts:
        if keep_days and start_ms < now_ms - keep_days * DAY_MS:
            yield bad(
                "retention",
                f"dispute {number} is open about days before those that keep_usage_interval_days ="
                f" {keep_days} keeps",
                "decide it (gpuledger disputes resolve), or keep evidence for longer",
            )


def versions(agents: Sequence[tuple[str, str]]) -> Iterator[Diagnosis]:
    """Agents of another minor version than the collector's; a text that is not a version is left
    alone.
    """
    own = _numbers(__version__)
    newer: list[str] = []
    older: list[str] = []
    for node, version in agents:
        other = _numbers(version)
        if other is None or own is None or other[:2] == own[:2]:
            continue
        (newer if other > own else older).append(f"{node} ({version})")
    if newer:
        yield bad(
            "versions",
            f"agents newer than this collector ({__version__}): {_first(newer)}",
            "upgrade the collector first: it may refuse what a newer agent reports",
        )
    if older:
        yield note(
            "versions",
            f"agents older than this collector ({__version__}): {_first(older)}",
            "upgrade them when it suits: apt install ./gpuledger-agent_*.deb",
        )


def _numbers(text: str) -> tuple[int, ...] | None:
    match = _VERSION.match(text)
    return None if match is None else tuple(int(number or 0) for number in match.groups())


def _first(names: list[str]) -> str:
    return ", ".join(names[:MAX_NAMES]) + (
        f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    )


def certificate(path: Path, now_ms: int) -> Iterator[Diagnosis]:
    """How long the server's certificate is valid."""
    remedy = "put a new certificate and key in place; the collector takes them at its next start"
    try:
        ends = expiry(read_bounded(path, MAX_SECRET_BYTES).decode("ascii"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        yield bad("certificate", f"{path} cannot be read: {reason}", remedy)
        return
    days = (to_ms(ends) - now_ms) // DAY_MS
    sentence = f"{path} is valid until {ends:%Y-%m-%d}"
    if days < 0:
        yield bad(
            "certificate", f"{path} ended on {ends:%Y-%m-%d}: agents refuse the collector", remedy
        )
    elif days * DAY_MS < SOON_MS:
        yield bad("certificate", f"{sentence}, {days} days", remedy)
    else:
        yield ok("certificate", sentence)


def expiry(pem: str) -> dt.datetime:
    """When the first certificate of a PEM text ends (notAfter, RFC 5280 4.1.2.5).

    Raises ValueError where none is.
    """
    body = re.search(r"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", pem, re.DOTALL)
    if body is None:
        raise ValueError("it holds no certificate")
    try:
        fields = _parts(_parts(_parts(base64.b64decode(body[1]))[0][1])[0][1])
        # version [0] is optional; then serial number, signature, issuer, validity
        validity = fields[4 if fields[0][0] == 0xA0 else 3][1]
        tag, text = _parts(validity)[1]
        form = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"  # UTCTime or GeneralizedTime
        return dt.datetime.strptime(text.decode("ascii"), form).replace(tzinfo=dt.UTC)
    except (IndexError, ValueError) as error:
        raise ValueError("its certificate is not X.509") from error


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Tags and contents of consecutive DER values (ITU-T X.690 8.1)."""
    parts, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:  # the long form: so many bytes hold the length
            size = length & 0x7F
            length, at = int.from_bytes(der[at : at + size], "big"), at + size
        if at + length > len(der):
            raise ValueError("a value is cut short")
        parts.append((tag, der[at : at + length]))
        at += length
    return parts
