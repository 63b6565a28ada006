"""How many workers there are by the setting and the machine; a bad number is refused."""

import pytest
from typer.testing import CliRunner

from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import Refusal
from gpuledger_collector.supervisor import available_cores, worker_count
from gpuledger_common.settings import SettingsError


@pytest.mark.parametrize(
    ("wanted", "cores", "count"),
    [
        (0, 1, 1),
        (0, 2, 1),
        (0, 3, 1),
        (0, 4, 2),
        (0, 6, 3),
        (0, 8, 4),
        (0, 64, 4),
        (1, 64, 1),
        (2, 1, 2),
        (32, 2, 32),
    ],
)
def test_automatic_is_one_unless_cores_are_to_spare(wanted, cores, count):
    """Half of the cores are left to the database, and no more than four are taken unasked."""
    assert worker_count(wanted, cores) == count
    assert available_cores() >= 1


@pytest.mark.parametrize(
    ("given", "sentence"), [("two", "neither auto nor"), ("33", "at most 32"), ("-1", "neither")]
)
def test_a_number_that_makes_no_sense_is_refused(given, sentence):
    """One sentence, before anything starts."""
    done = CliRunner().invoke(build(), ["serve", "--workers", given, "--check-config"])
    assert isinstance(done.exception, Refusal | SettingsError)
    assert sentence in str(done.exception)


@pytest.mark.parametrize("given", ["auto", "0", "4"])
def test_a_number_that_makes_sense_is_taken(given, tmp_path, monkeypatch):
    """Also `auto`, which is the default."""
    monkeypatch.setenv("GPULEDGER_DATA_DIR", str(tmp_path))
    done = CliRunner().invoke(build(), ["serve", "--workers", given, "--check-config"])
    assert done.exit_code == 0, done.output
