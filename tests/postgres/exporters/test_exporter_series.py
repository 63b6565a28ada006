"""Series of exporters by remote write: profiles of one's own, impossible values, labels that only
some series have.
"""

import json
import time

import psycopg
import pytest
from typer.testing import CliRunner

from fakes.collector import running
from fakes.postgres import fresh_database
from fakes.prometheus import WRITE, Point, headers, one, snappy
from gpuledger_agent.settings import Settings as AgentSettings
from gpuledger_agent.simulate import replay_pages
from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import shipped_folder
from gpuledger_collector.ingest.remote_write.series import (
    BadSeries,
    GpuSeries,
    SeriesReader,
    packaged_reader,
)
from gpuledger_common.profiles.library import all_profiles
from gpuledger_common.profiles.read import ProfileError

NOW = int(time.time()) * 1000
OWN = """
id = "{id}"
title = "An exporter of mine"
energy = "unknown"
evidence = {{ repository = "me/mine", status = "synthetic" }}
match = {{ families = ["my_busy"] }}
device = {{ keys = [["card"]] }}

[[metrics]]
metric = "gpu_utilization_ratio"
families = ["my_busy"]
"""


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("profiles") / "mine.toml"
    path.write_text(OWN.format(id="mine"))
    return path


@pytest.fixture(scope="module")
def collector(postgres, own):
    with fresh_database(postgres) as dsn, running(dsn, exporter_profiles=str(own)) as started:
        yield started


def series(name, **labels):
    every = {"__name__": name, "instance": "n1:5000", "job": "gpu", **labels}
    return tuple(sorted((key, value) for key, value in every.items() if value))


def write(collector, *points):
    status, answer, text = collector.request("POST", WRITE, snappy(one(points)), headers())
    return status, int(answer["X-Prometheus-Remote-Write-Samples-Written"]), text


def test_a_profile_of_the_settings_is_understood(collector):
    """The setting exporter_profiles names files; their series are accelerators of the scrape
    target.
    """
    assert write(collector, Point(series("my_busy", card="c1"), 0.5, NOW)) == (204, 1, "")
    with psycopg.connect(collector.dsn) as connection:
        found = connection.execute(
            "SELECT a.uuid FROM accelerator a WHERE a.uuid = 'c1'"
        ).fetchall()
    assert found == [("c1",)]


def test_a_value_outside_its_range_is_refused_and_counted(collector):
    """A power in milliwatts is not written; the answer and the collector's metrics say so, the rest
    is kept.
    """
    labels = {"gpu_id": "0", "serial_number": "S9", "card_series": "AMD Instinct MI300X OAM"}
    points = (
        Point(series("gpu_package_power", **labels), 650_000.0, NOW),
        Point(series("gpu_gfx_activity", **labels), 50.0, NOW),
    )
    status, written, text = write(collector, *points)
    assert (status, written) == (400, 1)
    assert "1 values of gpu_power_watts are outside the range of their profile" in text
    assert (
        'remote_write_samples_total{outcome="refused"} 1.0'
        in collector.request("GET", "/metrics")[2]
    )


def test_a_division_that_the_profile_does_not_count_is_refused(collector):
    """An unknown compute mode is no whole device."""
    labels = {
        "gpu_id": "0",
        "gpu_partition_id": "1",
        "gpu_compute_partition_type": "hpx",
        "serial_number": "S9",
    }
    status, written, text = write(
        collector, Point(series("gpu_package_power", **labels), 300.0, NOW)
    )
    assert (status, written) == (400, 0)
    assert "the profile does not say how many are one device" in text


def test_two_profiles_for_one_series_are_not_guessed(own, tmp_path):
    """A series that two profiles understand is refused with both names; a bad file stops the start."""
    other = tmp_path / "other.toml"
    other.write_text(OWN.format(id="other"))
    reader = SeriesReader(all_profiles((own, other)))
    with pytest.raises(BadSeries, match="understood by several profiles: mine and other"):
        reader.interpret(list(series("my_busy", card="c1")))
    other.write_text("id = 1\n")
    with pytest.raises(ProfileError, match=r"other\.toml: id: 1 is not a text"):
        all_profiles((other,))


def test_the_exporters_own_pod_and_the_renamed_labels():
    """With honor_labels off, the holder is under exported_pod, and the plain pod is the exporter's."""
    labels = {
        "UUID": "U1",
        "pod_name": "gaudi-exporter-x",
        "exported_pod_name": "train-0",
        "exported_pod_namespace": "nlp",
    }
    entry = packaged_reader().interpret(list(series("habanalabs_utilization", **labels)))
    assert isinstance(entry, GpuSeries)
    assert (entry.workload.id, entry.accelerator.node) == ("nlp/train-0", "n1")


def test_what_needs_a_whole_page_is_foreign():
    """Shares that are values, and virtual NPUs without their chip, are never counted as whole
    devices.
    """
    reader = packaged_reader()
    hami = {"device_uuid": "G", "namespace": "a", "pod": "b", "container_index": "0", "node": "n"}
    assert reader.interpret(list(series("hami_vgpu_core_allocated_ratio", **hami))) is None
    vnpu = {"id": "2", "v_dev_id": "100", "aicore_count": "2", "model_name": "310P3-Ascend-V1"}
    assert reader.interpret(list(series("vnpu_pod_aicore_utilization", **vnpu))) is None


def test_three_vendors_are_on_one_bill(postgres, tmp_path):
    """The pages of the mixed demo: six hours of an AMD and a TPU node, priced by the names of their
    models.
    """
    pages = shipped_folder("examples") / "mixed"
    with fresh_database(postgres) as dsn, running(dsn) as collector:
        address = f"http://127.0.0.1:{collector.port}"
        span = ("2026-11-01T00:00:00Z", "2026-11-01T06:00:00Z")
        replay_pages(AgentSettings(), *span, "15m", address, str(pages))

        def gpuledger(*arguments):
            result = CliRunner().invoke(build(), [*arguments, "--dsn", dsn])
            assert result.exit_code == 0, result.output
            return result.stdout

        gpuledger("apply", str(pages / "ledger.toml"))
        days = ("--from", "2026-11-01", "--to", "2026-11-02")
        report = json.loads(
            gpuledger("chargeback", *days, "--by", "model,team", "--format", "json")
        )
        cost = {
            (row["model"], row["team"]): row["cost"]
            for row in report["rows"]
            if not row["team"].startswith("(")
        }
    # Per hour: an MI300X for diffusion-7 in 4 of 6, one for rerank-0, half of one for a job; two or
    # four TPU chips, of which the sweep's are seen from the first page of an hour to the last:
    # three quarters of it.
    assert cost == {
        ("AMD Instinct MI300X", "serving"): "24.60",
        ("AMD Instinct MI300X", "vision"): "28.70",
        ("Google TPU v6e", "foundation"): "32.40",
        ("Google TPU v6e", "research"): "12.15",
    }
