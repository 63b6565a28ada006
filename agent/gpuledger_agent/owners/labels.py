"""Labels of pods and containers as tags, within bounds and without those that only machines read."""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_TAGS, MAX_KEY_CHARACTERS, MAX_VALUE_CHARACTERS = 64, 128, 256
"""Below the collector's limits (200 tags, keys of 200, values of 4,000 characters), which refuses
larger ones.
"""
_FOR_MACHINES = re.compile(
    r"(pod-template-hash|pod-template-generation|controller-revision-hash|controller-uid|"
    r"(batch\.)?kubernetes\.io/(controller-uid|metadata\.name)|statefulset\.kubernetes\.io/pod-name|"
    r"nerdctl/.*|containerd\.io/.*|io\.containerd\..*|com\.docker\.compose\.(config-hash|image|version|depends_on)|org\.opencontainers\.image\..*)$"
)
UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that a database cannot hold."""
_OWNERS = frozenset({"org", "team", "project", "experiment", "run", "user"})
"""Names that say who is charged: whoever writes many other labels must not push them out."""


def tags_of(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels as tags, values truncated.

    Where there are too many, names of owners come first, then plain names, then those of systems.
    """
    keys = [
        key
        for key, value in labels.items()
        if 0 < len(key) <= MAX_KEY_CHARACTERS
        and not (UNSTORABLE.search(key + value) or _FOR_MACHINES.match(key))
    ]
    keys.sort(key=lambda key: (key not in _OWNERS, "/" in key or "." in key, key))
    return {key: labels[key][:MAX_VALUE_CHARACTERS] for key in keys[:MAX_TAGS]}
