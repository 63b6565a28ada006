"""Splits a model server's cost among those who asked it, from its own log of requests and from the
ids that clients read: `who_asked.py FILE.json`.

Written from the rules of docs/guides/shared-inference.md, apart from the product: it imports
nothing of it, reads none of its tables, and calculates in fractions. The file names

    server   the model server's log, a JSON object a line (fakes/model_server.py)
    clients  what clients noted, a JSON object a line: the `id` they read, and the `team` of their key
    weights  of a computed prompt token, a cached one and a generated one, as decimals
    idle     who pays for idle time: `tokens` or `platform`
    days     by day (UTC): `charge_micro`, and of the held time `busy_ms` and `held_ms`

and its answer is a line of JSON for each day and tenant, with its tokens and micro-units. Tenants
are teams, `(unattributed)` for a key without a team, `(nobody)` for what no gateway knows, and
`(platform)` for idle time that stays with the platform.
"""

import datetime as dt
import json
import sys
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

NOBODY, NO_TEAM, PLATFORM = "(nobody)", "(unattributed)", "(platform)"
KINDS = ("computed", "cached", "output")


def lines_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def day_of(work):
    return dt.datetime.fromtimestamp(work["ended_ms"] / 1000, dt.UTC).date().isoformat()


def tokens_of(work):
    """What a gateway learns of a request; of an aborted one nobody tells it what was cached."""
    cached = work["cached"] if work["outcome"] == "stop" else 0
    return {"computed": work["prompt"] - cached, "cached": cached, "output": work["output"]}


def asked_by_day(server, clients):
    """Tokens by day and tenant; whoever has no id of the gateway is nobody."""
    teams = {row["id"]: row["team"] or NO_TEAM for row in clients}
    days = defaultdict(lambda: defaultdict(lambda: dict.fromkeys(KINDS, 0)))
    for work in server:
        tenant = days[day_of(work)][teams.get(work["id"], NOBODY)]
        for kind, count in tokens_of(work).items():
            tenant[kind] += count
    return days


def split_amount(amount, claims):
    """Whole parts in proportion to claims, the largest remainders first, then by name."""
    total = sum(claims.values(), Fraction(0))
    exact = {name: amount * claim / total for name, claim in claims.items()}
    parts = {name: share.numerator // share.denominator for name, share in exact.items()}
    rest = amount - sum(parts.values())
    for name in sorted(exact, key=lambda name: (parts[name] - exact[name], name))[:rest]:
        parts[name] += 1
    return parts


def split_day(tenants, day, weights, idle_rule):
    """Used and idle micro-units by tenant; they add up to the day's charge."""
    charge, held = day["charge_micro"], Fraction(day["held_ms"])
    halves = split_amount(
        charge, {"used": day["busy_ms"] / held, "idle": (held - day["busy_ms"]) / held}
    )
    claims = {
        name: sum((weights[kind] * count for kind, count in tokens.items()), Fraction(0))
        for name, tokens in tenants.items()
    }
    used = split_amount(halves["used"], claims)
    idle = (
        {PLATFORM: halves["idle"]}
        if idle_rule == "platform"
        else split_amount(halves["idle"], claims)
    )
    return used, idle


def bill(question):
    """The rows of the answer."""
    days = asked_by_day(lines_of(question["server"]), lines_of(question["clients"]))
    weights = dict(zip(KINDS, map(Fraction, question["weights"]), strict=True))
    rows = []
    for day, tenants in sorted(days.items()):
        used, idle = split_day(tenants, question["days"][day], weights, question["idle"])
        rows += [
            {
                "day": day,
                "tenant": tenant,
                **tenants.get(tenant, dict.fromkeys(KINDS, 0)),
                "used_micro": used.get(tenant, 0),
                "idle_micro": idle.get(tenant, 0),
            }
            for tenant in sorted(used.keys() | idle.keys())
        ]
    return rows


if __name__ == "__main__":
    for line in bill(json.loads(Path(sys.argv[1]).read_text())):
        print(json.dumps(line))
