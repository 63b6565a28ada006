"""Laws of charged servers: what tenants' owners pay is the split, and moving adds up to nothing."""

import datetime as dt
from collections import defaultdict
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fakes.token_records import fold_records
from gpuledger_collector.accounting.adjustments import Adjustment
from gpuledger_collector.accounting.corrections import difference, total
from gpuledger_collector.accounting.inference import (
    AUTHENTICATED,
    CLAIM,
    Asker,
    TokenRecord,
    Tokens,
)
from gpuledger_collector.accounting.inference_charges import (
    SharedDay,
    SharedServers,
    WorkloadCount,
    inference_charges,
    sum_costs,
    sum_counts,
)
from gpuledger_collector.accounting.inference_split import (
    CHARGED,
    GPU_SECONDS,
    IDLE_RULES,
    NO_GPU_TIME,
    SHOWBACK,
    Claimant,
    GpuTime,
    SharedServer,
    TenantOwner,
    compare_tokens,
    split_server,
)
from gpuledger_collector.accounting.inference_tenants import TenantOwners
from gpuledger_collector.accounting.ledger import moved_costs
from gpuledger_collector.accounting.owner_tree import OwnerPath
from gpuledger_collector.accounting.period import DAY_MS, Period
from gpuledger_collector.accounting.rating import Charge

DAY = Period(0, DAY_MS)
TODAY = dt.date(1970, 1, 1)
TENANTS = ("a", "b", "c", "")
WORKLOADS = (1, 2, 3)


def held(workload, owner, pool, currency, micro, busy, idle):
    return Charge(
        day_ms=0,
        start_ms=0,
        end_ms=DAY_MS,
        accelerator_id=1,
        workload_id=workload,
        owner=owner,
        state="held",
        pool=pool,
        gpu_model="H100",
        node="n1",
        price=None,
        currency=currency,
        gpu_ns=busy + idle,
        busy_ns=busy,
        idle_ns=idle,
        cost_micro=micro,
    )


def markup(charge, micro):
    """What a policy adds to the place of a charge."""
    return replace(
        charge,
        accelerator_id=None,
        workload_id=None,
        state="markup",
        node="",
        adjustment=Adjustment(1, "fee", "markup"),
        gpu_ns=0,
        busy_ns=0,
        idle_ns=0,
        cost_micro=micro,
    )


amounts = st.integers(0, 10**9)
hours = st.integers(0, 10**13)
owners = st.sampled_from([OwnerPath(team="platform"), OwnerPath(team="infra"), OwnerPath()])
charges = st.lists(
    st.builds(
        held,
        st.sampled_from(WORKLOADS),
        owners,
        st.sampled_from(["train", "serve"]),
        st.sampled_from(["USD", "EUR"]),
        amounts,
        hours,
        hours,
    ),
    max_size=6,
)
tokens = st.builds(
    lambda given, cached, output: Tokens(given + cached, cached, output, 1),
    *(st.integers(0, 10**6) for _ in range(3)),
)
asked = st.dictionaries(
    st.builds(
        Claimant,
        st.sampled_from(["g", "h"]),
        st.sampled_from(TENANTS),
        st.sampled_from(["m", "n"]),
        st.sampled_from([AUTHENTICATED, CLAIM]),
    ),
    tokens,
    max_size=6,
)
gpu_times = st.builds(
    GpuTime,
    *(st.integers(0, 10**7) for _ in range(2)),
    st.sampled_from([0, 10**4]),
    *(st.integers(0, 10**6) for _ in range(2)),
)
counts = st.builds(
    WorkloadCount,
    st.none() | st.integers(0, 10**6),
    st.integers(0, 10**6),
    st.sampled_from([0, 10**9]),
    st.just(NO_GPU_TIME) | gpu_times,
)


@st.composite
def servers(draw, mode=None):
    idle = draw(st.sampled_from(IDLE_RULES))
    return SharedServer(
        name=draw(st.sampled_from(["qwen", "llama"])),
        gateway=draw(st.sampled_from(["", "g"])),
        models="*",
        backends="",
        served_by={"app": "qwen"},
        served_model="",
        weights=draw(st.sampled_from(["1 : 1 : 1", "1 : 0.1 : 4", "0 : 0 : 1"])),
        idle=idle,
        reserved={"a": "0.25", "c": "0.5"} if idle == "reservations" else {},
        mode=mode or draw(st.sampled_from([CHARGED, SHOWBACK])),
        claims=draw(st.sampled_from(["", CHARGED])),
        weights_from=draw(st.sampled_from(["", GPU_SECONDS])),
    )


