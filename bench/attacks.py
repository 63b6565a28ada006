"""Attacks on a real collector: every identity, every route, forged and hostile evidence, bombs, readers and webhooks.

One collector with its own embedded Postgres, TLS by a private authority and tokens is attacked in turn, on loopback,
within bounded requests and minutes. A hole is a foreign row shown, a request that should have been refused, a fault of
ours, a number of another team that moved, a neighbor that waited for two seconds or longer, or a `/readyz` that does
not say what is. It ends with 1 when there is one.
"""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from bench import _attacks_floods, _attacks_inside, _attacks_reader, _attacks_requests
from bench._attacks_arena import Arena, Row

ATTACKS = (
    *_attacks_requests.QUIET,
    *_attacks_inside.LOOKING,
    *_attacks_floods.ATTACKS,
    _attacks_reader.reader,
    *_attacks_inside.LAST,
)
"""Floods use up the quotas of their nodes, so that they come late."""


def table(rows: list[Row]) -> None:
    print("| attack | identities | requests | seen | slowest neighbor | holes |\n|---|---|---|---|---|---|")
    for row in rows:
        seen = ", ".join(f"{what} ({count:,})" if count > 1 else what for what, count in row.seen.most_common(6))
        print(
            f"| {row.attack} | {row.identities} | {row.requests:,} | {seen} | {row.slowest_s:.2f} s "
            f"| {len(row.holes)} |"
        )
    requests, holes = sum(row.requests for row in rows), sum(len(row.holes) for row in rows)
    slowest = max(row.slowest_s for row in rows)
    print(f"| **all {len(rows)}** | | **{requests:,}** | | **{slowest:.2f} s** | **{holes}** |")


def main() -> int:
    begun, wanted = time.monotonic(), sys.argv[1:]
    arena = Arena()
    try:
        arena.open()
        for attack in ATTACKS:
            if not wanted or attack.__name__ in {name.strip("-") for name in wanted}:
                print(f"{time.monotonic() - begun:5.0f} s  {attack.__name__}", file=sys.stderr, flush=True)
                try:
                    attack(arena)
                except (Exception, SystemExit):  # an attack that cannot be made has shown nothing
                    arena.rows[-1].expect(False, f"{attack.__name__} broke off: {traceback.format_exc(limit=-2)}")
                for hole in arena.rows[-1].holes:
                    print(f"        HOLE {hole}", file=sys.stderr, flush=True)
    finally:
        arena.close()
    table(arena.rows)
    for row in arena.rows:
        for hole in row.holes[:20]:
            print(f"hole: {row.attack}: {hole}")
    print(f"\n{time.monotonic() - begun:.0f} s")
    return int(any(row.holes for row in arena.rows))


if __name__ == "__main__":
    sys.exit(main())
