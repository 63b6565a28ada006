"""The guide of gateways: its example works, its table is complete, and its Prometheus keeps what is
read.
"""

import re
import tomllib
from pathlib import Path

from fakes.exporters import keys_of
from gpuledger_common.gateways.library import all_gateways, packaged_ids, packaged_text
from gpuledger_common.gateways.page import read_gateway_page
from gpuledger_common.gateways.read import parse_gateway
from gpuledger_common.profiles.lines import read_lines

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "gateways.md").read_text(encoding="utf-8")


def test_the_example_is_a_profile():
    """Who reads its page by it gets the tenants of the guide."""
    (text,) = (
        text
        for text in re.findall(r"^```toml\n(.*?)^```$", GUIDE, re.S | re.M)
        if text.startswith("kind")
    )
    page = read_gateway_page(
        parse_gateway(text, "mine.toml"),
        read_lines(
            'acme_tokens_total{kind="prompt",model="m",team="a",upstream="u"} 5\n'
            'acme_tokens_total{kind="total",model="m",team="a",upstream="u"} 9\n'
        ),
    )
    ((series, value),) = page.counts.items()
    assert (series.kind, series.tenant, series.model, series.backend, value) == (
        "input",
        "a",
        "m",
        "u",
        5,
    )


def test_the_guide_explains_every_key_that_a_packaged_profile_uses():
    """Whoever reads a packaged profile finds its keys in the guide."""
    tables = GUIDE[GUIDE.index("| key | means |") :]
    used = {
        key
        for identity in packaged_ids()
        for key in keys_of(tomllib.loads(packaged_text(identity)))
    }
    assert used - set(re.findall(r"[a-z_]+", tables)) == set()


def test_the_relabel_rule_keeps_every_family_that_is_read():
    """A family that the rule drops would silently count nothing."""
    (rule,) = re.findall(r'regex: "(.*)"', GUIDE)
    families = {name for profile in all_gateways() for name in profile.families}
    assert {name for name in families if not re.fullmatch(rule, name)} == set()
    assert re.fullmatch(rule, "process_start_time_seconds")


def test_the_table_names_every_gateway():
    table = GUIDE[GUIDE.index("## Each gateway") : GUIDE.index("## LiteLLM's spend logs")]
    for profile in all_gateways():
        for tenant in profile.tenants:
            assert f"`{tenant.label}`" in table, profile.id
