"""Options that several commands share, each declared once."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

from typer import Option


class Format(enum.StrEnum):
    """Forms of a list."""

    table = "table"
    csv = "csv"
    json = "json"


class PageFormat(enum.StrEnum):
    """Forms of a page that is no list."""

    table = "table"
    json = "json"


Dsn = Annotated[
    str | None,
    Option("--dsn", help="Postgres 15 to 18 to use instead of the embedded one.", metavar="DSN"),
]
Config = Annotated[
    Path | None,
    Option(
        "--config", help="TOML file with settings; else GPULEDGER_CONFIG names it.", metavar="FILE"
    ),
]
Form = Annotated[Format, Option("--format", help="Form of the output.")]
PageForm = Annotated[PageFormat, Option("--format", help="Form of the output.")]
Output = Annotated[Path | None, Option("-o", "--output", metavar="FILE", help="Write to a file.")]
PeriodName = Annotated[
    str | None,
    Option(
        "--period",
        metavar="PERIOD",
        help=(
            "Month 2026-10, quarter 2026-Q3, year 2026, or fiscal FY2027, FY2027-Q1; else this"
            " month."
        ),
    ),
]
Month = Annotated[
    str | None, Option("--period", metavar="YYYY-MM", help="A month; else this month.")
]
StatementPeriod = Annotated[
    str | None,
    Option(
        "--period",
        metavar="PERIOD",
        help="Month 2026-10, or with --all a quarter, year or fiscal year; else this month.",
    ),
]
BillingZone = Annotated[
    str | None,
    Option("--zone", metavar="ZONE", help="Refuse, unless days and months are those of this zone."),
]
FirstDay = Annotated[str | None, Option("--from", metavar="DATE", help="Or: first day, included.")]
LastDay = Annotated[
    str | None, Option("--to", metavar="DATE", help="Last day, not included; without it up to now.")
]
LastDays = Annotated[
    int | None, Option("--days", min=1, max=36_500, help="Or: this many days up to now, and today.")
]
Top = Annotated[int, Option("--top", min=0, help="Only the first N; 0: all.")]
DryRun = Annotated[bool, Option("--dry-run", help="Say what would be done and change nothing.")]
ExitCode = Annotated[bool, Option("--exit-code", help="End with 1 when something is found.")]
