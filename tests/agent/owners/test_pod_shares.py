"""The holder behind the holder: fractions of KAI Scheduler and Run:ai, virtual cards of HAMi and
Volcano, shares of claims (DRA). The kubelet is a real gRPC server, the API server a real HTTPS one.
"""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import kubelet
from fakes.apiserver import api_server
from fakes.kubernetes_node import cluster_owners
from gpuledger_agent.owners.kubernetes_api import MAX_ANNOTATION_CHARACTERS, PodFacts
from gpuledger_agent.owners.pod_shares import Part, divide_reservation, weigh
from gpuledger_agent.owners.shares import (
    MEBIBYTE,
    VirtualCard,
    read_capacity,
    read_fraction,
    read_memory,
    read_quantity,
    read_virtual_cards,
    weights_of,
)
from gpuledger_common.largest_remainder import split
from gpuledger_common.readings import Accelerator

UUID = "GPU-8c7a2f10-3b44-4a0e-9d55-0a1b2c3d4e5f"
OTHER = "GPU-11111111-2222-3333-4444-555555555555"
CARDS = (
    Accelerator(UUID, UUID, 0, "NVIDIA H100", memory_bytes=80_000 * MEBIBYTE),
    Accelerator(OTHER, OTHER, 1, "NVIDIA H100", memory_bytes=80_000 * MEBIBYTE),
)
RESERVATION = "kai-resource-reservation"
DRIVER = "gpu.nvidia.com"
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with api_server(tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture
def api(server):
    server.reset()
    return server


@pytest.fixture
def node(tmp_path, api):
    """A node of which both servers are asked; `look()` gives the weights of each card by pod."""
    with kubelet.running(tmp_path / "kubelet.sock") as running:
        now = [0.0]
        owners = cluster_owners(running.path, api, lambda: now[0])

        def look(wait_s=5.0):
            now[0] += wait_s
            owners._cluster.refresh()
            return {
                uuid: {holder.workload.name: holder.weight for holder in held}
                for uuid, held in owners.holders(CARDS, []).items()
            }

        running.look, running.owners = look, owners
        yield running


def shares(weights):
    """Weights as parts of one card."""
    total = sum(weights.values())
    return {name: Fraction(weight, total) for name, weight in weights.items()}


def fraction_of(api, name, uid, group, namespace="vision", **annotations):
    """A pod with a part of a reserved card."""
    named = {key.replace("_", "-"): value for key, value in annotations.items()}
    pod = api.pod(namespace, name, uid, annotations=named, team=namespace)
    pod["metadata"]["labels"]["runai-gpu-group"] = group
    return pod


def reservation(api, name, group):
    pod = api.pod(RESERVATION, name, f"u-{name}", app=RESERVATION)
    pod["metadata"]["labels"]["runai-gpu-group"] = group
    return pod


# ---- KAI Scheduler, Run:ai ----


def test_a_reserved_card_belongs_to_the_pods_of_its_group(node, api):
    """Half and a quarter; the reservation keeps the quarter that nobody asked for."""
    node.pods = [
        kubelet.pod(RESERVATION, "reserve-0", UUID),
        kubelet.pod("vision", "a"),
        kubelet.pod("nlp", "b"),
    ]
    api.pods = [
        reservation(api, "reserve-0", "g1"),
        fraction_of(api, "a", "ua", "g1", gpu_fraction="0.5"),
        fraction_of(api, "b", "ub", "g1", "nlp", gpu_memory="20000"),
    ]
    assert shares(node.look()[UUID]) == {
        "vision/a": Fraction(1, 2),
        "nlp/b": Fraction(1, 4),
        f"{RESERVATION}/reserve-0": Fraction(1, 4),
    }
    (held,) = [
        holder.workload
        for holder in node.owners.holders(CARDS, [])[UUID]
        if holder.workload.name == "vision/a"
    ]
    assert (held.id, held.tags["team"]) == ("ua", "vision")


def test_a_user_of_a_reserved_card_that_comes_or_ends_counts_from_the_next_look(node, api):
    """It has no device at the kubelet, and still nobody waits for the half minute of the API."""
    node.pods = [kubelet.pod(RESERVATION, "reserve-0", UUID), kubelet.pod("vision", "a")]
    api.pods = [
        reservation(api, "reserve-0", "g1"),
        fraction_of(api, "a", "ua", "g1", gpu_fraction="0.5"),
        fraction_of(api, "b", "ub", "g1", gpu_fraction="0.5"),
    ]
    assert set(node.look()[UUID]) == {"vision/a", f"{RESERVATION}/reserve-0"}
    node.pods.append(kubelet.pod("vision", "b"))
    assert set(node.look()[UUID]) == {"vision/a", "vision/b"}
    del node.pods[1]
    assert set(node.look()[UUID]) == {"vision/b", f"{RESERVATION}/reserve-0"}
    asked = len(api.requests)
    node.look()
    assert len(api.requests) == asked


def test_a_pod_with_parts_of_two_cards_has_its_part_of_each(node, api):
    """`runai-gpu-group/ID` names further groups."""
    node.pods = [
        kubelet.pod(RESERVATION, "r0", UUID),
        kubelet.pod(RESERVATION, "r1", OTHER),
        kubelet.pod("vision", "a"),
    ]
    pod = fraction_of(api, "a", "ua", "g0", gpu_fraction="0.25")
    pod["metadata"]["labels"]["runai-gpu-group/g1"] = "g1"
    api.pods = [reservation(api, "r0", "g0"), reservation(api, "r1", "g1"), pod]
    seen = node.look()
    for uuid, name in ((UUID, "r0"), (OTHER, "r1")):
        assert shares(seen[uuid]) == {
            "vision/a": Fraction(1, 4),
            f"{RESERVATION}/{name}": Fraction(3, 4),
        }


def test_a_fraction_that_cannot_be_read_is_not_nothing(node, api):
    """The rest of the card, rather than none of it."""
    node.pods = [kubelet.pod(RESERVATION, "r0", UUID), *(kubelet.pod("vision", n) for n in "ab")]
    api.pods = [
        reservation(api, "r0", "g"),
        fraction_of(api, "a", "ua", "g", gpu_fraction="0.25"),
        fraction_of(api, "b", "ub", "g", gpu_fraction="a half"),
    ]
    assert shares(node.look()[UUID]) == {"vision/a": Fraction(1, 4), "vision/b": Fraction(3, 4)}


def test_nobody_makes_a_reservation_of_its_own_pod(node, api):
    """A pod of a tenant that calls itself a reservation of another's group still holds its card."""
    node.pods = [kubelet.pod("nlp", "fake", UUID), kubelet.pod("vision", "a")]
    fake = fraction_of(api, "fake", "uf", "g1", "nlp")
    fake["metadata"]["annotations"] = {"run.ai/reserve_for_gpu_index": "0"}
    api.pods = [fake, fraction_of(api, "a", "ua", "g1", gpu_fraction="0.5")]
    assert node.look() == {UUID: {"nlp/fake": 1}}


def test_without_the_api_server_the_reservation_holds_its_card(node, api):
    """Nothing says who uses it."""
    api.forbidden = "/api/v1/pods"
    node.pods = [kubelet.pod(RESERVATION, "r0", UUID), kubelet.pod("vision", "a")]
    assert node.look() == {UUID: {f"{RESERVATION}/r0": 1}}


# ---- HAMi, Volcano ----


@pytest.mark.parametrize("name", ["hami.io/vgpu-devices-allocated", "volcano.sh/vgpu-ids-new"])
def test_virtual_cards_are_shared_by_what_was_asked(node, api, name):
    """Memory or compute, whichever is more: 40,000 of 80,000 MiB, and a quarter of the cores."""
    node.pods = [
        kubelet.pod("vision", "a", f"{UUID}-3", resource="volcano.sh/vgpu-number"),
        kubelet.pod("nlp", "b", f"{UUID}-7", resource="volcano.sh/vgpu-number"),
    ]
    api.pods = [
        api.pod("vision", "a", "ua", annotations={name: f"{UUID},NVIDIA,40000,0:;"}),
        api.pod("nlp", "b", "ub", annotations={name: f";{UUID},NVIDIA,8000,25:;"}),
    ]
    assert shares(node.look()[UUID]) == {"vision/a": Fraction(2, 3), "nlp/b": Fraction(1, 3)}


def test_four_quarters_are_one_card(node, api):
    """As users of HAMi ask for: four pods with 25 % each are one GPU-hour."""
    node.pods = [kubelet.pod("vision", f"p{n}", f"{UUID}-{n}") for n in range(4)]
    api.pods = [
        api.pod(
            "vision",
            f"p{n}",
            f"u{n}",
            annotations={"hami.io/vgpu-devices-allocated": f"{UUID},NVIDIA,20000,25:;"},
        )
        for n in range(4)
    ]
    weights = list(node.look()[UUID].values())
    assert split(HOUR_MS, weights) == [HOUR_MS // 4] * 4


def test_the_card_of_the_annotation_counts_before_that_of_the_kubelet(node, api, caplog):
    """HAMi's plugin takes the card from the annotation, whichever slot the kubelet chose."""
    node.pods = [kubelet.pod("vision", "a", f"{UUID}-0")]
    api.pods = [
        api.pod(
            "vision",
            "a",
            "ua",
            annotations={"hami.io/vgpu-devices-allocated": f"{OTHER},NVIDIA,80000,100:;"},
        )
    ]
    for _ in range(3):
        assert set(node.look()) == {OTHER}
    said = f"pod vision/a uses {OTHER} by its annotation; the kubelet says {UUID}"
    assert caplog.text.count(said) == 1


def test_a_slot_of_one_card_takes_no_whole_card_away(node, api, caplog):
    """The annotation replaces the slot alone; a pod with a whole card cannot call it divided."""
    name = "hami.io/vgpu-devices-allocated"
    slot, rest = {name: f"{UUID},NVIDIA,20000,25:;"}, {name: f"{UUID},NVIDIA,60000,75:;"}
    node.pods = [
        kubelet.pod("vision", "a", f"{UUID}-0", OTHER),
        kubelet.pod("nlp", "b", f"{UUID}-1"),
    ]
    api.pods = [
        api.pod("vision", "a", "ua", annotations=slot),
        api.pod("nlp", "b", "ub", annotations=rest),
    ]
    held = node.look()
    assert held[OTHER] == {"vision/a": 1}
    assert shares(held[UUID]) == {"vision/a": Fraction(1, 4), "nlp/b": Fraction(3, 4)}
    assert "by its annotation" not in caplog.text
    api.pods[0] = api.pod("vision", "a", "ua", annotations={name: f"{OTHER},NVIDIA,1,1:;"})
    held = node.look(31)
    assert held[OTHER] == {"vision/a": 1}
    assert shares(held[UUID]) == {"vision/a": Fraction(1, 2), "nlp/b": Fraction(1, 2)}


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ([UUID], f"{OTHER},NVIDIA,1,1:;"),
        ([f"{UUID}::1"], f"{OTHER},NVIDIA,1,1:;"),
        ([f"{UUID}-0", f"{OTHER}-0"], f"{OTHER},NVIDIA,1,1:;"),
        ([f"{UUID}-0"], "GPU-of-another-node,NVIDIA,1,1:;"),
        ([f"{UUID}-0"], f"{UUID}[0-1],NVIDIA,1,1:;"),
        ([f"{UUID}-0"], "no cards"),
        ([f"{UUID}-0"], f"{UUID},NVIDIA,1,1:;" * MAX_ANNOTATION_CHARACTERS),
    ],
)
def test_an_annotation_that_does_not_fit_the_kubelet_changes_nothing(node, api, devices, text):
    """Nobody lowers a bill by annotating a pod: whole cards, other numbers of cards, other nodes."""
    node.pods = [kubelet.pod("vision", "a", *devices)]
    api.pods = [api.pod("vision", "a", "ua", annotations={"hami.io/vgpu-devices-allocated": text})]
    assert UUID in node.look()


