"""Every file that a command or a setting names, every fetch of the agent and every role has a row
of its bounds.
"""

import ast
import dataclasses
import re
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.main import get_command

from gpuledger_agent import admission as fetched
from gpuledger_collector.cli import build
from gpuledger_collector.config import admission as admitted
from gpuledger_collector.mcp import admission as assistants
from gpuledger_collector.services import admission as asked
from gpuledger_collector.settings import Settings
from gpuledger_common.admission import BOUNDS, NONE, Admission

ROOT = Path(__file__).parents[2]
ROWS = (*fetched.ADMISSIONS, *admitted.ADMISSIONS, *asked.ADMISSIONS, *assistants.STREAMS)
WRITTEN = {
    *(
        "chargeback output",
        "close output",
        "db backup file",
        "demo output",
        "disputes show evidence",
    ),
    *("examples folder", "export config output", "export erp output", "export samples output"),
    *(
        "focus periods output",
        "inference weights output",
        "prices models output",
        "receipt output",
        "runs show output",
        "statement folder",
        "statement output",
    ),
}
"""Parameters that name what a command writes."""
FOLDERS = {"data_dir", "mail_dir"}
"""Settings that name folders of the collector's own."""
NETWORK = re.compile(
    r"\b(urlopen|build_opener|HTTPS?Connection|create_connection|open_(unix_)?connection|smtplib\.SMTP(_SSL)?"
    r"|socket\.socket|SOCK_STREAM|BoundedConnection|get_page)\b"
)
CREATES_ROLE = re.compile(r"\bCREATE\s+(ROLE|USER)\b", re.IGNORECASE)
GRANTS = re.compile(r"\bGRANT\s+\S", re.IGNORECASE)
FOREIGN_DATABASE = re.compile(r"\bpsycopg\.connect\(")
OWN_DATABASE = "gpuledger_collector.storage."
"""Where the ledger's own database is connected to; any other module asks one of others."""
ROOMS = {"gpuledger_common.http_exchange", "gpuledger_agent.owners.grpc_unix"}
"""Where sockets are opened; everything else asks these."""
LISTENS = {
    "gpuledger_agent.exposition",
    "gpuledger_common.systemd",
    "gpuledger_collector.listening",
    "gpuledger_collector.storage.server.embedded",
    "gpuledger_collector.supervisor",
    "gpuledger_collector.worker_group",
    "gpuledger_collector.serving",
}
"""Sockets on which the product listens, or speaks with its own processes and systemd."""
OWN_ADDRESS = {"gpuledger_collector.cli.demo_stage"}
"""Asks the collector that it has started itself."""
THROUGH_A_ROOM = {"gpuledger_agent.owners.podresources", "gpuledger_agent.owners.containerd"}
"""Modules that ask over a socket that `grpc_unix` opens."""
GRANT_TO_ROLES_OF_OTHERS = {"dashboard_row_security", "schema_rights"}
"""Modules that grant to roles whose rows stand in `readers` and `embedded_roles`."""


def commands(path, command):
    """Every command with its name, groups that are commands among them."""
    yield path, command
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from commands(f"{path} {name}".strip(), below)


def file_parameters(command):
    """Parameters of commands that name a file, a folder or a page, but for `--config`."""
    for name, below in commands("", command):
        for parameter in below.params:
            annotation = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)
            is_path = annotation is Path or re.search(
                r"\b(FILE|DIR|PAGE)\b", str(parameter.metavar or "")
            )
            if is_path and "--config" not in parameter.opts:
                yield f"{name} {parameter.name}".strip()


def test_every_file_of_a_command_has_a_row():
    """One that is added without a row fails here, and so does a row of a parameter that is gone."""
    found = set(file_parameters(get_command(build())))
    assert len(found) > 30
    assert found - WRITTEN == set(admitted.FILES)
    assert found >= WRITTEN


def test_the_walk_sees_a_file_of_a_new_command():
    """Of any depth, as an argument and as an option."""
    app, group = typer.Typer(), typer.Typer()

    @group.command("read")
    def read(source: Path, also: Annotated[Path | None, typer.Option("--also")] = None) -> None:
        """Read two files."""

    app.add_typer(group, name="added")
    assert set(file_parameters(get_command(app))) - WRITTEN - set(admitted.FILES) == {
        "added read source",
        "added read also",
    }


def file_settings(settings):
    """Settings of paths, but for folders of the collector's own."""
    return {
        field.name
        for field in dataclasses.fields(settings)
        if "Path" in str(field.type) or field.metadata.get("help", "").startswith("files ")
    } - FOLDERS


