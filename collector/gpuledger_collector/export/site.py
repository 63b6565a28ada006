"""The frame of the collector's pages: where one page leads, with the same period and owner, and as
CSV.

Every choice is part of the address, so that an address can be passed on; nothing is kept in the
browser.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

from gpuledger_collector.accounting.chargeback import UNATTRIBUTED
from gpuledger_collector.accounting.owner_tree import LEVELS
from gpuledger_collector.accounting.period import UTC_DAYS, Calendar
from gpuledger_collector.accounting.usage import UNOBSERVED
from gpuledger_collector.accounting.waste import IMPORTED, UNREAD

DOTS = {".", ".."}
"""Names that no path can hold, for a browser takes them for steps through a folder."""
JOBS, IDLE, ANOMALIES, DEMAND, TRUST = "/jobs", "/idle", "/anomalies", "/demand", "/trust"
MODELS, QUEUES = "/models", "/queues"
FLEET, SPEND, DOCS = "/fleet", "/spend", "/docs"
LIVE = "/live"
"""Where pages that stay open hear what changes."""
RELOAD_SECONDS = 15


BOARDS = {
    "/": "gpuledger-finops",
    FLEET: "gpuledger-fleet",
    "/statements": "gpuledger-chargeback",
    JOBS: "gpuledger-workload",
    IDLE: "gpuledger-idle",
    DEMAND: "gpuledger-demand",
    MODELS: "gpuledger-models",
    QUEUES: "gpuledger-team",
    TRUST: "gpuledger-pipeline",
}
"""The board beside each page; of the others, that of the overview."""


def address(path: str, parameters: Mapping[str, str]) -> str:
    """A path with its parameters; empty ones are left out."""
    query = urlencode({name: value for name, value in parameters.items() if value}, quote_via=quote)
    return f"{path}?{query}" if query else path


def statement_path(level: str, owner: str, month: str) -> str:
    """Where the collector serves a statement."""
    if owner in DOTS:
        return f"/statements/{quote(level, safe='')}/{quote(month, safe='')}?owner={owner}"
    return f"/statements/{quote(level, safe='')}/{quote(owner, safe='')}/{quote(month, safe='')}"


def month_path(level: str, month: str) -> str:
    """Where the collector serves the statements of a month."""
    return f"/statements/{quote(level, safe='')}/{quote(month, safe='')}"


def pool_path(pool: str) -> str:
    """Where the collector serves a pool's page."""
    return address("/pools/", {"name": pool}) if pool in DOTS else f"/pools/{quote(pool, safe='')}"


def gpu_path(uuid: str) -> str:
    """Where the collector serves the receipt of a GPU's time."""
    if uuid in DOTS:
        return address(f"{FLEET}/gpu/", {"uuid": uuid})
    return f"{FLEET}/gpu/{quote(uuid, safe='')}"


def job_path(name: str, narrowed: Mapping[str, str] | None = None) -> str:
    """Where the collector serves the receipt of a job, by its key or its name; `narrowed` where
    several have it.
    """
    if name in DOTS:
        return address("/jobs/", {"key": name, **(narrowed or {})})
    return address(f"/jobs/{quote(name, safe='')}", narrowed or {})


def runs_path(name: str, user: str, model: str, narrowed: Mapping[str, str]) -> str:
    """Where the collector lists the runs of a name and a user on a GPU model (empty: of any)."""
    return address(JOBS, {"name": name, "username": user, "model": model, **narrowed})


def anchor(key: str) -> str:
    """The id of an element about a finding."""
    return f"f{hashlib.sha256(key.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class Filters:
    """What a page is narrowed to: a range of time (empty: the page's own), and an owner by level.

    The range is a period as `--period` writes it, else the last `days`, else from `first` (in) to
    `after` (out).
    """

    period: str = ""
    owner: Mapping[str, str] = field(default_factory=dict)
    days: str = ""
    first: str = ""
    after: str = ""

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> Filters:
        """Read them from the parameters of an address; a form sends several ranges, of which the
        narrowest counts.
        """
        owner = {level: parameters[level] for level in LEVELS if parameters.get(level)}
        first, after = parameters.get("from", ""), parameters.get("to", "")
        if first or after:
            return cls("", owner, "", first, after)
        if days := parameters.get("days", ""):
            return cls("", owner, days)
        return cls(parameters.get("period", ""), owner)

    @property
    def range_name(self) -> str:
        """`2026-10`, `the last 7 days`, `2026-10-01 to 2026-10-08`; empty: the page's own."""
        if self.first or self.after:
            return f"{self.first} to {self.after or 'today'}"
        if self.days:
            return "today and yesterday" if self.days == "1" else f"the last {self.days} days"
        return self.period

    @property
    def range_options(self) -> str:
        """The range as options of a command; empty: the command's own."""
        if self.first or self.after:
            return f"--from {self.first}" + (f" --to {self.after}" if self.after else "")
        return f"--days {self.days}" if self.days else f"--period {self.period}" * bool(self.period)

    @property
    def owner_name(self) -> str:
        """`team vision`; empty for everybody."""
        return ", ".join(f"{level} {name}" for level, name in self.owner.items())

    def parameters(self) -> dict[str, str]:
        """As parameters of an address."""
        return {**self.range_parameters(), **self.owner}

    def range_parameters(self) -> dict[str, str]:
        """The range alone."""
        return {"period": self.period, "days": self.days, "from": self.first, "to": self.after}


