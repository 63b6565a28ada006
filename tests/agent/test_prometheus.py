"""A real Prometheus scrapes real agents: dashboards and alert rules made for dcgm-exporter find
what they ask for.

The agents read the C stand-in for NVML through the real binding. The expressions are those of
NVIDIA's dashboard 12239 (grafana/dcgm-exporter-dashboard.json) and the common alert rules on
DCGM_FI_* fields.
"""

import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from fakes.agents import Agent
from fakes.exporters import read as parse
from fakes.nvml import stand_in
from fakes.ports import free_port
from fakes.sink import sink
from gpuledger_common.exporter_names import families
from gpuledger_common.exposition_text import render
from gpuledger_common.readings import Accelerator, Holder, Sample, Workload

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "data" / "captures"
SCENARIO = (
    "gpus 2 clock 0 1980 clock 1 345 busy 0 98 power 0 650000 gpm 0 75 busy 1 3 gpm 1 2 remap 1 1\n"
)
"""GPU 0 works hard; GPU 1 idles and could not remap a row; while the agents run, it reports an Xid.
"""
WHERE = '{instance=~"$instance", gpu=~"$gpu"}'
DASHBOARD_12239 = (
    f"DCGM_FI_DEV_GPU_TEMP{WHERE}",
    f"avg(DCGM_FI_DEV_GPU_TEMP{WHERE})",
    f"DCGM_FI_DEV_POWER_USAGE{WHERE}",
    f"sum(DCGM_FI_DEV_POWER_USAGE{WHERE})",
    f"DCGM_FI_DEV_SM_CLOCK{WHERE} * 1000000",
    f"DCGM_FI_DEV_GPU_UTIL{WHERE}",
    f"DCGM_FI_DEV_FB_USED{WHERE}",
    f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{WHERE}",
)
RULES = {
    "GpuHot": ("DCGM_FI_DEV_GPU_TEMP > 85", set()),
    "GpuSaturated": ("DCGM_FI_DEV_GPU_UTIL > 95", {"0"}),
    "GpuIdle": ("DCGM_FI_DEV_GPU_UTIL < 5", {"1"}),
    "GpuMemoryFull": (
        "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 0.9",
        set(),
    ),
    "GpuPowerHigh": ("DCGM_FI_DEV_POWER_USAGE > 600", {"0"}),
    "GpuRowRemapFailed": ("DCGM_FI_DEV_ROW_REMAP_FAILURE == 1", {"1"}),
    "GpuXid": ("DCGM_FI_DEV_XID_ERRORS > 0", {"1"}),
    "GpuEnergyCounts": ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION > 0", {"0", "1"}),
}
"""Name -> (a common rule on DCGM_FI_*, the GPUs on which it must fire here)."""
DEADLINE_S = 60


