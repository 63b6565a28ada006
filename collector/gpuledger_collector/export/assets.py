"""What a served page loads beside its text: scripts and the icon, each under an address that changes
with its content.

An exported file or a mail loads nothing (export.html.policy).
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

PATH = "/assets/"
TYPES = {"js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
HTMX, CHARTS, FOLLOW, ICON = "htmx.min.js", "charts.js", "live.js", "icon.svg"
NAMES = (HTMX, CHARTS, FOLLOW, ICON)
HASH_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that pages load: its content, plain and compressed, and its media type."""

    name: str
    content: bytes
    compressed: bytes
    media_type: str

    @property
    def address(self) -> str:
        """Where it is served; another content has another address, so that it may be kept for good."""
        stem, _, ending = self.name.rpartition(".")
        digest = hashlib.sha256(self.content).hexdigest()[:HASH_DIGITS]
        return f"{PATH}{stem}.{digest}.{ending}"


@lru_cache(maxsize=len(NAMES))
def asset(name: str) -> Asset:
    """The asset of this name. Raises KeyError."""
    if name not in NAMES:
        raise KeyError(name)
    content = resources.files("gpuledger_collector").joinpath("assets", name).read_bytes()
    ending = name.rpartition(".")[2]
    return Asset(name, content, gzip.compress(content, mtime=0), TYPES[ending])


@lru_cache(maxsize=1)
def assets_by_address() -> dict[str, Asset]:
    """Every asset by its address."""
    return {item.address: item for item in map(asset, NAMES)}


@lru_cache(maxsize=len(NAMES))
def address_of_asset(name: str) -> str:
    """Where an asset is served, for templates."""
    return asset(name).address
