"""Builders of Grafana's classic dashboard JSON, the form that 9.3 to 13 load (schemaVersion 37;
newer ones migrate it).

A board is rows of panels; the builder numbers and places them. Every panel names its unit and says
what it shows. States have the colors of Okabe and Ito, which people with any common color blindness
can tell apart (Color Universal Design, 2008); models, teams and projects have those of Paul Tol's
muted scheme, made for the same people. Where a color has a meaning, a word stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SCHEMA_VERSION = 37
"""Grafana 9.3's own; later versions read it and migrate on load."""
Json = dict[str, Any]

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW, GRAY = "#56B4E9", "#CC79A7", "#F0E442", "#999999"
MAGENTA, SLATE = "#EE3377", "#666666"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, YELLOW, GRAY, MAGENTA, SLATE)
NAME_PALETTE = (
    "#44AA99",
    "#CC6677",
    "#88CCEE",
    "#999933",
    "#AA4499",
    "#DDCC77",
    "#117733",
    "#882255",
)
"""Colors of models, teams and projects, none of which is a state's; see `named_series`."""
LONG_PALETTE = (
    "#44AA99",
    "#CC6677",
    "#999933",
    "#AA4499",
    "#117733",
    "#8888F2",
    "#195DE6",
    "#C79FDB",
    "#8B4B56",
    "#DC9774",
    "#5999A6",
    "#3E6B74",
    "#6B8B4B",
    "#A17112",
    "#6BC115",
    "#C464C4",
)
"""Of names of which there are more than teams: projects and models. Each can be seen on white and on
black, and told from the others and from states, with color blindness, too (CIEDE2000); the first
ones best.
"""
OTHERS = "#BBBBBB"
MEANING = {
    "busy": BLUE,
    "held": BLUE,
    "idle": ORANGE,
    "activity unknown": YELLOW,
    "unallocated": GRAY,
    "unavailable": VERMILION,
    "unobserved": PURPLE,
    "stranded": SKY,
    "node costs": GREEN,
    "unused commitments": SLATE,
    "adjustments": "text",
    "capacity": "text",
    "ok": GREEN,
    "degraded": "text",
    "failed": MAGENTA,
    "unknown": GRAY,
    "all others": OTHERS,
}
"""Series and cells with these names have the same color on every board; `text` is black on light
and white on dark.
"""
MARK = " "
"""Ends the name of a series once more than the number of its color in its palette; nobody sees it."""
POSTGRES = {"type": "postgres", "uid": "${datasource}"}
PROMETHEUS = {"type": "prometheus", "uid": "${prometheus}"}
Steps = tuple[tuple[float | None, str], ...]
PLAIN: Steps = ((None, BLUE),)
MONEY, HOURS, COUNT, RATIO = "locale", "locale", "locale", "percentunit"
"""`locale` writes numbers in full, with the reader's separators; the currency stands in the title.
"""
MODEL_WIDTH = 186
"""Pixels of a column that has the longest name of a model in one piece."""
DURATION = "dtdhms"
"""Seconds as days and hours:minutes:seconds; `s` would say 4.66 weeks."""
GAP_MS = 900_000
CALCS = ("mean", "lastNotNull", "max")
"""What is read off a line by numbers."""
EXACT = "none"
"""Writes as many decimals as asked for, zeros included, which `locale` leaves out; it has no
separators.

No unit of Grafana 9.3 has both, and a bill keeps its zeros.
"""


