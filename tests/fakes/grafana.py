"""Grafana's way from a panel's SQL to what Postgres gets, without Grafana.

First the front end replaces variables (public/app/features/templating/templateSrv.ts,
formatRegistry.ts), then the back end replaces `$__interval` and its kin (pkg/tsdb/.../sqleng,
Interpolate), then macros (pkg/tsdb/grafana-postgresql-datasource/macros.go): one regular
expression, whose arguments hold no `)`.
"""

import datetime as dt
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VARIABLE = re.compile(r"\$(\w+)|\[\[(\w+?)(?::(\w+))?\]\]|\$\{(\w+)(?:\.([^:^}]+))?(?::([^}]+))?\}")
MACRO = re.compile(r"\$([_a-zA-Z0-9]+)\(([^)]*)\)")
_UNITS = {
    "ms": 0.001,
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86_400,
    "w": 604_800,
    "M": 2_629_746,
    "y": 31_556_952,
}
_STEPS = (
    1,
    2,
    5,
    10,
    15,
    20,
    30,
    60,
    120,
    300,
    600,
    900,
    1200,
    1800,
    3600,
    7200,
    10_800,
    21_600,
    43_200,
    86_400,
)


class MacroError(Exception):
    """What Grafana would show in the panel's corner."""


@dataclass(frozen=True)
class Range:
    """The board's time range."""

    since: dt.datetime
    until: dt.datetime

    def interval_s(self, minimum: str = "", points: int = 1000) -> float:
        """`$__interval`: the range over the points a panel can show, rounded, not below the panel's
        own minimum.
        """
        wanted = (self.until - self.since).total_seconds() / points
        step = next(
            (step for step in _STEPS if step >= wanted), 86_400 * math.ceil(wanted / 86_400)
        )
        return max(step, seconds(minimum) if minimum else 0)


def instant(text: str, now: dt.datetime, *, last: bool = False) -> dt.datetime:
    """now-30d/d and its kin; `last` rounds to the end of the day."""
    found = re.fullmatch(r"now(?:([+-]\d+)([hdm]))?(/d)?", text)
    assert found, text
    unit = {"h": "hours", "d": "days", "m": "minutes"}
    at = now + dt.timedelta(**{unit[found[2]]: int(found[1])}) if found[1] else now
    if found[3]:
        at = at.replace(hour=0, minute=0, second=0, microsecond=0) + dt.timedelta(
            days=1 if last else 0
        )
    return at


def own_range(text: str, now: dt.datetime, shift: str = "") -> Range | None:
    """The range of a panel that has its own: the last `4d`, the next `+92d`; then moved back, in
    whole days by `/d`.

    None: text that Grafana calls an invalid override, and ignores.
    """
    if not re.match(r"\+?\d+\w", text) or (shift and not re.match(r"\d+\w", shift)):
        return None
    own = (
        Range(now, instant(f"now{text}", now))
        if text.startswith("+")
        else Range(instant(f"now-{text}", now), now)
    )
    if not shift:
        return own
    return Range(instant(f"now-{shift}", own.since), instant(f"now-{shift}", own.until, last=True))


def seconds(interval: str) -> float:
    """gtime.ParseInterval: a number and a unit."""
    found = re.fullmatch(r"(\d+)(ms|[smhdwMy])", interval)
    if not found:
        raise MacroError(f"error parsing interval {interval}")
    return int(found[1]) * _UNITS[found[2]]


def formatted(value: str | list[str], form: str, *, quoted: bool) -> str:
    """One variable's value in a format; no format: as the SQL data sources do it, quoted when
    several may be chosen.
    """
    values = value if isinstance(value, list) else [value]
    if form in ("sqlstring", "singlequote") or (not form and quoted):
        escape = {"sqlstring": "''", "": "''", "singlequote": "\\'"}[form]
        return ",".join("'" + one.replace("'", escape) + "'" for one in values)
    if form == "regex":
        escaped = [re.sub(r"([\\^$*+?.()|\[\]{}/])", r"\\\1", one) for one in values]
        return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"
    if form == "pipe":
        return "|".join(values)
    if form == "json":
        return json.dumps(value)
    if form in ("", "csv", "raw", "text"):
        text = ",".join(values)
        return text.replace("'", "''") if not form else text
    raise MacroError(f"Variable format {form} not found")