# ---- claims (DRA) ----


def offer(api, *names):
    """Devices with UUIDs and 80 GiB."""
    devices = [
        {
            "name": name,
            "attributes": {"uuid": {"string": uuid}},
            "capacity": {"memory": {"value": "80Gi"}, "cores": {"value": "100"}},
        }
        for name, uuid in zip(names, (UUID, OTHER), strict=False)
    ]
    spec = {"driver": DRIVER, "pool": {"name": "node1"}, "nodeName": "n1", "devices": devices}
    api.slices["v1"] = [{"metadata": {"name": "s"}, "spec": spec}]


def result(device, share="", **more):
    found = {"driver": DRIVER, "pool": "node1", "device": device, **more}
    return {**found, "shareID": share} if share else found


def test_claims_that_share_a_device_pay_what_they_consume(node, api):
    """60 and 20 GiB of 80; two pods of one claim have equal parts of it."""
    offer(api, "gpu-0")
    api.claim("vision", "big", result("gpu-0", "s1", consumedCapacity={"memory": "60Gi"}))
    api.claim("nlp", "small", result("gpu-0", "s2", consumedCapacity={"memory": "20Gi"}))
    node.pods = [
        kubelet.claiming_pod("vision", "a", "gpu-0", claim="big", share="s1"),
        kubelet.claiming_pod("vision", "b", "gpu-0", claim="big", share="s1"),
        kubelet.claiming_pod("nlp", "c", "gpu-0", claim="small", share="s2"),
    ]
    assert shares(node.look()[UUID]) == {
        "vision/a": Fraction(3, 8),
        "vision/b": Fraction(3, 8),
        "nlp/c": Fraction(1, 4),
    }


