"""A ledger with a pool whose demand is known to the hour: a base that is always held, and a rise
every afternoon.
"""

from __future__ import annotations

import datetime as dt

import pytest

from fakes.postgres import database, dsn, postgres
from gpuledger_collector.accounting.period import HOUR_MS, format_instant
from gpuledger_collector.cli import main

__all__ = ["database", "dsn", "postgres"]

BASE, RISE = 16, 8


@pytest.fixture(scope="session")
def hour_ms() -> int:
    """The last full hour: what is known ends here."""
    return int(dt.datetime.now(dt.UTC).timestamp() * 1000) // HOUR_MS * HOUR_MS


@pytest.fixture
def run(dsn, monkeypatch, capsys):
    """`gpuledger ...` in this process: exit code, standard output, standard error."""

    def run(*arguments):
        monkeypatch.setenv("GPULEDGER_DSN", dsn)
        monkeypatch.setattr("sys.argv", ["gpuledger", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


@pytest.fixture
def written(tmp_path):
    """A file with this text."""

    def written(name, text):
        path = tmp_path / name
        path.write_text(text)
        return path

    return written


@pytest.fixture
def ledger(run, written, hour_ms):
    """Forty days of pool `train` at 2 USD per GPU-hour, up to now."""

    def ledger(days=40, price=True):
        start = hour_ms - days * 24 * HOUR_MS
        rows = [f"base,{format_instant(start)},,{BASE},train"]
        rows += [
            f"rise-{day},{format_instant(start + (24 * day + 12) * HOUR_MS)},"
            f"{format_instant(start + (24 * day + 18) * HOUR_MS)},{RISE},train"
            for day in range(days - 1)
        ]
        usage = written("usage.csv", "\n".join(["workload_id,start,end,gpus,pool", *rows]) + "\n")
        assert run("import", "usage", usage)[0] == 0
        if price:
            assert (
                run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2020-01-01")[0]
                == 0
            )

    return ledger


@pytest.fixture
def pool(run, written):
    """Apply a [[pool]] table for `train`."""

    def pool(**keys):
        said = "\n".join(f"{name} = {value}" for name, value in keys.items())
        return run("apply", written("pools.toml", f'[[pool]]\nname = "train"\n{said}\n'))

    return pool
