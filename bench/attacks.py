"""Attacks on real collectors: every identity, every route, forged and hostile evidence, bombs,
readers and webhooks.

One collector with its own embedded Postgres, TLS by a private authority and tokens is attacked in
turn, on loopback, within bounded requests and minutes; then one of three workers on a small disk
that fills up, and one with a year of data. A hole is a foreign row shown, a request that should
have been refused, a fault of ours, a number of another team that moved, a neighbor whose batches
are not taken or whose p99 is two seconds or longer, a batch that was acknowledged and is not
stored, or a `/readyz` that does not say what is. It ends with 1 when there is one. Names of attacks
after the command run those alone (`./dev bench attacks --logins --whole`); `disk` and `year` are
the last two. Each attack has a bounded
time (ATTACK_SECONDS), and so have all together (ALL_SECONDS): what is broken off or not begun has
shown nothing, and is a hole.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench import (
    _attacks_disk,
    _attacks_floods,
    _attacks_inside,
    _attacks_quotas,
    _attacks_reader,
    _attacks_requests,
    _attacks_year,
)
from bench._attacks_arena import Arena, Row

ATTACKS = (
    *_attacks_requests.QUIET,
    *_attacks_inside.LOOKING,
    *_attacks_quotas.ATTACKS,
    *_attacks_floods.ATTACKS,
    _attacks_reader.reader,
    _attacks_quotas.logins,
    *_attacks_inside.LAST,
)
"""Floods use up the quotas of their nodes, so that they come late."""
ALL_SECONDS = 690
"""From the start of the command until an attack may no longer go on."""
ATTACK_SECONDS = {"year": 240, "disk": 150}
MOST_SECONDS = 100
"""Of any other attack."""
BEGUN = time.monotonic()


class TooLong(Exception):
    """An attack has used up its time."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooLong in the main thread when the block takes longer."""

    def end(*_: object) -> None:
        raise TooLong(f"broken off after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def table(rows: list[Row]) -> None:
    print("| attack | identities | requests | seen | neighbor p99 | slowest | lost | holes |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        seen = ", ".join(
            f"{what} ({count:,})" if count > 1 else what for what, count in row.seen.most_common(6)
        )
        print(
            f"| {row.attack} | {row.identities} | {row.requests:,} | {seen} | {row.p99_s:.2f} s "
            f"| {row.slowest_s:.2f} s | {row.lost} | {len(row.holes)} |"
        )
    requests, holes = sum(row.requests for row in rows), sum(len(row.holes) for row in rows)
    slowest, p99 = max(row.slowest_s for row in rows), max(row.p99_s for row in rows)
    lost = sum(row.lost for row in rows)
    print(
        f"| **all {len(rows)}** | | {requests:,} | | {p99:.2f} s | {slowest:.2f} s | {lost} |"
        f" {holes} |"
    )


def attempt(rows: list[Row], name: str, attack: Callable[[], None]) -> None:
    """Make an attack, and print the holes that it found; one that cannot be made has shown nothing,
    and is one.
    """
    begun, before = time.monotonic(), len(rows)
    print(f"{name} ...", file=sys.stderr, flush=True)
    left = BEGUN + ALL_SECONDS - begun
    try:
        if left <= 0:
            raise TooLong(f"not begun: {ALL_SECONDS} s are over")
        with time_limit(min(left, ATTACK_SECONDS.get(name, MOST_SECONDS))):
            attack()
    except (Exception, SystemExit):
        if len(rows) == before:
            rows.append(Row(name, "-"))
        rows[-1].expect(False, f"{name} broke off: {traceback.format_exc(limit=-2)}")
    print(f"{time.monotonic() - begun:5.0f} s  {name}", file=sys.stderr, flush=True)
    for row in rows[before:]:
        for hole in row.holes:
            print(f"        HOLE {hole}", file=sys.stderr, flush=True)


def main() -> int:
    begun, wanted = time.monotonic(), {name.strip("-") for name in sys.argv[1:]}
    rows: list[Row] = []
    own = {"disk": _attacks_disk.disk, "year": _attacks_year.year}
    if unknown := sorted(wanted - own.keys() - {attack.__name__ for attack in ATTACKS}):
        print(f"there is no attack {unknown[0]!r}", file=sys.stderr)
        return 2
    chosen = [attack for attack in ATTACKS if not wanted or attack.__name__ in wanted]
    if chosen:
        arena = Arena()
        arena.rows = rows
        try:
            arena.open()
            for attack in chosen:
                attempt(rows, attack.__name__, partial(attack, arena))
        finally:
            arena.close()
    for name, attack_of_its_own in own.items():
        if not wanted or name in wanted:
            attempt(rows, name, partial(attack_of_its_own, rows))
    table(rows)
    for row in rows:
        for hole in row.holes[:20]:
            print(f"hole: {row.attack}: {hole}")
    print(f"\n{time.monotonic() - begun:.0f} s")
    return int(any(row.holes for row in rows))


if __name__ == "__main__":
    sys.exit(main())
