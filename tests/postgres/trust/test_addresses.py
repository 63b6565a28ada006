"""Which addresses a hook may connect to: nothing of the IANA special-purpose registries, in any
form.
"""

import ipaddress
from ipaddress import IPv4Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.notifications.addresses import is_public

IPV4_REGISTRY = """
0.0.0.0/8           False  "This network"
0.0.0.0/32          False  "This host on this network"
10.0.0.0/8          False  Private-Use
100.64.0.0/10       False  Shared Address Space
127.0.0.0/8         False  Loopback
169.254.0.0/16      False  Link Local
172.16.0.0/12       False  Private-Use
192.0.0.0/24        False  IETF Protocol Assignments
192.0.0.0/29        False  IPv4 Service Continuity Prefix
192.0.0.8/32        False  IPv4 dummy address
192.0.0.9/32        True   Port Control Protocol Anycast
192.0.0.10/32       True   Traversal Using Relays around NAT Anycast
192.0.0.170/32      False  NAT64/DNS64 Discovery
192.0.0.171/32      False  NAT64/DNS64 Discovery
192.0.2.0/24        False  Documentation (TEST-NET-1)
192.31.196.0/24     True   AS112-v4
192.52.193.0/24     True   AMT
192.88.99.0/24      N/A    Deprecated (6to4 Relay Anycast)
192.88.99.2/32      False  6a44-relay anycast address
192.168.0.0/16      False  Private-Use
192.175.48.0/24     True   Direct Delegation AS112 Service
198.18.0.0/15       False  Benchmarking
198.51.100.0/24     False  Documentation (TEST-NET-2)
203.0.113.0/24      False  Documentation (TEST-NET-3)
240.0.0.0/4         False  Reserved
255.255.255.255/32  False  Limited Broadcast
"""
"""https://www.iana.org/assignments/iana-ipv4-special-registry: block, globally reachable, name."""
IPV6_REGISTRY = """
::1/128             False  Loopback Address
::/128              False  Unspecified Address
64:ff9b:1::/48      False  IPv4-IPv6 Translation of local use
100::/64            False  Discard-Only Address Block
100:0:0:1::/64      False  Dummy IPv6 Prefix
2001::/23           False  IETF Protocol Assignments
2001::/32           N/A    TEREDO
2001:1::1/128       True   Port Control Protocol Anycast
2001:1::2/128       True   Traversal Using Relays around NAT Anycast
2001:1::3/128       True   DNS-SD Service Registration Protocol Anycast
2001:2::/48         False  Benchmarking
2001:3::/32         True   AMT
2001:4:112::/48     True   AS112-v6
2001:10::/28        False  Deprecated (previously ORCHID)
2001:20::/28        True   ORCHIDv2
2001:30::/28        True   Drone Remote ID Protocol Entity Tags
2001:db8::/32       False  Documentation
2002::/16           N/A    6to4
2620:4f:8000::/48   True   Direct Delegation AS112 Service
3fff::/20           False  Documentation
5f00::/16           False  Segment Routing (SRv6) SIDs
fc00::/7            False  Unique-Local
fe80::/10           False  Link-Local Unicast
"""
"""https://www.iana.org/assignments/iana-ipv6-special-registry, but ::ffff:0:0/96 and 64:ff9b::/96,
judged by what is inside of them.
"""
ELSEWHERE = ("224.0.0.0/4", "ff00::/8", "fec0::/10", "::/96", "4000::/3", "200::/7")
"""Multicast, site-local, IPv4-compatible, and what was never given out."""


def blocks() -> list[str]:
    rows = [line.split()[0] for line in (IPV4_REGISTRY + IPV6_REGISTRY).splitlines() if line]
    return [*rows, *ELSEWHERE]


@pytest.mark.parametrize("block", blocks())
def test_no_address_of_a_special_purpose_is_public(block) -> None:
    """The first, the last and one in the middle of every row, in whatever Python's own tables say."""
    network = ipaddress.ip_network(block)
    for place in (0, network.num_addresses // 2, network.num_addresses - 1):
        assert not is_public(str(network[place])), network[place]


@pytest.mark.parametrize(
    "address",
    [
        "192.0.0.192",
        "fec0::1",
        "64:ff9b:1::",
        "64:ff9b:1::a00:1",
        "::127.0.0.1",
        "::a00:1",
        "192.88.99.1",
        "5f00::",
        "5f00::1",
        "3fff::1",
        "::ffff:127.0.0.1",
        "::ffff:192.0.0.192",
        "64:ff9b::7f00:1",
        "64:ff9b::c000:c0",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2001:0:a00:1::1",
        "fe80::1%eth0",
        "fec0::1%3",
    ],
)
def test_what_once_passed_for_public_is_refused(address) -> None:
    """Found by an attack, with every form in which an IPv4 address of the inside can be written."""
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "1.1.1.1",
        "100.63.255.255",
        "100.128.0.1",
        "172.15.0.1",
        "172.32.0.1",
        "192.0.1.1",
        "192.88.98.1",
        "223.255.255.255",
        "2606:4700::1111",
        "2001:200::1",
        "2a00:1450:4001::1",
        "2620:4f:7fff::1",
        "3ffe:ffff::1",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
    ],
)
def test_the_public_network_is_reached(address) -> None:
    """Neighbors of every special block among them."""
    assert is_public(address)


@given(st.ip_addresses(v=4))
def test_an_address_inside_of_another_is_no_more_public_than_itself(inner: IPv4Address) -> None:
    """Mapped and behind NAT64 it is judged as itself; compatible, 6to4 and Teredo never are public."""
    number = int(inner)
    assert is_public(str(inner)) <= inner.is_global
    for prefix, judged in (
        ("::ffff:0:0", True),
        ("64:ff9b::", True),
        ("::", False),
        ("64:ff9b:1::", False),
    ):
        dressed = ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | number)
        assert is_public(str(dressed)) == (judged and is_public(str(inner)))
    assert not is_public(str(ipaddress.IPv6Address((0x2002 << 112) | (number << 80) | 1)))
    assert not is_public(
        str(ipaddress.IPv6Address((0x20010000 << 96) | (number << 64) | (number ^ 0xFFFFFFFF)))
    )


@given(st.ip_addresses())
def test_nothing_that_python_calls_private_is_public(address) -> None:
    """Its tables stand beside ours, never against them."""
    inner = getattr(address, "ipv4_mapped", None) or address
    assert inner.is_global or not is_public(str(address)) or str(address).startswith("64:ff9b::")