class Prometheus:
    """A running Prometheus and its HTTP API."""

    def __init__(self, program: str, folder: Path, targets: dict[str, int]) -> None:
        self.port = free_port()
        rules = [{"alert": name, "expr": expression} for name, (expression, _) in RULES.items()]
        (folder / "rules.yml").write_text(
            json.dumps({"groups": [{"name": "gpu", "interval": "1s", "rules": rules}]})
        )
        static = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"vintage": name}}
            for name, port in targets.items()
        ]
        (folder / "prometheus.yml").write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": ["rules.yml"],
                    "scrape_configs": [{"job_name": "gpus", "static_configs": static}],
                }
            )
        )
        self.log = folder / "prometheus.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    program,
                    f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stderr=log,
            )

    def get(self, path: str, **parameters: str):
        address = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> list:
        return self.get("query", query=expression)["result"]

    def wait_for(self, true) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                if true():
                    return
            except OSError:
                pass
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.query("up")
            time.sleep(0.2)


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """Two agents, one in each vintage of names, and a Prometheus that has scraped both."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (apt-get install prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    environment = stand_in(folder, SCENARIO)
    if environment is None:
        pytest.skip("no C compiler: the NVML stand-in cannot be built (apt-get install gcc)")
    ports = {"old": free_port(), "new": free_port()}
    agents = []
    with sink() as target:
        for vintage, port in ports.items():
            place = tmp_path_factory.mktemp(vintage)
            made = Agent(
                place,
                target.url,
                source="nvml",
                metrics_listen=f"127.0.0.1:{port}",
                dcgm_names=vintage,
                slow_interval_s=1,
            )
            made.environment |= {
                name: environment[name] for name in ("LD_LIBRARY_PATH", "NVML_STUB_SCENARIO")
            }
            agents.append(made.start())
        server = Prometheus(program, folder, ports)
        try:
            server.wait_for(lambda: len(server.query("up == 1")) == 2)
            (folder / "scenario.new").write_text(f"{SCENARIO}xid 1 13\n")
            (folder / "scenario.new").replace(environment["NVML_STUB_SCENARIO"])
            server.wait_for(
                lambda: len(server.query('{__name__=~"DCGM_FI_DEV_XID_ERRORS?"} == 13')) == 2
            )
            server.ports = ports
            yield server
        finally:
            server.process.terminate()
            server.process.wait(20)
            for one in agents:
                one.stop()


def test_every_panel_of_nvidias_dashboard_has_data(scraped):
    """Its two variables list the instance and the GPUs, and each of its expressions gives every
    GPU.
    """
    temperature = {"match[]": 'DCGM_FI_DEV_GPU_TEMP{vintage="old"}'}
    instances, gpus = (
        scraped.get(f"label/{name}/values", **temperature) for name in ("instance", "gpu")
    )
    assert instances == [f"127.0.0.1:{scraped.ports['old']}"]
    assert gpus == ["0", "1"]
    for expression in DASHBOARD_12239:
        asked = expression.replace("$instance", instances[0]).replace("$gpu", "|".join(gpus))
        found = scraped.query(asked)
        assert len(found) == (1 if "(" in expression else 2), asked
    assert float(
        scraped.query('sum(DCGM_FI_DEV_POWER_USAGE{vintage="old"})')[0]["value"][1]
    ) == pytest.approx(720)


@pytest.mark.parametrize("name", RULES)
def test_a_common_alert_rule_sees_every_gpu_and_fires_where_it_must(scraped, name):
    """The rule's left side knows both GPUs; the alert is on for those that the scenario made ill,
    and for no other.
    """
    expression, expected = RULES[name]
    left = re.split(r" (?:>|<|==) ", expression)[0]
    seen = {
        one["metric"]["gpu"] for one in scraped.query(left) if one["metric"]["vintage"] == "old"
    }
    # Also of Xids: 0 where the driver is listened to and has told none, as in DCGM.
    assert seen == {
        "0",
        "1",
    }

    def firing() -> set[str]:
        alerts = scraped.get("alerts")["alerts"]
        ill = [
            one["labels"]
            for one in alerts
            if one["state"] == "firing" and one["labels"]["alertname"] == name
        ]
        return {labels["gpu"] for labels in ill if labels["vintage"] == "old"}

    scraped.wait_for(lambda: firing() == expected)


def test_newer_names_bear_newer_labels(scraped):
    """DCGM 4.6's names with `hostname`; nothing of the older names beside them where a new one
    exists.
    """
    zero, one = sorted(
        scraped.query('DCGM_FI_DEV_GPU_TEMP_CELSIUS{vintage="new"}'),
        key=lambda row: row["metric"]["gpu"],
    )
    assert zero["metric"]["hostname"] == one["metric"]["hostname"] == "h100-03"
    assert "Hostname" not in zero["metric"]
    assert scraped.query('DCGM_FI_DEV_GPU_TEMP{vintage="new"}') == []


def test_prometheus_knows_our_types_and_drops_nothing(scraped):
    """Counters are counters; every sample that was on the page is in the database."""
    kinds = scraped.get("metadata")
    for name, kind in (
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter"),
        ("DCGM_FI_DEV_GPU_UTIL", "gauge"),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge"),
        ("gpu_power_watts", "gauge"),
    ):
        assert {entry["type"] for entry in kinds[name]} == {kind}, name
    for port in scraped.ports.values():
        page = (
            urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
        )
        lines = [line for line in page.splitlines() if line and not line.startswith("#")]
        assert len({line.rpartition(" ")[0] for line in lines}) == len(lines), (
            "no series stands there twice"
        )
    assert not re.search(r"level=(warn|error)", scraped.log.read_text()), "no sample was refused"


def test_promtool_finds_nothing_of_ours(scraped):
    """`promtool check metrics` on both vintages; dcgm-exporter's own names draw its own remarks."""
    promtool = shutil.which("promtool")
    assert promtool, "it comes in the same Debian package"
    for port in scraped.ports.values():
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read()
        told = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True)
        remarks = [
            line for line in told.stderr.decode().splitlines() if not line.startswith("DCGM_")
        ]
        assert not remarks


