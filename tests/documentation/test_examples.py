"""Every command and every file that the documentation shows is one that the product takes."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
import yaml
from typer.main import get_command

from gpuledger_agent import cli as agent_cli
from gpuledger_agent.settings import Settings as AgentSettings
from gpuledger_collector.cli import build
from gpuledger_collector.config import toml
from gpuledger_collector.config.declared import TABLES, read_declared
from gpuledger_collector.config.erp_template import Template, read_template
from gpuledger_collector.config.hooks import read_hooks
from gpuledger_collector.config.kinds import KINDS
from gpuledger_collector.settings import Settings
from gpuledger_common.gateways.read import parse_gateway
from gpuledger_common.profiles.read import GATEWAY, parse_profile

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs" / "guides").glob("*.md"),
        *(ROOT / "docs" / "runbooks").glob("*.md"),
        *(ROOT / "deploy").rglob("*.md"),
    ]
)
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.S | re.M)
SPAN = re.compile(r"`((?:gpuledger|gpuledger-agent) [^`\n]+)`")
PROGRAMS = ("gpuledger", "gpuledger-agent")
STANDS_FOR = {"N": "1", "ID": "1", "PORT": "8440", "M": "2026-10", "DATE": "2026-10-01"}
"""What a placeholder of the documentation is read as where its name is no value."""


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(page):
    """Language and text of each fenced block."""
    return [(found[2], found[3]) for found in FENCE.finditer(page.read_text(encoding="utf-8"))]


def lines(text):
    """Lines of a shell block, the continued ones joined, without what a prompt shows before them."""
    return [re.sub(r"^\s*(\$|#)\s+", "", line) for line in text.replace("\\\n", " ").splitlines()]


def commands(page):
    """Word lists of the product's commands on a page, also within pipes, after sudo and after
    assignments.
    """
    shown = [
        line
        for language, text in blocks(page)
        if language in {"", "sh", "bash", "console"}
        for line in lines(text)
    ]
    for line in [*shown, *SPAN.findall(page.read_text(encoding="utf-8"))]:
        yield from said(line)


def said(line):
    """The product's commands of a line."""
    if not re.search(r"(^|[\s|&;(/])gpuledger(-agent)?\s", line) or "..." in line or "…" in line:
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return
    part: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set("|&;()") and word:
            yield from own(part)
            part = []
        else:
            part.append(word)


def own(words):
    """The command, when it is one of ours: what stands before the program and redirections are left
    out.
    """
    for at, word in enumerate(words):
        if Path(word).name in PROGRAMS and not word.startswith("-"):
            if all(
                "=" in one
                or one in {"sudo", "-u", "exec", "time", "docker", "compose", "kubectl"}
                or at == 0
                or words[0] in {"sudo", "docker", "kubectl", "runuser", "."}
                for one in words[:at]
            ):
                rest = words[at + 1 :]
                stop = next(
                    (n for n, one in enumerate(rest) if set(one) <= set("<>") and one), len(rest)
                )
                yield [Path(word).name, *rest[:stop]]
            return


def root_command():
    return get_command(build())


@pytest.fixture(scope="module")
def taken():
    """A function that says what is wrong with a command of ours, or None."""
    root = root_command()

    def judge(words):
        program, *arguments = words
        arguments = [STANDS_FOR.get(one, one) for one in arguments]
        if program == "gpuledger-agent":
            try:
                agent_cli.parser().parse_args(arguments)
            except SystemExit as ended:
                # a bare name of a command may stand in a text; what it needs is said elsewhere
                return f"exit {ended.code}" if ended.code and arguments[1:] else None
            return None
        command, path = root, "gpuledger"
        while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
            inner = command.commands.get(arguments[0])
            if inner is None:
                return f"{path} has no command {arguments[0]!r}"
            command, path, arguments = inner, f"{path} {arguments[0]}", arguments[1:]
        if (not arguments and hasattr(command, "commands")) or {"-h", "--help"} & set(arguments):
            return None
        try:
            # a span of a text may name a command without all that it needs; its options are judged
            # all the same
            command.make_context(path, list(arguments), resilient_parsing=False)
        except typer.Exit:
            return None
        except Exception as error:  # click's own errors, whatever their class
            text = getattr(error, "message", str(error)) or str(error)
            return (
                None
                if any(word in text for word in ("issing", "equires", "does not exist"))
                else f"{path}: {text}"
            )
        return None

    return judge


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_is_one_that_the_product_takes(page, taken):
    """Its subcommands and options exist, and their values have the right form."""
    wrong = [
        f"{shlex.join(words)}: {why}"
        for words in commands(page)
        if (why := taken(words)) is not None
    ]
    assert wrong == []


def test_the_commands_are_found():
    """The test above looks at something: the pages show well over a hundred commands."""
    assert sum(len(list(commands(page))) for page in PAGES) > 100


def written_again(declared, path):
    """What is read from the file that the export would make of these declarations, of kinds that
    are exported.
    """
    lines = []
    for name, values in declared.values.items():
        for value in values if KINDS[name].current else ():
            lines += toml.table(name, KINDS[name].model.from_value(value).to_table())
    path.write_text("\n".join(lines))
    return read_declared(path)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_that_is_shown_can_be_read(page, tmp_path):
    """TOML is what `apply` takes without a problem, or has settings that exist; YAML and JSON
    parse.
    """
    for language, text in blocks(page):
        if language == "toml":
            content = tomllib.loads(text)
            if content.get("kind") == GATEWAY:
                assert parse_gateway(text, name_of(page)).families
                continue
            is_declared = any(isinstance(content.get(table), list) for table in TABLES)
            if is_declared or content.keys() & {"billing_zone", "fiscal_year_begins"}:
                path = tmp_path / "shown.toml"
                path.write_text(text)
                declared = read_declared(path)
                assert declared.problems == []
                assert declared.values.items() >= written_again(declared, path).values.items()
            elif "match" in content:
                assert parse_profile(text, name_of(page)).families
            elif "column" in content:
                path = tmp_path / "erp.toml"
                path.write_text(text)
                assert isinstance(read_template(path), Template)
            elif any(isinstance(one, dict) and "address" in one for one in content.values()):
                (tmp_path / "hooks.toml").write_text(text)
                (tmp_path / "erp.secret").write_text("a-secret-of-over-24-characters\n")
                assert set(read_hooks(tmp_path / "hooks.toml")) == set(content)
            else:
                flat = content.get("gpuledger", content)
                known = {*Settings.__dataclass_fields__, *AgentSettings.__dataclass_fields__}
                assert set(flat) <= known, set(flat) - known
        elif language == "yaml":
            assert list(yaml.safe_load_all(text))
        elif language == "json":
            assert json.loads(text)


def test_the_index_of_guides_names_each_once():
    """docs/guides/README.md leads to every guide, and to nothing that is not there."""
    folder = Path(__file__).parents[2] / "docs" / "guides"
    linked = re.findall(r"^\| \[[^]]+\]\(([^)]+)\)", (folder / "README.md").read_text(), re.M)
    assert all((folder / name).is_file() for name in linked)
    assert sorted(name for name in linked if "/" not in name) == sorted(
        path.name for path in folder.glob("*.md") if path.name != "README.md"
    )
