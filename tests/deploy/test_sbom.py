"""The bill of materials: by CycloneDX' schema, and complete against the pins that are installed."""

import copy
import hashlib
import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import jsonschema_rs
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SBOM = ROOT / "deploy/sbom"
VALIDATOR = jsonschema_rs.Draft7Validator(
    json.loads((ROOT / "tests/fakes/cyclonedx_schema.json").read_text()), validate_formats=True
)
KINDS = ("agent", "collector")


def printed(*words):
    """What the script prints."""
    return subprocess.run(
        [sys.executable, SBOM, *words], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_cyclonedx_and_has_every_pin(kind):
    """Valid, the same bytes each time, every pin with every hash, and every dependency that we name
    ourselves.
    """
    text = printed(kind)
    assert text == printed(kind)
    made = json.loads(text)
    VALIDATOR.validate(made)
    pins = (ROOT / f"requirements/{kind}.txt").read_text()
    parts = [part for part in made["components"] if part["purl"].startswith("pkg:pypi/")]
    assert {f"{part['name']}=={part['version']}" for part in parts} == set(
        re.findall(r"^([\w.-]+==[^ ;\\]+)", pins, re.MULTILINE)
    )
    sums = [one["content"] for part in parts for one in part["externalReferences"][0]["hashes"]]
    assert sums == re.findall(r"--hash=sha256:(\w+)", pins)
    references = [part["bom-ref"] for part in made["components"]]
    assert len(set(references)) == len(references)
    (top,) = made["dependencies"]
    assert set(top["dependsOn"]) <= set(references)
    names = {
        reference.removeprefix("pkg:pypi/").partition("@")[0] for reference in top["dependsOn"]
    }
    assert {"msgspec", "nvidia-ml-py", "backports-zstd"} <= names
    assert ("fastapi" in names) == (kind == "collector")
    # Image and airgap folder are made from these pins.
    assert ("mcp" in names) == (kind == "collector")


def test_it_has_what_pages_load():
    """What others have written and the collector serves to browsers, with its license; an agent
    serves none.
    """
    others = {
        kind: [
            part
            for part in json.loads(printed(kind))["components"]
            if part["purl"].startswith("pkg:npm/")
        ]
        for kind in KINDS
    }
    assert others["agent"] == []
    (htmx,) = others["collector"]
    assert (htmx["name"], htmx["licenses"]) == ("htmx.org", [{"license": {"id": "0BSD"}}])
    file = ROOT / "collector/gpuledger_collector/assets/htmx.min.js"
    assert htmx["hashes"] == [
        {"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()}
    ]


def test_licenses_are_those_that_packages_state():
    """An SPDX expression or a name, and nothing for a version that is not installed."""
    made = json.loads(printed("agent", "--licenses"))
    VALIDATOR.validate(made)
    found = {part["name"]: part.get("licenses") for part in made["components"]}
    assert sum(value is not None for value in found.values()) >= len(found) - 2
    licenses = runpy.run_path(str(SBOM))["licenses"]
    assert licenses("msgspec", "0.0.0") == []
    assert licenses("no-such-package", "1.0") == []


def test_the_schema_sees_faults():
    """An unknown field, a short hash, a type that is none; else the validation says nothing."""
    good = json.loads(printed("agent"))
    for spoil in (
        lambda bill: bill["components"][0].update(licence="MIT"),
        lambda bill: bill["components"][0]["externalReferences"][0]["hashes"][0].update(
            content="12"
        ),
        lambda bill: bill["components"][0].update(type="package"),
        lambda bill: bill["metadata"]["component"]["licenses"][0]["license"].update(id="Apache"),
    ):
        bad = copy.deepcopy(good)
        spoil(bad)
        assert not VALIDATOR.is_valid(bad)


def test_a_pin_without_a_hash_is_no_pin(tmp_path):
    """A line that pip would take without a check is refused, not left out."""
    module = runpy.run_path(str(SBOM))
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/agent.txt").write_text("msgspec==0.22.0\n")
    module["components"].__globals__["ROOT"] = tmp_path
    with pytest.raises(ValueError, match="not a hashed pin"):
        module["components"]("agent", False)
