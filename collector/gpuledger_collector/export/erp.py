"""Postings as the CSV that an ERP imports, laid out by a template (config.erp_template)."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from typing import TextIO

from gpuledger_collector.accounting.money import Money
from gpuledger_collector.accounting.postings import PostedMonth, Posting
from gpuledger_collector.accounting.quantity import hours_decimal
from gpuledger_collector.config.erp_template import Template
from gpuledger_collector.export.cells import neutral


def write(month: PostedMonth, template: Template, file: TextIO) -> None:
    """Write a row for each posting; LF, texts neutralized against spreadsheet formulas."""
    writer = csv.writer(file, delimiter=template.delimiter, lineterminator="\n")
    if template.header:
        writer.writerow([neutral(column.name) for column in template.columns])
    hours = hours_decimal([posting.gpu_ns for posting in month.postings])
    for number, (posting, gpu_hours) in enumerate(zip(month.postings, hours, strict=True), 1):
        fields = _fields(posting, month, template)
        numbers = {
            "number": str(number),
            "amount": (
                Money.from_minor(posting.minor, posting.currency)
                .plain()
                .replace(".", template.decimal)
            ),
            "gpu_hours": f"{gpu_hours:.6f}".replace(".", template.decimal),
        }
        cells = (
            numbers.get(column.field)
            or neutral(fields[column.field] if column.field else column.constant)
            for column in template.columns
        )
        writer.writerow(list(cells))


def _fields(posting: Posting, month: PostedMonth, template: Template) -> Mapping[str, str]:
    closed = month.closed_on
    return {
        "period": month.name,
        "first_day": month.first_day.strftime(template.date),
        "last_day": month.last_day.strftime(template.date),
        "closed_on": "" if closed is None else closed.strftime(template.date),
        "invoice": "" if closed is None else f"{month.name}/{posting.currency}/{posting.owner}",
        "owner": posting.owner,
        "currency": posting.currency,
        "description": f"GPU {month.name} {posting.owner}",
        "number": "",
        "amount": "",
        "gpu_hours": "",
        **posting.names,
    }


def without_codes(postings: Iterable[Posting]) -> list[str]:
    """Owners of which something is posted without a cost center, where the template shows one."""
    return sorted({posting.owner for posting in postings if posting.names.get("cost_center") == ""})
