"""Dates and instants that are none: every option, table and query that takes one answers with a
sentence of ours.
"""

import enum
import functools
import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from fakes.ledger import ledger, run
from fakes.postgres import fresh_database
from fakes.two_teams import two_teams
from gpuledger_collector.cli import build
from gpuledger_collector.config.declared import read_declared
from gpuledger_collector.ingest.files import inventory, usage

pytestmark = pytest.mark.slow

__all__ = ["ledger", "run"]

DATED = re.compile(r"DATE|INSTANT|YYYY-MM")
BAD = (
    "2026-13-01",
    "2026-02-30",
    "2026-13",
    "0000-01-01",
    "0",
    "20261301",
    "tomorrow",
    "-1",
    "2026-10-01T25:00:00Z",
    "2026-10-01T00:00:00",
    "9999-12",
    "0001-01",
    "0001-01-01",
    "9999-12-31",
    "99999999999999999999",
    "1e99",
    "",
    "\uff12\uff10\uff12\uff16-10-01",
)
FEW = ("2026-13-01", "0001-01-01", "tomorrow")
NEVER = ("2026-13-01", "2026-02-30", "2026-13", "20261301", "tomorrow", "2026-10-01T25:00:00Z")
"""None of them is a date or an instant of any kind."""
MORE = {
    ("statement",): ("--owner", "vision"),
    ("plan", "training"): (
        "--parameters",
        "7e9",
        "--tokens",
        "1e9",
        "--save-budget",
        "b",
        "--owner",
        "team=a",
        "--gpus",
        "8",
        "--rate",
        "2",
    ),
}
"""What else these commands must know before they look at a date."""
LIBRARY = re.compile(
    r"time data|does not match|must be in|isoformat|out of range|Invalid"
    r" (date|literal)|Traceback|fault in"
)


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
            if command.invoke_without_command:
                yield (*path, name), command
        else:
            yield (*path, name), command


@functools.cache
def known() -> dict[tuple[str, ...], Any]:
    """All commands by their words; to make them takes half a second."""
    return dict(commands(get_command(build())))


def dated() -> list[tuple[tuple[str, ...], Any]]:
    return [
        (path, option)
        for path, command in known().items()
        for option in command.params
        if option.param_type_name == "option" and DATED.search(option.metavar or "")
    ]


def call(path, asked: Any, text: str, file) -> list[str]:
    """A command line with that option, its twin (--from, --to) and whatever is required."""
    command = known()[path]
    line = [*path, *MORE.get(path, ())]
    for param in command.params:
        if param.param_type_name == "argument":
            line += [value_of(param, file)] if param.required else []
        elif param is asked or param.opts == asked.opts:
            line += [param.opts[0], text]
        elif param.opts[0] in {"--from", "--to"} and asked.opts[0] in {"--from", "--to"}:
            day = "2025-10-01" if param.opts[0] == "--from" else "2025-10-03"
            line += [param.opts[0], f"{day}T00:00:00Z" if param.metavar == "INSTANT" else day]
        elif param.required:
            line += [param.opts[0], value_of(param, file)]
    return line


def value_of(param: Any, file) -> str:
    kind = param.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return str(next(iter(kind)).value)
    if DATED.search(param.metavar or ""):
        return "2025-10" if "YYYY" in param.metavar else "2025-10-01"
    return str(file) if "FILE" in (param.metavar or "") else "1"


def test_every_dated_option_is_known() -> None:
    """The search below sees them: months, days and instants."""
    assert len(dated()) > 30
    assert {"--period", "--from", "--to", "--empty-start"} <= {
        option.opts[0] for _, option in dated()
    }


