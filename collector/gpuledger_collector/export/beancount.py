"""A journal in beancount's plain text: a second, independent program can prove that the bill adds
up.

One transaction a day and currency: what each owner pays against the capacity that was there, in
micro-units (six places); then one transaction for each usage interval of a shared cost, on its last
day, and balance assertions at the end. A moved cost goes from its account to those who pay it, an
amount comes from INCOME_SHARED. Dates are the billing zone's. `bean-check FILE` fails when a
posting was changed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from gpuledger_collector.accounting.chargeback import SharedPart, shown_keys
from gpuledger_collector.accounting.cost_centers import Codes
from gpuledger_collector.accounting.ledger import ChargedLine
from gpuledger_collector.accounting.money import decimal_text
from gpuledger_collector.accounting.period import Calendar, Period
from gpuledger_common.escapes import escape_text

INCOME = "Income:Capacity"
INCOME_SHARED = "Income:Shared"
_WORD = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class Journal:
    """What a journal is made of: days with their lines by a level of the owner tree, shares of
    common costs, and where finance books an owner.
    """

    level: str
    calendar: Calendar
    days: Sequence[tuple[Period, Sequence[ChargedLine]]]
    shares: Sequence[SharedPart]
    codes: Mapping[str, Codes]


def write(journal: Journal, file: TextIO) -> None:
    """The journal of some days; usage without a rate has no money and is left out."""
    level, calendar = journal.level, journal.calendar
    sums = [(day, _sums(lines, level)) for day, lines in journal.days]
    paid_parts = [part for part in journal.shares if part.micro]
    names = sorted(
        {owner for _, amounts in sums for owner, _ in amounts}
        | {part.keys[0] for part in paid_parts}
    )
    currencies = sorted(
        {of for _, amounts in sums for _, of in amounts} | {part.currency for part in paid_parts}
    )
    if not sums or not currencies:
        file.write('option "title" "GPU Ledger"\n')
        return
    accounts = account_names(names)
    first, end = calendar.date_of(sums[0][0].start_ms), calendar.date_of(sums[-1][0].end_ms)
    file.write(f'option "title" "GPU Ledger by {level}"\n')
    file.writelines(f'option "operating_currency" "{currency}"\n' for currency in currencies)
    file.write(f"\n{first} open {INCOME}\n")
    if paid_parts:
        file.write(f"{first} open {INCOME_SHARED}\n")
    for name in names:
        file.write(f'{first} open {accounts[name]}\n  owner: "{_text(name)}"\n')
        file.writelines(_metadata(journal.codes.get(name, Codes())))
    totals: dict[tuple[str, str], int] = defaultdict(int)
    for day, amounts in sums:
        for currency in currencies:
            postings = [
                (owner, micro)
                for (owner, of), micro in sorted(amounts.items())
                if of == currency and micro
            ]
            if postings:
                narration = f'{calendar.date_of(day.start_ms)} * "GPU Ledger" "GPU time of the day"'
                totals[INCOME, currency] += _transaction(
                    narration, INCOME, currency, postings, accounts, file
                )
    for (until_ms, cost, currency), postings in _usage_intervals(paid_parts).items():
        narration = f'{calendar.date_of(until_ms - 1)} * "GPU Ledger" "Shared cost {_text(cost)}"'
        totals[INCOME_SHARED, currency] += _transaction(
            narration, INCOME_SHARED, currency, postings, accounts, file
        )
    # Assertions at the end of the last day: bean-check adds up all postings itself and compares.
    for (account, currency), micro in sorted(totals.items()):
        file.write(f"\n{end} balance {account} {decimal_text(-micro)} {currency}\n")


def _metadata(codes: Codes) -> Iterable[str]:
    """The lines of an account that say where finance books it."""
    named = (("cost-center", codes.cost_center), ("gl-code", codes.gl_code))
    return [f'  {key}: "{_text(code)}"\n' for key, code in named if code]


def _usage_intervals(
    shares: Sequence[SharedPart],
) -> dict[tuple[int, str, str], list[tuple[str, int]]]:
    """What each owner pays of every period of a shared cost, by its end, name and currency."""
    postings: dict[tuple[int, str, str], list[tuple[str, int]]] = defaultdict(list)
    for part in shares:
        postings[part.period.end_ms, part.cost.name, part.currency].append(
            (part.keys[0], part.micro)
        )
    return {key: sorted(postings[key]) for key in sorted(postings)}


def _sums(lines: Sequence[ChargedLine], level: str) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for line in lines:
        if line.currency is not None:
            sums[shown_keys(line, (level,))[0], line.currency] += line.cost_micro or 0
    return sums


def _transaction(
    narration: str,
    income: str,
    currency: str,
    postings: Sequence[tuple[str, int]],
    accounts: Mapping[str, str],
    file: TextIO,
) -> int:
    whole = sum(micro for _, micro in postings)
    width = max(len(accounts[owner]) for owner, _ in postings)
    file.write(f"\n{narration}\n")
    file.writelines(
        f"  {accounts[owner]:{width}}  {decimal_text(micro)} {currency}\n"
        for owner, micro in postings
    )
    file.write(f"  {income:{width}}  {decimal_text(-whole)} {currency}\n")
    return whole


def account_names(owners: Sequence[str]) -> dict[str, str]:
    """An account for each owner; beancount allows letters, digits and dashes, so alike names get a
    number.
    """
    accounts: dict[str, str] = {}
    taken: set[str] = set()
    for owner in owners:
        word = _WORD.sub("-", owner).strip("-") or "Nameless"
        word = word[0].upper() + word[1:]
        name, number = word, 1
        while name in taken:
            number += 1
            name = f"{word}-{number}"
        taken.add(name)
        accounts[owner] = f"Expenses:Gpu:{name}"
    return accounts


def _text(text: str) -> str:
    return escape_text(text).replace("\\", "\\\\").replace('"', '\\"')
