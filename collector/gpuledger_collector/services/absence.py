"""Why a question about an owner and a period has no rows: a name that nobody has, a time before the
ledger, a period that has not begun, or an owner who used nothing.

Each has its own sentence and leads on; none of them says zero of what is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_collector.storage import overview
from gpuledger_collector.storage.locks import Connection
from gpuledger_collector.storage.row_level_security import as_viewer

MOST_NAMES = 3
"""Names that are offered instead of one that nobody has."""


@dataclass(frozen=True, slots=True)
class Absence:
    """Why there is nothing: in a few words, and in a sentence.

    `names` are the nearest ones at `level`, where somebody asked for a name that nobody has.
    """

    short: str
    sentence: str
    level: str = ""
    names: tuple[str, ...] = ()


def explain_absence(
    connection: Connection,
    period: Period,
    calendar: Calendar,
    now_ms: int,
    owner: Mapping[str, str] | None,
    viewer: Mapping[str, str] | None = None,
    *,
    is_rated: bool = False,
) -> Absence | None:
    """Explain an empty answer for the owner (level -> name; '' is nobody's) in the period; None:
    nothing of the question explains it.

    `is_rated`: whether anything of the period is; else nobody knows that nothing was used.
    """
    named = ", ".join(f"{level} {name or UNATTRIBUTED}" for level, name in (owner or {}).items())
    for level, name in (owner or {}).items():
        if not name:
            continue
        # A viewer is not told whether a name is somebody else's.
        with as_viewer(connection, viewer):
            within = viewer or {}
            if not overview.is_owner(connection, {**within, level: name}):
                return _unknown(level, name, overview.owner_names(connection, level, name, within))
    first_ms = overview.first_rated_ms(connection)
    if first_ms is not None and period.end_ms <= first_ms:
        began = calendar.date_of(first_ms)
        return Absence(
            f"before {began}", f"The ledger begins on {began}: nothing is known of the time before."
        )
    if period.start_ms > now_ms:
        first = calendar.date_of(period.start_ms)
        return Absence(f"from {first} on", f"This period begins on {first}: it is still to come.")
    if not named or not is_rated:
        return None
    return Absence(
        "nothing was used",
        f"Nothing was charged to {named} in this period: it is rated, and none of its time was used"
        " by that name.",
    )


def _unknown(level: str, name: str, known: list[str]) -> Absence:
    by_folded = {text.casefold(): text for text in known}
    near = get_close_matches(name.casefold(), by_folded, MOST_NAMES, 0.5)
    return Absence(
        "nobody has this name",
        f"Nothing was ever charged to {level} {name}: is the name right?",
        level,
        tuple(by_folded[text] for text in near),
    )
