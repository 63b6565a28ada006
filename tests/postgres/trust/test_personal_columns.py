"""The schema says of each column whether it holds the name of a person."""

import re

import sqlalchemy as sa

from gpuledger_collector.accounting.personal_data import Person
from gpuledger_collector.storage.schema import metadata
from gpuledger_collector.storage.schema.columns import personal_columns

NAMED_LIKE_A_PERSON = re.compile(r"^(user|user_name|username|account|who|.*_by)$")


def test_every_column_that_is_named_like_a_person_says_so():
    """Text that a scheduler, an answer or a decision fills with a user's name."""
    personal = {(table.name, column.name) for table, column, _ in personal_columns()}
    silent = {
        f"{table.name}.{column.name}"
        for table in metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, sa.Text)
        and NAMED_LIKE_A_PERSON.match(column.name)
        and (table.name, column.name) not in personal
    }
    assert silent == set()


def test_json_is_searched_unless_it_is_said_otherwise():
    """Whoever adds a column of JSON has it searched and erased without a word."""
    searched = {(table.name, column.name) for table, column, _ in personal_columns()}
    assert {
        (table.name, column.name)
        for table in metadata.tables.values()
        for column in table.columns
        if isinstance(column.type, sa.JSON)
    } <= searched


def test_what_is_said_fits_the_type():
    """A name and words are texts, keys are of JSON, and what stays has a name to keep."""
    for table, column, person in personal_columns():
        is_json = isinstance(column.type, sa.JSON)
        assert is_json or person is not Person.KEYS, (table.name, column.name)
        assert not is_json or person is not Person.NAME, (table.name, column.name)
    kept = {table.name for table in metadata.tables.values() if table.info["stays"]}
    assert kept <= {table.name for table, _, _ in personal_columns()}
