"""The profiles that come with GPU Ledger, those that people add, and which of them a page or a
series belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path

from gpuledger_common.profiles.lines import Lines
from gpuledger_common.profiles.model import Profile
from gpuledger_common.profiles.read import (
    ProfileError,
    is_gateway_file,
    parse_profile,
    read_profile,
)
from gpuledger_common.profiles.series import derived_labels

FOLDER = resources.files("gpuledger_common.profiles") / "packaged"
"""Perhaps inside a one-file archive of the agent."""
DCGM = "dcgm-exporter"
SHOWN = 5
"""Families of an unknown page that a message names."""


def packaged_ids() -> list[str]:
    """The ids of the profiles that come with GPU Ledger: the names of their files."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in FOLDER.iterdir()
        if entry.name.endswith(".toml")
    )


def packaged_profile(identity: str) -> Profile:
    """One of them. Raises ProfileError."""
    if identity not in packaged_ids():
        raise ProfileError(
            f"there is no profile {identity!r}; there are {', '.join(packaged_ids())}"
        )
    return parse_profile(packaged_text(identity), f"{identity}.toml")


def packaged_text(identity: str) -> str:
    """The file of a packaged profile."""
    return (FOLDER / f"{identity}.toml").read_text(encoding="utf-8")


def named_profile(name: str) -> Profile:
    """A profile by its file, or a packaged one by its id. Raises ProfileError."""
    return (
        read_profile(Path(name))
        if "/" in name or name.endswith(".toml")
        else packaged_profile(name)
    )


def packaged_profiles() -> Iterator[Profile]:
    """All of them, one at a time: an agent keeps only the one that it needs."""
    return map(packaged_profile, packaged_ids())


@lru_cache(maxsize=1)
def _all_packaged() -> tuple[Profile, ...]:
    return tuple(packaged_profiles())


def all_profiles(files: tuple[Path, ...] = ()) -> tuple[Profile, ...]:
    """The packaged profiles and those in files; one with the id of a packaged profile replaces it.

    Files of gateway profiles are left to their own library. Raises ProfileError, also for two files
    with one id.
    """
    profiles = {profile.id: profile for profile in _all_packaged()}
    added: dict[str, Path] = {}
    for path in files:
        if is_gateway_file(path):
            continue
        profile = read_profile(path)
        if profile.id in added:
            raise ProfileError(f"{path}: id {profile.id!r} is that of {added[profile.id]} too")
        added[profile.id], profiles[profile.id] = path, profile
    return tuple(profiles.values())


def matches(profile: Profile, lines: Lines) -> list[str]:
    """The families of a page that make it this profile's; empty where it is not."""
    found: dict[str, None] = {}
    for sample in lines.samples:
        name = profile.plain_name(sample.name)
        if (
            name is not None
            and profile.is_matched_by(name)
            and profile.match_condition.holds(derived_labels(profile, sample.labels))
        ):
            found[sample.name] = None
    return list(found)


def matching(profiles: Iterable[Profile], lines: Lines) -> Sequence[Profile]:
    """The profiles that a page belongs to."""
    return [profile for profile in profiles if matches(profile, lines)]


def only_match(profiles: Iterable[Profile], lines: Lines) -> Profile:
    """The one profile that a page belongs to.

    Raises ValueError where there is none, or more than one.
    """
    found = matching(profiles, lines)
    if not found:
        families = list(dict.fromkeys(sample.name for sample in lines.samples))
        held = f"it has {', '.join(families[:SHOWN])}" if families else "it has no sample"
        raise ValueError(f"no profile knows a family of this page: {held}")
    if len(found) > 1:
        names = " and ".join(profile.id for profile in found)
        raise ValueError(f"the profiles {names} both match this page: choose one of them")
    return found[0]
