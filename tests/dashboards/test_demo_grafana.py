"""What the demo writes for Grafana and Prometheus: the shipped provisioning with every name filled
in.
"""

import json
import re
import shutil
import stat
import subprocess

import psycopg
import pytest
import yaml
from typer.testing import CliRunner

from fakes.postgres import administrator
from fakes.real_grafana import ROUNDS, hash_for_grafana
from gpuledger_collector.cli import build
from gpuledger_collector.cli.board_links import PAGES
from gpuledger_collector.cli.common import Refusal
from gpuledger_collector.cli.demo_grafana import DASHBOARDS, GrafanaFiles
from gpuledger_collector.export.site import Site

SITE = Site(path="/", sees_fleet=True)


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
    """No variable and no path of a container stays in any file; the boards are a copy of those of
    the checkout.
    """
    for path in files.provisioning.rglob("*.yaml"):
        lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
        assert not [
            line for line in lines if "$" in line or "/run/secrets" in line or "/var/lib" in line
        ], path
    (provider,) = yaml.safe_load((files.provisioning / "dashboards/gpuledger.yaml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] == str(files.boards)
    shipped = {path.name: json.loads(path.read_text()) for path in DASHBOARDS.glob("json/*.json")}
    assert len(shipped) >= 10
    for path in files.boards.iterdir():
        board, own = json.loads(path.read_text()), shipped.pop(path.name)
        assert board | {"links": own["links"]} == own
    assert not shipped
    contact = yaml.safe_load((files.provisioning / "alerting/contact.yaml").read_text())
    assert contact["contactPoints"][0]["receivers"][0]["settings"] == {
        "addresses": "platform@example.com"
    }
    assert str(files.provisioning) in files.how_to_start()


def test_a_board_links_to_the_page_that_answers_the_same(files):
    """First of its links, at the demo's collector; a page that there is, and variables that it has."""
    linked = set()
    for path in sorted(files.boards.iterdir()):
        board = json.loads(path.read_text())
        first = board["links"][0]
        if first["type"] == "link":
            linked.add(board["uid"])
            address, names = first["url"], {one["name"] for one in board["templating"]["list"]}
            assert address.startswith("http://127.0.0.1:8440/")
            assert set(re.findall(r"\$\{(\w+)", address)) <= names
            page = address.removeprefix("http://127.0.0.1:8440").partition("/$")[0]
            assert page in {link.path.partition("?")[0] for link in SITE.links} | {"/statements"}
    assert linked == set(PAGES)


def test_examples_link_to_the_address_that_is_given(tmp_path):
    """Without one they are the shipped boards; what is no address is refused before anything is
    written.
    """

    def run(folder, *given):
        return CliRunner().invoke(build(), ["examples", str(tmp_path / folder), *given])

    refused = run("none", "--public-url", "gpuledger.example")
    assert isinstance(refused.exception, Refusal)
    assert "--public-url" in str(refused.exception)
    assert not (tmp_path / "none").exists()
    for folder, given in (("plain", ()), ("linked", ("--public-url", "https://g.example/"))):
        assert run(folder, *given).exit_code == 0
    board = "dashboards/json/idle.json"
    plain = (tmp_path / "plain" / board).read_text()
    assert plain == (DASHBOARDS / "json" / "idle.json").read_text()
    links = json.loads((tmp_path / "linked" / board).read_text())["links"]
    assert [link["url"] for link in links] == ["https://g.example/idle", ""]


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


def test_a_password_is_hashed_as_often_as_grafana_asks(postgres):
    """Its driver reads at least four digits of rounds, or the login fails."""
    admin, role = administrator(postgres), "hashed_for_grafana"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'first'")
        try:
            hash_for_grafana(admin, role, "second")
            (stored,) = connection.execute(
                "SELECT rolpassword FROM pg_authid WHERE rolname = %s", (role,)
            ).fetchone()
        finally:
            connection.execute(f"DROP ROLE {role}")
    assert stored.startswith(f"SCRAM-SHA-256${ROUNDS}:")
    assert ROUNDS >= 1000
