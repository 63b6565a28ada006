"""Shared model servers as the page shows them: who comes first, what adds up, what is searched."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.accounting.inference import Tokens
from gpuledger_collector.accounting.inference_lines import (
    InferenceLine,
    ServerLine,
    group_lines,
    summarize_servers,
)
from gpuledger_collector.accounting.inference_split import IDLES, NOBODYS, Claimant
from gpuledger_collector.accounting.model_servers import (
    MOST_SERIES,
    REST,
    list_model_servers,
    matches,
)
from gpuledger_collector.accounting.period import DAY_MS, Calendar, Period

FIRST_MS = 20_000 * DAY_MS
WEEK = Period(FIRST_MS, FIRST_MS + 7 * DAY_MS)
CALENDAR = Calendar()


def line(claimant, day=0, used=0, idle=0, server="qwen", currency="USD", **owner):
    return InferenceLine(
        server=server,
        day_ms=FIRST_MS + day * DAY_MS,
        claimant=claimant,
        owner=owner,
        tokens=Tokens(100, 40, 10, 1),
        weighted=1,
        currency=currency,
        used_micro=used,
        idle_micro=idle,
    )


def tenant(name):
    return Claimant("litellm", name, "Qwen3-32B")


def test_tenants_come_before_what_no_tenant_pays() -> None:
    """The dearest first, whatever (nobody) and (idle) cost; tokens and costs are of all of them."""
    lines = [
        line(IDLES, idle=9_000_000),
        line(NOBODYS, used=8_000_000),
        line(tenant("small"), used=1_000_000),
        line(tenant(""), used=2_000_000),
        line(tenant("large"), 2, used=3_000_000),
    ]
    (server,) = list_model_servers(lines, [], WEEK, CALENDAR)
    names = ["large", "(unattributed)", "small", "(nobody)", "(idle)"]
    assert [row.keys["tenant"] for row in server.tenants] == names
    assert [series.name for series in server.series] == ["large", "", "small", "(nobody)", "(idle)"]
    assert server.cost.plain() == "23.00"
    assert (server.tokens.input, server.tokens.output) == (500, 50)
    assert len(server.days) == 3, "up to the last day with a line"
    assert list(server.series[0].micros) == [0, 0, 3_000_000]


def test_every_currency_of_a_server_has_its_tenants() -> None:
    """Tokens stand on the first currency alone; a share that nobody used is no tenant who asked."""
    lines = []
    for currency in ("EUR", "USD"):
        for name in ("a", "b"):
            lines.append(line(tenant(name), used=5, currency=currency))
        lines.append(replace(line(tenant("c"), idle=5, currency=currency), weighted=0))
    lines = [
        replace(each, tokens=Tokens()) if each.currency == "USD" or not each.weighted else each
        for each in lines
    ]
    days = [
        ServerLine("qwen", FIRST_MS, currency, 10, 10, None, None, False, "1 : 1 : 1")
        for currency in ("EUR", "USD")
    ]
    assert [each.tenants for each in summarize_servers(days, lines)] == [2, 2]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 14), st.integers(0, 6), st.integers(-(10**9), 10**9), st.integers(0, 10)
        ),
        max_size=60,
    )
)
def test_series_and_rows_add_up_to_the_server(parts) -> None:
    """To the micro-unit in the chart, to the cent in the table, however many share a color."""
    lines = [line(tenant(f"t{n}"), day, used, idle) for n, day, used, idle in parts]
    for server in list_model_servers(lines, [], WEEK, CALENDAR):
        micro = sum(each.used_micro + each.idle_micro for each in lines)
        assert sum(sum(series.micros) for series in server.series) == micro == server.cost.micro
        assert sum(row.cost.minor for row in server.tenants) == server.cost.minor
        assert len(server.series) <= MOST_SERIES + 1
        rest = [series for series in server.series if series.kind == REST]
        assert sum(series.count for series in server.series) == len(server.tenants)
        assert all(series.count > 1 for series in rest)


def test_a_search_finds_names_of_servers_tenants_models_and_owners() -> None:
    """Every word, in any case."""
    found = line(tenant("t-vision"), team="Computer Vision")
    for words in ("", "QWEN", "t-vis", "qwen3 computer"):
        assert matches(found, words), words
    assert not matches(found, "qwen speech")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10**6), st.booleans()), max_size=20))
def test_a_row_has_the_same_cents_alone_as_beside_others(parts) -> None:
    """Who sees some tenants alone sees what others see of them, and a total that they add up to."""
    lines = [line(tenant(f"{n}-{is_own}"), used=used) for n, used, is_own in parts]
    own = [each for each, (*_, is_own) in zip(lines, parts, strict=True) if is_own]
    hidden = [each for each, (*_, is_own) in zip(lines, parts, strict=True) if not is_own]
    of_all = {
        row.keys["tenant"]: row.cost.minor
        for server in list_model_servers(lines, [], WEEK, CALENDAR)
        for row in server.tenants
    }
    servers = list_model_servers(own, [], WEEK, CALENDAR, hidden)
    assert len(servers) == bool(own)
    for server in servers:
        rows = {row.keys["tenant"]: row.cost.minor for row in server.tenants}
        assert rows == {each.claimant.tenant: of_all[each.claimant.tenant] for each in own}
        assert sum(rows.values()) == server.cost.minor
        assert sum(sum(series.micros) for series in server.series) == server.cost.micro


def test_a_viewer_of_a_server_sees_the_cents_of_the_whole() -> None:
    """A third of a dollar each: alone every one of them would be 33 cents, and together 99."""
    lines = [line(tenant(name), used=333_333 + (name == "c")) for name in "abc"]
    whole, *alone = (
        [
            row.cost.plain()
            for row in group_lines(own, ("tenant",), CALENDAR, [e for e in lines if e not in own])
        ]
        for own in (lines, *([each] for each in lines))
    )
    assert sorted(whole) == ["0.33", "0.33", "0.34"]
    assert sorted(cost for costs in alone for cost in costs) == sorted(whole)
