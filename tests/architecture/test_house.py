"""The rules of the house that no linter knows."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "numpy",
    "pandas",
    "sqlalchemy",
    "psycopg",
    "fastapi",
    "uvicorn",
    "sklearn",
    "typer",
    "rich",
    "alembic",
)


def tracked(*patterns: str) -> list[Path]:
    found = subprocess.run(
        ["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in found.stdout.split("\0") if name and (ROOT / name).is_file()]


def modules_loaded_by(statement: str, *, whole: bool = False) -> set[str]:
    """Names of packages that the statement has imported, or of all their modules."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))"
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return {name if whole else name.split(".")[0] for name in printed.split()}


def test_import_directions_hold():
    """import-linter keeps every contract of pyproject.toml."""
    linter = Path(sys.executable).with_name("lint-imports")
    answer = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout[-3000:]


def test_the_agents_dependencies_are_few():
    """The base distribution needs three small packages, and packages install nothing else."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    names = {re.split(r"[<>=;\s\[]", line)[0] for line in declared}
    assert names == {"nvidia-ml-py", "msgspec", "backports.zstd"}
    pinned = re.findall(
        r"^([\w.-]+)==", (ROOT / "requirements" / "agent.txt").read_text(), re.MULTILINE
    )
    assert {name.replace(".", "-") for name in names} == set(pinned)


def test_the_agent_imports_nothing_heavy():
    """No module of the agent pulls in the collector or one of its libraries."""
    names = [
        ".".join(path.relative_to(ROOT / "agent").with_suffix("").parts)
        for path in (ROOT / "agent" / "gpuledger_agent").rglob("*.py")
        if path.name != "__main__.py"
    ]
    loaded = modules_loaded_by(
        "\n".join(f"import {name.removesuffix('.__init__')}" for name in names)
    )
    assert not loaded & {*HEAVY, "gpuledger_collector"}


def test_the_agent_imports_late_what_few_nodes_need():
    """A misspelled setting, a configuration file, a damaged spool: the others do not keep the code
    for them in memory.
    """
    loaded = modules_loaded_by(
        "import gpuledger_agent.cli, gpuledger_agent.daemon, gpuledger_agent.exposition\n"
        "gpuledger_agent.cli.parser().parse_args(['run'])\n"
        "from gpuledger_agent.sources.nvml_binding import import_binding\n"
        "assert import_binding().nvmlInit"
    )
    assert "msgspec" in loaded
    late = {"difflib", "tomllib", "shutil", "subprocess", "http.server", "prometheus_client"}
    assert not loaded & late


def test_help_loads_no_heavy_library():
    """`gpuledger --help` answers at once because pandas, SQLAlchemy and the like are imported where
    they are used.
    """
    loaded = modules_loaded_by(
        "import contextlib, io, sys\nfrom gpuledger_collector.cli import main\nsys.argv ="
        " ['gpuledger', '--help']\nwith contextlib.redirect_stdout(io.StringIO()),"
        " contextlib.suppress(SystemExit):\n    main()"
    )
    assert not loaded & {
        "numpy",
        "pandas",
        "sqlalchemy",
        "psycopg",
        "fastapi",
        "uvicorn",
        "sklearn",
        "alembic",
    }


def test_no_private_module_of_a_library_is_imported():
    """Private names change without notice between the versions that are allowed; ruff refuses their
    use otherwise.
    """
    module = r"from (\w+\.)*_[a-z][\w.]* import|import .*\._"
    name = r"from (?!gpuledger|\.)\S+ import (.*\W)?_[a-z]"
    private = re.compile(rf"^\s*({module}|{name})", re.MULTILINE)
    for path in tracked("agent/*.py", "collector/*.py", "common/*.py"):
        assert not private.search(path.read_text(encoding="utf-8")), path


def test_alembic_folder_shadows_no_package():
    """An __init__.py in alembic/ would hide the alembic package from every script run in the root."""
    assert not list((ROOT / "alembic").rglob("__init__.py"))


def test_every_place_has_the_same_version():
    """Packages, the changelog's newest release, and the guide that names a file; the chart's test
    compares its own.
    """
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for package in ("agent/gpuledger_agent", "collector/gpuledger_collector"):
        assert f'__version__ = "{version}"' in (ROOT / package / "__init__.py").read_text(), package
    assert (
        re.search(r"^## \[(\d.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
        == version
    )
    assert f"gpuledger-agent_{version}_" in (ROOT / "docs/guides/install-agent.md").read_text()


def test_an_extra_is_pinned_as_the_collector_is():
    """Installed beside the collector, it changes no package that both have."""
    collector, extra = (
        dict(
            re.findall(
                r"^([\w.-]+)==(\S+)",
                (ROOT / "requirements" / f"{name}.txt").read_text(),
                re.MULTILINE,
            )
        )
        for name in ("collector", "mcp")
    )
    assert "mcp" in extra
    assert {name: collector[name] for name in extra if name in collector} == {
        name: version for name, version in extra.items() if name in collector
    }


def test_requirements_are_hashed_and_name_no_address():
    """Pinned files hold hashes for every package and no address of an index."""
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        text = path.read_text()
        assert text.count("==") >= 3
        assert "http://" not in text
        assert "https://" not in text
        for block in re.split(r"\n(?=\w)", text.strip()):
            assert "--hash=sha256:" in block, f"{path.name}: {block[:60]} has no hash"


def test_no_float_in_accounting():
    """Money and time are integers and Decimal: no float literal, name or true division in the exact
    core.
    """
    import ast

    for path in sorted((ROOT / "collector/gpuledger_collector/accounting").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            where = f"{path.name}:{getattr(node, 'lineno', 0)}"
            assert not (isinstance(node, ast.Constant) and isinstance(node.value, float)), where
            assert not (isinstance(node, ast.Name) and node.id == "float"), where
            assert not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)), where


def test_accounting_reads_no_clock():
    """What was charged depends on evidence and rates, never on when it was computed."""
    for path in sorted((ROOT / "collector/gpuledger_collector/accounting").glob("*.py")):
        text = path.read_text()
        assert not re.search(
            r"\b(time\.time|monotonic|datetime\.now|utcnow|date\.today)\b", text
        ), path.name


def test_names_are_rendered_in_one_place():
    """Texts of others become escapes in gpuledger_common.escapes alone, and tables escape what
    their cells hold.
    """
    for path in tracked("agent/*.py", "collector/*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "escapes.py":
            assert not re.search(
                r"isprintable\(\) else|if \w+\.isprintable\(\)\)|\[\\x00-", text
            ), path
        if path.name != "tables.py":
            assert "from rich.table import" not in text, path


def test_no_file_names_a_path_of_a_build_machine():
    """Sources speak of nothing outside the repository but ../shared."""
    for path in tracked("*.py", "*.md", "*.toml", "*.yml", "*.sh", "*.ini", "dev", ".ci/run"):
        if path == Path(__file__):
            continue
        assert "/work/" not in path.read_text(errors="replace"), path


def test_the_command_without_its_libraries_says_how_to_get_them():
    """Where only the agent is installed, `gpuledger` is one sentence and exit code 3."""
    code = (
        "import sys\nsys.modules['typer'] = None\nfrom gpuledger_collector.__main__ import"
        " main\nmain()"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 3
    assert "-py3-none-any.whl[collector,embedded]" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_no_sentence_suggests_what_no_index_has():
    """GPU Ledger is in no package index: an extra is named by its wheel, or by the package that it
    brings.
    """
    for path in tracked("agent/*.py", "collector/*.py", "common/*.py", "*.md", "dev", "deploy/*"):
        if path.suffix in {".png", ".svg"}:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        suggestion = re.search(
            r"install[^\n]{0,40}['\" ]gpuledger(\[|['\"])|gpuledger\[\w+\] is not installed", text
        )
        assert suggestion is None, (path, suggestion)


def test_the_tests_of_accounting_load_accounting_alone():
    """So the pure core is tried in seconds, and by nothing that could stand in for it."""
    folder = ROOT / "tests" / "unit" / "accounting"
    code = [
        "import sys; import pytest",
        "sys.path.insert(0, 'tests')",
        (
            "code = pytest.main(['-q', '--collect-only', '-p', 'no:xdist', '-p',"
            f" 'no:cacheprovider', {str(folder)!r}])"
        ),
        "assert code == 0",
        "sys.stdout = sys.__stdout__",
    ]
    loaded = modules_loaded_by("\n".join(code), whole=True)
    ours = {name.split(".")[1] for name in loaded if name.startswith("gpuledger_collector.")}
    assert ours == {"accounting"}
    assert not {name.split(".")[0] for name in loaded} & set(HEAVY)


@pytest.mark.slow
def test_each_file_has_one_process_and_so_its_world_is_made_once():
    """xdist goes by the ids that pytest reports: a grouping that has no effect costs minutes, and
    fails nothing.
    """
    files = ["tests/unit/accounting/test_cash.py", "tests/unit/accounting/test_names.py"]
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "2", "-v", "-p", "no:cacheprovider", *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout[-3000:]
    ran = set(re.findall(r"\[(gw\d)\] \[ *\d+%\] PASSED (\S+?)::", answer.stdout))
    assert sorted(file for _, file in ran) == files, "each file in one process"
    assert len({worker for worker, _ in ran}) == 2, "and the two at once"
