"""What agents read of gateways: each tenant's tokens once, by what is known of the process that
answered.
"""

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.gateways import page_text
from fakes.serving import serving
from gpuledger_agent import gateways as module
from gpuledger_agent.gateways import MAX_COUNTERS, GatewayReader, PageCounters, gateways
from gpuledger_agent.settings import Settings, check
from gpuledger_common.gateways.library import packaged_gateway
from gpuledger_common.gateways.model import OVERFLOW_TENANT
from gpuledger_common.gateways.page import read_gateway_page
from gpuledger_common.profiles.lines import read_lines

MINUTE = 60_000
OLD = -10_000_000
LITELLM = packaged_gateway("litellm")


def line(value, team="a", key="k", model="m"):
    return (
        f'litellm_output_tokens_metric_total{{hashed_api_key="{key}",model="{model}",'
        f'team="{team}",user="ana"}} {value}\n'
    )


def page(*lines, started=OLD):
    # Instants of these tests lie around zero, and a page's start must not: everything is shifted.
    start = "" if started is None else f"process_start_time_seconds {(started + BASE) / 1000}\n"
    return read_gateway_page(LITELLM, read_lines(start + "".join(lines)))


BASE = 1_763_750_000_000


class Page:
    """Counters of one page, read minute by minute."""

    def __init__(self, began=-MINUTE):
        self.counters = PageCounters(BASE + began)

    def read(self, minute, *lines, started=OLD):
        self.counters.add(page(*lines, started=started), BASE + round(minute * MINUTE))

    @property
    def sums(self):
        result = {}
        for key, value in self.counters.totals.items():
            result[key.tenant] = result.get(key.tenant, 0) + value
        return result


@pytest.fixture
def counters():
    return Page()


def test_a_first_reading_counts_nothing(counters):
    counters.read(0, line(500))
    assert counters.sums == {}
    counters.read(1, line(530))
    assert counters.sums == {"a": 30}


def test_a_new_tenant_on_a_page_that_was_read_before_counts_from_zero(counters):
    counters.read(0, line(500))
    counters.read(1, line(500), line(20, "b"))
    assert counters.sums == {"b": 20}


def test_a_series_that_expires_and_comes_back_counts_from_zero(counters):
    """Also where it comes back greater than it went: the page between did not have it."""
    counters.read(0, line(500))
    counters.read(1)
    counters.read(2, line(700))
    assert counters.sums == {"a": 700}


def test_a_reset_of_one_series_is_no_reset_of_its_tenant(counters):
    """A tenant with two keys: one of them begins anew, the other goes on."""
    counters.read(0, line(500), line(900, key="other"))
    counters.read(1, line(7), line(910, key="other"))
    assert counters.sums == {"a": 17}


def test_a_restart_counts_what_came_since(counters):
    counters.read(0, line(500))
    counters.read(1, line(510))
    counters.read(2, line(600), started=round(1.5 * MINUTE))
    assert counters.sums == {"a": 610}


def test_two_replicas_behind_one_address_are_each_followed(counters):
    """They answer in turn: each counts by itself, and none of their values is counted anew."""
    for minute in range(10):
        replica = minute % 2
        counters.read(
            minute, line((1_000_000, 5_000)[replica] + 10 * minute), started=OLD + replica * MINUTE
        )
    assert counters.sums == {"a": 10 * 8 * 2}


def test_replicas_that_begin_in_one_second_are_each_followed(counters):
    for minute in range(10):
        replica = minute % 2
        counters.read(
            minute, line((1_000_000, 5_000)[replica] + 10 * minute), started=OLD + 900 * replica
        )
    assert counters.sums == {"a": 10 * 8 * 2}


def test_a_restart_of_the_agent_counts_nothing_again():
    """The gateway began minutes ago, and an agent before this one has counted it."""
    before, after = Page(began=-2 * MINUTE), Page(began=round(1.5 * MINUTE))
    for minute, value in ((0, 500), (1, 530)):
        before.read(minute, line(value), started=-MINUTE)
    after.read(2, line(540), started=-MINUTE)
    assert (before.sums, after.sums) == ({"a": 530}, {})
    after.read(3, line(560), started=-MINUTE)
    assert after.sums == {"a": 20}


@pytest.mark.parametrize(
    ("values", "counted"), [((500, 7, 9), 2), ((500, 510, 7), 10), ((500, 510, 7, 9, 520), 22)]
)
def test_without_a_process_start_only_differences_count(counters, values, counted):
    """A value that fell may be another process behind the same address."""
    for minute, value in enumerate(values):
        counters.read(minute, line(value), started=None)
    counters.read(9, line(values[-1]), line(99, "b"), started=None)
    assert counters.sums == {"a": counted}


def test_processes_without_a_start_are_each_compared_with_themselves(counters):
    """Only the first change to the greater one cannot be known."""
    for turn in range(5):
        for place, value in enumerate((1_000, 900_000)):
            counters.read(2 * turn + place, line(value + 10 * turn), started=None)
    assert counters.sums == {"a": 899_000 + 3 * 10 + 4 * 10}


