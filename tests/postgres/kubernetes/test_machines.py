"""A node's pool, type and zone reach the bill and the list of nodes without a setting."""

import csv
import io

from fakes.facts import AUGUST_MS
from fakes.kubernetes_node import card


def test_the_pool_of_a_node_is_the_pool_of_its_bill(node):
    """And what the cloud's own bill names it by is kept."""
    node.api.node(
        "n1",
        "aws:///us-east-1a/i-0abc",
        **{
            "eks.amazonaws.com/nodegroup": "p5",
            "eks.amazonaws.com/capacityType": "SPOT",
            "node.kubernetes.io/instance-type": "p5.48xlarge",
            "topology.kubernetes.io/region": "us-east-1",
            "topology.kubernetes.io/zone": "us-east-1a",
        },
    )
    node.pod("vision", "a", card(0), team="vision")
    node.hold(AUGUST_MS)
    assert node.hours("2026-08", "pool")["p5"] == "1.000000"
    (row,) = csv.DictReader(io.StringIO(node.world.run("nodes", "list", "--format", "csv")))
    named = ("instance_type", "purchase", "region", "zone", "provider_id")
    assert [row[name] for name in named] == [
        "p5.48xlarge",
        "spot",
        "us-east-1",
        "us-east-1a",
        "aws:///us-east-1a/i-0abc",
    ]


def test_a_node_of_no_cloud_has_no_machine(node):
    """Empty cells: not known."""
    node.pod("vision", "a", card(0))
    node.hold(AUGUST_MS)
    (row,) = csv.DictReader(io.StringIO(node.world.run("nodes", "list", "--format", "csv")))
    assert (row["purchase"], row["provider_id"]) == ("", "")
    assert set(node.hours("2026-08", "pool")) >= {"default"}
