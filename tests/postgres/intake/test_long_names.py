"""Names as long as a batch may have them: what no index can hold is refused, and holds up nobody."""

import asyncio
import random

import msgspec
import psycopg
import pytest

from fakes.batches import NOON_MS, accelerator, batch, workload
from fakes.postgres import fresh_database
from gpuledger_collector.ingest.batches import validate
from gpuledger_collector.ingest.batches.commit import GroupCommit, Limits
from gpuledger_collector.ingest.batches.decode import decode
from gpuledger_collector.ingest.batches.store import Store
from gpuledger_collector.storage.ledger import placements
from gpuledger_collector.storage.telemetry import partitions
from gpuledger_common.wire import Count, TokenCount, encode

NOW_MS = NOON_MS + 60_000
RARE = random.Random(1)


def rare(characters):
    """Characters of four bytes that nothing compresses."""
    return "".join(chr(RARE.randrange(0x20000, 0x2A6D0)) for _ in range(characters))


@pytest.fixture(scope="module")
def dsn(postgres):
    with fresh_database(postgres) as fresh:
        yield fresh


def counted(source, part):
    """A counter of the first workload."""
    return Count(0, source, "tokens", NOON_MS, 1, part)


def tokens(**names):
    """A counter of a gateway's page."""
    return TokenCount(
        **{"gateway": "g", "page": "p", "at_ms": NOON_MS, "counter": "input", **names}
    )


def statuses(dsn, *batches):
    """Commit batches in one group; the status of each answer, or why it was not committed."""
    group = GroupCommit(
        Store(partitions.ensure, placements.settle),
        lambda: psycopg.connect(dsn, autocommit=True),
        lambda: NOW_MS,
        Limits(),
    )

    async def send():
        bodies = [decode(encode(each), "application/msgpack", "") for each in batches]
        answers = [
            group.submit(validate.accept(body, NOW_MS, gateway_nodes=(body.node,)))
            for body in bodies
        ]
        group.start()  # not before all of them wait
        return await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), 30)

    try:
        answers = asyncio.run(send())
    finally:
        group.close(10)
    return [getattr(answer, "status", answer) for answer in answers]


@pytest.mark.parametrize(
    "changes",
    [
        {"refused": {"team": rare(4000)}},
        {"refused": {"team": rare(257)}},
        {"identity": rare(1000)},
        {"identity": rare(251)},
    ],
)
def test_a_name_that_no_index_holds_is_refused_alone(dsn, changes):
    """The batch beside it is committed, and so is the rest of its own."""
    long = workload(**changes)
    names = [f"n-{rare(9)}" for _ in range(2)]
    pair = batch(node=names[0], workloads=[long]), batch(node=names[1])
    assert statuses(dsn, *pair) == ["partial", "committed"]


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": [counted(rare(500), rare(126))]},
        {"token_counts": [tokens(page=rare(251))]},
        {"token_counts": [tokens(tenant=rare(300), model=rare(300), backend=rare(26))]},
    ],
)
def test_names_that_no_index_holds_together_are_refused_alone(dsn, changes):
    """Whoever asks for a model of an odd name keeps no node from reporting its usage."""
    names = [f"n-{rare(9)}" for _ in range(2)]
    long = msgspec.structs.replace(batch(node=names[0], workloads=[workload()]), **changes)
    assert statuses(dsn, long, batch(node=names[1])) == ["partial", "committed"]


def test_the_longest_names_that_are_taken_can_be_stored(dsn):
    """Each at its bound, in characters of four bytes; the claim has the beginning of the name."""
    jobs = [
        workload(rare(250), kind=rare(64), name=rare(1000), refused={"experiment": rare(256)}),
        workload(rare(250), kind="process", refused={"team": rare(256)}),
    ]
    for number, job in enumerate(jobs):
        node = "".join(chr(0x20000 + number) for _ in range(253))
        long = batch(node=node, accelerators=1, workloads=[job])
        long = msgspec.structs.replace(
            long,
            accelerators=[accelerator(number, "n")],
            counts=[counted(rare(500), rare(125))],
            token_counts=[
                tokens(gateway=rare(100), page=rare(250)),
                tokens(gateway=rare(100), tenant=rare(225), model=rare(300)),
            ],
        )
        assert statuses(dsn, long) == ["committed"]
    with psycopg.connect(dsn) as connection:
        subjects = connection.execute("SELECT subject FROM refused_claim ORDER BY 1").fetchall()
    expected = [
        f"{(job.name or job.id)[:256]} claims {level} {name}"
        for job in jobs
        for level, name in job.refused.items()
    ]
    assert sorted(subject for (subject,) in subjects) == sorted(expected)