def test_every_file_of_the_settings_has_a_row():
    """One that is added without a row fails here, and so does a row of a setting that is gone."""
    assert file_settings(Settings) == set(admitted.SETTINGS)


def test_the_walk_sees_a_new_setting():
    """Of one path or of several."""
    added = dataclasses.make_dataclass(
        "Added",
        [
            ("new_file", "Path | None", None),
            (
                "new_files",
                str,
                dataclasses.field(default="", metadata={"help": "files with more of it"}),
            ),
        ],
        bases=(Settings,),
        frozen=True,
    )
    assert file_settings(added) - set(admitted.SETTINGS) == {"new_file", "new_files"}


def modules(*folders):
    """Names, texts of strings and sources of the modules below these folders."""
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            name = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(
                ".__init__"
            )
            text = path.read_text()
            constants = (
                node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)
            )
            yield name, "\n".join(value for value in constants if isinstance(value, str)), text


def connecting(*folders):
    """Modules that open a connection, or ask another one to."""
    return {name for name, _, text in modules(*folders) if NETWORK.search(text)}


def test_every_answer_that_is_asked_for_has_a_row():
    """Whatever opens a connection or asks for a page, in agent and collector; sockets have two
    rooms.
    """
    asking = connecting(ROOT / "agent", ROOT / "common") - LISTENS
    assert asking - ROOMS == set(fetched.FETCHED) - set(THROUGH_A_ROOM)
    assert {name for name, _, text in modules(ROOT / "agent") if "grpc_unix import" in text} >= set(
        THROUGH_A_ROOM
    )
    databases = {
        name
        for name, _, text in modules(ROOT / "collector")
        if FOREIGN_DATABASE.search(text) and not name.startswith(OWN_DATABASE)
    }
    asking = connecting(ROOT / "collector") - LISTENS - OWN_ADDRESS
    clients = {name for name, _, text in modules(ROOT / "collector") if "KubernetesClient(" in text}
    assert asking | databases | clients == set(asked.ASKED)
    assert databases
    assert clients


@pytest.mark.parametrize(
    "line",
    [
        "import urllib.request\nurllib.request.urlopen('http://x')",
        "from gpuledger_common.http_exchange import get_page",
        "from gpuledger_common import http_exchange\nhttp_exchange.BoundedConnection('http://x')",
        "import socket\nsocket.create_connection(('x', 1))",
        "import socket\nsocket.socket().connect(('x', 1))",
        "import asyncio\nasyncio.open_connection('x', 1)",
        "from http.client import HTTPSConnection",
        "import smtplib\nsmtplib.SMTP('x')",
    ],
)
def test_the_walk_sees_a_new_fetch(line, tmp_path):
    """By whatever it connects."""
    (tmp_path / "added").mkdir()
    (tmp_path / "added" / "fetches.py").write_text(line + "\n")
    assert connecting(tmp_path) == {"added.fetches"}


LISTENING = re.compile(
    r"\b(create_server|start_server|start_unix_server|\w*HTTPServer|socketserver)\b|\.(bind\(\(|listen\()"
)
HAVE_ROWS_OF_ROUTES = {"gpuledger_collector.listening"}
CHOOSES_A_PORT = {
    "gpuledger_collector.storage.server.embedded": (
        "connection to the embedded Postgres that has not logged in"
    ),
    "gpuledger_collector.cli.demo_stage": None,
}
"""Modules that bind a port only to choose it for a server that they start, and the row of that
server.
"""


def listening(*folders):
    """Modules that listen, or choose the port of a server."""
    return {name for name, _, text in modules(*folders) if LISTENING.search(text)}


def test_every_listener_has_a_row():
    """Routes stand for the collector's HTTP server; whatever else listens in agent and collector
    has a row.
    """
    listeners = listening(ROOT / "agent", ROOT / "common", ROOT / "collector")
    assert listeners - HAVE_ROWS_OF_ROUTES - set(CHOOSES_A_PORT) == set(fetched.SERVED)
    assert listeners >= HAVE_ROWS_OF_ROUTES | set(CHOOSES_A_PORT)
    assert {way_in for way_in in CHOOSES_A_PORT.values() if way_in} <= {row.way_in for row in ROWS}


