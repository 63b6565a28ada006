"""The guide's worked example of a profile: its page and its file give what the guide shows, in a
bill too.
"""

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fakes.exporters import keys_of
from fakes.gateways import PAGES
from gpuledger_agent.sources.exporter import ExporterSource
from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain
from gpuledger_common.gateways import library as gateways
from gpuledger_common.profiles.library import packaged_ids, packaged_text

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "exporters.md").read_text(encoding="utf-8")
PAGE, SHOWN = re.findall(r"^```text\n(.*?)^```$", GUIDE, re.S | re.M)
(PROFILE,) = re.findall(r"^```toml\n(.*?)^```$", GUIDE, re.S | re.M)


@pytest.fixture
def files(tmp_path):
    (tmp_path / "page.prom").write_text(PAGE)
    (tmp_path / "acme.toml").write_text(PROFILE)
    return tmp_path / "page.prom", tmp_path / "acme.toml"


def gpuledger(*arguments):
    result = CliRunner().invoke(build(), [*map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        sentence, code = explain(result.exception)
        return code, sentence
    return result.exit_code, result.stdout


def test_the_example_is_what_the_guide_shows(files):
    """`profiles check` prints the table of the guide, line by line."""
    page, profile = files
    code, out = gpuledger("profiles", "check", page, "--profile", profile)
    assert code == 0
    assert [line.rstrip() for line in out.splitlines()] == SHOWN.splitlines()


def test_the_check_shows_what_a_forgotten_line_does(files):
    """Without factor, sentinel and range, the check counts what it refuses, and no reading is
    shown.
    """
    page, profile = files
    profile.write_text(PROFILE.replace("absent = [65535]\nscale = 0.001\nrange = [0, 2000]\n", ""))
    code, out = gpuledger("profiles", "check", page, "--profile", profile)
    (row,) = (line for line in out.splitlines() if line.startswith("acme_power_watts"))
    assert code == 0
    assert row.split() == [
        *("acme_power_watts", "2", "mapped", "gpu_power_watts", "-"),
        *("2", "of", "2", "refused:", "212000", "is", "not", "from", "0", "to", "3000"),
    ]
    assert "odd: 2 values refused: gpu_power_watts 212000 is not from 0 to 3000" in out


def test_the_example_is_read_by_the_agent(files):
    """Its readings are in base units, and each fault of the page is survived."""
    page, profile = files
    source = ExporterSource(str(page), str(profile))
    first, second = source.open().accelerators
    assert (first.uuid, first.model, second.uuid) == ("Acme-A-100", "Acme TX-8", "Acme-A-101")
    held, idle = source.read(())
    assert held.values == {
        "gpu_utilization_ratio": 0.73,
        "gpu_power_watts": 212.0,
        "gpu_energy_joules_total": 5e6,
        "gpu_memory_used_bytes": 4096 * 1024**2,
        "gpu_memory_total_bytes": 65536 * 1024**2,
    }
    assert idle.values == {"gpu_utilization_ratio": 0}
    assert [holder.workload.id for holder in source.holders((), ())["Acme-A-100"]] == [
        "vision/train-0"
    ]


def test_the_guide_explains_every_key_that_a_packaged_profile_uses():
    """Whoever reads a packaged profile finds its keys in the guide."""
    tables = GUIDE[GUIDE.index("## Every key") :]
    used = {
        key
        for identity in packaged_ids()
        for key in keys_of(tomllib.loads(packaged_text(identity)))
    }
    words = set(re.findall(r"[a-z_@]+", tables))
    assert used - words == set()


def test_profiles_are_listed_and_shown():
    """The list has every packaged profile of both kinds with its evidence; one of them is printed
    as it is.
    """
    code, out = gpuledger("profiles", "list", "--format", "csv")
    assert code == 0
    by_kind = {}
    for line in out.splitlines()[1:]:
        by_kind.setdefault(line.rsplit(",", 1)[1], set()).add(line.split(",")[0])
    assert by_kind == {"exporter": set(packaged_ids()), "gateway": set(gateways.packaged_ids())}
    assert "intel-gaudi,Intel Gaudi metric exporter,1.24.0-1007,synthetic" in out
    assert gpuledger("profiles", "show", "hami") == (0, packaged_text("hami"))
    assert gpuledger("profiles", "show", "litellm") == (0, gateways.packaged_text("litellm"))
    assert gpuledger("profiles", "show", "../read")[0] == 2


def test_a_page_of_a_gateway_is_checked_like_an_exporters():
    """`profiles check` finds the gateway by its page, says who asked and who says so, and which
    twins it left out.
    """
    code, out = gpuledger("profiles", "check", PAGES / "llm-d-epp.prom")
    assert code == 0
    assert "(profile llm-d-epp), because of llm_d_epp_request_input_tokens_sum" in out
    assert "who asked: label fairness_id, claimed by the client (a header of the request)" in out
    assert "2 series of deprecated twin names are left out" in out
    code, out = gpuledger("profiles", "check", PAGES / "kong.prom", "--profile", "litellm")
    assert (code, "although it has none of its families" in out) == (0, True)


def test_a_page_that_nobody_knows_is_refused(tmp_path):
    """The sentence names what the page has; a page that is away is another code."""
    (tmp_path / "page.prom").write_text("my_busy 1\n")
    code, sentence = gpuledger("profiles", "check", tmp_path / "page.prom")
    assert (code, "no profile knows a family of this page: it has my_busy" in sentence) == (2, True)
    assert gpuledger("profiles", "check", tmp_path / "nothing.prom")[0] == 3
    assert (
        gpuledger("profiles", "check", tmp_path / "page.prom", "--profile", "nothing.toml")[0] == 2
    )