@dataclass(frozen=True)
class Panel:
    """A panel without its place: what it shows, in which unit, from which queries."""

    kind: str
    title: str
    description: str
    unit: str
    targets: tuple[Json, ...]
    width: int
    height: int
    options: Json = field(default_factory=dict)
    custom: Json = field(default_factory=dict)
    decimals: int | None = None
    thresholds: Steps = PLAIN
    overrides: tuple[Json, ...] = ()
    limits: tuple[float | None, float | None] = (None, None)
    interval: str = ""
    color_mode: str = "thresholds"
    links: tuple[Json, ...] = ()
    mappings: tuple[Json, ...] = ()
    no_value: str = "no data"
    transformations: tuple[Json, ...] = ()
    time_from: str = ""
    """A range of its own, such as `4d`, for what never fits into the board's."""
    time_shift: str = ""
    """How far that range lies before now; `/d` makes it whole days.

    The description says what range it is.
    """

    def as_json(self, number: int, x: int, y: int) -> Json:
        """The panel with its id and place."""
        steps = [{"color": color, "value": value} for value, color in self.thresholds]
        defaults: Json = {
            "color": {"mode": self.color_mode},
            "custom": self.custom,
            "links": list(self.links),
            "mappings": self._mappings(),
            "noValue": self.no_value,
            "thresholds": {"mode": "absolute", "steps": steps},
            "unit": self.unit,
        }
        low, high = self.limits
        defaults |= {
            name: value for name, value in (("min", low), ("max", high)) if value is not None
        }
        if self.decimals is not None:
            defaults["decimals"] = self.decimals
        panel: Json = {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            **({"datasource": self.targets[0]["datasource"]} if self.targets else {}),
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "fieldConfig": {"defaults": defaults, "overrides": list(self.overrides)},
            "options": self.options,
            "targets": [
                {**target, "refId": "ABCDEFGH"[at]} for at, target in enumerate(self.targets)
            ],
        }
        if self.interval:
            panel["interval"] = self.interval
        if self.transformations:
            panel["transformations"] = list(self.transformations)
        if self.time_from:
            panel["timeFrom"] = self.time_from
            # Beside the title of a number there is no room for it; the description says it.
            panel["hideTimeOverride"] = self.kind == "stat" or bool(self.time_shift)
        if self.time_shift:
            panel["timeShift"] = self.time_shift
        return panel

    def _mappings(self) -> list[Json]:
        """Those of the panel; of one number also that of a value that is not known, which would
        otherwise have the color of the lowest one.
        """
        if self.kind != "stat":
            return list(self.mappings)
        unknown = {"text": self.no_value, "color": "text", "index": len(self.mappings)}
        return [
            *self.mappings,
            {"type": "special", "options": {"match": "null", "result": unknown}},
        ]


