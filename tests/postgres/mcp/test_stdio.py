"""`gpuledger mcp` as an assistant starts it: a process that speaks the protocol on its standard
streams.
"""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import psycopg
import pytest
from mcp import StdioServerParameters

from fakes.assistant import ERAS, Assistant
from fakes.batches import batch
from fakes.processes import BIN, CollectorProcess, environment
from gpuledger_collector import wiring
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.mcp import stdio
from gpuledger_collector.storage.access import tokens

pytestmark = pytest.mark.slow  # each test starts processes

ROOT = Path(__file__).parents[3]
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}


def command(dsn, *arguments, **variables):
    given = environment(
        GPULEDGER_DSN=dsn, GPULEDGER_PUBLIC_URL="https://ledger.example", **variables
    )
    return StdioServerParameters(
        command=str(BIN / "gpuledger"), args=["mcp", *map(str, arguments)], env=given
    )


@pytest.fixture
def token_file(books, tmp_path):
    def write(role, owner=None):
        with psycopg.connect(books.dsn) as connection:
            secret = tokens.create(
                connection, Token(0, f"{role}-{tmp_path.name}", role, None, owner, "", 1)
            )[1]
        path = tmp_path / role
        path.write_text(secret + "\n")
        return path

    return write


@pytest.mark.parametrize("era", ERAS)
def test_both_eras_get_the_answers_of_the_ledger(books, era):
    """The answers of the process are those of the server in this process; its links lead to the
    public address.
    """
    asking = Assistant(command(books.dsn), era)
    reply = asking.ask("get_cost", period="2026-08")
    own = books.assistant().ask("get_cost", period="2026-08")
    assert (reply.rows, reply.totals) == (own.rows, own.totals)
    assert reply.content["link"] == "https://ledger.example/statements/team/2026-08"


def test_a_viewers_token_narrows_what_is_read(books, token_file):
    """The file is named by an option or a variable, and the secret by neither."""
    path = token_file("viewer", {"team": "alpha"})
    reply = Assistant(command(books.dsn, GPULEDGER_MCP_TOKEN_FILE=str(path))).ask(
        "get_cost", period="2026-08"
    )
    assert [row["names"]["team"] for row in reply.rows] == ["alpha"]


def refused(books, *arguments):
    answer = subprocess.run(
        [BIN / "gpuledger", "mcp", *map(str, arguments)],
        env=environment(GPULEDGER_DSN=books.dsn),
        input="",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.stdout == ""
    return answer.returncode, answer.stderr


def test_a_token_that_may_not_read_ends_it_at_start(books, token_file, tmp_path):
    """One sentence and exit code 2, instead of a server that refuses every question."""
    (tmp_path / "unknown").write_text("gpl_unknown\n")
    for path, words in (
        (tmp_path / "unknown", "a reader's token is needed"),
        (token_file("agent"), "is an agent's: it may report and not read"),
    ):
        code, said = refused(books, "--token-file", path)
        assert code == 2, said
        assert said.startswith("gpuledger: mcp_token_file: ")
        assert words in said
        assert said.count("\n") == 1


def test_standard_output_holds_the_protocol_alone(books):
    """Each line is a message; it ends with 0 when the client closes the stream."""
    lines = [HELLO, {"jsonrpc": "2.0", "method": "notifications/initialized"}, LIST]
    answer = subprocess.run(
        [BIN / "gpuledger", "mcp"],
        env=environment(GPULEDGER_DSN=books.dsn, GPULEDGER_LOG_LEVEL="debug"),
        input="".join(json.dumps(line) + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    said = [json.loads(line) for line in answer.stdout.splitlines()]
    assert all(message["jsonrpc"] == "2.0" for message in said)
    assert 1 in [message.get("id") for message in said]


def test_a_line_without_an_end_takes_no_memory(books):
    """Too long, deep, no message, no text: each is left, and the next one is answered."""
    child = subprocess.Popen(
        [BIN / "gpuledger", "mcp"],
        env=environment(GPULEDGER_DSN=books.dsn),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with child:
        for line in (HELLO, {"jsonrpc": "2.0", "method": "notifications/initialized"}):
            child.stdin.write(json.dumps(line).encode() + b"\n")
        child.stdin.flush()
        assert json.loads(child.stdout.readline())["id"] == 1
        before = peak_kib(child.pid)
        for _ in range(128):
            child.stdin.write(b"9" * 1024 * 1024)
        child.stdin.write(b"\n" + b"[" * stdio.MAX_LINE_BYTES + b"\n" + b"\xff\x00\n{}\nNaN\n")
        fits = json.dumps(LIST | {"params": {"cursor": "9" * 60_000}}).encode()
        child.stdin.write(fits + b"\n" + json.dumps(LIST | {"id": 3}).encode() + b"\n")
        child.stdin.flush()
        answers = {json.loads(child.stdout.readline())["id"] for _ in range(2)}
        assert answers == {2, 3}
        assert peak_kib(child.pid) - before < 64 * 1024
        child.stdin.close()
        assert child.wait(60) == 0


def peak_kib(pid):
    """The largest memory that a process has had."""
    (line,) = (
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmHWM:")
    )
    return int(line.split()[1])


WITHOUT = (
    "import sys\nsys.modules['mcp'] = None\nfrom gpuledger_collector.__main__ import main\nsys.argv"
    " = {}\nmain()"
)


def test_without_the_extra_a_sentence_says_how_to_get_it(books):
    """Exit code 3, and a command that adds what pyproject.toml asks for."""
    answer = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(["gpuledger", "mcp"])],
        env=environment(GPULEDGER_DSN=books.dsn),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 3, answer.stderr
    (sentence,) = answer.stderr.splitlines()[-1:]
    assert sentence.endswith(wiring.MCP_REMEDY)
    (extra,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["mcp"]
    assert f"pipx inject gpuledger '{extra}'" in sentence
    assert (ROOT / "requirements/mcp.txt").is_file()


def test_intake_does_not_depend_on_the_extra(dsn, tmp_path):
    """`mcp = true` without it: the collector takes batches, its log says what is missing, and
    doctor too.
    """
    program = tmp_path / "gpuledger"
    program.write_text(f"#!{sys.executable}\n{WITHOUT.format(['gpuledger', 'serve'])}")
    program.chmod(0o755)
    collector = CollectorProcess(
        tmp_path, tmp_path, GPULEDGER_DSN=dsn, GPULEDGER_MCP="true", GPULEDGER_JOBS="false"
    )
    collector.start()
    try:
        collector.wait_ready()
        assert collector.send(batch(1, node="without-mcp")) == 200
    finally:
        collector.stop()
    assert wiring.MCP_MISSING in (tmp_path / "collector.log").read_text()
    answer = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(["gpuledger", "doctor"])],
        env=environment(GPULEDGER_DSN=dsn, GPULEDGER_MCP="true"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 1, answer.stderr
    assert "BAD   assistants" in answer.stdout


def test_other_commands_do_not_load_the_sdk():
    """Neither the list of commands nor the collector's modules import it."""
    imports = (
        "gpuledger_collector.wiring",
        "gpuledger_collector.serving",
        "gpuledger_collector.api.app",
    )
    code = "import sys, importlib\nfrom gpuledger_collector.cli import build\nbuild()\n"
    code += f"for name in {imports}: importlib.import_module(name)\nsys.exit('mcp' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], env=environment(), timeout=120, check=False
        ).returncode
        == 0
    )
