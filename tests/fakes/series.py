"""Evidence by chance, drawn as series: what tests of series start from."""

from fakes.fleet import DAY, HOUR, NOW_MS, Held
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.services.upkeep import roll_up_series
from gpuledger_collector.storage.database import Database

MINUTE = 60_000


def at_random(dice, days=2, accelerators=4):
    """Usage intervals in all states, with gaps, of odd lengths, some over the hour and over
    midnight.
    """
    found = []
    for accelerator in range(accelerators):
        at = dice.randrange(HOUR)
        while at < days * DAY:
            end = at + dice.randrange(1, 90 * MINUTE)
            state = dice.choice(["held", "held", "held", "unallocated", "unavailable", None])
            long = end - at
            busy = dice.randrange(long + 1)
            if state == "held":
                idle, energy = dice.randrange(long - busy + 1), dice.choice([None, long * 300])
                found.append(
                    Held(
                        accelerator, dice.randrange(6), at, end, busy=busy, idle=idle, energy=energy
                    )
                )
            elif state:
                found.append(Held(accelerator, None, at, end, state))
            at = end
    return found


def filled(fleet, run, dice):
    """Four accelerators, whole and parts, with two days of evidence and a price."""
    run("prices", "set", "--rate", "2", "--currency", "USD", "--from", "2025-01-01")
    for number in range(4):
        fleet.accelerator(number, gpu_micro=dice.choice([1_000_000, 285_714]))
        fleet.capacity(number, 0, 40 * DAY, pool=dice.choice(["train", "serve"]))
    fleet.evidence(at_random(dice))


def rolled(dsn, ledger, now_ms=NOW_MS, keep_days=0):
    """Everything folded, rated and drawn; how many days were drawn."""
    refresh(ledger, ALWAYS, now_ms)
    return roll_up_series(Database(dsn), keep_days, now_ms)
