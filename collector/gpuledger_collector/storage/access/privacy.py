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

from psycopg import sql

from gpuledger_collector.accounting import personal_data
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.accounting.personal_data import Person, Place
from gpuledger_collector.accounting.reserved_names import escape_name
from gpuledger_collector.storage.access import audit
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.rows import select_row, select_value
from gpuledger_collector.storage.schema import metadata as metadata
from gpuledger_collector.storage.schema.columns import personal_columns

KEYS = ("user", "user_name", "account", "username")
"""Keys below which a JSON column holds a person's name."""
OVER = ("sent", "unconfirmed", "dead", "joined")
"""States of finished messages: they are emptied, since what they reported is in the ledger."""
ON_ITS_WAY = "still to be sent: erase again afterwards"


def show(connection: Connection, name: str) -> list[Place]:
    """List where the name occurs."""
    places = _messages(connection, name)
    for table, column, person in personal_columns():
        if person is Person.MESSAGE:
            continue
        where, values = _condition(column.name, person, name)
        query = sql.SQL("SELECT count(*) FROM {} WHERE {}").format(
            sql.Identifier(table.name), where
        )
        if count := select_value(connection, query, values):
            places.append(Place(table.name, column.name, count, table.info["stays"], person))
    return places


def erase(connection: Connection, name: str, who: str, now_ms: int) -> tuple[str, list[Place]]:
    """Replace the name by a pseudonym wherever possible; return the pseudonym and where it went or
    had to stay.

    One transaction; the audit log records the erasure, but not whose name it was.
    """
    pseudonym = personal_data.pseudonym(secrets.token_hex(4))
    with connection.transaction():
        places = show(connection, name)
        for place in places:
            if place.person is Person.MESSAGE:
                _empty_messages(connection, name, pseudonym)
            elif not place.kept:
                where, values = _condition(place.column, place.person, name)
                new, more = _replacement(place.column, place.person, name, pseudonym)
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
    """Delete owners of this user, and tenants of this name, that no line refers to after days were
    rated again; return how many.
    """
    names = [name, escape_name(name)]
    shares = connection.execute(
        "DELETE FROM inference_share s WHERE tenant = ANY(%s) AND NOT EXISTS (SELECT FROM charge"
        " WHERE inference_id = s.id) AND NOT EXISTS (SELECT FROM correction WHERE inference_id ="
        " s.id)",
        (names,),
    ).rowcount
    owners = connection.execute(
        "DELETE FROM owner o WHERE user_name = ANY(%s) AND NOT EXISTS (SELECT FROM charge WHERE"
        " owner_id = o.id) AND NOT EXISTS (SELECT FROM correction WHERE owner_id = o.id) AND NOT"
        " EXISTS (SELECT FROM ledger_day WHERE owner_id = o.id)",
        (names,),
    ).rowcount
    return shares + owners


def requested_days(connection: Connection) -> Period | None:
    """From the first to the last day that is to be rated again; None: no day is."""
    first_ms, last_ms = select_row(connection, "SELECT min(day_ms), max(day_ms) FROM day_recompute")
    return None if first_ms is None else Period(first_ms, last_ms + DAY_MS)


def _condition(column: str, person: Person, name: str) -> tuple[sql.Composable, dict[str, str]]:
    if person is Person.NAME:
        # Owners have the name as attribution books it.
        condition = sql.SQL("{} IN (%(name)s, %(booked)s)").format(sql.Identifier(column))
        return condition, {"name": name, "booked": escape_name(name)}
    if person is Person.WORDS:
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
    where, values = _match_messages(name)
    rows = connection.execute(
        sql.SQL(
            "SELECT state = ANY(%(over)s), count(*) FROM outbox WHERE {} GROUP BY 1 ORDER BY 1"
        ).format(where),
        values,
    ).fetchall()
    return [Place("outbox", "text", count, "" if over else ON_ITS_WAY) for over, count in rows]


def _match_messages(name: str) -> tuple[sql.Composable, dict[str, object]]:
    tests = [
        sql.SQL("{}::text ~ %(word)s").format(sql.Identifier(column.name))
        for _, column, person in personal_columns()
        if person is Person.MESSAGE
    ]
    return sql.SQL("({})").format(sql.SQL(" OR ").join(tests)), {
        "word": _word(name),
        "over": list(OVER),
    }


def _empty_messages(connection: Connection, name: str, pseudonym: str) -> None:
    """Empty finished messages; the row stays, because it prevents a second sending."""
    where, values = _match_messages(name)
    connection.execute(
        sql.SQL(
            "UPDATE outbox SET subject = '', text = '', html = '', attachments = '{{}}', recipient"
            " = CASE WHEN recipient ~ %(word)s THEN %(pseudonym)s || '-' || id ELSE recipient END"
            " WHERE {} AND state = ANY(%(over)s)"
        ).format(where),
        {**values, "pseudonym": pseudonym},
    )


def _replacement(
    column: str, person: Person, name: str, pseudonym: str
) -> tuple[sql.Composable, dict[str, str]]:
    values = {"name": name, "pseudonym": pseudonym}
    if person is Person.NAME:
        return sql.SQL("%(pseudonym)s"), values
    if person is Person.WORDS:
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
