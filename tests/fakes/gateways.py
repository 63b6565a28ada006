"""Pages of gateways, read by the packaged profiles."""

from functools import cache
from pathlib import Path

from gpuledger_common.gateways import library
from gpuledger_common.gateways.page import GatewayPage, read_gateway_page
from gpuledger_common.profiles.lines import Lines, read_lines

PAGES = Path(__file__).resolve().parent / "gateway_pages"
"""Pages that we made from the sources that each profile cites, with the lines that they show."""


@cache
def gateway(identity: str):
    """A packaged gateway profile, read once."""
    return library.packaged_gateway(identity)


def page_text(identity: str) -> str:
    """Our page for a profile."""
    return (PAGES / f"{identity}.prom").read_text()


def page_lines(identity: str) -> Lines:
    """Its samples."""
    return read_lines(page_text(identity))


def read(text: str, identity: str, target: str = "") -> GatewayPage:
    """A page by a packaged profile."""
    return read_gateway_page(gateway(identity), read_lines(text), target)


def sums(page: GatewayPage) -> dict[tuple[str, str, str], dict[str, int]]:
    """Counts by kind, of each tenant, model and backend."""
    result: dict[tuple[str, str, str], dict[str, int]] = {}
    for series, count in page.counts.items():
        kinds = result.setdefault((series.tenant, series.model, series.backend), {})
        kinds[series.kind] = kinds.get(series.kind, 0) + count
    return result
