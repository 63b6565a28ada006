"""Pages as text: the templates, what they write amounts with, and the policy that lets nothing
foreign into a page.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from gpuledger_collector.accounting import readable
from gpuledger_collector.accounting.carbon import MJ_PER_KWH
from gpuledger_collector.accounting.money import Money, group_digits
from gpuledger_collector.accounting.period import UTC_DAYS, Calendar, format_date, format_instant
from gpuledger_collector.accounting.quantity import GPU_MICRO
from gpuledger_collector.accounting.reserved_names import UNNAMED
from gpuledger_collector.accounting.state_words import word_of_unpaid
from gpuledger_collector.export.assets import CHARTS, FOLLOW, HTMX, ICON, address_of_asset
from gpuledger_collector.export.code_marks import mark_code
from gpuledger_collector.export.instants import say_instant, say_sentence, say_when
from gpuledger_collector.export.job_links import link_jobs
from gpuledger_collector.export.site import (
    address,
    gpu_path,
    job_path,
    owner_filter,
    pool_path,
    statement_path,
)
from gpuledger_collector.insight.durations import lasting
from gpuledger_collector.insight.findings import AT_LISTED_RATES, FREE_MINUTES
from gpuledger_collector.insight.gpu_names import gpu_name
from gpuledger_common.escapes import escape_lines, escape_text
from gpuledger_common.plurals import plural

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context

UNKNOWN = "not known"
HTMX_CONFIG = json.dumps(
    {
        # What the policy of a page forbids, htmx does not try.
        "allowEval": False,
        "allowScriptTags": False,
        "includeIndicatorStyles": False,
        "selfRequestsOnly": True,
        # Pages are answers to their address: going back asks again, and nothing is kept in the
        # browser.
        "historyCacheSize": 0,
        "refreshOnHistoryMiss": True,
        # The page of a refusal says why; it is shown as any other.
        "responseHandling": [{"code": "204", "swap": False}, {"code": "...", "swap": True}],
    }
)
"""How htmx behaves, by a <meta> of the page."""


@lru_cache(maxsize=1)
def environment() -> Environment:
    """Templates that escape everything and stop at a name that is not given."""
    # Tables and CSV need no template.
    from jinja2 import (
        Environment,
        PackageLoader,
        StrictUndefined,
        pass_context,
    )

    templates = Environment(
        loader=PackageLoader("gpuledger_collector"),
        auto_reload=False,  # an installed file stays as it is; a page would look at each of its own
        autoescape=True,
        finalize=show_value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "minor": minor,
        "micro": micro,
        "about": about,
        "hours": hours,
        "booked": booked_hours,
        "signed": signed_amount,
        "date": format_date,
        "gpus": gpus,
        "micro_gpus": micro_gpus,
        "coded": mark_code,
        "plural": plural,
        "amounts": amounts,
        "sums": sums,
        "capitalized": capitalize_sentence,
        "when": pass_context(_when),
        "instant": pass_context(_instant),
        "said": pass_context(_said),
        "naming": pass_context(_naming),
        "with": lambda parameters, name, value: {**parameters, name: value},
        "lasting": lasting,
        "unit_price": unit_price,
        "grouped": group_digits,
        "percent": percent,
        "unpaid_word": word_of_unpaid,
        "tenths": tenths,
        "energy": energy,
        "gpu_name": gpu_name,
    }
    templates.globals |= {
        "css": Markup(css()),  # noqa: S704 - our own file
        "address": address,
        "asset": address_of_asset,
        "SCRIPTS": (HTMX, CHARTS),
        "LIVE_SCRIPT": FOLLOW,
        "ICON": ICON,
        "HTMX_CONFIG": HTMX_CONFIG,
        "gpu_path": gpu_path,
        "job_path": job_path,
        "owner_filter": owner_filter,
        "pool_path": pool_path,
        "statement_path": statement_path,
        "UNKNOWN": UNKNOWN,
        "UNNAMED": UNNAMED,
        "AT_LISTED_RATES": AT_LISTED_RATES,
        "FREE_MINUTES": FREE_MINUTES,
    }
    return templates


def show_value(value: Any) -> Any:
    """What a template writes: texts in one line, with what is not seen as escapes; markup of ours
    keeps its lines.
    """
    if isinstance(value, Markup):
        return Markup(escape_lines(value))  # noqa: S704 - markup before, and no sign of markup is added
    return escape_text(value) if isinstance(value, str) else value


@lru_cache(maxsize=1)
def css() -> str:
    """The style sheet that is written into every page."""
    return (
        resources.files("gpuledger_collector")
        .joinpath("templates", "style.css")
        .read_text(encoding="utf-8")
    )


@lru_cache(maxsize=2)
def policy(*, is_served: bool = False) -> str:
    """Content-Security-Policy of a page: its one style, and nothing else from anywhere.

    A page that the collector serves has the collector's own scripts as well, and forms that ask the
    collector. A file or a mail has no script at all.
    """
    digest = base64.b64encode(hashlib.sha256(css().encode()).digest()).decode()
    if is_served:
        return (
            f"default-src 'none'; style-src 'sha256-{digest}'; script-src 'self';"
            " connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'"
        )
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none';"
        " form-action 'none'"
    )


def render(template: str, **facts: Any) -> str:
    """A page; in a file by itself there is no `site`, for its links would lead nowhere."""
    site = facts.get("site")
    frame = {
        "site": None,
        "policy": policy(is_served=site is not None),
        "calendar": UTC_DAYS if site is None else site.calendar,
        "now_ms": None if site is None else site.now_ms,
    }
    return environment().get_template(template).render(frame | facts)


def minor(units: int | None, currency: str) -> str:
    """Minor units as an amount: `12,345.67`; None: not known."""
    return UNKNOWN if units is None else Money.from_minor(units, currency).grouped()


def micro(amount: int | None, currency: str) -> str:
    """Micro-units as an amount in minor units, without the currency; None: not known."""
    return UNKNOWN if amount is None else Money(amount, currency).grouped()


def about(amount: int | None, currency: str) -> str:
    """An estimate: no minor units, so that nobody takes it for a charge."""
    return UNKNOWN if amount is None else Money(amount, currency).estimate()


def sums(moneys: Iterable[Money]) -> str:
    """Amounts of several currencies, which are never added."""
    return ", ".join(f"{money.grouped()} {money.currency}" for money in moneys)


def amounts(micros: Mapping[str, int]) -> str:
    """Amounts of several currencies, which are never added."""
    return ", ".join(
        f"{micro(amount, currency)} {currency}" for currency, amount in sorted(micros.items())
    )


def unit_price(value: Decimal | None) -> str:
    """A unit cost with at least two decimal places; empty where nothing was produced."""
    if value is None:
        return ""
    whole, _, part = f"{value:f}".partition(".")
    return f"{whole}.{part.rstrip('0').ljust(2, '0')}"


def minute(at_ms: int) -> str:
    """An instant to the minute: `2026-10-31T12:00Z`."""
    return f"{format_instant(at_ms)[:16]}Z"


def _clock(context: Context) -> tuple[int | None, Calendar]:
    """The instant and the calendar of a page; a macro has those of the page that calls it."""
    return context.get("now_ms"), context["calendar"]


def _when(context: Context, at_ms: int) -> Markup:
    return say_when(at_ms, *_clock(context))


def _instant(context: Context, at_ms: int, *, with_year: bool = False) -> Markup:
    now_ms, calendar = _clock(context)
    return say_instant(at_ms, None if with_year else now_ms, calendar)


def _said(context: Context, sentence: str) -> Markup:
    return say_sentence(sentence, *_clock(context))


def _naming(
    context: Context, sentence: str, names: Sequence[str], narrowed: Mapping[str, str] | None
) -> Markup:
    """A sentence whose jobs are links, as `job_path` has them; None: it stands in a file."""
    if narrowed is None:
        return _said(context, sentence)
    return link_jobs(
        sentence, names, lambda name: job_path(name, narrowed), lambda part: _said(context, part)
    )


def capitalize_sentence(sentence: str) -> str:
    """A sentence with a capital first letter; names in it stay as they are."""
    return sentence[:1].upper() + sentence[1:]


def signed_amount(amount: int, currency: str) -> str:
    """A change in micro-units, with its sign."""
    return Money(amount, currency).signed()


def hours(gpu_ns: int | None, digits: int = 1) -> str:
    """GPU-nanoseconds as GPU-hours; None: not known."""
    if gpu_ns is None:
        return UNKNOWN
    return readable.hours_text(gpu_ns, digits)


def booked_hours(gpu_ns: int | None) -> str:
    """GPU-hours of a row: `12.0`; what a correction takes back is `12.0 fewer`; None: not known."""
    return hours(gpu_ns) if gpu_ns is None or gpu_ns >= 0 else f"{hours(-gpu_ns)} fewer"


def energy(millijoules: int) -> str:
    """Energy with as many digits as say something: `254 kWh`, `25.4 kWh`, `0.254 kWh`."""
    return f"{readable.size_text(Decimal(millijoules) / MJ_PER_KWH)} kWh"


def percent(share: float | Decimal) -> str:
    """A share as `83 %`."""
    return readable.percent(Decimal(share))


def tenths(number: float | Decimal) -> str:
    """A number of a column: `1,234.5`, `<0.1`."""
    return readable.round_text(Decimal(number), 1)


def micro_gpus(gpu_micro: int) -> str:
    """Millionths of a GPU as GPUs."""
    return readable.count_text(Decimal(gpu_micro) / GPU_MICRO)


def gpus(number: float) -> str:
    """GPUs without needless digits: `12`, `12.5`."""
    return readable.count_text(Decimal(number))
