"""What the ledger knows of a person (a user name of the scheduler or the system), and how it
forgets.

A name stands where evidence and estimates name a user. Erasing puts a random pseudonym in its place
there, so that hours and money stay, and has the open days rated again, so that owners of the level
`user` bear it as well. An account of the scheduler that is called like the user is taken for the
user's own. A rule that matches by the name matches no longer, so that the time goes to whoever is
named without it, until the rule names the pseudonym. Bookkeeping stays: sealed months, corrections
and the audit log are records that must not change; `show` names them.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import sql

from gpuledger_collector.accounting.reserved_names import escaped
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.locks import Connection

NAMED = ("user_name", "account", "acked_by", "decided_by", "opened_by", "closed_by", "who")
"""Text columns that hold the name of a person."""
KEYS = ("user", "user_name", "account", "username")
"""Keys below which a JSON column holds a person's name."""
KEPT = {
    "closed_workload": "as it was sealed when its month was closed",
    "invoice": "a bill of a closed month",
    "billing_period": "who closed a month is part of its receipt",
    "dispute": "evidence is sealed as it stood when the lines were contested",
    "dispute_entry": "what was said in a dispute is only added to",
    "reattribution": "what a dispute decided is never changed",
    "token": "who had access: the audit log names the token; gpuledger token revoke ends it",
    "owner": "an owner of sealed months or of charges that are rated again soon",
    "audit": "the audit log is only added to",
    "attribution_rule": (
        "declared in a file: it no longer matches; put the pseudonym there and apply it"
    ),
    "budget": "declared in a file: change it there and apply it",
    "notification_rule": "declared in a file: change it there and apply it",
}
"""Tables in which a name stays, and why."""
MENTIONS = {
    "dispute": ("evidence", "reason"),
    "dispute_entry": ("words",),
    "invoice": ("owner",),
    "audit": ("subject", "before", "after"),
    "token": ("name",),
    "notification": ("subject", "why"),
    "action": ("detail",),
    "recommendation": ("subject", "advice", "reason"),
    "finding": ("subject",),
    "backtest": ("series",),
}
"""Texts for people, or names of series, that may contain a person's name as a word."""
MESSAGE = ("recipient", "subject", "text", "html", "attachments")
OVER = ("sent", "unconfirmed", "dead", "joined")
"""States of finished messages: they are emptied, since what they reported is in the ledger."""
ON_ITS_WAY = "still to be sent: erase again afterwards"
EVIDENCE = frozenset(
    {
        "gpu_sample",
        "gpu_state",
        "gpu_latest",
        "gpu_minute",
        "usage_interval",
        "sample_archive",
        "usage_hour",
    }
)
"""Big tables without any name."""


@dataclass(frozen=True, slots=True)
class Place:
    """A column that contains a name, and in how many rows; `kept` says why it stays, empty: it can
    be erased.
    """

    table: str
    column: str
    rows: int
    kept: str


def show(connection: Connection, name: str) -> list[Place]:
    """List where the name occurs."""
    messages = _messages(connection, name)
    for table, column, kind in _columns(connection):
        where, values = _condition(column, kind, name)
        query = sql.SQL("SELECT count(*) FROM {} WHERE {}").format(sql.Identifier(table), where)
        row = connection.execute(query, values).fetchone()
        if row is not None and row[0]:
            messages.append(Place(table, column, row[0], KEPT.get(table, "")))
    return messages


def erase(connection: Connection, name: str, who: str, now_ms: int) -> tuple[str, list[Place]]:
    """Replace the name by a pseudonym wherever possible; return the pseudonym and where it went or
    had to stay.

    One transaction; the audit log records the erasure, but not whose name it was.
    """
    pseudonym = f"erased-{secrets.token_hex(4)}"
    with connection.transaction():
        places = show(connection, name)
        kinds = {(table, column): kind for table, column, kind in _columns(connection)}
        for place in places:
            if place.table == "outbox":
                _empty_messages(connection, name, pseudonym)
            elif not place.kept:
                kind = kinds[place.table, place.column]
                where, values = _condition(place.column, kind, name)
                new, more = _replaced(place.column, kind, name, pseudonym)
                connection.execute(
                    sql.SQL("UPDATE {} SET {} = {} WHERE {}").format(
                        sql.Identifier(place.table), sql.Identifier(place.column), new, where
                    ),
                    {**values, **more},
                )
        if places:
            # Of a closed day a correction would book the name anew, beside the pseudonym.
            connection.execute(
                "INSERT INTO day_recompute (day_ms) SELECT day_ms FROM conservation_check p WHERE"
                " NOT EXISTS (SELECT FROM billing_period b WHERE p.day_ms >= b.start_ms AND"
                " p.day_ms < b.end_ms)"
            )
            rows = sum(place.rows for place in places if not place.kept)
            audit.record(
                connection, [audit.Change("privacy", pseudonym, None, {"rows": rows})], now_ms, who
            )
    return pseudonym, places


