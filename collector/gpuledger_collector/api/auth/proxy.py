"""An identity that a proxy has verified (OIDC and the like) and passes on in a header; off unless
settings say so.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from starlette.requests import Request

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Proxy:
    """The header that names a person, and the networks of the peers that are trusted to have
    verified it.
    """

    header: str
    networks: tuple[Network, ...]

    def identity(self, request: Request) -> str | None:
        """The verified name; None unless a trusted peer sends the header exactly once."""
        names = [name.strip() for name in request.headers.getlist(self.header)]
        if len(names) != 1 or not names[0] or request.client is None:
            return None
        try:
            peer = ipaddress.ip_address(request.client.host)
        except ValueError:
            return None
        plain = getattr(peer, "ipv4_mapped", None) or peer
        return names[0] if any(plain in network for network in self.networks) else None