def test_a_claim_that_only_observes_holds_nothing(node, api):
    """A monitor with access to every card is not the holder of one."""
    offer(api, "gpu-0", "gpu-1")
    api.claim(
        "watch",
        "all",
        result("gpu-0", adminAccess=True),
        result("gpu-1", adminAccess=True),
    )
    api.claim("vision", "a-gpu", result("gpu-0"))
    node.pods = [
        kubelet.claiming_pod("watch", "exporter", "gpu-0", "gpu-1", claim="all"),
        kubelet.claiming_pod("vision", "a", "gpu-0"),
    ]
    assert node.look() == {UUID: {"vision/a": 1}}


def test_a_plain_request_served_by_a_claim_is_a_holder(node, api):
    """`nvidia.com/gpu: 1` of Kubernetes 1.36: no device of a plugin, a generated claim instead."""
    offer(api, "gpu-0")
    name = "a-extended-resources-x7k2p"
    api.claim("vision", name, result("gpu-0"))
    node.pods = [kubelet.claiming_pod("vision", "a", "gpu-0", claim=name)]
    assert node.look() == {UUID: {"vision/a": 1}}


def test_a_claim_is_asked_for_once_while_a_pod_has_it(node, api):
    """What it got does not change; the same name with another device is another claim."""
    offer(api, "gpu-0", "gpu-1")
    api.claim("vision", "c", result("gpu-0"))
    node.pods = [kubelet.claiming_pod("vision", "a", "gpu-0", claim="c")]
    for _ in range(20):
        node.look()

    def asked():
        return sum("resourceclaims" in target for _, target in api.requests)

    assert asked() == 1
    node.pods = [kubelet.claiming_pod("vision", "a", "gpu-1", claim="c")]
    assert set(node.look()) == {OTHER}
    assert asked() == 2


