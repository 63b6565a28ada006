"""Floods: the heaviest batches of one node, and remote write without end.

They use up the quotas of their nodes.
"""

from __future__ import annotations

import threading
import time
import urllib.parse
from collections.abc import Callable

from bench._attacks_arena import Arena, Row
from bench._attacks_requests import NOW_MS
from fakes import two_teams
from fakes.batches import HOUR_MS, body_of, worst
from fakes.processes import MSGPACK
from fakes.prometheus import WRITE, headers, one, scrape, snappy


def _flood(row: Row, seconds: float, connections: int, send: Callable[[int, int], int]) -> None:
    """`send(place, turn)` on every connection until the time is over; anything but a 503 may be
    answered.
    """
    end = time.monotonic() + seconds

    def work(place: int) -> None:
        turn = 0
        while time.monotonic() < end:
            status = send(place, turn)
            row.count(status or "no answer in 60 s")
            row.expect(status < 500 or status == 503, f"a flood was answered {status}")
            turn += 1

    threads = [threading.Thread(target=work, args=(place,)) for place in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def heavy(arena: Arena) -> None:
    """The heaviest batches that are taken, on eight connections, by the token of one node."""
    own = f"{two_teams.OWN}-node"
    bodies = [body_of(worst(3000 + seq, own, NOW_MS - 240 * HOUR_MS)) for seq in range(3)]
    with arena.attack("the heaviest batches, at the quota's worst", "agent of a node") as row:
        _flood(
            row,
            25,
            8,
            lambda place, turn: arena.ask(
                "POST", "/v1/batches", "agent", bodies[(place + turn) % len(bodies)], MSGPACK
            )[0],
        )


def remote_write(arena: Arena) -> None:
    """Scrapes of ever new GPUs, pods and labels, and requests without a token, on six connections."""
    bodies = [
        snappy(
            one(
                [
                    point
                    for gpu in range(100)
                    for point in scrape(
                        NOW_MS - 60_000 + turn * 1000,
                        gpu,
                        node=f"flood-{turn % 40}",
                        pod=f"pod-{turn}-{gpu}",
                        namespace="x" * 60,
                    )
                ]
            )
        )
        for turn in range(60)
    ]
    with arena.attack("a flood by remote write", "nobody, any node") as row:
        _flood(
            row,
            20,
            6,
            lambda place, turn: arena.ask(
                "POST",
                WRITE,
                "any node" if place % 3 else "nobody",
                bodies[(place * 11 + turn) % 60],
                headers(),
            )[0],
        )
        status = arena.ask("GET", f"/v1/scaling/{urllib.parse.quote('x' * 3000)}", "finance")[0]
        row.count(status)


ATTACKS = (heavy, remote_write)