def ours(line: str) -> str:
    """Our own labels for the accelerator and the holder that a line of a capture tells of."""
    label = dict(re.findall(r'(\w+)="([^"]*)"', line))
    profile, instance = label.get("GPU_I_PROFILE"), label.get("GPU_I_ID")
    accelerator = Accelerator(
        uuid="MIG-x" if profile else label["UUID"],
        device_uuid=label["UUID"],
        index=int(label["gpu"]),
        model=label["modelName"],
        pci_bus_id=label.get("pci_bus_id"),
        mig_instance=f"{profile}/{instance}" if profile else None,
    )
    tags = {name: label[name] for name in ("container", "namespace", "pod") if name in label}
    holders = [Holder(Workload(label["pod"], "kubernetes", tags=tags))] if label.get("pod") else []
    vintage = "new" if "hostname" in label else "old"
    node = label.get("hostname") or label["Hostname"]
    seen = [(accelerator, Sample(accelerator.uuid, 0, {"gpu_sm_clock_hertz": 1e9}), holders)]
    text = render(families(node, label.get("DCGM_FI_DRIVER_VERSION"), seen, vintage))
    return re.search(r"^DCGM_\w+(\{.*\}) ", text, re.MULTILINE)[1]


def capture_files() -> list[Path]:
    return sorted(CAPTURES.glob("*.prom"))


@pytest.mark.parametrize(
    "capture", capture_files() or [None], ids=lambda path: path.stem if path else "none"
)
def test_labels_and_their_order_are_those_of_real_pages(capture):
    """Each line's label text, made anew from what it says, is the same to the byte."""
    if capture is None:
        pytest.skip("no captures of real cards in ../shared/data/captures")
    lines = [
        line for line in capture.read_text().splitlines() if re.match(r"DCGM_\w+\{.*\} \S+$", line)
    ]
    checked = 0
    for line in lines:
        labels = line[line.index("{") : line.rindex("}") + 1]
        if "..." in labels:
            continue
        checked += 1
        # To Prometheus an empty label is no label.
        held = labels.replace(',container="",namespace="",pod=""', "")
        assert ours(line) == held
    assert checked or "..." in capture.read_text()


@pytest.mark.parametrize(
    "capture", capture_files() or [None], ids=lambda path: path.stem if path else "none"
)
def test_families_stand_in_the_order_and_with_the_types_of_real_pages(capture):
    """What a real exporter printed for a card, we print in the same order and with the same types."""
    if capture is None:
        pytest.skip("no captures of real cards in ../shared/data/captures")
    text = capture.read_text()
    told = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    theirs = list(dict.fromkeys(re.findall(r"^(DCGM_FI_\w+)\{", text, re.MULTILINE)))
    seen = parse(text).accelerators
    rows = [(one.accelerator, Sample("x", 0, one.values), ()) for one in seen.values()]
    made = render(families("n", None, rows, "old"))
    mine = dict(re.findall(r"^# TYPE (\w+) (\w+)$", made, re.MULTILINE))
    common = [name for name in theirs if name in mine]
    assert common == [name for name in mine if name in theirs]
    assert len(common) >= 5
    assert {name: told[name] for name in common if name in told} == {
        name: mine[name] for name in common if name in told
    }