def test_tenants_beyond_the_cap_add_up_as_other(counters):
    """Nothing is lost: what has no counter of its own is in that of all others."""
    many = MAX_COUNTERS + 30
    counters.read(0)
    for minute in (1, 2):
        counters.read(minute, *(line(10 * minute, f"t{number}") for number in range(many)))
    assert sum(counters.sums.values()) == 20 * many
    assert counters.sums[OVERFLOW_TENANT] == 20 * 30
    assert len(counters.counters.totals) == MAX_COUNTERS + 1
    models = [line(5, f"x{number}", model=f"m{number}") for number in range(3 * MAX_COUNTERS)]
    counters.read(3, *models)
    assert len(counters.counters.totals) <= 2 * MAX_COUNTERS + 1
    assert sum(counters.sums.values()) == 20 * many + 5 * 3 * MAX_COUNTERS


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 1000), max_size=3), max_size=20
    ),
    st.randoms(use_true_random=False),
)
def test_no_more_is_counted_than_was_asked(steps, order):
    """Restarts and expiries at any time: each tenant has at most what it asked, and all of it where
    nothing began anew.
    """
    read, asked, values, start, whole = Page(), {}, {}, OLD, True
    read.read(0)
    for minute, tokens in enumerate(steps, 1):
        if order.random() < 0.1:
            start, values, whole = round((minute - 0.5) * MINUTE), {}, False
        if values and order.random() < 0.1:
            values.pop(order.choice(sorted(values)))
            whole = False
        for tenant, count in tokens.items():
            values[tenant] = values.get(tenant, 0) + count
            asked[tenant] = asked.get(tenant, 0) + count
        read.read(minute, *(line(value, name) for name, value in values.items()), started=start)
    for tenant, count in asked.items():
        counted = read.sums.get(tenant, 0)
        assert counted == count if whole else counted <= count


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("litellm=4000", "is not [PROFILE=]http://HOST"),
        ("http://u:p@gw:4000", "must not hold a user name or a password"),
        ("nobody=http://gw:4000", "there is no gateway profile 'nobody'"),
        (
            ",".join(f"http://gw-{number}" for number in range(17)),
            "has 17 gateways, 16 are allowed",
        ),
    ],
)
def test_a_setting_that_cannot_be_used_says_why(text, words):
    with pytest.raises(ValueError) as error:
        gateways(text)
    assert words in str(error.value)
    assert "p@" not in str(error.value)


def test_an_interval_over_which_nothing_would_count_is_refused():
    """A pause of ten minutes between two readings proves nothing."""
    page = {"gateway_endpoints": "litellm=http://gw:4000/metrics"}
    assert check(Settings(slow_interval_s=300, **page)) == []
    assert check(Settings(slow_interval_s=600)) == []
    (fault,) = check(Settings(slow_interval_s=600, **page))
    assert "slow_interval_s: at most 300 with gateway_endpoints" in fault


def test_a_gateway_is_read_over_http_by_the_profile_that_fits(caplog):
    """The page's record comes each time, a counter only when it changed; nothing of persons and
    keys is in them.
    """
    value = [100]
    with serving(
        lambda: f"process_start_time_seconds {(OLD + BASE) / 1000}\n" + line(value[0])
    ) as server:
        reader = GatewayReader(gateways(server.url.removesuffix("/metrics")), lambda: BASE)
        for _ in range(3):
            reader.read()
        assert [(row.counter, row.value) for row in reader.take()] == [("", 0)] * 3
        value[0] = 130
        reader.read()
        first, second = reader.take()
    assert first.page == second.page == f"{server.url} {LITELLM.fingerprint}"
    assert (second.gateway, second.counter, second.value) == ("litellm", "output", 30)
    assert (second.tenant, second.model, second.started_ms) == ("a", "m", BASE)
    assert "ana" not in repr((first, second))
    reader.put_back([first])
    assert reader.take() == [first]


def test_a_page_of_no_gateway_is_logged_once(caplog):
    with serving(lambda: "my_metric 1\n") as server:
        reader = GatewayReader(gateways(server.url), lambda: BASE)
        reader.read()
        reader.read()
    lines = [record.getMessage() for record in caplog.records if "gateway" in record.getMessage()]
    assert len(lines) == 1
    assert "no gateway profile knows a family of this page" in lines[0]
    assert reader.take() == []


def test_a_hanging_and_a_huge_page_are_given_up(monkeypatch):
    """Threat: a gateway that holds the agent, by time or by bytes."""
    monkeypatch.setattr(module, "TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listener.accept, daemon=True).start()
        reader = GatewayReader(
            gateways(f"litellm=http://127.0.0.1:{listener.getsockname()[1]}"), lambda: BASE
        )
        reader.read()
    monkeypatch.setattr(module, "MAX_PAGE_BYTES", 1000)
    with serving(lambda: page_text("litellm") + "# " + "x" * 2000) as server:
        other = GatewayReader(gateways(server.url), lambda: BASE)
        other.read()
    assert reader.take() == other.take() == []