def interpolated(
    text: str, variables: Mapping[str, dict], values: Mapping[str, str | list[str]]
) -> str:
    """The text with the variables that are known; `$__all` stands for the variable's allValue, or
    all its options.
    """

    def one(found: re.Match[str]) -> str:
        name = found[1] or found[2] or found[4]
        form = found[6] or found[3] or ""
        if name not in values:
            return found[0]
        value, variable = values[name], variables.get(name, {})
        if value in ("$__all", ["$__all"]):
            if variable.get("allValue"):
                return str(variable["allValue"])
            value = variable["all"]
        return formatted(
            value, form, quoted=bool(variable.get("multi") or variable.get("includeAll"))
        )

    return VARIABLE.sub(one, text)


def expanded(text: str, span: Range, interval_s: float) -> str:
    """The text with intervals and macros. Raises MacroError as Grafana would."""
    text = text.replace("$__interval_ms", str(int(interval_s * 1000)))
    text = text.replace("$__interval", f"{interval_s:g}s")
    text = text.replace("$__unixEpochFrom()", str(int(span.since.timestamp())))
    text = text.replace("$__unixEpochTo()", str(int(span.until.timestamp())))

    def one(found: re.Match[str]) -> str:
        name = found[1]
        if name == "__timeGroup":
            end = text.index(found[0]) + len(found[0])
            if text[end : end + 1] == ",":
                name = "__timeGroupAlias"
        return macro(name, [argument.strip() for argument in found[2].split(",")], span)

    return MACRO.sub(one, text)


def macro(name: str, arguments: list[str], span: Range) -> str:
    """evaluateMacro of macros.go, without TimescaleDB."""
    first = arguments[0]
    since, until = (
        at.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ") for at in (span.since, span.until)
    )
    since_s, until_s = int(span.since.timestamp()), int(span.until.timestamp())
    if name in ("__timeGroup", "__timeGroupAlias", "__unixEpochGroup", "__unixEpochGroupAlias"):
        if len(arguments) < 2:
            raise MacroError(f"macro {name} needs time column and interval and optional fill value")
        size = f"{seconds(arguments[1].strip(chr(39))):g}"
        inner = f"extract(epoch from {first})" if name.startswith("__timeGroup") else f"({first})"
        return f"floor({inner}/{size})*{size}" + (' AS "time"' if name.endswith("Alias") else "")
    if not first and name not in (
        "__timeFrom",
        "__timeTo",
        "__unixEpochNanoFrom",
        "__unixEpochNanoTo",
    ):
        raise MacroError(f"missing time column argument for macro {name}")
    made = {
        "__time": f'{first} AS "time"',
        "__timeEpoch": f'extract(epoch from {first}) as "time"',
        "__timeFilter": f"{first} BETWEEN '{since}' AND '{until}'",
        "__timeFrom": f"'{since}'",
        "__timeTo": f"'{until}'",
        "__unixEpochFilter": f"{first} >= {since_s} AND {first} <= {until_s}",
        "__unixEpochNanoFilter": f"{first} >= {since_s * 10**9} AND {first} <= {until_s * 10**9}",
        "__unixEpochNanoFrom": str(since_s * 10**9),
        "__unixEpochNanoTo": str(until_s * 10**9),
    }
    if name not in made:
        raise MacroError(f"unknown macro {name}")
    return made[name]


def color_of(panel: dict[str, Any], series: str) -> str | None:
    """The fixed color that a panel gives a series of this name: of its matching overrides the last
    one counts.
    """
    found = None
    for override in panel["fieldConfig"]["overrides"]:
        kind, wanted = override["matcher"]["id"], override["matcher"]["options"]
        if (kind == "byName" and wanted == series) or (
            kind == "byRegexp" and re.search(wanted.strip("/"), series)
        ):
            for setting in override["properties"]:
                if setting["id"] == "color":
                    found = setting["value"]["fixedColor"]
    return found
