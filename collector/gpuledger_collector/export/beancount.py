"""A journal in beancount's plain text: a second, independent program can prove that the bill adds up.

One transaction a day and currency: what each owner bears against the capacity that was there, in micro-units (six
places), and a balance assertion at the end. `bean-check FILE` fails when a posting was changed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO

from gpuledger_collector.accounting.chargeback import shown_keys
from gpuledger_collector.accounting.period import Period, format_date
from gpuledger_collector.accounting.ports import ChargedLine

INCOME = "Income:Capacity"
_WORD = re.compile(r"[^A-Za-z0-9]+")


def write(days: Iterable[tuple[Period, Sequence[ChargedLine]]], level: str, file: TextIO) -> None:
    """The journal of some days, each with its lines by `level`; usage without a rate has no money and is left out."""
    sums = [(day, _sums(lines, level)) for day, lines in days]
    names = sorted({owner for _, amounts in sums for owner, _ in amounts})
    currencies = sorted({currency for _, amounts in sums for _, currency in amounts})
    if not sums or not currencies:
        file.write('option "title" "GPU Ledger"\n')
        return
    accounts = account_names(names)
    first, last = sums[0][0], sums[-1][0]
    file.write(f'option "title" "GPU Ledger by {level}"\n')
    file.writelines(f'option "operating_currency" "{currency}"\n' for currency in currencies)
    file.write(f"\n{format_date(first.start_ms)} open {INCOME}\n")
    for name in names:
        file.write(f'{format_date(first.start_ms)} open {accounts[name]}\n  owner: "{_text(name)}"\n')
    totals: dict[str, int] = defaultdict(int)
    for day, amounts in sums:
        for currency in currencies:
            mine = [(owner, micro) for (owner, of), micro in sorted(amounts.items()) if of == currency and micro]
            if mine:
                totals[currency] += _transaction(day, currency, mine, accounts, file)
    for currency, micro in sorted(totals.items()):
        file.write(f"\n{format_date(last.end_ms)} balance {INCOME} {_amount(-micro)} {currency}\n")


def _sums(lines: Sequence[ChargedLine], level: str) -> dict[tuple[str, str], int]:
    sums: dict[tuple[str, str], int] = defaultdict(int)
    for line in lines:
        if line.currency is not None:
            sums[shown_keys(line, (level,))[0], line.currency] += line.cost_micro or 0
    return sums


def _transaction(
    day: Period, currency: str, mine: Sequence[tuple[str, int]], accounts: Mapping[str, str], file: TextIO
) -> int:
    width = max(len(accounts[owner]) for owner, _ in mine)
    file.write(f'\n{format_date(day.start_ms)} * "GPU Ledger" "GPU time of the day"\n')
    file.writelines(f"  {accounts[owner]:{width}}  {_amount(micro)} {currency}\n" for owner, micro in mine)
    whole = sum(micro for _, micro in mine)
    file.write(f"  {INCOME:{width}}  {_amount(-whole)} {currency}\n")
    return whole


def account_names(owners: Sequence[str]) -> dict[str, str]:
    """An account for each owner; beancount allows letters, digits and dashes, so alike names get a number."""
    found: dict[str, str] = {}
    taken: set[str] = set()
    for owner in owners:
        word = _WORD.sub("-", owner).strip("-") or "Nameless"
        word = word[0].upper() + word[1:]
        name, number = word, 1
        while name in taken:
            number += 1
            name = f"{word}-{number}"
        taken.add(name)
        found[owner] = f"Expenses:Gpu:{name}"
    return found


def _amount(micro: int) -> str:
    sign, whole = ("-", -micro) if micro < 0 else ("", micro)
    return f"{sign}{whole // 1_000_000}.{whole % 1_000_000:06d}"


def _text(text: str) -> str:
    return "".join(char for char in text if char.isprintable()).replace("\\", "\\\\").replace('"', '\\"')
