"""Every file that a command or a setting names, every fetch of the agent and every role has a row of its bounds."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest
from typer.main import get_command

from gpuledger_agent import admission as fetched
from gpuledger_collector.cli import build
from gpuledger_collector.config import admission as admitted
from gpuledger_collector.settings import Settings
from gpuledger_common.admission import BOUNDS, NONE, Admission

ROOT = Path(__file__).parents[2]
WRITTEN = {
    *("chargeback output", "close output", "db backup file", "demo output", "disputes show evidence"),
    *("examples folder", "export config output", "export erp output", "export samples output"),
    *("focus periods output", "receipt output", "runs show output", "statement folder", "statement output"),
}
"""Parameters that name what a command writes."""
FOLDERS = {"data_dir", "mail_dir"}
"""Settings that name folders of the collector's own."""
NETWORK = re.compile(r"\b(urlopen|build_opener|HTTPS?Connection|create_connection|SOCK_STREAM)\b")
FETCHES = {"BoundedConnection", "get_page", "call"}
ROOMS = {"gpuledger_common.http_exchange", "gpuledger_agent.owners.grpc_unix"}
"""Where sockets are opened; everything else asks these."""
LISTENS = {"gpuledger_agent.exposition"}


def commands(path, command):
    """Every command with its name, groups that are commands among them."""
    yield path, command
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from commands(f"{path} {name}".strip(), below)


def file_parameters():
    """Parameters of commands that name a file, a folder or a page, but for `--config`."""
    for name, command in commands("", get_command(build())):
        for parameter in command.params:
            annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
            is_path = annotation is Path or re.search(r"\b(FILE|DIR|PAGE)\b", str(parameter.metavar or ""))
            if is_path and "--config" not in parameter.opts:
                yield f"{name} {parameter.name}"


def test_every_file_of_a_command_has_a_row():
    """One that is added without a row fails here, and so does a row of a parameter that is gone."""
    found = set(file_parameters())
    assert len(found) > 30
    assert found - WRITTEN == set(admitted.FILES)
    assert found >= WRITTEN


def test_every_file_of_the_settings_has_a_row():
    """Settings of paths, but for folders of the collector's own."""
    paths = {
        field.name
        for field in dataclasses.fields(Settings)
        if "Path" in str(field.type) or field.metadata["help"].startswith("files ")
    }
    assert paths - FOLDERS == set(admitted.SETTINGS)


def modules(*folders):
    """Names and trees of the modules below these folders."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts).removesuffix(".__init__")
            yield name, ast.parse(path.read_text()), path.read_text()


def imported(tree):
    """What a module takes from the rooms where sockets are opened."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module in ROOMS)
    return {alias.name for node in nodes for alias in node.names}


def test_every_fetch_of_the_agent_has_a_row():
    """Whatever opens a connection does so in one of two rooms, and whoever asks them has a row."""
    opens, asks = set(), set()
    for name, tree, text in modules("agent", "common"):
        if NETWORK.search(text):
            opens.add(name)
        if imported(tree) & FETCHES:
            asks.add(name)
    assert opens - LISTENS == ROOMS
    assert asks == set(fetched.FETCHED)


def test_every_role_has_a_row():
    """Modules of storage that create a role; dashboards have two kinds."""
    creates = {
        name.rpartition(".")[2]
        for name, _, text in modules("collector")
        if ".storage." in name and re.search(r'"[^"]*CREATE ROLE \{', text)
    }
    assert creates == set(admitted.ROLES)


@pytest.mark.parametrize("row", [*fetched.ADMISSIONS, *admitted.ADMISSIONS], ids=lambda row: row.way_in)
def test_a_row_says_who_pays_and_what_bounds_it(row: Admission):
    """A way in without a size, a time or a number that bounds it is not admitted, but open."""
    assert row.way_in
    assert row.payer != NONE
    assert [name for name in BOUNDS if getattr(row, name) != NONE and re.search(r"\d", getattr(row, name))] or (
        row.bytes == "the disk"
    )


def test_rows_are_told_apart():
    """The reference lists them by way in."""
    names = [row.way_in for row in (*fetched.ADMISSIONS, *admitted.ADMISSIONS)]
    assert len(set(names)) == len(names)