@pytest.mark.parametrize(
    "line",
    [
        "import http.server\nhttp.server.ThreadingHTTPServer(('x', 1), None)",
        "import asyncio\nasyncio.start_server(None, 'x', 1)",
        "import socket\nsocket.create_server(('x', 1))",
        "import socket\nsocket.socket().listen(5)",
    ],
)
def test_the_walk_sees_a_new_listener(line, tmp_path):
    """By whatever it listens."""
    (tmp_path / "added").mkdir()
    (tmp_path / "added" / "serves.py").write_text(line + "\n")
    assert listening(tmp_path) == {"added.serves"}


PARSES = re.compile(
    r"\b(csv\.(reader|DictReader)|json\.loads?|tomllib\.loads?|gzip\.(open|GzipFile)|ZipFile"
    r"|pd\.read_\w+|pq\.\w+|path\.read_(text|bytes))\("
)
BOUNDED_READERS = {
    "gpuledger_collector.cli.read_series": "counts bytes, lines and cells before pandas reads",
    "gpuledger_collector.config.bounded_csv": "bounds a row",
    "gpuledger_collector.config.declared": "its text is counted by read_toml_text",
    "gpuledger_collector.config.erp_template": "its text is counted by read_toml_text",
    "gpuledger_collector.config.files": "bounds bytes and values",
    "gpuledger_collector.config.workbook": "reads what its own process printed",
    "gpuledger_collector.config.workbook_process": "bounded by the kernel",
    "gpuledger_collector.export.focus_check_split": "of a cell, whose row is bounded",
    "gpuledger_collector.ingest.files.bill": "reads what its own process printed",
    "gpuledger_collector.ingest.files.headers": "of a first line that is cut",
    "gpuledger_collector.ingest.files.parquet_process": "bounded by the kernel",
}
"""Modules that parse files of others, and what bounds them before."""


def parsing(folder, *packages):
    """Modules of these packages that parse a file or a text by what has no bound of its own."""
    found = modules(folder)
    return {name for name, _, text in found if name.startswith(packages) and PARSES.search(text)}


def test_every_parser_of_a_file_is_bounded():
    """Whatever parses CSV, JSON, TOML, archives or columns of files stands here, with its bound."""
    packages = (
        "gpuledger_collector.config.",
        "gpuledger_collector.ingest.files.",
        "gpuledger_collector.export.focus_check",
        "gpuledger_collector.cli.read_",
    )
    assert parsing(ROOT / "collector", *packages) == set(BOUNDED_READERS)


def test_the_walk_sees_a_new_parser(tmp_path):
    """By whatever it parses."""
    folder = tmp_path / "config"
    folder.mkdir()
    for number, line in enumerate(("csv.reader(x)", "json.load(x)", "path.read_text()")):
        (folder / f"added{number}.py").write_text(line + "\n")
    assert parsing(tmp_path, "config.") == {f"config.added{number}" for number in range(3)}


def creating(*folders):
    """Modules of storage that create a role, and those that grant to one."""
    found = [
        (name.rpartition(".")[2], strings)
        for name, strings, _ in modules(*folders)
        if ".storage." in name
    ]
    return (
        {name for name, strings in found if CREATES_ROLE.search(strings)},
        {name for name, strings in found if GRANTS.search(strings)},
    )


def test_every_role_has_a_row():
    """Modules of storage that create a role or grant to one; dashboards have two kinds."""
    creates, grants = creating(ROOT / "collector")
    assert creates == set(admitted.ROLES)
    assert grants - GRANT_TO_ROLES_OF_OTHERS == set(admitted.ROLES)


def test_the_walk_sees_a_new_role_and_a_new_grant(tmp_path):
    """However they are written."""
    folder = tmp_path / "gpuledger_collector" / "storage"
    folder.mkdir(parents=True)
    (folder / "auditors.py").write_text("STATEMENT = 'create user auditor login'\n")
    (folder / "exporters.py").write_text(
        "def grant(name):\n    return f'GRANT SELECT ON charge TO {name}'\n"
    )
    assert creating(tmp_path) == ({"auditors"}, {"exporters"})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.way_in)
def test_a_row_says_who_pays_and_what_bounds_it(row: Admission):
    """A way in without a size, a time or a number that bounds it is not admitted, but open."""
    assert row.way_in
    assert row.payer != NONE
    assert [
        name
        for name in BOUNDS
        if getattr(row, name) != NONE and re.search(r"\d", getattr(row, name))
    ] or (row.bytes == "the disk")


def test_rows_are_told_apart():
    """The reference lists them by way in."""
    names = [row.way_in for row in ROWS]
    assert len(set(names)) == len(names)
