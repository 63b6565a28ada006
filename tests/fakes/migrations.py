"""What a migration of phase `pre` may not do, because collectors of the version before go on beside
it.
"""

import io
import re
from collections.abc import Mapping
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

BIG = {
    "charge",
    "correction",
    "counter_hour",
    "counter_reading",
    "hour_recompute",
    "gpu_minute",
    "gpu_sample",
    "gpu_state",
    "gpu_state_hour",
    "imported_usage",
    "ingest_batch",
    "ledger_day",
    "ledger_month",
    "node_utilization",
    "owner_5min",
    "sample_archive",
    "scrape_sample",
    "token_hour",
    "token_reading",
    "token_request",
    "usage_interval",
    "usage_interval_day",
    "usage_hour",
    "workload",
}
"""Tables that grow with the fleet: a lock that lasts as long as reading them stops every writer."""
_MADE = re.compile(r"CREATE (?:TABLE|VIEW|FUNCTION)(?: IF NOT EXISTS)? (\w+)", re.I)
_ON_TABLE = re.compile(r"(?:ALTER TABLE(?: ONLY)?(?: IF EXISTS)?|\bON)\s+(?:ONLY\s+)?(\w+)", re.I)
_UNNOTICED = re.compile(
    r"CREATE TRIGGER \w+ AFTER .* FOR EACH STATEMENT EXECUTE FUNCTION (\w+)\(\)$", re.I
)
_STANDS_IN = re.compile(_UNNOTICED.pattern.replace(r"\(\)$", r"\((?:'\w+')?\)$"), re.I)
_WRITES = re.compile(
    r"(?:INSERT INTO|UPDATE|DELETE FROM|TRUNCATE|MERGE INTO)\s+(?:ONLY\s+)?(\w+)", re.I
)
ANYWHERE = {
    r"\bDROP (TABLE|VIEW|MATERIALIZED VIEW|FUNCTION|TRIGGER|INDEX|TYPE|SCHEMA|POLICY)\b": (
        "drops what they use"
    ),
    # A foreign key is nothing that they use: without it less is refused.
    r"\bDROP (COLUMN|CONSTRAINT (?!fk_))\b": "drops what they use",
    r"\bALTER (COLUMN )?\w+ (SET DATA )?TYPE\b": (
        "rewrites the table, and they write the other type"
    ),
    r"\bSET NOT NULL\b": "older collectors may still write null",
    r"\bDROP DEFAULT\b": "older collectors may rely on it",
    r"\bRENAME\b": "older collectors know the old name",
    r"\bADD (COLUMN )?(?!CONSTRAINT)\w+ (?![^,;]*\bDEFAULT\b)[^,;]*\bNOT NULL\b": (
        "they do not write the column"
    ),
    r"\bADD COLUMN [^,;]*\b(GENERATED|(BIG)?SERIAL|DEFAULT (now|random|gen_random_uuid)\b)": (
        "rewrites the table"
    ),
    r"\bADD (CONSTRAINT \w+ )?(PRIMARY KEY|UNIQUE|EXCLUDE)\b": (
        "they may break it, and it locks the table"
    ),
    r"\bADD CONSTRAINT (?!.*\bNOT VALID\b)\w+ (CHECK|FOREIGN KEY)\b": (
        "reads the table under a lock: add it NOT VALID"
    ),
    r"\bCREATE UNIQUE INDEX\b": "older collectors may break it",
    r"\bCREATE (OR REPLACE )?TRIGGER\b": "older collectors do not expect it",
    r"^\s*(TRUNCATE|LOCK|CLUSTER|VACUUM FULL|REINDEX)\b": "locks the table",
    r"\bENABLE ROW LEVEL SECURITY\b": "older collectors do not expect it",
}
ON_BIG = {
    r"\bCREATE INDEX (?!CONCURRENTLY|\w+ ON ONLY)": "writers wait as long as it takes: CONCURRENTLY",
    r"^\s*(UPDATE|DELETE)\b": "touches rows of a big table in one transaction: leave it to a job",
}


def statements(text: str) -> list[str]:
    """SQL statements of a script; bodies in dollar quotes stay whole."""
    found, rest, quoted = [], "", False
    for part in re.split(r"(\$\w*\$|;|'(?:[^']|'')*')", re.sub(r"--.*", "", text)):
        if part == ";" and not quoted:
            found.append(rest)
            rest = ""
            continue
        quoted ^= part.startswith("$") and part.endswith("$") and len(part) > 1
        rest += part
    return [" ".join(one.split()) for one in [*found, rest] if one.strip()]


def forbidden(script: str) -> list[str]:
    """What of this migration's SQL older collectors do not survive, each with the reason."""
    made: dict[str, str] = {}
    found = []
    for statement in statements(script):
        if name := _MADE.match(statement):
            made[name[1].lower()] = statement
        subject = _subject(statement)
        if (
            subject in made
            or _unnoticed(statement, made)
            or _stands_for_key(statement, made, script)
        ):
            continue
        plain = re.sub(r"'(?:[^']|'')*'", "''", statement)
        rules = dict(ANYWHERE) | (ON_BIG if subject in BIG else {})
        found += [
            f"{statement[:100]}: {why}"
            for rule, why in rules.items()
            if re.search(rule, plain, re.I)
        ]
    return found


def _unnoticed(statement: str, made: Mapping[str, str]) -> bool:
    """Whether it is a trigger that older collectors cannot notice: it comes after a statement,
    refuses nothing, and its function, made by this very script, writes to tables of this script
    alone.
    """
    trigger = _UNNOTICED.match(statement)
    if not trigger or trigger[1].lower() not in made:
        return False
    body = made[trigger[1].lower()]
    written = {name.lower() for name in _WRITES.findall(body)}
    return written <= made.keys() and not re.search(
        r"\b(RAISE|EXECUTE|PERFORM|LOCK|ALTER|DROP)\b", body, re.I
    )


def _stands_for_key(statement: str, made: Mapping[str, str], script: str) -> bool:
    """Whether it is a trigger in the place of foreign keys that this very script drops: it comes
    after a statement, and refuses as they did, nothing else.
    """
    trigger = _STANDS_IN.match(statement)
    if not trigger or trigger[1].lower() not in made or "DROP CONSTRAINT fk_" not in script:
        return False
    body = made[trigger[1].lower()]
    refusals = body.count("RAISE EXCEPTION")
    return not _WRITES.findall(body) and refusals == body.count("'foreign_key_violation'") > 0


def _subject(statement: str) -> str:
    """The table that a statement is about."""
    if plain := re.match(
        r"\s*(?:UPDATE|DELETE FROM|TRUNCATE|LOCK TABLE|DROP TABLE)\s+(?:ONLY\s+)?(\w+)",
        statement,
        re.I,
    ):
        return plain[1].lower()
    found = _ON_TABLE.search(statement)
    return found[1].lower() if found else ""


def scripts(folder: Path) -> list[tuple[str, str, str]]:
    """Number, phase and SQL of each migration, the oldest first."""
    config = Config(output_buffer=io.StringIO())
    config.set_main_option("script_location", str(folder))
    found = []
    for script in reversed(list(ScriptDirectory.from_config(config).walk_revisions())):
        config.output_buffer = io.StringIO()
        command.upgrade(config, f"{script.down_revision or 'base'}:{script.revision}", sql=True)
        text = re.sub(
            r"^(BEGIN|COMMIT);|^(UPDATE|INSERT INTO) alembic_version .*;$",
            "",
            config.output_buffer.getvalue(),
            flags=re.M,
        )
        found.append((script.revision, getattr(script.module, "phase", "pre"), text))
    return found
