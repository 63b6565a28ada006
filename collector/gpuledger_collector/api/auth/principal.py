"""The principal behind a request, and what each role may do. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Role = Literal["agent", "viewer", "finance", "admin"]


class Denied(Exception):
    """The request is not allowed; `status` is 401 (who are you?) or 403 (not you), the message one
    sentence.
    """

    def __init__(self, status: Literal[401, 403], sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True, slots=True)
class Principal:
    """A role with its scope.

    `node` None: any node; `owner`: the subtree of a viewer, level -> value; `is_shared`: its token
    is that of a file, which several readers may have.
    """

    role: Role
    name: str
    node: str | None = None
    owner: Mapping[str, str] | None = None
    is_shared: bool = False

    @property
    def payer(self) -> str:
        """Whose quotas its reports count against: its node's, else the token's own."""
        return self.name if self.node is None else self.node

    def require_node(self, node: str) -> None:
        """Raise Denied unless this principal may report about the node."""
        if self.node is not None and node != self.node:
            raise Denied(
                403, f"this token is that of node {self.node} and may not report another one"
            )

    def require_fleet(self) -> None:
        """Raise Denied for a viewer, who sees one owner's subtree only."""
        if self.owner is not None:
            raise Denied(
                403,
                "this answer is about the whole fleet, and this token sees one owner's part only",
            )

    def require_admin(self) -> None:
        """Raise Denied unless this is an admin."""
        if self.role != "admin":
            raise Denied(403, "this needs an admin's token")

    def sees(self, owner: Mapping[str, str], team: str = "") -> bool:
        """Whether something of this owner (level -> value) may be seen; `team` stands in where its
        path is unknown.
        """
        if self.owner is None:
            return True
        levels = {"team": team, **{level: value for level, value in owner.items() if value}}
        return all(levels.get(level) == value for level, value in self.owner.items())


ANYBODY = Principal("admin", "anybody on this machine")
"""Everyone who can reach a collector that listens on loopback and has no tokens."""
