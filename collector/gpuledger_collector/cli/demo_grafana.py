"""Grafana and Prometheus beside the demo: files in the demo's folder with which both start as they
are.

The demo's database listens on a port that it chose itself, so the shipped provisioning is copied
with its names filled in. Nothing is started here: the demo says how to.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuledger_collector.cli.board_links import link_boards
from gpuledger_collector.cli.common import shipped_folder

DASHBOARDS = shipped_folder("dashboards")
ROLE, DATABASE, ALERT_ADDRESS = "grafana", "gpuledger", "platform@example.com"
PROMETHEUS = "127.0.0.1:9090"
SCRAPES = """global:
  scrape_interval: 15s
rule_files: [{rules}]
scrape_configs:
  - job_name: gpuledger-collector
    static_configs: [{{targets: ["{collector}"]}}]
  - job_name: gpuledger-agent
    static_configs: [{{targets: [{agents}]}}]
"""


@dataclass(frozen=True)
class GrafanaFiles:
    """Where the files of a demo lie."""

    folder: Path

    @property
    def password(self) -> Path:
        """The password of the role that dashboards read with."""
        return self.folder / "reader.password"

    @property
    def provisioning(self) -> Path:
        """What GF_PATHS_PROVISIONING names."""
        return self.folder / "provisioning"

    @property
    def boards(self) -> Path:
        """The boards, each with a link to the collector's page."""
        return self.folder / "boards"

    @property
    def prometheus(self) -> Path:
        """Prometheus' configuration."""
        return self.folder / "prometheus.yml"

    def create_password(self) -> None:
        """Choose a password; only its owner reads the file."""
        self.folder.mkdir(exist_ok=True)
        self.password.touch(mode=0o600)
        self.password.write_text(secrets.token_urlsafe(24))

    def write(self, database_port: str, collector: str, agents: Sequence[str]) -> None:
        """Write provisioning for this database, boards that link to this collector, and a Prometheus
        configuration for these addresses.
        """
        shutil.copytree(DASHBOARDS / "json", self.boards, dirs_exist_ok=True)
        link_boards(self.boards, f"http://{collector}")
        shutil.copytree(DASHBOARDS / "provisioning", self.provisioning, dirs_exist_ok=True)
        names = {
            "${GRAFANA_LEDGER_HOST}": f"127.0.0.1:{database_port}",
            "${GRAFANA_LEDGER_DATABASE}": DATABASE,
            "${GRAFANA_LEDGER_USER}": ROLE,
            "${GRAFANA_LEDGER_SSLMODE}": "disable",
            "${GRAFANA_PROMETHEUS_URL}": f"http://{PROMETHEUS}",
            "${GRAFANA_ALERT_ADDRESS}": ALERT_ADDRESS,
            # In the file itself, for a Grafana that runs as another user: the role reads simulated
            # data alone.
            "$__file{/run/secrets/reader_password}": self.password.read_text(),
            "/var/lib/grafana/dashboards/gpuledger": str(self.boards),
        }
        for path in self.provisioning.rglob("*.yaml"):
            text = path.read_text()
            for name, value in names.items():
                text = text.replace(name, value)
            path.write_text(text)
        self.prometheus.write_text(
            SCRAPES.format(
                rules=DASHBOARDS / "alerts" / "prometheus.yml",
                collector=collector,
                agents=", ".join(f'"{agent}"' for agent in agents),
            )
        )

    def how_to_start(self) -> str:
        """The two commands, for people."""
        return f"""Dashboards, with a Grafana (9.3 to 13) and a Prometheus of your own, in other terminals:
    GF_PATHS_PROVISIONING={self.provisioning} GF_PATHS_DATA={self.folder / "data"} \\
        grafana-server --homepath /usr/share/grafana
    prometheus --config.file={self.prometheus} --storage.tsdb.path={self.folder / "prometheus"} \\
        --web.listen-address={PROMETHEUS}
Grafana is then at http://127.0.0.1:3000 (admin, admin), folder GPU Ledger; only Live metrics needs Prometheus."""
