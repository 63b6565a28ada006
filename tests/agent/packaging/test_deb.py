"""gpuledger-agent.deb: what Debian's own checker says, what an installed agent says, and what is
left of it.
"""

import gzip
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fakes.packages import DEBIAN_PYTHON, bare, build, delivers, pythons
from gpuledger_agent.settings import FIELDS, load

pytestmark = pytest.mark.slow

SENTENCE = "libnvidia-ml.so.1 was not found"


def test_lintian_finds_no_error(deb):
    """Neither errors nor warnings of Debian's checker."""
    if shutil.which("lintian") is None:
        pytest.skip("lintian is not installed (apt-get install lintian)")
    told = subprocess.run(
        ["lintian", "--allow-root", "--fail-on", "error,warning", deb],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert told.returncode == 0, told.stdout


@pytest.mark.long
def test_the_same_commit_gives_the_same_bytes(deb, tmp_path):
    """A package can be checked by building it again."""
    assert build("deb", tmp_path).read_bytes() == deb.read_bytes()


@pytest.mark.parametrize("python", pythons())
def test_the_tree_runs_on_every_supported_python_by_itself(unpacked, python, tmp_path):
    """No other package is seen (-I -S); without a GPU `check` ends with 3 and says what is missing;
    `run` delivers.
    """
    program = unpacked / "usr/bin/gpuledger-agent"
    moved = program.read_text().replace(
        "/usr/lib/gpuledger-agent", str(unpacked / "usr/lib/gpuledger-agent")
    )
    assert moved != program.read_text()
    checked = subprocess.run(
        [python, "-IS", "-c", moved, "check"], env=bare(), capture_output=True, text=True
    )
    assert (checked.returncode, checked.stderr) == (3, "")
    assert SENTENCE in checked.stdout.splitlines()[0]
    assert "NVIDIA driver" in checked.stdout.splitlines()[0]
    delivers([python, "-IS", "-c", moved], tmp_path)


def test_no_simulated_fleet_is_on_a_node(unpacked):
    """Its modules are left out, and who asks for it is told where it is; what is declared about
    metrics came compiled.
    """
    tree = unpacked / "usr/lib/gpuledger-agent"
    agent = {path.name for path in (tree / "gpuledger_agent").rglob("*.py")}
    assert not agent & {"simulate.py", "fleet.py", "simulated.py"}
    assert not list(tree.rglob("*metrics.toml"))
    launcher = (unpacked / "usr/bin/gpuledger-agent").read_text()
    moved = launcher.replace("/usr/lib/gpuledger-agent", str(tree))
    for arguments in (["once", "--source", "simulated"], ["simulate", "--list-nodes"]):
        refused = subprocess.run(
            [sys.executable, "-IS", "-c", moved, *arguments],
            env=bare(),
            capture_output=True,
            text=True,
        )
        assert refused.returncode == 3
        assert refused.stdout == ""
        assert refused.stderr == (
            "gpuledger-agent: the simulated fleet is not part of the packages for nodes: the"
            " gpuledger-agent of the wheel has it (./dev wheel in the repository builds it)\n"
        )


def test_the_settings_file_shows_every_setting_and_is_a_conffile(deb, unpacked):
    """Each line that somebody takes the # from is a setting with its default; an upgrade keeps what
    was edited.
    """
    path = unpacked / "etc/gpuledger/agent.toml"
    text = path.read_text()
    assert tomllib.loads(text) == {}
    lines = [
        line.removeprefix("#")
        for line in text.splitlines()
        if line.startswith("#") and line[1:2].strip()
    ]
    shown = tomllib.loads("\n".join(lines))
    assert set(shown) == set(FIELDS)
    path.write_text("\n".join(lines))
    assert load(path, {}) == load(None, {})
    conffiles = subprocess.run(
        ["dpkg-deb", "-I", deb, "conffiles"], capture_output=True, text=True, check=True
    ).stdout
    assert conffiles.split() == ["/etc/gpuledger/agent.toml"]


def test_the_man_page_is_that_of_the_command_line(unpacked):
    """In section 1, as it is made from the parser."""
    page = gzip.decompress(
        (unpacked / "usr/share/man/man1/gpuledger-agent.1.gz").read_bytes()
    ).decode()
    assert page == (Path(__file__).parents[3] / "docs/man/gpuledger-agent.1").read_text()


def test_completions_lie_where_shells_look(unpacked):
    """Those that are committed, in the folders of bash, zsh and fish; and the units that read
    Slurm's queue.
    """
    for place in (
        "bash-completion/completions/gpuledger-agent",
        "zsh/vendor-completions/_gpuledger-agent",
        "fish/vendor_completions.d/gpuledger-agent.fish",
    ):
        assert "deploy/completions/generate" in (unpacked / "usr/share" / place).read_text()
    examples = unpacked / "usr/share/doc/gpuledger-agent/examples"
    assert "queue --slurm" in (examples / "gpuledger-queue.service").read_text()
    assert (examples / "gpuledger-queue.timer").is_file()


def test_both_units_are_there_and_start_what_is_there(unpacked):
    """ExecStart names the program that the package installs."""
    for name in ("gpuledger-agent.service", "gpuledger-agent-minimal.service"):
        unit = (unpacked / "usr/lib/systemd/system" / name).read_text()
        assert "ExecStart=/usr/bin/gpuledger-agent run --config /etc/gpuledger/agent.toml" in unit
    assert (unpacked / "usr/bin/gpuledger-agent").stat().st_mode & 0o111


@pytest.mark.long
def test_a_fresh_debian_installs_runs_upgrades_and_purges_it(deb, tmp_path):
    """debootstrap makes the system, dpkg installs into it without systemd, and a purge leaves
    nothing.
    """
    if shutil.which("debootstrap") is None or not DEBIAN_PYTHON.exists():
        pytest.skip("debootstrap is not installed (apt-get install debootstrap)")
    root = tmp_path / "debian"
    made = subprocess.run(
        [
            "debootstrap",
            "--variant=minbase",
            "--include=python3",
            *mirror()[:1],
            root,
            *mirror()[1:],
        ],
        capture_output=True,
        text=True,
        timeout=280,
    )
    if made.returncode:
        pytest.skip(f"debootstrap could not make a system here: {made.stdout.strip()[-300:]}")
    (root / "tmp" / deb.name).write_bytes(deb.read_bytes())

    def inside(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["chroot", root, *command],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
        )

    for _ in range(2):
        installed = inside("dpkg", "-i", f"/tmp/{deb.name}")
        assert installed.returncode == 0, installed.stderr
    assert list((root / "usr/lib/gpuledger-agent/gpuledger_agent/__pycache__").glob("cli.*.pyc"))
    assert (
        root / "etc/systemd/system/multi-user.target.wants/gpuledger-agent.service"
    ).is_symlink()
    (root / "proc").mkdir(exist_ok=True)
    checked = inside("gpuledger-agent", "check")
    assert (checked.returncode, checked.stderr) == (3, "")
    assert SENTENCE in checked.stdout
    wait_for_all = inside(
        "gpuledger-agent", "run", "--check-config", "--config", "/etc/gpuledger/agent.toml"
    )
    assert wait_for_all.stdout.strip() == "the settings are good", wait_for_all.stderr
    purged = inside("dpkg", "--purge", "gpuledger-agent")
    assert purged.returncode == 0, purged.stderr
    assert "not empty" not in purged.stderr
    for gone in ("usr/lib/gpuledger-agent", "etc/gpuledger", "usr/bin/gpuledger-agent"):
        assert not (root / gone).exists(), gone
    assert not (
        root / "etc/systemd/system/multi-user.target.wants/gpuledger-agent.service"
    ).is_symlink()


def mirror() -> list[str]:
    """The suite and the mirror that this machine's apt uses."""
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)|$(RELEASE)", "Created-By: Packages"],
        capture_output=True,
        text=True,
    )
    pairs = [line.split("|") for line in told.stdout.splitlines() if "|" in line]
    main = next((pair for pair in pairs if pair[0].rstrip("/").endswith("debian")), None)
    if main is None:
        pytest.skip("this machine's apt knows no mirror of Debian")
    return [main[1], main[0]]
