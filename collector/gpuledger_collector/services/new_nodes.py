"""Nodes that a collector takes without asking for a token: on its default address any agent on the
machine may report.

An agent of another installation on the same machine is taken for one of the own. Nothing tells them
apart, so what is heard of for the first time is said: once in the log, and for a day on the
overview and by `gpuledger doctor`.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger_common.plurals import plural

SHOWN = 3
CURE = "gpuledger token create --role agent --node NODE"


def sentence(names: Sequence[str]) -> str:
    """Say which nodes were first heard of, and that nobody was asked who they are."""
    more = f" and {plural(len(names) - SHOWN, 'other')}" if len(names) > SHOWN else ""
    return (
        f"heard of for the first time: {', '.join(names[:SHOWN])}{more}; no token is asked for"
        " here, so any agent on this machine is taken for one of this fleet until an agent's token"
        " exists, or require_tokens is true"
    )