def test_without_the_right_to_ask_for_claims_sharers_have_equal_parts(node, api, caplog):
    """One sentence, once, that names the consequence; the rest goes on."""
    offer(api, "gpu-0")
    api.forbidden = "/apis/resource.k8s.io/v1/namespaces"
    node.pods = [
        kubelet.claiming_pod("vision", "a", "gpu-0", share="s1"),
        kubelet.claiming_pod("nlp", "b", "gpu-0", share="s2"),
    ]
    for _ in range(20):
        assert node.look() == {UUID: {"vision/a": 1, "nlp/b": 1}}
    assert caplog.text.count("may not ask for resourceclaims, so claims that share a device") == 1
    assert "403" in caplog.text


# ---- arithmetic ----


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.5", Fraction(1, 2)),
        ("1", Fraction(1)),
        ("0.333333", Fraction(333_333, 1_000_000)),
        *((word, None) for word in ("0", "1.5", "-0.5", "1/2", "nan", "", "0.5x", "9" * 99)),
    ],
)
def test_a_fraction_is_more_than_nothing_and_no_more_than_a_card(text, expected):
    """Anything else is not known."""
    assert read_fraction(text) == expected


def test_memory_is_a_part_of_the_card():
    """In MiB; without the card's size nothing is known, and more than the card is the card."""
    assert read_memory("20000", 80_000 * MEBIBYTE) == Fraction(1, 4)
    assert read_memory("90000", 80_000 * MEBIBYTE) == 1
    assert read_memory("20000", None) is None
    assert read_memory("much", 80_000 * MEBIBYTE) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20Gi", 20 * 1024**3),
        ("1500m", Fraction(3, 2)),
        ("2k", 2000),
        ("0.5Ti", 512 * 1024**3),
        ("7", 7),
        ("7 Gi", None),
        ("", None),
    ],
)
def test_quantities(text, expected):
    """As Kubernetes writes them."""
    assert read_quantity(text) == expected


