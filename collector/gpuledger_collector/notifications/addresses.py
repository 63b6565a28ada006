"""Whether an address is in the public network, to which hooks may connect without further
permission.

Python's `ipaddress` has the IANA special-purpose registries as they were when that Python was
released, counts what is neither private nor listed as global, and changed its mind between patch
releases. So its answer is asked, and a table of ours beside it: nothing of a block with a special
purpose is public, also where the registry calls it globally reachable, for those are anycast
addresses of the nearest network (PCP, TURN, AS112, AMT) or route to nobody. Of IPv6 only 2000::/3
is given out to the public network; an IPv4 address mapped into one, or behind NAT64, is judged as
itself. Those inside of 6to4, Teredo and IPv4-compatible ones are refused, whatever they hold:
nobody serves there. https://www.iana.org/assignments/iana-ipv4-special-registry,
https://www.iana.org/assignments/iana-ipv6-special-registry
"""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

SPECIAL_IPV4 = tuple(
    IPv4Network(block)
    for block in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",
    )
)
"""The registry of IPv4, with multicast and what is reserved."""
GLOBAL_IPV6 = IPv6Network("2000::/3")
SPECIAL_IPV6 = tuple(
    IPv6Network(block)
    for block in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)
"""What the registry of IPv6 has within GLOBAL_IPV6."""
NAT64 = IPv6Network("64:ff9b::/96")
"""A gateway to IPv4; the one of local use (64:ff9b:1::/48) may lead anywhere and is not public."""


def is_public(text: str) -> bool:
    """Whether an address is of the public network, also when it is one of IPv4 inside of one of
    IPv6.
    """
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, IPv6Address):
        inner = inner_address(address)
        if inner is None:
            special = any(address in block for block in SPECIAL_IPV6)
            return address in GLOBAL_IPV6 and not special and address.is_global
        address = inner
    return address.is_global and not any(address in block for block in SPECIAL_IPV4)


def inner_address(address: IPv6Address) -> IPv4Address | None:
    """The address of IPv4 that packets to this one of IPv6 reach: mapped, or behind NAT64."""
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped
