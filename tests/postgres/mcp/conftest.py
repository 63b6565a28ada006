"""A ledger of two teams with a closed August and an open September, for tests that only read it."""

from dataclasses import dataclass

import msgspec
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fakes.assistant import Assistant, over
from fakes.batches import accelerator, batch, free, held, workload
from fakes.books import Command, furnish, world_of
from fakes.facts import AUGUST_MS, DAY, HOUR, SEPTEMBER_MS, World
from fakes.ledger import fleet, run
from fakes.postgres import administrator, fresh_database
from gpuledger_collector.insight.findings import Finding
from gpuledger_collector.insight.recommendation_record import Recommendation, RecommendationRun
from gpuledger_collector.storage.findings import findings, recommendations
from gpuledger_common.wire import Samples

__all__ = ["books", "fleet", "run"]
JULY_MS = AUGUST_MS - 11 * DAY
NOW_MS = SEPTEMBER_MS + 20 * DAY + 6 * HOUR


@dataclass(frozen=True)
class Books:
    """A ledger, commands on it, and assistants over it."""

    dsn: str
    superuser: str
    run: Command

    def out(self, *arguments: object) -> str:
        code, out, err = self.run(*arguments)
        assert code == 0, (arguments, err)
        return out

    def assistant(self, owner: dict[str, str] | None = None) -> Assistant:
        return over(self.dsn, NOW_MS, owner)


def idle(team: str) -> Finding:
    return Finding(
        key=f"idle-{team}",
        kind="idle",
        state="zombie",
        subject=f"GPU-{team}",
        accelerator_id=None,
        workload_id=None,
        team=team,
        owner={"team": team},
        since_ms=NOW_MS - HOUR,
        opened_ms=NOW_MS - HOUR,
        until_ms=NOW_MS,
        resolved_ms=None,
        confidence=0.9,
        currency="USD",
        cost_micro=10_000_000,
        per_day_micro=240_000_000,
        evidence={"node": "n1"},
    )


def advice(team: str) -> Recommendation:
    return Recommendation(
        key=f"mig-{team}",
        kind="mig",
        subject=f"job of {team}",
        team=team,
        owner={"team": team},
        advice="A third of a board is enough.",
        evidence={},
        scope={},
        start_ms=AUGUST_MS,
        end_ms=SEPTEMBER_MS,
        price_ids=(),
        currency="USD",
        cash=(0, 0, 0),
        capacity=(1_000_000, 2_000_000, 3_000_000),
        energy=(None, None, None),
        freed_gpu_ns=HOUR * 1_000_000,
        made_ms=NOW_MS,
        expires_ms=NOW_MS + DAY,
    )


def half_idle(world: World) -> None:
    """A job of alpha holds a GPU for five hours of July, idle for half of it; a free one stands
    beside it.
    """
    for hour in range(5):
        start_ms = JULY_MS + hour * HOUR
        half = held(0, start_ms, start_ms + HOUR, busy_ms=HOUR // 2, idle_ms=HOUR // 2)
        made = msgspec.structs.replace(
            batch(900 + hour, "n7", 0, start_ms, samples=Samples()),
            accelerators=[accelerator(0, "n7"), accelerator(1, "n7")],
            workloads=[workload("7", user=None, tags={"team": "alpha"})],
            usage_intervals=[half, free(1, start_ms, start_ms + HOUR)],
        )
        status, answer = world.collector.send(made)
        assert status == 200, answer


@pytest.fixture(scope="session")
def books(postgres, tmp_path_factory):
    with fresh_database(postgres) as dsn, world_of(dsn) as world:
        half_idle(world)
        furnish(world, tmp_path_factory.mktemp("books"))
        world.run("chargeback", "--from", "2026-07-01", "--to", "2026-10-01")
        # Today, in whose month corrections of closed ones are booked.
        world.run("chargeback", "--days", "1")
        with psycopg.connect(dsn) as connection:
            findings.upsert(connection, [idle(team) for team in ("alpha", "bravo")])
            findings.set_progress(connection, "idle", NOW_MS)
            run = RecommendationRun(
                NOW_MS, AUGUST_MS, SEPTEMBER_MS, {}, [{"subject": "n9", "why": "no readings"}], "x"
            )
            recommendations.upsert(connection, [advice(team) for team in ("alpha", "bravo")], run)
        superuser = make_conninfo(administrator(postgres), dbname=conninfo_to_dict(dsn)["dbname"])
        yield Books(dsn, superuser, Command(dsn))
