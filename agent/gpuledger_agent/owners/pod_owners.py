"""Which owners the labels of a pod may name: a label chooses between those that its namespace allows.

Whoever may create pods writes their labels, so a label alone would let a pod bill another team. The
namespace is the authority, because tenants cannot edit it: its own label names an owner, and
annotations name further ones. What a pod claims beyond is refused, and told to the collector, which
keeps it. A namespace that says nothing of a level lets its pods say it.
"""

from __future__ import annotations

from collections.abc import Mapping

ALLOWED = {
    "org": "gpuledger.allowed-orgs",
    "team": "gpuledger.allowed-teams",
    "project": "gpuledger.allowed-projects",
}
"""Annotations of a namespace: owners that its pods may choose, separated by commas; `*`: any."""
_DECIDED = frozenset({"org", "team"})
"""Levels of which the namespace's label is the only owner unless an annotation names more. A project
lies below its team, so there the label is a default.
"""


def refused_levels(
    labels: Mapping[str, str],
    namespace_labels: Mapping[str, str],
    namespace_annotations: Mapping[str, str],
) -> dict[str, str]:
    """The owners that a pod's labels claim against its namespace, by level."""
    refused = {}
    for level, annotation in ALLOWED.items():
        claimed, own = (text.get(level, "").strip() for text in (labels, namespace_labels))
        listed = namespace_annotations.get(annotation)
        if not claimed or claimed == own or (listed is None and not (own and level in _DECIDED)):
            continue
        allowed = {name.strip() for name in (listed or "").split(",")}
        if not allowed & {claimed, "*"}:
            refused[level] = claimed
    return refused