@pytest.mark.parametrize(
    "texts", [FEW, *(pytest.param([text], marks=pytest.mark.long) for text in BAD)]
)
def test_no_option_takes_a_date_that_is_none(run, tmp_path, texts) -> None:
    """Exit 2 and a sentence that repeats what was given; what is odd and possible is no fault
    either.
    """
    file = tmp_path / "x.csv"
    file.write_text("workload_id,start,end,gpus\na,,2025-10-01T01:00:00Z,1\n")
    faults = []
    # All options are of a few types: each is given one of the texts in turn, and all of them in
    # `--long`.
    for (path, option), text in zip(dated(), itertools.cycle(texts), strict=False):
        code, out, err = run(*call(path, option, text, file))
        if LIBRARY.search(err + out) or (text in NEVER and (code != 2 or text not in err)):
            faults.append((*path, option.opts[0], code, " ".join(err.split())[:300]))
    assert not faults


@pytest.mark.parametrize(
    "text", ["2026-13-01", "2026-02-30", "2026-10-01T25:00:00Z", "2026-1-1", '"2026-13-01"']
)
@pytest.mark.parametrize(
    "table", ["price", "rule", "purchase", "commitment", "exchange", "carbon", "shared_cost"]
)
def test_no_table_takes_a_date_that_is_none(tmp_path, table, text) -> None:
    """A date of TOML that is none is told by its line and key, in the words of the CSV files."""
    path = tmp_path / "d.toml"
    key = "starts" if table == "commitment" else "effective_from"
    path.write_text(f'[[{table}]]\nname = "x"\n{key} = {text}   # from then on\n')
    said = [str(one) for one in read_declared(path).problems if str(one.source).endswith(f":{key}")]
    plain = text.strip('"')
    assert len(said) == 1
    assert repr(plain) in said[0]
    assert "write it as 2026-10-31" in said[0]
    assert not LIBRARY.search(said[0])


@pytest.mark.parametrize("text", [text for text in BAD if text not in {"", "0", "9999-12-31"}])
def test_no_cell_takes_a_date_that_is_none(tmp_path, text) -> None:
    """Instants of usage and inventory, bare dates among them."""
    path = tmp_path / "x.csv"
    path.write_text(f"workload_id,start,end,gpus\na,{text},,1\n")
    (problem,) = usage.read_usage(path, usage.UsageOptions()).problems
    # Where no instant of a file has a zone, the file as a whole is refused.
    assert problem.source in {str(path), f"{path}:2:start"}
    assert LIBRARY.search(problem.message) is None
    path.write_text(f"node,uuid,gpu_model,pool,in_at,out_at\nn,G,,,{text},\n")
    (problem,) = inventory.read_inventory(path).problems
    assert (problem.source, LIBRARY.search(problem.message)) == (f"{path}:2:in_at", None)


@pytest.fixture(scope="module")
def collector(postgres, tmp_path_factory):
    with (
        fresh_database(postgres) as dsn,
        two_teams(dsn, tmp_path_factory.mktemp("declared")) as made,
    ):
        yield made


@pytest.mark.parametrize("text", BAD)
def test_no_query_takes_a_date_that_is_none(collector, text) -> None:
    """Every operation of the API's description that takes a date, and the pages of a month."""
    from urllib.parse import quote

    server, secrets = collector
    headers = {"Authorization": f"Bearer {secrets['admin']}"}
    described = server.request("GET", "/openapi.json")[2]["paths"]
    asked = 0
    for path, operations in described.items():
        names = [
            one["name"]
            for one in operations.get("get", {}).get("parameters", [])
            if one["name"] in {"from", "to", "at"}
        ]
        for name in names:
            query = {"from": "2026-10-01", "to": "2026-10-02"} | {name: quote(text)}
            line = (
                re.sub(r"{\w+}", "1", path)
                + "?"
                + "&".join(f"{key}={value}" for key, value in query.items())
            )
            status, _, answer = server.request("GET", line, headers=headers)
            asked += 1
            assert status < 500, (line, answer)
            assert not LIBRARY.search(str(answer)), (line, answer)
            assert text not in NEVER or 400 <= status < 500, (line, status, answer)
    for page in (f"/statements/team/vision/{quote(text)}", f"/statements/team/{quote(text)}"):
        status, _, answer = server.request("GET", page, headers=headers)
        assert 400 <= status < 500 or not text, (page, status)
        assert not LIBRARY.search(str(answer)), page
    assert asked >= 4
