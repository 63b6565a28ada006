"""`gpuledger idle --services`: from the ledger and the rollup to what each service has to spare."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

from fakes.fleet import DAY, OCTOBER, Fleet
from fakes.idle_day import minutes
from gpuledger_collector.accounting.money import cost_micro
from gpuledger_collector.accounting.quantity import gpu_ns
from gpuledger_collector.services.serving_replicas import assess_services

DAYS = 7


def furnish(fleet: Fleet) -> None:
    """A service of five replicas of which one is ever busy, one of a single busy replica, and a
    job.
    """
    fleet.connection.execute(
        "INSERT INTO price (pool, gpu_model, purchase, rate_per_gpu_hour, currency,"
        " effective_from_ms, recorded_at) VALUES ('', 'H100', 'on_demand', 2.49, 'USD', 0, now())"
    )
    for number in range(1, 8):
        fleet.capacity(number, 0)
        tags = {"team": "vision"} if number == 7 else {"team": "inference", "serving": "true"}
        workload = fleet.workload(number, **tags)
        name = "train" if number == 7 else "rerank-0" if number == 6 else f"chat-{number}"
        fleet.connection.execute("UPDATE workload SET name = %s WHERE id = %s", (name, workload))
        fleet.connection.execute(
            "INSERT INTO usage_hour (accelerator_id, hour_ms, state, workload_id, held_ms, busy_ms,"
            " idle_ms, unknown_ms) SELECT %s, h, 'held', %s, 3600000, 0, 3600000, 0 FROM"
            " generate_series(%s::bigint, %s::bigint - 1, 3600000) AS h",
            (fleet.accelerator(number), workload, OCTOBER, OCTOBER + DAYS * DAY),
        )
        minutes(fleet, number, 0, DAYS * DAY, 0.8 if number in (1, 6) else 0.0)


def test_a_service_is_told_what_it_has_to_spare(fleet, findings):
    """Five held, one busy, one in reserve: three to spare, priced exactly; a single one is fine, a
    job no service.
    """
    furnish(fleet)
    chat, rerank = assess_services(findings, OCTOBER + DAYS * DAY)
    assert (chat.name, chat.team, chat.model) == ("chat", "inference", "NVIDIA H100 80GB HBM3")
    assert (
        chat.assessment.held,
        chat.assessment.peak,
        chat.assessment.needed,
        chat.assessment.spare,
    ) == (5, 1, 2, 3)
    assert chat.per_day_micro == cost_micro(gpu_ns(3_000_000, DAY), Decimal("2.49"))
    assert (rerank.name, rerank.assessment.spare, rerank.per_day_micro) == ("rerank", 0, 0)
    assert chat.assessment.known == rerank.assessment.known == 1.0


def test_the_command_refuses_what_does_not_go_together(fleet, run):
    """A week of replicas has no now; without services it is an empty table and exit 0."""
    code, _, err = run("idle", "--services", "--now")
    assert code == 2
    assert "--services" in err
    code, out, _ = run("idle", "--services", "--format", "csv")
    assert code == 0
    assert list(csv.reader(io.StringIO(out))) == [
        [
            "service",
            "team",
            "pool",
            "model",
            "held",
            "busiest",
            "needed",
            "spare",
            "known",
            "per_day",
        ]
    ]
