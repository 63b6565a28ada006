"""A command on a ledger has the options that say which one, and opens it when it is needed."""

import io
import sys
from typing import Annotated

import psycopg
import pytest
from typer import Option
from typer.main import get_command
from typer.testing import CliRunner

from gpuledger_collector.cli import session as sessions
from gpuledger_collector.cli.common import new_app, refuse
from gpuledger_collector.cli.session import Session, ledger_command
from gpuledger_collector.settings import SettingsError


def app_of(command):
    app = new_app()
    app.command(epilog="Example: gpuledger ask --top 3")(ledger_command(command))
    return app


def count_sessions(dsn) -> int:
    """How many others have a session of this database."""
    with psycopg.connect(dsn) as connection:
        return connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <>"
            " pg_backend_pid() AND backend_type = 'client backend'"
        ).fetchone()[0]


def ask(
    session: Session,
    subject: Annotated[str, Option("--subject", help="What is asked.")],
    top: Annotated[int, Option("--top", min=0)] = 0,
) -> None:
    """Say how many tokens there are.

    And more about it.
    """
    if top > 9:
        refuse("--top: too many")
    with session.database.transaction() as connection:
        count = connection.execute("SELECT count(*) FROM token").fetchone()
    print(subject, top, count, session.now_ms == session.as_of(session.now_ms).now_ms)


def test_its_own_options_come_first():
    """Help names them in the order of the function, the two of the ledger behind them, and says
    what its docstring says.
    """
    command = get_command(app_of(ask))
    assert [parameter.name for parameter in command.params] == ["subject", "top", "dsn", "config"]
    assert command.params[2].help.startswith("Postgres 15 to 18")
    shown = CliRunner().invoke(app_of(ask), ["--help"]).output
    assert "Say how many tokens there are." in shown
    assert shown.index("--subject") < shown.index("--top") < shown.index("--dsn")
    assert "session" not in shown.lower().partition("options")[2]


def test_it_reads_the_ledger_that_is_named(dsn):
    """And closes it: no session is left."""
    result = CliRunner().invoke(app_of(ask), ["--subject", "x", "--top", "3", "--dsn", dsn])
    assert (result.exit_code, result.output) == (0, "x 3 (0,) True\n")
    assert count_sessions(dsn) == 0


def test_the_ledger_is_closed_before_the_answer_goes_out(dsn, monkeypatch):
    """A pager may stand for hours: it keeps no session of the database."""
    sessions_left = []

    class Pager(io.StringIO):
        def write(self, text: str) -> int:
            sessions_left.append(count_sessions(dsn))
            return super().write(text)

    pager = Pager()
    monkeypatch.setattr(sys, "stdout", pager)
    ledger_command(ask)("x", dsn=dsn)
    assert pager.getvalue() == "x 0 (0,) True\n"
    assert set(sessions_left) == {0}


def test_nothing_is_opened_for_what_is_refused(monkeypatch):
    """A wrong option is answered before a database is started."""
    monkeypatch.setattr(sessions.wiring, "database", lambda *_, **__: pytest.fail("opened"))
    refused = CliRunner().invoke(app_of(ask), ["--subject", "x", "--top", "10"])
    assert str(refused.exception) == "--top: too many"


def test_settings_are_read_when_they_are_needed(tmp_path):
    """A file that does not exist is refused by the command that reads it."""
    missing = str(tmp_path / "none.toml")
    result = CliRunner().invoke(app_of(ask), ["--subject", "x", "--config", missing])
    assert isinstance(result.exception, SettingsError | OSError)