@dataclass(frozen=True, slots=True)
class Link:
    """A link, and whether it leads to what is shown already."""

    name: str
    path: str
    is_here: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What surrounds a page.

    `path`: its address without parameters; `extra`: its parameters besides the filters.

    `periods` are offered as choices; `default_period` names what an empty one means, where that is
    not this month. `being_made` says what is still being computed; the page reloads itself until
    that is empty, unless `is_still`.
    """

    path: str
    month: str = ""
    """For the link to the statements; empty: those of this month."""
    sees_fleet: bool
    filters: Filters = field(default_factory=Filters)
    extra: Mapping[str, str] = field(default_factory=dict)
    is_filtered: bool = True
    """Whether the filters are parameters of this address; they may be parts of its path."""
    periods: Sequence[str] = ()
    default_period: str = ""
    ranges: Sequence[str] = ()
    """Numbers of last days that are offered beside the periods."""
    has_csv: bool = False
    being_made: str = ""
    is_still: bool = False
    seconds: int = RELOAD_SECONDS
    live_path: str = ""
    """Where the page hears what changes while it is open; empty: it shows a past."""
    may_be_live: bool = False
    """Whether the page has a mark that says whether it is live."""
    boards_url: str = ""
    """Address of the Grafana with the boards; empty: none is known."""
    calendar: Calendar = UTC_DAYS
    """In whose zone instants are shown."""
    now_ms: int | None = None
    """When the page was made; None: it shows no instant."""
    is_reader: bool = True
    """Whether the reader may open pages; others are shown no way to them."""

    @property
    def bill_path(self) -> str:
        """The statements of the month, or the statement of the owner that is shown.

        A viewer of a team is refused the statement of a project, which others may share.
        """
        (level, owner), *_ = *self.filters.owner.items(), ("team", "")
        if owner and self.month and (self.sees_fleet or level == "team"):
            return statement_path(level, owner, self.month)
        return month_path(level, self.month) if self.month else "/statements"

    @property
    def links(self) -> list[Link]:
        """The pages, each narrowed as this one is."""
        if not self.is_reader:
            return []
        here = "/" + self.path.split("/")[1]
        here = DEMAND if here == "/pools" else here
        pages = [
            ("Overview", "/", True),
            ("Fleet", FLEET, self.sees_fleet),
            ("Spend", SPEND, True),
            ("Statements", self.bill_path, True),
            ("Jobs", JOBS, True),
            ("Models", MODELS, True),
            ("Idle GPUs", IDLE, True),
            ("Anomalies", ANOMALIES, True),
            ("Demand", DEMAND, self.sees_fleet),
            ("Queues", QUEUES, self.sees_fleet),
            ("Trust", TRUST, self.sees_fleet),
            ("API", DOCS, True),
        ]
        links = [
            Link(name, self._narrow_address(path), "/" + path.split("/")[1] == here)
            for name, path, is_shown in pages
            if is_shown
        ]
        if self.boards_url and self.sees_fleet:
            board = BOARDS.get(here, BOARDS["/"])
            links.append(Link("Board", f"{self.boards_url.rstrip('/')}/d/{board}"))
        return links

    def _narrow_address(self, path: str) -> str:
        """The address of another page, with the filters that it understands."""
        if path.startswith("/statements") or path in {FLEET, DEMAND, DOCS}:
            return path
        if path in {TRUST, QUEUES}:
            return address(path, self.filters.range_parameters())
        return address(path, self.filters.parameters())

    def with_filters(self, **changes: str) -> str:
        """This page with other parameters."""
        filters = self.filters.parameters() if self.is_filtered else {}
        return address(self.path, {**self.extra, **filters, **changes})

    @property
    def choices(self) -> list[Link]:
        """The periods to choose from; first the page's own default, where it is no month."""
        is_own = not self.filters.range_name
        shown = self.month if is_own and not self.default_period else self.filters.period
        default = [Link(self.default_period, self._with_range(), is_own)]
        return [
            *(default if self.default_period else []),
            *(
                Link(f"{days} days", self._with_range(days=days), days == self.filters.days)
                for days in self.ranges
            ),
            *(Link(name, self._with_range(period=name), name == shown) for name in self.periods),
        ]

    def _with_range(self, **one: str) -> str:
        """This page with another range."""
        return self.with_filters(**{"period": "", "days": "", "from": "", "to": "", **one})

    @property
    def everybody_path(self) -> str:
        """This page without the owner."""
        return address(self.path, {**self.extra, **self.filters.range_parameters()})

    def group_path(self, by: str, name: str) -> str:
        """This list narrowed to one of its groups, and no longer grouped; empty where no filter
        means the group: a day's has what began on it, and a range what touches it.
        """
        if by == "day":
            return ""
        if by == "user":
            return self.with_filters(username=name, by="")
        if by == "team":
            return self.with_filters(team=name or UNATTRIBUTED, by="")
        return self.with_filters(**{by: name, "by": ""})

    @property
    def unknown_paths(self) -> Mapping[str, str]:
        """Where a reader sees the time of which nobody knows what it did, by its parts: the days
        with unobserved time, and the jobs that held without a reading.
        """
        jobs = address(JOBS, {**self.filters.parameters(), "sort": "unknown"})
        days = address(TRUST, {**self.filters.range_parameters(), "state": UNOBSERVED})
        return {UNREAD: jobs, IMPORTED: jobs, **({UNOBSERVED: days} if self.sees_fleet else {})}

    @property
    def own_range_path(self) -> str:
        """This page with the range that it shows by itself."""
        return self._with_range()

    @property
    def csv_path(self) -> str:
        """The same as CSV."""
        return self.with_filters(format="csv")

    @property
    def still_path(self) -> str:
        """This page without reloading."""
        return self.with_filters(reload="off")

    @property
    def reloads(self) -> bool:
        """Whether the page reloads itself."""
        return bool(self.being_made) and not self.is_still


def owner_filter(team: str) -> Mapping[str, str]:
    """The filter that a team's name in a table leads to."""
    return {"team": team or UNATTRIBUTED}
