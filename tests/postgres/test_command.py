"""The gpuledger command as a user calls it: exit codes, sentences, and how long --help takes."""

import shutil
import subprocess
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from fakes.postgres import open_folder
from fakes.processes import BIN, environment


@pytest.fixture
def folder():
    path = open_folder()
    yield path
    shutil.rmtree(path, ignore_errors=True)


def gpuledger(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BIN / "gpuledger", *arguments],
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_help_names_every_command():
    """gpuledger --help lists what there is. (How fast it is, `./dev bench startup` measures.)"""
    answer = gpuledger("--help")
    assert answer.returncode == 0
    for command in ("demo", "serve", "chargeback", "reconcile", "import", "prices", "tags", "db"):
        assert command in answer.stdout


@pytest.mark.slow
def test_the_database_is_made_checked_and_kept(folder):
    """check ends with 1 while migrations are pending, upgrade brings them, check ends with 0;
    nothing keeps running.
    """
    here = {"GPULEDGER_DATA_DIR": str(folder / "data")}
    behind = gpuledger("db", "check", **here)
    assert behind.returncode == 1
    assert "pending   0001" in behind.stdout
    assert gpuledger("db", "upgrade", **here).returncode == 0
    good = gpuledger("db", "check", **here)
    assert good.returncode == 0
    assert "PostgreSQL 18" in good.stdout
    assert "0 partitions" in gpuledger("db", "partitions", **here).stdout
    home = (folder / "data" / "home").read_text().strip()
    assert not (Path(home) / "cluster" / "postmaster.pid").exists()


@pytest.mark.slow
def test_an_outside_database_is_used_and_never_migrated_unasked(postgres):
    """By --dsn another database is looked at; one that was not migrated is a sentence with the
    cure, exit code 3.
    """
    assert gpuledger("db", "check", "--dsn", postgres).returncode == 0
    answer = gpuledger("db", "partitions", "--dsn", make_conninfo(postgres, dbname="postgres"))
    assert answer.returncode == 3
    assert "gpuledger db upgrade" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "changes", "code", "sentence"),
    [
        (["db", "check", "--dsn", "host=127.0.0.1 port=1"], {}, 3, "cannot be reached"),
        (["db", "check"], {"GPULEDGER_DATA_DIRR": "x"}, 2, "GPULEDGER_DATA_DIR"),
        (["serve", "--check-config"], {"GPULEDGER_LISTEN": "0.0.0.0:1"}, 2, "agent_token_file"),
        (["serve", "--config", "/nowhere.toml"], {}, 2, "/nowhere.toml"),
        (["serve", "--config", "/dev/stdin"], {}, 2, "/dev/stdin can be read once"),
        (["db", "check"], {"GPULEDGER_DATA_DIR": "/dev/null/x"}, 3, "GPULEDGER_DATA_DIR"),
        (["no-such-command"], {}, 2, "no-such-command"),
    ],
)
def test_what_a_person_can_cure_is_one_sentence(arguments, changes, code, sentence):
    """The exit code says whose turn it is, the sentence what to do, and there is no traceback."""
    answer = gpuledger(*arguments, **changes)
    assert answer.returncode == code
    assert sentence in answer.stderr
    assert "Traceback" not in answer.stderr


def test_settings_are_checked_without_starting(tmp_path):
    """serve --check-config says that they are good and ends."""
    (tmp_path / "c.toml").write_text('listen = "127.0.0.1:0"\n')
    answer = gpuledger("serve", "--check-config", "--config", str(tmp_path / "c.toml"))
    assert (answer.returncode, answer.stdout) == (0, "the settings are good\n")
