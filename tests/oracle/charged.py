"""The oracle's charges of shared model servers, computed anew from docs/decisions/0048.

Of a server that is declared as charged, what the split gives to a tenant that somebody pays for is
booked to that team, and off those who pay for the server. Like `oracle.model` it imports nothing of
the product.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from typing import NamedTuple

from oracle.inference import (
    CHARGED,
    ServerDay,
    compared,
    of_server,
    servers_of,
    split_cost,
    team_of,
    used_and_idle,
)
from oracle.model import Bill, Facts, Key, Sighting, midnight, split
from oracle.money import Held, rated

INFERENCE = "inference"


class Share(NamedTuple):
    """Whose part of a server a charge is: without a trust, what its payers get back."""

    server: str
    gateway: str = ""
    tenant: str = ""
    trust: str = ""


class MovedKey(NamedTuple):
    """What moved amounts are compared by."""

    day: int
    share: Share
    where: Held


Moved = dict[MovedKey, int]
"""Micro-units."""


def bill_of(
    facts: Facts, first: dt.date, last: dt.date
) -> tuple[Bill, Moved, list[tuple[str, Sighting]]]:
    """The bill of the days from `first` to before `last`, what of it moved from payers of servers to
    teams of tenants, and the claims that are refused.
    """
    rating, refused = rated(facts, first, last)
    moved: Moved = defaultdict(int)
    day = first
    while day < last:
        for one in servers_of(rating, facts, day, rating):
            if one.server.mode == CHARGED:
                move(moved, facts, one, day)
        day += dt.timedelta(days=1)
    for key, micro in moved.items():
        owner, pool, model, currency = key.where
        rating.bill[Key(key.day, owner, INFERENCE, pool, model, "", currency)][1] += micro
    bill = {key: (ns, micro) for key, (ns, micro) in rating.bill.items() if ns or micro}
    return bill, {key: micro for key, micro in moved.items() if micro}, refused


def move(moved: Moved, facts: Facts, one: ServerDay, day: dt.date) -> None:
    """Charge what a server cost on a day to the teams of its tenants."""
    start = midnight(day, facts.zone)
    weighted, _ = compared(one.tokens, one.counted)
    for currency, (cost, *active) in of_server(one.rows).items():
        parts = split_cost(one.server, weighted, *used_and_idle(cost, active))
        taken: dict[tuple[Share, str], int] = defaultdict(int)
        for claimant, amounts in parts.items():
            if team := team_of(facts, claimant, day, one.server):
                share = Share(one.server.name, claimant.gateway, claimant.tenant, claimant.trust)
                taken[share, team] += amounts.used + amounts.idle
        paid: dict[Held, int] = defaultdict(int)
        for key, (micro, *_) in one.rows.items():
            if key.currency == currency:
                paid[Held(key.owner, key.pool, key.model, currency)] += micro
        # A cost below zero is given by those who get it.
        sign = 1 if sum(taken.values()) >= 0 else -1
        places = sorted(paid)
        given = split(abs(sum(taken.values())), [max(sign * paid[place], 0) for place in places])
        left: dict[tuple[str, str], int] = defaultdict(int)
        for place, micro in zip(places, given, strict=True):
            left[place.pool, place.model] += micro
            moved[MovedKey(start, Share(one.server.name), place)] -= sign * micro
        # Choice: pools and models stand in the order of the first payer that has them, and each
        # tenant takes in proportion of what those before it left.
        for (share, team), micro in sorted(taken.items()):
            for at, part in zip(list(left), split(abs(micro), list(left.values())), strict=True):
                left[at] -= part
                where = Held(("", team, "", "", "", ""), *at, currency)
                moved[MovedKey(start, share, where)] += sign * part


__all__ = ["Moved", "MovedKey", "Share", "bill_of"]