def forget_owners(connection: Connection, name: str) -> int:
    """Delete owners of this user that no line refers to after days were rated again; return how
    many.
    """
    return connection.execute(
        "DELETE FROM owner o WHERE user_name = ANY(%s) AND NOT EXISTS (SELECT FROM charge WHERE"
        " owner_id = o.id) AND NOT EXISTS (SELECT FROM correction WHERE owner_id = o.id) AND NOT"
        " EXISTS (SELECT FROM ledger_day WHERE owner_id = o.id)",
        ([name, escaped(name)],),
    ).rowcount


def _columns(connection: Connection) -> Iterator[tuple[str, str, str]]:
    """List tables and columns that may hold a name, and whether they are `text` or `jsonb`."""
    rows = connection.execute(
        "SELECT c.relname, a.attname, t.typname FROM pg_class c JOIN pg_attribute a ON a.attrelid ="
        " c.oid JOIN pg_type t ON t.oid = a.atttypid WHERE c.relnamespace = 'public'::regnamespace"
        " AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND a.attnum > 0 AND NOT"
        " a.attisdropped AND t.typname IN ('text', 'jsonb', 'json') ORDER BY 1, 2"
    ).fetchall()
    for table, column, kind in rows:
        if table in EVIDENCE or table == "outbox":
            continue
        if column in MENTIONS.get(table, ()):
            yield table, column, "words"
        elif kind != "text" or column in NAMED:
            yield table, column, kind


def _condition(column: str, kind: str, name: str) -> tuple[sql.Composable, dict[str, str]]:
    if kind == "text":
        # Owners have the name as attribution books it.
        condition = sql.SQL("{} IN (%(name)s, %(booked)s)").format(sql.Identifier(column))
        return condition, {"name": name, "booked": escaped(name)}
    if kind == "words":
        return sql.SQL("{}::text ~ %(word)s").format(sql.Identifier(column)), {
            "name": name,
            "word": _word(name),
        }
    tests = [
        sql.SQL(
            "position('\"' || {} || '\": ' || to_json(%(name)s::text)::text in {}::jsonb::text) > 0"
        ).format(sql.Literal(key), sql.Identifier(column))
        for key in KEYS
    ]
    # An address in a list, such as the recipients of a mail.
    tests.append(
        sql.SQL("position('\"' || %(name)s || '@' in {}::text) > 0").format(sql.Identifier(column))
    )
    return sql.SQL("({})").format(sql.SQL(" OR ").join(tests)), {"name": name}


def _word(name: str) -> str:
    """A regular expression of Postgres that matches the name as a whole word."""
    escaped = re.sub(r"(\W)", r"\\\1", name)
    return rf"(?<![[:alnum:]_.-]){escaped}(?![[:alnum:]_-])"


def _messages(connection: Connection, name: str) -> list[Place]:
    """Count messages that name the person or went to an address of that name: finished ones and
    pending ones.
    """
    where, values = _told(name)
    rows = connection.execute(
        sql.SQL(
            "SELECT state = ANY(%(over)s), count(*) FROM outbox WHERE {} GROUP BY 1 ORDER BY 1"
        ).format(where),
        values,
    ).fetchall()
    return [Place("outbox", "text", count, "" if over else ON_ITS_WAY) for over, count in rows]


def _told(name: str) -> tuple[sql.Composable, dict[str, object]]:
    tests = [sql.SQL("{}::text ~ %(word)s").format(sql.Identifier(column)) for column in MESSAGE]
    return sql.SQL("({})").format(sql.SQL(" OR ").join(tests)), {
        "word": _word(name),
        "over": list(OVER),
    }


def _empty_messages(connection: Connection, name: str, pseudonym: str) -> None:
    """Empty finished messages; the row stays, because it prevents a second sending."""
    where, values = _told(name)
    connection.execute(
        sql.SQL(
            "UPDATE outbox SET subject = '', text = '', html = '', attachments = '{{}}', recipient"
            " = CASE WHEN recipient ~ %(word)s THEN %(pseudonym)s || '-' || id ELSE recipient END"
            " WHERE {} AND state = ANY(%(over)s)"
        ).format(where),
        {**values, "pseudonym": pseudonym},
    )


def _replaced(
    column: str, kind: str, name: str, pseudonym: str
) -> tuple[sql.Composable, dict[str, str]]:
    values = {"name": name, "pseudonym": pseudonym}
    if kind == "text":
        return sql.SQL("%(pseudonym)s"), values
    if kind == "words":
        values |= {"word": _word(name)}
        return (
            sql.SQL("regexp_replace({}, %(word)s, %(pseudonym)s, 'g')").format(
                sql.Identifier(column)
            ),
            values,
        )
    text: sql.Composable = sql.SQL("{}::text").format(sql.Identifier(column))
    for key in KEYS:
        text = sql.SQL(
            "replace({}, '\"' || {key} || '\": ' || to_json(%(name)s::text)::text, "
            "'\"' || {key} || '\": ' || to_json(%(pseudonym)s::text)::text)"
        ).format(text, key=sql.Literal(key))
    text = sql.SQL("replace({}, '\"' || %(name)s || '@', '\"' || %(pseudonym)s || '@')").format(
        text
    )
    return sql.SQL("({})::jsonb").format(text), values
