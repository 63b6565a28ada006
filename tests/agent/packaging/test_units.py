"""The systemd units: what they may do, measured by systemd itself, and what they must never say."""

from pathlib import Path

import pytest

from fakes.systemd import directives, exposure
from gpuledger_agent.settings import load

pytestmark = pytest.mark.slow

UNITS = Path(__file__).resolve().parents[3] / "agent" / "systemd"
FULL, MINIMAL = UNITS / "gpuledger-agent.service", UNITS / "gpuledger-agent-minimal.service"
DEPLOY = UNITS.parents[1] / "deploy"
DROP_IN = DEPLOY / "deb" / "examples" / "sockets.conf"
SLURM = [
    DEPLOY / "slurm" / name for name in ("gpuledger-queue.service", "gpuledger-scale@.service")
]


@pytest.mark.parametrize(
    ("unit", "most"), [(FULL, 2.5), (MINIMAL, 1.5)], ids=lambda value: getattr(value, "stem", "")
)
def test_little_is_open_to_a_unit(unit, most):
    """With job attribution at most 2.5, without 1.5; dcgm-exporter's own unit has 9.6."""
    assert exposure(unit) <= most


@pytest.mark.parametrize("unit", SLURM, ids=lambda unit: unit.stem)
def test_little_is_open_to_slurms_units(unit):
    """Below 2.5, and what runs as slurmctld's own user removes nothing of it: no RemoveIPC=, no
    DynamicUser=.
    """
    assert exposure(unit) < 2.5
    found = directives(unit)
    assert found["User"] == ["slurm"]
    assert found["CapabilityBoundingSet"] == found["AmbientCapabilities"] == [""]
    assert not {
        "RemoveIPC",
        "PrivateUsers",
        "DynamicUser",
        "PrivateNetwork",
        "IPAddressDeny",
    } & set(found)


def test_sockets_that_belong_to_root_stay_within_the_bound(tmp_path):
    """The drop-in for the kubelet's and Docker's sockets, put behind the unit's own lines."""
    together = tmp_path / "gpuledger-agent.service"
    service = DROP_IN.read_text().partition("[Service]\n")[2]
    together.write_text(FULL.read_text().replace("\n[Install]", f"{service}\n[Install]"))
    assert exposure(FULL) < exposure(together) <= 2.5


@pytest.mark.parametrize("unit", [FULL, MINIMAL], ids=lambda unit: unit.stem)
def test_a_unit_is_watched_and_never_kills_a_client_of_nvml(unit):
    """Type=notify with a watchdog; no limit whose end is SIGKILL; a forbidden system call fails and
    does not kill.
    """
    found = directives(unit)
    assert found["Type"] == ["notify"]
    assert int(found["WatchdogSec"][0]) >= 60
    assert found["DynamicUser"] == ["yes"]
    assert found["LoadCredential"] == ["token:/etc/gpuledger/token"]
    assert found["SystemCallErrorNumber"] == ["EPERM"]
    assert not {"MemoryMax", "MemoryLimit", "CPUQuota", "RuntimeMaxSec", "KillMode"} & set(found)
    assert not any("token" in value.lower() for value in found.get("Environment", []))


def test_a_node_without_a_token_yet_starts_and_sends_none(tmp_path, monkeypatch):
    """SetCredential= is what systemd takes when the token's file is not there: it is empty, and no
    token is sent.
    """
    assert all(directives(unit)["SetCredential"] == ["token:\\n"] for unit in (FULL, MINIMAL))
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    credential = tmp_path / "token"
    credential.write_text("\n")
    assert load(None, {}).token_path is None
    credential.write_text("secret\n")
    assert load(None, {}).token_path == credential


def test_job_attribution_sees_processes_and_the_kernel_log_and_nothing_more():
    """What the two variants differ in is what attribution needs."""
    full, minimal = directives(FULL), directives(MINIMAL)
    assert full["ProtectProc"] == ["default"]
    assert full["CapabilityBoundingSet"] == ["CAP_SYSLOG"]
    assert "/dev/kmsg r" in full["DeviceAllow"]
    assert minimal["ProtectProc"] == ["invisible"]
    assert minimal["CapabilityBoundingSet"] == [""]
    differing = {
        name for name in full.keys() | minimal.keys() if full.get(name) != minimal.get(name)
    }
    assert differing == {
        "Description",
        "Conflicts",
        "Environment",
        "ProtectProc",
        "PrivateUsers",
        "ProtectKernelLogs",
        "CapabilityBoundingSet",
        "AmbientCapabilities",
        "DeviceAllow",
    }
