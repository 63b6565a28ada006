"""Labels of pods and containers as tags: all of them within bounds, those that only machines read left out."""

from __future__ import annotations

import re
from collections.abc import Mapping

MOST, LONGEST_KEY, LONGEST_VALUE = 64, 128, 256
"""Bounds below the collector's (200 tags, keys of 200, values of 4,000 characters), which refuses what exceeds them."""
_MACHINES = re.compile(
    r"(pod-template-hash|pod-template-generation|controller-revision-hash|controller-uid|"
    r"(batch\.)?kubernetes\.io/(controller-uid|metadata\.name)|statefulset\.kubernetes\.io/pod-name|"
    r"nerdctl/.*|containerd\.io/.*|io\.containerd\..*|com\.docker\.compose\.(config-hash|image|version|depends_on)|org\.opencontainers\.image\..*)$"
)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def tags_of(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels as tags, values cut; short plain names (team, project) come first where there are too many."""
    fit = [
        key
        for key, value in labels.items()
        if key and len(key) <= LONGEST_KEY and not _UNSTORABLE.search(key + value) and not _MACHINES.match(key)
    ]
    fit.sort(key=lambda key: ("/" in key or "." in key, key))
    return {key: labels[key][:LONGEST_VALUE] for key in fit[:MOST]}