@st.composite
def shared_servers(draw, mode=None):
    first, second = draw(servers(mode)), draw(servers(mode))
    return SharedServers(
        [
            SharedDay(first, {1: draw(counts), 2: draw(counts)}, draw(asked)),
            SharedDay(replace(second, name="other"), {3: draw(counts)}, draw(asked)),
        ],
        TenantOwners(
            [
                TenantOwner("", "a", {"team": "alpha"}),
                TenantOwner("g", "b", {"team": "platform"}),
                TenantOwner("", "c", {"team": "alpha", "project": "c"}),
            ],
            {0: TODAY},
        ),
        {1: "slurm::1", 2: "slurm::2", 3: "slurm::3"},
    )


@st.composite
def days(draw):
    """The charges of a day, some with a markup of their place."""
    lines = draw(charges)
    added = [markup(line, draw(amounts)) for line in lines if draw(st.booleans())]
    return lines + added


def paid(moved):
    """Micro-units by server, tenant, owner and currency of what owners of tenants pay."""
    sums = defaultdict(int)
    for charge in moved:
        if not charge.inference.is_payers:
            share = charge.inference
            key = share.server, share.gateway, share.tenant, share.trust
            sums[*key, charge.owner, charge.currency] += charge.cost_micro
    return {key: micro for key, micro in sums.items() if micro}


def split_by(shared, day):
    """The parts of each server's day, with the currency and the owner of each, without policies."""
    held_by = {charge.workload_id for charge in day}
    for on_day in shared.servers:
        counted = sum_counts(count for number, count in on_day.counts.items() if number in held_by)
        split_tokens = compare_tokens(on_day.asked, counted)
        costs = sum_costs((charge for charge in day if charge.workload_id in on_day.counts), {})
        for currency, cost in costs.items():
            weights = on_day.server.weights_of(counted)
            for part in split_server(on_day.server, cost, split_tokens, weights):
                claims = on_day.server.charges_claims
                owner = shared.tenants.owner_of(part.claimant, 0, claims)
                yield on_day.server.name, currency, part, owner


@given(days(), shared_servers())
def test_moving_adds_up_to_zero(day, shared):
    """By server, pool, model and currency; and time stays."""
    moved = inference_charges(day, DAY, shared)
    assert not any(moved_costs(moved).values())
    assert not any(charge.gpu_ns or charge.workload_id for charge in moved)
    assert all(charge.cost_micro for charge in moved)


@given(days(), shared_servers(SHOWBACK))
def test_showback_moves_nothing(day, shared):
    assert inference_charges(day, DAY, shared) == []


@given(days(), shared_servers(CHARGED))
def test_owners_pay_what_the_split_says(day, shared):
    """Without policies, where the cost of a server is the sum of its lines."""
    day = [charge for charge in day if charge.adjustment is None]
    expected = defaultdict(int)
    for server, currency, part, owner in split_by(shared, day):
        if owner:
            claimant = part.claimant
            key = server, claimant.gateway, claimant.tenant, claimant.trust
            expected[*key, OwnerPath(**owner), currency] += part.micro
    assert paid(inference_charges(day, DAY, shared)) == {
        key: micro for key, micro in expected.items() if micro
    }


@given(days(), shared_servers(CHARGED))
def test_tenants_and_what_payers_keep_are_the_charge(day, shared):
    """What payers of a server keep is its (nobody), its idle cost that no tenant pays, and tenants
    that nobody pays for.
    """
    day = [charge for charge in day if charge.adjustment is None]
    cost, kept = defaultdict(int), defaultdict(int)
    for on_day in shared.servers:
        for charge in day:
            if charge.workload_id in on_day.counts:
                cost[on_day.server.name, charge.currency] += charge.cost_micro
    for server, currency, part, owner in split_by(shared, day):
        kept[server, currency] += 0 if owner else part.micro
    for charge in inference_charges(day, DAY, shared):
        if charge.inference.is_payers:
            cost[charge.inference.server, charge.currency] += charge.cost_micro
    assert {key: micro for key, micro in cost.items() if micro} == {
        key: micro for key, micro in kept.items() if micro
    }


@given(days(), shared_servers(CHARGED))
def test_a_tenant_without_tokens_is_charged_nothing_by_tokens(day, shared):
    """Idle time included, on a day on which others asked and on one without a token."""
    idler = Claimant("g", "a", "idler")
    servers = [
        replace(
            on_day,
            server=replace(on_day.server, idle="tokens", reserved={}),
            asked={
                claimant: tokens
                for claimant, tokens in on_day.asked.items()
                if claimant.tenant != idler.tenant
            }
            | {idler: Tokens()},
        )
        for on_day in shared.servers
    ]
    moved = inference_charges(day, DAY, replace(shared, servers=servers))
    assert idler.tenant not in {charge.inference.tenant for charge in moved}


