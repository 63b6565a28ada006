"""Makes the boards' JSON, Grafana's alert rules, and the copies of Prometheus' alert rules for
Kubernetes.

`python -m dashboards.build [--check]`.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

from dashboards.alerts.grafana import provisioning
from dashboards.grafana import Board

HERE = Path(__file__).parent
JSON = HERE / "json"
ALERTING = HERE / "provisioning" / "alerting" / "gpuledger.yaml"
RULES = HERE / "alerts" / "prometheus.yml"
CHART_RULES = HERE.parent / "deploy" / "helm" / "gpuledger" / "files" / "alerts.yml"
PLAIN_RULES = HERE.parent / "deploy" / "kubernetes" / "monitoring" / "rules.yaml"
RULES_HEADER = """\
# Made from dashboards/alerts/prometheus.yml by `python -m dashboards.build`; edits here are lost.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gpuledger-alerts
  namespace: gpuledger
  labels:
    app.kubernetes.io/name: gpuledger
    app.kubernetes.io/instance: gpuledger
    app.kubernetes.io/component: alerts
spec:
"""
NAMES = tuple(sorted(path.stem for path in (HERE / "boards").glob("[a-z]*.py")))


def boards() -> dict[str, Board]:
    """Every board by the name of its module."""
    return {name: import_module(f"dashboards.boards.{name}").BOARD for name in NAMES}


def rules() -> dict[Path, str]:
    """Prometheus' alert rules for the chart, which reads no file outside its folder, and as a
    manifest.
    """
    groups = RULES.read_text().partition("groups:\n")[2]
    lines = ("groups:\n" + groups).splitlines()
    manifest = RULES_HEADER + "".join(f"  {line}\n" if line else "\n" for line in lines)
    notice = RULES_HEADER.splitlines()[0]
    return {CHART_RULES: f"{notice}\ngroups:\n{groups}", PLAIN_RULES: manifest}


def texts() -> dict[Path, str]:
    """What each file must hold."""
    files = {
        JSON / f"{name}.json": json.dumps(board.as_json(), indent=1, ensure_ascii=False) + "\n"
        for name, board in boards().items()
    }
    # JSON is YAML, and needs no library here.
    files[ALERTING] = json.dumps(provisioning(), indent=2, ensure_ascii=False) + "\n"
    return files | rules()


def stale() -> list[Path]:
    """Files that differ from what the boards make, and files that no board makes."""
    wanted = texts()
    differing = [
        path for path, text in wanted.items() if not path.is_file() or path.read_text() != text
    ]
    return differing + [path for path in sorted(JSON.glob("*.json")) if path not in wanted]


def main(arguments: list[str]) -> int:
    """Writes the files, or says which are stale and ends with 1."""
    if "--check" in arguments:
        for path in stale():
            sys.stderr.write(
                f"{path} is not what the boards make; run python -m dashboards.build\n"
            )
        return 1 if stale() else 0
    for path in stale():
        wanted = texts().get(path)
        if wanted is None:
            path.unlink()
        else:
            path.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
