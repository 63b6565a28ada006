"""Pages of gateways, read by the packaged profiles."""

from functools import cache
from pathlib import Path

from fakes.prometheus import Point
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


def scraped(text: str, at_ms: int, **target: str) -> list[Point]:
    """The samples of a page as a Prometheus sends them: labels of the target that clash with those
    of the page push these aside.
    """
    points = []
    for sample in read_lines(text).samples:
        labels = {"__name__": sample.name, **sample.labels}
        for name, value in target.items():
            if name in labels:
                labels[f"exported_{name}"] = labels[name]
            labels[name] = value
        points.append(Point(tuple(sorted(labels.items())), float(sample.value), at_ms))
    return points