records = st.lists(
    st.builds(
        lambda number, tenant, model, trust, start, length, tokens: TokenRecord(
            Asker("g", tenant, model, "", trust),
            f"{number}-{tenant}-{model}-{trust}",
            start * 60_000,
            min((start + length) * 60_000, DAY_MS - 1),
            tokens,
        ),
        st.integers(0, 3),
        st.sampled_from(TENANTS),
        st.sampled_from(["m", "n"]),
        st.sampled_from([AUTHENTICATED, CLAIM]),
        st.integers(0, 1439),
        st.integers(0, 200),
        tokens,
    ),
    max_size=8,
)


def asked_by(records):
    """Tokens by claimant, as evidence in some order leaves them."""
    found = defaultdict(Tokens)
    for hour in fold_records(records):
        asker = hour.asker
        found[Claimant(asker.gateway, asker.tenant, asker.model, asker.trust)] += hour.tokens
    return dict(found)


@given(days(), shared_servers(CHARGED), records, st.randoms(use_true_random=False))
def test_order_and_duplicates_of_records_change_no_charge(day, shared, records, random):
    again = [*records, *(record for record in records if random.random() < 0.5)]
    random.shuffle(again)
    first, second = (
        inference_charges(
            day,
            DAY,
            replace(
                shared,
                servers=[replace(on_day, asked=asked_by(told)) for on_day in shared.servers],
            ),
        )
        for told in (records, again)
    )
    assert first == second


def rated(day, shared):
    """A day's charges with what moves."""
    return day + inference_charges(day, DAY, shared)


@given(days(), days(), shared_servers(), shared_servers())
def test_a_closed_day_and_its_corrections_are_the_day_rated_anew(before, after, known, late):
    """Whatever came late: tokens, counters, declarations or usage. What is corrected moves, and
    adds up to zero as what was closed does.
    """
    closed, anew = rated(before, known), rated(after, late)
    corrections = difference(closed, anew)
    assert amounts_of(closed + corrections) == amounts_of(anew)
    assert not any(moved_costs(corrections).values())
    assert difference(anew, total(closed + corrections)) == []


def amounts_of(charges):
    """Micro-units by who pays where, and for which part of which server."""
    sums = defaultdict(int)
    for charge in charges:
        share = charge.inference and charge.inference._replace(weights="")
        place = charge.pool, charge.gpu_model, charge.currency
        sums[charge.workload_id, charge.owner, charge.state, *place, share] += charge.cost_micro
    return {key: micro for key, micro in sums.items() if micro}


@given(days(), shared_servers(), st.randoms(use_true_random=False))
def test_the_order_of_charges_and_evidence_changes_nothing(day, shared, random):
    before = inference_charges(day, DAY, shared)
    shuffled = list(day)
    random.shuffle(shuffled)
    again = replace(
        shared,
        servers=[
            replace(on_day, asked=dict(reversed(on_day.asked.items()))) for on_day in shared.servers
        ],
    )
    assert inference_charges(shuffled, DAY, again) == before


@given(days(), shared_servers(CHARGED))
def test_what_moved_is_not_split_again(day, shared):
    """A second rating of the same day, with the moved rows among its charges, moves the same."""
    moved = inference_charges(day, DAY, shared)
    assert inference_charges(day + moved, DAY, shared) == moved


@given(days(), shared_servers(CHARGED))
def test_no_payer_gets_back_more_than_it_paid(day, shared):
    """In no pool and model either."""
    cost = defaultdict(int)
    for charge in [*day, *inference_charges(day, DAY, shared)]:
        share = charge.inference
        if share is None or share.is_payers:
            cost[charge.owner, charge.pool, charge.gpu_model, charge.currency] += charge.cost_micro
    assert all(micro >= 0 for micro in cost.values())


def test_a_cost_below_zero_moves_too():
    """Two discounts of a half, each rounded up, leave three micro-units at minus one: its tenant
    has them, and the platform has nothing left.
    """
    line = held(1, OwnerPath(team="platform"), "serve", "USD", 3, 1, 0)
    day = [line, replace(markup(line, -2), state="discount"), markup(line, -2)]
    server = SharedServer("qwen", "", "*", "", {}, "", "1 : 1 : 1", "tokens", mode=CHARGED)
    owners = TenantOwners([TenantOwner("", "a", {"team": "alpha"})], {0: TODAY})
    on_day = SharedDay(server, {1: WorkloadCount(None, 0, 0)}, {Claimant("g", "a", "m"): Tokens(7)})
    moved = inference_charges(day, DAY, SharedServers([on_day], owners, {1: "slurm::1"}))
    assert {charge.owner.team: charge.cost_micro for charge in moved} == {
        "platform": 1,
        "alpha": -1,
    }
