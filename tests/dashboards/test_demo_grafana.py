"""What the demo writes for Grafana and Prometheus: the shipped provisioning with every name filled
in.
"""

import shutil
import stat
import subprocess

import pytest
import yaml

from gpuledger_collector.cli.demo_grafana import DASHBOARDS, GrafanaFiles


@pytest.fixture
def files(tmp_path):
    made = GrafanaFiles(tmp_path / "grafana")
    made.create_password()
    made.write("54321", "127.0.0.1:8440", ["127.0.0.1:9501", "127.0.0.1:9502"])
    return made


def test_the_data_source_is_the_demos_database(files):
    """Its port, the reading role and the password in the file; the alerts refer to its uid."""
    (ledger, prometheus) = yaml.safe_load(
        (files.provisioning / "datasources/gpuledger.yaml").read_text()
    )["datasources"]
    assert (ledger["url"], ledger["user"], ledger["database"]) == (
        "127.0.0.1:54321",
        "grafana",
        "gpuledger",
    )
    assert ledger["secureJsonData"]["password"] == files.password.read_text()
    assert stat.S_IMODE(files.password.stat().st_mode) == 0o600
    assert prometheus["url"] == "http://127.0.0.1:9090"
    assert ledger["uid"] in (files.provisioning / "alerting/gpuledger.yaml").read_text()


def test_nothing_is_left_to_the_environment(files):
    """No variable and no path of a container stays in any file; the boards are those of the
    checkout.
    """
    for path in files.provisioning.rglob("*.yaml"):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        assert not [
            line for line in lines if "$" in line or "/run/secrets" in line or "/var/lib" in line
        ], path
    (provider,) = yaml.safe_load((files.provisioning / "dashboards/gpuledger.yaml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] == str(DASHBOARDS / "json")
    contact = yaml.safe_load((files.provisioning / "alerting/contact.yaml").read_text())
    assert contact["contactPoints"][0]["receivers"][0]["settings"] == {
        "addresses": "platform@example.com"
    }
    assert str(files.provisioning) in files.how_to_start()


def test_prometheus_reads_every_agent_and_the_collector(files):
    """Under the job names that the alert rules know; by promtool, where it is installed."""
    scraped = yaml.safe_load(files.prometheus.read_text())["scrape_configs"]
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped}
    assert targets == {
        "gpuledger-collector": ["127.0.0.1:8440"],
        "gpuledger-agent": ["127.0.0.1:9501", "127.0.0.1:9502"],
    }
    if shutil.which("promtool"):
        answer = subprocess.run(
            ["promtool", "check", "config", files.prometheus], capture_output=True, check=False
        )
        assert answer.returncode == 0, answer.stdout + answer.stderr
