"""The gateway profiles that come with GPU Ledger, those that people add, and which of them a page
or a series belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path

from gpuledger_common.gateways.model import GatewayProfile
from gpuledger_common.gateways.read import parse_gateway, read_gateway
from gpuledger_common.profiles.lines import Lines
from gpuledger_common.profiles.read import ProfileError, is_gateway_file

FOLDER = resources.files("gpuledger_common.gateways") / "packaged"
"""Perhaps inside a one-file archive of the agent."""


def packaged_ids() -> list[str]:
    """The ids of the gateway profiles that come with GPU Ledger: the names of their files."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in FOLDER.iterdir()
        if entry.name.endswith(".toml")
    )


def packaged_text(identity: str) -> str:
    """The file of a packaged gateway profile."""
    return (FOLDER / f"{identity}.toml").read_text(encoding="utf-8")


def packaged_gateway(identity: str) -> GatewayProfile:
    """One of them. Raises ProfileError."""
    if identity not in packaged_ids():
        raise ProfileError(
            f"there is no gateway profile {identity!r}; there are {', '.join(packaged_ids())}"
        )
    return parse_gateway(packaged_text(identity), f"{identity}.toml")


def named_gateway(name: str) -> GatewayProfile:
    """A gateway profile by its file, or a packaged one by its id. Raises ProfileError."""
    return (
        read_gateway(Path(name))
        if "/" in name or name.endswith(".toml")
        else packaged_gateway(name)
    )


@lru_cache(maxsize=1)
def _all_packaged() -> tuple[GatewayProfile, ...]:
    return tuple(map(packaged_gateway, packaged_ids()))


def all_gateways(files: Iterable[Path] = ()) -> tuple[GatewayProfile, ...]:
    """The packaged gateway profiles and those in files; one with the id of a packaged profile
    replaces it. Files of exporter profiles are left to their own library.

    Raises ProfileError, also for two files with one id.
    """
    profiles = {profile.id: profile for profile in _all_packaged()}
    added: dict[str, Path] = {}
    for path in filter(is_gateway_file, files):
        profile = read_gateway(path)
        if profile.id in added:
            raise ProfileError(f"{path}: id {profile.id!r} is that of {added[profile.id]} too")
        added[profile.id], profiles[profile.id] = path, profile
    return tuple(profiles.values())


def matches(profile: GatewayProfile, lines: Lines) -> list[str]:
    """The families of a page that make it this gateway's; empty where it is not."""
    names: dict[str, None] = {}
    for sample in lines.samples:
        if profile.is_matched_by(sample.name) and profile.has_labels(sample.labels):
            names[sample.name] = None
    return list(names)


def matching(profiles: Iterable[GatewayProfile], lines: Lines) -> Sequence[GatewayProfile]:
    """The gateway profiles that a page belongs to."""
    return [profile for profile in profiles if matches(profile, lines)]
