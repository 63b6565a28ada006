"""Pages of exporters, read by the packaged profiles."""

from functools import cache
from pathlib import Path

from gpuledger_common.profiles import library
from gpuledger_common.profiles.lines import read_lines
from gpuledger_common.profiles.page import Page, read_page

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "data" / "captures"
SYNTHETIC = Path(__file__).resolve().parent / "exporter_pages"
"""Pages that we made from the sources that each profile cites."""


@cache
def profile(identity: str):
    """A packaged profile, read once."""
    return library.packaged_profile(identity)


def read(text: str, identity: str = library.DCGM, host: str = "") -> Page:
    """A page by a packaged profile."""
    return read_page(profile(identity), read_lines(text), host)


def synthetic(identity: str, joules: float = 5e6, at_ms: int = 1_763_800_000_000) -> str:
    """Our own page for a profile, with its energy counters at a value."""
    text = (SYNTHETIC / f"{identity}.prom").read_text()
    values = {
        "@energy_j@": f"{joules:.1f}",
        "@energy_uj@": f"{joules * 1e6:.0f}",
        "@at@": str(at_ms),
    }
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def keys_of(content):
    """Every key of a profile's file, without names that are labels, modes or models."""
    for key, value in content.items():
        yield key
        if isinstance(value, dict) and key not in {"where", "models"}:
            yield from keys_of(value)
        elif isinstance(value, list):
            for entry in value:
                if isinstance(entry, dict):
                    yield from keys_of(entry)