def test_the_dominant_capacity_is_the_share():
    """Half of the cores and a quarter of the memory keep half of the card from others."""
    whole = {"memory": "80Gi", "cores": "100"}
    assert read_capacity({"memory": "20Gi", "cores": "50"}, whole) == Fraction(1, 2)
    assert read_capacity({"links": "1"}, whole) is None


def test_cards_of_an_annotation():
    """Containers end with `;`, cards with `:`; of another form nothing is believed."""
    assert read_virtual_cards(f"{UUID},NVIDIA,3000,25:;;{OTHER},NVIDIA,0,100:;") == (
        VirtualCard(UUID, 3000, 25),
        VirtualCard(OTHER, 0, 100),
    )
    for text in ("", ";;", "GPU-1", "GPU-1,NVIDIA,x,y:;", f"{UUID}[1-2],NVIDIA,3000,25:;"):
        assert read_virtual_cards(text) is None


@given(
    st.lists(
        st.one_of(st.none(), st.fractions(Fraction(1, 10**6), 1, max_denominator=10**6)),
        min_size=1,
        max_size=16,
    ),
    st.integers(0, 10**9),
)
def test_any_shares_add_up_to_one_card_to_the_millisecond(stated, span_ms):
    """And each is within a millisecond of its exact part."""
    weights = weights_of(stated)
    parts = split(span_ms, weights)
    assert sum(parts) == span_ms
    known = [share for share in stated if share is not None]
    if len(known) == len(stated):
        for share, part in zip(known, parts, strict=True):
            assert abs(part - span_ms * share / sum(known)) < 1


@given(st.lists(st.integers(1, 100), min_size=1, max_size=8), st.integers(0, 10**9))
def test_reserved_cards_add_up_however_much_is_asked(percents, span_ms):
    """Users of more than a whole card share it in proportion; what they leave is the reservation's."""
    facts = {
        ("ns", f"p{at}"): PodFacts(
            f"u{at}",
            {"runai-gpu-group": "g"},
            annotations={"gpu-fraction": f"{percent // 100}.{percent % 100:02}"},
        )
        for at, percent in enumerate(percents)
    }
    own = Part((RESERVATION, "r"), frozenset())
    parts = divide_reservation(own, facts, sorted(facts), None)
    held = dict(zip([part.pod for part in parts], split(span_ms, weigh(parts)), strict=True))
    assert sum(held.values()) == span_ms
    rest = max(100 - sum(percents), 0)
    assert abs(held.get(own.pod, 0) - Fraction(span_ms * rest, max(sum(percents), 100))) < 1