@dataclass(frozen=True)
class Board:
    """A dashboard: rows of (title, panels); panels of a row flow from left to right over 24
    columns.
    """

    uid: str
    name: str
    """What links and runbooks call it."""
    question: str
    """The one question that its first row answers."""
    description: str
    variables: tuple[Json, ...]
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    since: str = "now-30d/d"
    until: str = "now"
    refresh: str = "5m"
    annotations: tuple[Json, ...] = ()
    collapsed: tuple[str, ...] = ()
    """Titles of rows that a reader opens: what not every installation has."""

    def as_json(self) -> Json:
        """Grafana's classic JSON."""
        return {
            "uid": self.uid,
            "title": f"{self.name}: {self.question}",
            "description": self.description,
            "tags": ["gpuledger"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "timezone": "utc",
            "refresh": self.refresh,
            "time": {"from": self.since, "to": self.until},
            "timepicker": {},
            "fiscalYearStartMonth": 0,
            "liveNow": False,
            "style": "dark",
            "weekStart": "monday",
            "annotations": {"list": list(self.annotations)},
            "links": [
                {
                    "type": "dashboards",
                    "tags": ["gpuledger"],
                    "title": "GPU Ledger",
                    "asDropdown": True,
                    "includeVars": True,
                    "keepTime": True,
                    "targetBlank": False,
                    "icon": "external link",
                    "tooltip": "The other boards, with the same time range and choices",
                    "url": "",
                }
            ],
            "templating": {"list": list(self.variables)},
            "panels": self._place_panels(),
        }

    def _place_panels(self) -> list[Json]:
        placed: list[Json] = []
        number = y = 0
        for title, panels in self.rows:
            row: Json = {
                "id": (number := number + 1),
                "type": "row",
                "title": title,
                "collapsed": title in self.collapsed,
                "gridPos": {"h": 1, "w": 24, "x": 0, "y": y},
                "panels": [],
            }
            placed.append(row)
            x, y, tallest = 0, y + 1, 0
            inside = row["panels"] if row["collapsed"] else placed
            below = y
            for panel in panels:
                if x + panel.width > 24:
                    x, y, tallest = 0, y + tallest, 0
                inside.append(panel.as_json(number := number + 1, x, y))
                x, tallest = x + panel.width, max(tallest, panel.height)
            y = below if row["collapsed"] else y + tallest
        return placed


def sql(text: str, *, form: str = "table") -> Json:
    """A query of the ledger.

    `form`: `table`, or `time_series` (columns time, metric, then values).
    """
    return {
        "datasource": POSTGRES,
        "editorMode": "code",
        "format": form,
        "rawQuery": True,
        "rawSql": _dedent(text),
    }


def promql(text: str, legend: str, *, instant: bool = False) -> Json:
    """A query of Prometheus."""
    return {
        "datasource": PROMETHEUS,
        "editorMode": "code",
        "expr": text,
        "legendFormat": legend,
        "instant": instant,
        "range": not instant,
    }


def _dedent(text: str) -> str:
    lines = text.strip("\n").splitlines()
    indent = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return "\n".join(line[indent:].rstrip() for line in lines if line.strip())


def color(name: str, hue: str) -> Json:
    """The series or column of this name in this color."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": hue}}],
    }


def column(name: str, **properties: Any) -> Json:
    """Properties of one column: unit, decimals, width, links, `cell` (display mode), `steps`
    (thresholds).
    """
    known = {"width": "custom.width", "cell": "custom.displayMode"}
    settings = []
    for key, value in properties.items():
        if key == "steps":
            value = {
                "mode": "absolute",
                "steps": [{"color": hue, "value": at} for at, hue in value],
            }
            key = "thresholds"
        settings.append({"id": known.get(key, key), "value": value})
    return {"matcher": {"id": "byName", "options": name}, "properties": settings}


def name_colors(palette: tuple[str, ...] = NAME_PALETTE) -> tuple[Json, ...]:
    """The colors of series whose names end in marks.

    Grafana 9.3 colors other series by their order, in which a name's place changes with every
    filter.
    """
    return tuple(
        {
            "matcher": {"id": "byRegexp", "options": f"/[^{MARK}]{MARK}{{{at}}}$/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": hue}}],
        }
        for at, hue in enumerate(palette, start=1)
    )


def link(title: str, uid: str, query: str, *, keep: tuple[str, ...] = ()) -> Json:
    """A link to another board that keeps the time range, and the reader's choice of the variables
    `keep`.

    Values in `query` need `:percentencode`, or a team named R&D would open another one.
    """
    chosen = "".join(f"&${{{name}:queryparam}}" for name in keep)
    return {
        "title": title,
        "url": f"/d/{uid}?${{__url_time_range}}&{query}{chosen}",
        "targetBlank": False,
    }


def line(name: str, hue: str) -> Json:
    """The series of this name as a line without an area below it or points on it."""
    properties = [("color", {"mode": "fixed", "fixedColor": hue}), ("custom.fillOpacity", 0)]
    properties.append(("custom.showPoints", "never"))
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties],
    }


def band(low: str, high: str, hue: str) -> tuple[Json, ...]:
    """Overrides that draw two series as one filled band without lines of their own."""
    plain = [
        {"id": "color", "value": {"mode": "fixed", "fixedColor": hue}},
        {"id": "custom.lineWidth", "value": 0},
        {"id": "custom.showPoints", "value": "never"},
    ]
    return (
        {
            "matcher": {"id": "byName", "options": low},
            "properties": [*plain, {"id": "custom.fillOpacity", "value": 0}],
        },
        {
            "matcher": {"id": "byName", "options": high},
            "properties": [
                *plain,
                {"id": "custom.fillBelowTo", "value": low},
                {"id": "custom.fillOpacity", "value": 25},
            ],
        },
    )


def stat(
    title: str,
    description: str,
    query: str | Json,
    unit: str,
    *,
    width: int = 4,
    height: int = 4,
    decimals: int | None = None,
    steps: Steps = PLAIN,
    each_row: bool = False,
    orientation: str = "auto",
    **more: Any,
) -> Panel:
    """One number in large type; `each_row`: one a row, named by the row's text.

    `orientation`: `horizontal` gives several a line each, of the same size.
    """
    options = {
        "colorMode": "value",
        "graphMode": "none",
        "justifyMode": "auto",
        "orientation": orientation,
        "reduceOptions": {
            "calcs": [] if each_row else ["lastNotNull"],
            "fields": "",
            "values": each_row,
        },
        # Of a single row Grafana would leave out the name, which says what it is the number of.
        "textMode": "value_and_name" if each_row else "auto",
    }
    target = query if isinstance(query, dict) else sql(query)
    return Panel(
        "stat",
        title,
        description,
        unit,
        (target,),
        width,
        height,
        options,
        {},
        decimals,
        steps,
        **more,
    )


def series(
    title: str,
    description: str,
    query: str | Json | tuple[Json, ...],
    unit: str,
    *,
    width: int = 12,
    height: int = 8,
    bars: bool = False,
    stacked: bool = False,
    calcs: tuple[str, ...] = CALCS,
    order: tuple[str, ...] = (),
    **more: Any,
) -> Panel:
    """Values over time: lines, or bars for amounts of a day or an hour.

    `calcs`: what the legend says of each line; of bars it says nothing. `order`: names of series
    from the lowest of the stack upwards, in which the legend lists them too.
    """
    queries = query if isinstance(query, tuple) else (query,)
    targets = tuple(
        query if isinstance(query, dict) else sql(query, form="time_series") for query in queries
    )
    custom = {
        "drawStyle": "bars" if bars else "line",
        # Areas of ten lines on top of each other would be one brown area.
        "fillOpacity": 80 if bars else (30 if stacked else 0),
        "lineWidth": 1,
        # A day is drawn at its midnight: its bar begins there.
        "barAlignment": 1 if bars else 0,
        "showPoints": "never" if bars or stacked else "auto",
        # Lines read at different instants leave nulls in each other; a pause of 15 minutes is a
        # gap, as for a node.
        "spanNulls": False if bars or stacked else GAP_MS,
        "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
        "axisSoftMin": 0,
    }
    options = {
        "legend": legend(() if bars else calcs, is_sorted=not order),
        # A stack is read from its top: the tooltip lists it as it is drawn.
        "tooltip": {"mode": "multi", "sort": "none" if order else "desc"},
    }
    if order:
        more["transformations"] = (in_order(order),)
    more.setdefault("color_mode", "palette-classic")
    overrides = (*(color(name, hue) for name, hue in MEANING.items()), *more.pop("overrides", ()))
    return Panel(
        "timeseries",
        title,
        description,
        unit,
        targets,
        width,
        height,
        options,
        custom,
        overrides=overrides,
        **more,
    )


def legend(calcs: tuple[str, ...], *, is_sorted: bool = True) -> Json:
    """Names below a chart: with numbers of each a table, the highest mean first or in the order of
    the series.
    """
    if not calcs:
        return {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True}
    by_mean: Json = {"sortBy": "Mean", "sortDesc": True} if is_sorted else {}
    return {
        "calcs": list(calcs),
        "displayMode": "table",
        "placement": "bottom",
        "showLegend": True,
        **by_mean,
    }


def in_order(names: tuple[str, ...]) -> Json:
    """Series in this order; Grafana makes them of long rows by the alphabet."""
    places = {name: at for at, name in enumerate(("Time", *names))}
    return {
        "id": "organize",
        "options": {"excludeByName": {}, "indexByName": places, "renameByName": {}},
    }


def table(
    title: str,
    description: str,
    query: str | Json,
    unit: str,
    *,
    width: int = 12,
    height: int = 9,
    sort: str = "",
    cell: str = "auto",
    **more: Any,
) -> Panel:
    """Rows as the query gives them; `cell` is the display mode of every column without one of its
    own.
    """
    options: Json = {
        "showHeader": True,
        "footer": {"show": False, "reducer": ["sum"], "fields": ""},
    }
    if sort:
        options["sortBy"] = [{"displayName": sort, "desc": True}]
    target = query if isinstance(query, dict) else sql(query)
    # Grafana's own least width, 150 pixels, pushes the last columns out of a half-width table.
    custom = {
        "align": "auto",
        "displayMode": cell,
        "filterable": False,
        "inspect": True,
        "minWidth": 50,
    }
    more.setdefault("no_value", "–")
    return Panel(
        "table", title, description, unit, (target,), width, height, options, custom, **more
    )


def bars(
    title: str,
    description: str,
    query: str,
    unit: str,
    *,
    width: int = 12,
    height: int = 9,
    whole: str = "",
    **more: Any,
) -> Panel:
    """A horizontal bar a row of the query (name, value).

    `whole`: a query of one number, `max`, that a full bar stands for; without it the longest bar is
    full.
    """
    options = {
        "displayMode": "basic",
        "minVizHeight": 10,
        "minVizWidth": 0,
        "orientation": "horizontal",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": True, "limit": 25},
        "showUnfilled": True,
        "valueMode": "text",
    }
    targets = [sql(query)]
    if whole:
        targets.append(sql(whole))
        mapping = [{"fieldName": "max", "handlerKey": "max"}]
        more["transformations"] = (
            {"id": "configFromData", "options": {"configRefId": "B", "mappings": mapping}},
        )
    return Panel(
        "bargauge",
        title,
        description,
        unit,
        tuple(targets),
        width,
        height,
        options,
        limits=more.pop("limits", (0, None)),
        **more,
    )


def heatmap(
    title: str,
    description: str,
    query: str,
    unit: str,
    *,
    width: int = 12,
    height: int = 9,
    interval: str = "",
    parts: bool = False,
) -> Panel:
    """Counts per bucket over time; the query gives time, the bucket's name as metric, and the
    count.

    `parts`: values are parts of a whole, of which 0 is one like others and is drawn; a count of 0
    is not.
    """
    color: Json = {"exponent": 0.5, "scale": "exponential"}
    if parts:
        color = {"scale": "linear", "min": 0, "max": 1}
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "mode": "scheme",
            "scheme": "Cividis",
            "steps": 64,
            "fill": "dark-orange",
            "reverse": False,
            **color,
        },
        "exemplars": {"color": BLUE},
        "filterValues": {"le": -1 if parts else 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"show": True, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
    }
    custom = {"scaleDistribution": {"type": "linear"}}
    return Panel(
        "heatmap",
        title,
        description,
        unit,
        (sql(query, form="time_series"),),
        width,
        height,
        options,
        custom,
        interval=interval,
    )


STATES = (
    "busy",
    "idle",
    "activity unknown",
    "held",
    "unallocated",
    "unavailable",
    "unobserved",
    "stranded",
    "degraded",
    "failed",
)
"""States by their number, from 1: Grafana makes lanes of numbers, and shows the words by their
mappings.
"""


def number_of(state: str) -> str:
    """The number of a state, given by an expression."""
    listed = ", ".join(f"'{name}'" for name in STATES)
    return f"array_position(ARRAY[{listed}], {state})"


def numbered_states() -> Json:
    """The word and color of every number of a state."""
    return {
        "type": "value",
        "options": {
            str(at): {"color": MEANING[name], "index": at, "text": name}
            for at, name in enumerate(STATES, start=1)
        },
    }


def timeline(
    title: str, description: str, query: str, *, width: int = 24, height: int = 8, **more: Any
) -> Panel:
    """States over time, a lane a name; the query gives time, the lane as metric, and the state's
    number.
    """
    options = {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "auto",
        "tooltip": {"mode": "single", "sort": "none"},
    }
    more.setdefault("mappings", (numbered_states(),))
    more.setdefault("color_mode", "palette-classic")
    return Panel(
        "state-timeline",
        title,
        description,
        "none",
        (sql(query, form="time_series"),),
        width,
        height,
        options,
        {"fillOpacity": 80, "lineWidth": 0},
        **more,
    )


def annotation(name: str, query: str, hue: str) -> Json:
    """Marks on every chart of a board: the query gives time (ms), text and tags."""
    return {
        "name": name,
        "datasource": POSTGRES,
        "enable": True,
        "hide": False,
        "iconColor": hue,
        "target": {**sql(query), "refId": "Annotation"},
    }


def shares(
    title: str,
    description: str,
    query: str,
    unit: str,
    *,
    width: int = 12,
    height: int = 9,
    grouped: bool = False,
    **more: Any,
) -> Panel:
    """A stacked bar a row of the query: its first column names the bar, each further one is a part
    of the whole.

    `grouped`: the further columns are amounts and stand beside each other.
    """
    options = {
        "orientation": "vertical" if grouped else "horizontal",
        "stacking": "none" if grouped else "percent",
        "showValue": "never",
        "groupWidth": 0.7,
        "barWidth": 0.9,
        "barRadius": 0,
        "fullHighlight": False,
        "xTickLabelRotation": 0,
        "xTickLabelSpacing": 0,
        "legend": {"calcs": [], "displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "none"},
    }
    custom = {"fillOpacity": 80, "lineWidth": 0, "axisPlacement": "auto"}
    more.setdefault("color_mode", "palette-classic")
    if not grouped:
        # By a rounding error parts add up to more than the whole, and the axis would reach 110 %.
        more.setdefault("limits", (None, 1))
    overrides = (*(color(name, hue) for name, hue in MEANING.items()), *more.pop("overrides", ()))
    target = sql(query)
    return Panel(
        "barchart",
        title,
        description,
        unit,
        (target,),
        width,
        height,
        options,
        custom,
        overrides=overrides,
        **more,
    )


def text(title: str, content: str, *, width: int = 12, height: int = 10) -> Panel:
    """A page in Markdown."""
    return Panel(
        "text", title, "", "none", (), width, height, {"mode": "markdown", "content": content}
    )


def words() -> Json:
    """The color of every word that has a meaning."""
    return {
        "type": "value",
        "options": {
            name: {"color": hue, "index": at, "text": name}
            for at, (name, hue) in enumerate(MEANING.items())
        },
    }


def codes(texts: dict[str, str]) -> Json:
    """Words in place of codes."""
    return {
        "type": "value",
        "options": {
            code: {"index": at, "text": text} for at, (code, text) in enumerate(texts.items())
        },
    }


def source(name: str, label: str, plugin: str) -> Json:
    """The variable that holds the data source, so that no board names one."""
    return {
        "name": name,
        "label": label,
        "type": "datasource",
        "query": plugin,
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
        "skipUrlSync": False,
        "current": {},
    }


def chosen(
    name: str,
    label: str,
    query: str,
    *,
    many: bool = True,
    description: str = "",
    on_range: bool = True,
    hidden: bool = False,
) -> Json:
    """A variable with the values that a query gives.

    `many`: several or all; all is the text '*' in SQL.

    `on_range`: asks again whenever the range changes, and then takes the first value if the chosen
    one is not offered. Without it the query runs when the board is opened, and a value in the
    address stays, offered or not. `hidden`: follows from other variables, so neither the reader nor
    an address chooses it.
    """
    variable: Json = {
        "name": name,
        "label": label,
        "description": description,
        "type": "query",
        "datasource": POSTGRES,
        "definition": _dedent(query),
        "query": _dedent(query),
        "hide": 2 if hidden else 0,
        "includeAll": many,
        "multi": many,
        "options": [],
        "refresh": 2 if on_range else 1,
        "regex": "",
        "skipUrlSync": hidden,
        "sort": 0,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]} if many else {},
    }
    if many:
        variable["allValue"] = "'*'"
    return variable
