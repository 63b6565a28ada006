"""Recipients' wishes, contacts and actions as a TOML file declares them ([[recipient]], [[contact]], [[action]]).

[[recipient]]
address = "lead@example.com"     # "*": every mail address without its own
digest = "daily"
quiet = "22:00-07:00"
zone = "Europe/Berlin"
most_per_day = 5

[[contact]]
user = "*"
address = "{user}@example.com"

[[contact]]
team = "vision"
leads = ["lead@example.com"]

[[action]]
name = "vision gives back"
team = "vision"
do = "scancel"
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuledger_collector.config.table import RowReader
from gpuledger_collector.storage.notifications.delivery_rules import DIGESTS, EVERYBODY, WEEKDAYS, Rules
from gpuledger_collector.storage.notifications.finding_rules import (
    EVICT,
    LEAST_MINUTES,
    SCANCEL,
    TOLD_STATES,
    ActionRule,
    Contact,
)
from gpuledger_collector.storage.notifications.messages import is_address, is_recipient

RECIPIENT_KEYS = ("address", "digest", "digest_at", "digest_on", "quiet", "zone", "most_per_day", "pass")
USER_KEYS = ("user", "address", "tag", "domains")
TEAM_KEYS = (
    "team",
    "recipients",
    "leads",
    "after_minutes",
    "confidence",
    "escalate_days",
    "summary",
    "zone",
)
CONTACT_KEYS = (*USER_KEYS, *TEAM_KEYS)
ACTION_KEYS = (
    "name",
    "team",
    "do",
    "states",
    "after_minutes",
    "notice_minutes",
    "dry_run_hours",
    "confidence",
    "most_per_hour",
)
KINDS = ("budget", "idle", "anomaly", "action", "summary")
MOST_MINUTES = 100 * 1440
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_DOMAIN = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+")
_HOOK = re.compile(r"webhook:[A-Za-z0-9_-]{1,60}")
Rows = Iterable[tuple[RowReader, Mapping[str, Any]]]


def read_recipients(rows: Rows) -> dict[str, Rules]:
    """Rules by recipient; problems are noted at rows that are bad."""
    found: dict[str, Rules] = {}
    for row, given in rows:
        address = row.text("address", required=True)
        if address and address != EVERYBODY and not is_recipient(address):
            row.refuse("address", "bad_recipient", f"{address!r} is no mail address, slack:NAME, webhook:NAME or *")
        if address in found:
            row.refuse("address", "double_name", f"{address!r} is the address of another [[recipient]] of this file")
        rules = Rules(
            digest=_one_of(row, "digest", DIGESTS),
            digest_at=_clock(row, "digest_at", Rules().digest_at),
            digest_on=WEEKDAYS.index(_one_of(row, "digest_on", WEEKDAYS) or WEEKDAYS[0]),
            quiet=quiet_hours(row),
            zone=zone(row),
            most_per_day=whole(row, "most_per_day", 0, 1000),
            pass_kinds=tuple(
                texts(row, given, "pass", lambda one: one in KINDS, f"no kind; known are {', '.join(KINDS)}")
            ),
        )
        if not row.bad:
            found[address] = rules
    return found


def read_contacts(rows: Rows) -> list[Contact]:
    """Contacts of users and of teams; each user and team once."""
    found: dict[str, Contact] = {}
    for row, given in rows:
        contact = _contact(row, given)
        if contact is None:
            continue
        if contact.name in found:
            row.refuse("name", "double_name", f"another [[contact]] of this file is for {contact.name}")
        found[contact.name] = contact
    return list(found.values())


def _contact(row: RowReader, given: Mapping[str, Any]) -> Contact | None:
    user, team = row.text("user"), row.name("team")
    if bool(user) == bool(team):
        row.refuse("user", "one_of_two", "a contact is for a user or for a team: give one of them")
        return None
    for name in given:
        if name not in (USER_KEYS if user else TEAM_KEYS):
            row.refuse(name, "not_here", f"belongs to a contact of a {'team' if user else 'user'}")
    if user:
        return _user(row, given, user)
    made = Contact(
        f"team {team}",
        team=team,
        recipients=_addresses(row, given, "recipients"),
        leads=_addresses(row, given, "leads"),
        after_minutes=whole(row, "after_minutes", LEAST_MINUTES, MOST_MINUTES) or Contact("").after_minutes,
        confidence=_or(whole(row, "confidence", 0, 100), Contact("").confidence),
        escalate_days=whole(row, "escalate_days", 1, 100) or Contact("").escalate_days,
        summary=_flag(row, "summary", otherwise=True),
        zone=zone(row),
    )
    return None if row.bad else made


def _user(row: RowReader, given: Mapping[str, Any], user: str) -> Contact | None:
    address, tag = row.text("address"), row.text("tag")
    domains = tuple(
        texts(row, given, "domains", lambda one: _DOMAIN.fullmatch(one) is not None, "no domain such as example.com")
    )
    if address and not is_address(address.replace("{user}", "ada")):
        row.refuse("address", "bad_recipient", f"{address!r} is no mail address such as {{user}}@example.com")
    if (user == "*") and address and "{user}" not in address:
        row.refuse("address", "same_for_all", "of any user must hold {user}")
    if tag and (user != "*" or not domains):
        row.refuse("tag", "no_domains", 'belongs to user = "*" with domains = [...]: anybody can write a tag')
    if not (address or tag):
        row.refuse("address", "empty", "is empty")
    return None if row.bad else Contact(f"user {user}", user=user, address=address, tag=tag, domains=domains)


def read_actions(rows: Rows) -> list[ActionRule]:
    """What teams opt in to; names are given once."""
    found: dict[str, ActionRule] = {}
    for row, given in rows:
        name, do = row.text("name", required=True), row.text("do", required=True)
        if do and do not in (SCANCEL, EVICT) and not _HOOK.fullmatch(do):
            row.refuse("do", "bad_action", f"{do!r} is none of {SCANCEL}, {EVICT}, webhook:NAME")
        team = row.name("team", required=True)
        if team == "*":
            row.refuse("team", "one_team", "names one team: each opts in by itself")
        if name in found:
            row.refuse("name", "double_name", f"{name!r} is the name of another [[action]] of this file")
        plain = ActionRule("", "", "")
        states = texts(row, given, "states", lambda one: one in TOLD_STATES, f"none of {', '.join(TOLD_STATES)}")
        made = ActionRule(
            name,
            team,
            do,
            states=tuple(states) or plain.states,
            after_minutes=whole(row, "after_minutes", 60, MOST_MINUTES) or plain.after_minutes,
            notice_minutes=whole(row, "notice_minutes", 15, MOST_MINUTES) or plain.notice_minutes,
            dry_run_hours=whole(row, "dry_run_hours", 1, 1000) or plain.dry_run_hours,
            confidence=whole(row, "confidence", 50, 100) or plain.confidence,
            most_per_hour=whole(row, "most_per_hour", 1, 1000) or plain.most_per_hour,
        )
        if not row.bad:
            found[name] = made
    return list(found.values())


def texts(row: RowReader, given: Mapping[str, Any], column: str, good: Any, complaint: str) -> list[str]:
    """A list of texts that are all good; others are refused with the complaint."""
    found = given.get(column, [])
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        row.refuse(column, "bad_list", 'must be a list of texts, such as ["a", "b"]')
        return []
    for one in found:
        if not good(one):
            row.refuse(column, "bad_value", f"{one!r} is {complaint}")
    return list(dict.fromkeys(found))


def _addresses(row: RowReader, given: Mapping[str, Any], column: str) -> tuple[str, ...]:
    return tuple(texts(row, given, column, is_recipient, "no mail address, slack:NAME or webhook:NAME"))


def whole(row: RowReader, column: str, least: int, most: int) -> int | None:
    """A whole number within bounds; None where the cell is empty or bad."""
    text = row.text(column)
    if not text:
        return None
    if not text.isdecimal() or not least <= int(text) <= most:
        row.refuse(column, "out_of_range", f"{text!r} is not a whole number from {least} to {most}")
        return None
    return int(text)


def _or(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _flag(row: RowReader, column: str, *, otherwise: bool) -> bool:
    text = row.text(column)
    if text not in {"", "True", "False"}:
        row.refuse(column, "bad_flag", f"{text!r} is neither true nor false")
    return otherwise if not text else text == "True"


def _one_of(row: RowReader, column: str, known: Sequence[str]) -> str:
    text = row.text(column)
    if text and text not in known:
        row.refuse(column, "bad_value", f"{text!r} is none of {', '.join(one for one in known if one)}")
        return ""
    return text


def _clock(row: RowReader, column: str, otherwise: int) -> int:
    text = row.text(column)
    found = _CLOCK.fullmatch(text)
    if found is None:
        if text:
            row.refuse(column, "bad_hour", f"{text!r} is not an hour such as 08:00")
        return otherwise
    return int(found[1]) * 60 + int(found[2])


def quiet_hours(row: RowReader) -> tuple[int, int] | None:
    """`22:00-07:00` as minutes of the day."""
    text = row.text("quiet")
    if not text:
        return None
    first, _, last = text.partition("-")
    start, end = _CLOCK.fullmatch(first), _CLOCK.fullmatch(last)
    if start is None or end is None:
        row.refuse("quiet", "bad_hours", f"{text!r} is not a span of the day such as 22:00-07:00")
        return None
    made = int(start[1]) * 60 + int(start[2]), int(end[1]) * 60 + int(end[2])
    if made[0] == made[1]:
        row.refuse("quiet", "bad_hours", "begins when it ends")
        return None
    return made


def zone(row: RowReader) -> str:
    """A time zone by its name of the IANA database."""
    name = row.text("zone") or "UTC"
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        row.refuse("zone", "bad_zone", f"{name!r} is not a time zone such as Europe/Berlin")
        return "UTC"
    return name
