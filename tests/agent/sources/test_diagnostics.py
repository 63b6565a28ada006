"""`once`, `check` and `record` as people use them, also where nothing but nvidia-ml-py is
installed.
"""

import json
import subprocess
import sys

import pytest

from gpuledger_agent.sources import recording

BARE = """
import sys
class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"msgspec", "prometheus_client", "backports", "compression"}:
            raise ModuleNotFoundError(f"{name} is not installed here")
sys.meta_path.insert(0, Nothing())
import runpy
runpy.run_module("gpuledger_agent.diagnostics", run_name="__main__", alter_sys=True)
"""


def bare(card, *arguments):
    """The module by itself, in a process in which the agent's other dependencies cannot be
    imported.
    """
    return subprocess.run(
        [sys.executable, "-c", BARE, *arguments],
        env=card.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_the_three_commands_need_only_the_nvml_binding(card, tmp_path):
    """On a machine with nvidia-ml-py alone a card can be looked at, checked and recorded."""
    seen = json.loads(bare(card, "once").stdout)
    assert len(seen["accelerators"]) == 2
    checked = bare(card, "check")
    assert checked.returncode == 0, checked.stderr
    path = tmp_path / "card.jsonl.gz"
    answer = bare(card, "record", str(path), "0.3")
    assert answer.returncode == 0, answer.stderr
    assert len(recording.read(path).inventory.accelerators) == 2


def test_a_file_that_cannot_be_written_is_one_sentence(card, tmp_path):
    """No traceback for a folder that does not exist; exit code 3."""
    answer = bare(card, "record", str(tmp_path / "none" / "card.jsonl"), "0.1")
    assert answer.returncode == 3
    assert answer.stderr.count("\n") == 1
    assert "No such file" in answer.stderr


def test_once_has_the_shape_that_others_rely_on(card):
    """node, driver, and for each accelerator uuid, model, index, mig_instance, owner, health,
    metrics and absent.
    """
    seen = card.once()
    assert {"node", "driver", "accelerators"} <= seen.keys()
    wanted = {"uuid", "model", "index", "mig_instance", "owner", "health", "metrics", "absent"}
    for entry in seen["accelerators"]:
        assert wanted <= entry.keys()
        assert entry["health"] == {"status": "ok", "cause": ""}


def test_check_ends_with_findings_for_a_sick_card(card):
    """A degraded GPU is a finding (exit code 1), with the cause in its line."""
    card.scenario("gpus 1\nrecovery 0 2\n")
    answer = card.command("check")
    assert answer.returncode == 1
    assert "health degraded the driver asks to reboot the node" in answer.stdout


def test_check_says_which_permission_is_missing(card):
    """Where the driver refuses for want of permission, `check` says what would help."""
    card.scenario("gpus 1\nhidden 0 1\n")
    assert "hint: some readings need root" in card.command("check").stdout


@pytest.mark.parametrize("source", ["dcgm", "replay"])
def test_a_target_that_is_not_there_is_one_sentence(card, tmp_path, source):
    """A missing page or recording ends with 3 and a sentence that names it."""
    missing = tmp_path / "none"
    answer = card.command("once", "--source", source, "--target", str(missing))
    assert answer.returncode == 3
    assert str(missing) in answer.stderr
    assert answer.stderr.count("\n") == 1
