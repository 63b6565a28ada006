"""Pages are made from a real ledger: two months of hostile names, two currencies, several models,
unknown activity.
"""

import subprocess
import tempfile
from pathlib import Path

import pytest

from fakes.browser import CHROMIUM, browsing
from fakes.engines import lacking
from fakes.fleet import DAY, HOUR, Held
from fakes.furnishing import furnishing
from fakes.postgres import database, dsn, fresh_database, postgres
from fakes.two_teams import FOREIGN, OWN, idle_job, two_teams
from fakes.worlds import world
from gpuledger_collector.accounting.period import parse_instant
from gpuledger_collector.api import pages
from gpuledger_collector.api.auth.keys import Keys
from gpuledger_collector.api.auth.principal import ANYBODY
from gpuledger_collector.api.context import ReadContext
from gpuledger_collector.api.page_routes import View
from gpuledger_collector.services.forecasts import forecast_outlook
from gpuledger_collector.services.tokens import TokenStore
from gpuledger_collector.storage.database import Database
from postgres.money.conftest import fleet, ledger, run, written

__all__ = ["database", "dsn", "fleet", "ledger", "postgres", "run", "written"]

HOSTILE = """"><script>alert('x')</script><img src=x onerror=alert(1)>&amp;{{ 7*7 }}/../=1+1"""
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
)
OCTOBER_NIGHT_MS = parse_instant("2025-10-31T12:00:00Z")


def furnish(dsn):
    """Evidence and prices of `furnished`."""
    with furnishing(dsn) as (fleet, run, _):
        fill(fleet, run)


def furnish_rated(dsn):
    """The same, rated as of 20 November."""
    with furnishing(dsn) as (fleet, run, _):
        fill(fleet, run)
        run("chargeback", "--from", "2025-09-01", "--to", "2025-11-01")


def fill(fleet, run):
    """September and October of three teams on three GPUs; a price that falls within October; a team
    of evil name.
    """
    run("prices", "set", "--rate", "2.333333333", "--currency", "USD", "--from", "2025-01-01")
    run("prices", "set", "--rate", "2.1", "--currency", "USD", "--from", "2025-10-03")
    run(
        "prices",
        "set",
        "--rate",
        "1.7",
        "--currency",
        "EUR",
        "--pool",
        "eu",
        "--from",
        "2025-01-01",
    )
    fleet.accelerator(2, model="NVIDIA L4")
    fleet.accelerator(3, gpu_micro=333_333)
    fleet.workload(9, team=HOSTILE, project=HOSTILE, experiment="a")
    fleet.workload(4, team="vision", project="detector")
    fleet.workload(5, team="vision", project="segments")
    fleet.workload(6, org="nobody's")
    fleet.connection.execute(
        "UPDATE workload SET name = %s, user_name = %s WHERE key = 'slurm::9'", (HOSTILE, HOSTILE)
    )
    for number, pool in ((1, "us"), (2, "eu"), (3, "us")):
        fleet.capacity(number, -30 * DAY, 31 * DAY, pool=pool)
    for day in (*range(-30, -26), *range(4), 30):
        at = day * DAY
        fleet.evidence(
            [
                Held(
                    1,
                    4,
                    at,
                    at + HOUR - 7 + day * 1000,
                    busy=HOUR // 3,
                    idle=HOUR // 7,
                    energy=123_456_789,
                ),
                Held(1, 5, at + 3 * HOUR, at + (5 + day % 3) * HOUR + 1, idle=HOUR),
                Held(2, 4, at + HOUR, at + 2 * HOUR, idle=HOUR),
                Held(3, 9, at + 5 * HOUR, at + 6 * HOUR),
                Held(3, 6, at + 6 * HOUR, at + 6 * HOUR + 777, busy=777),
                Held(3, None, at + 7 * HOUR, at + 8 * HOUR, "unallocated"),
            ]
        )


@pytest.fixture
@world(furnish)
def furnished(fleet):
    """A ledger of which nothing is rated yet."""
    return fleet


@pytest.fixture
@world(furnish_rated)
def rated(fleet):
    """September and October, rated."""
    return fleet


@pytest.fixture
def reads(dsn):
    """What the pages read, with a clock that stands in the last night of October."""
    database = Database(dsn)
    book = TokenStore(database)
    keys = Keys(book, lambda: OCTOBER_NIGHT_MS)
    return ReadContext(database, lambda: OCTOBER_NIGHT_MS, keys)


@pytest.fixture
def overview(reads):
    """The overview page as a reader sees it, with the forecast made; narrowed by the parameters of
    its address.
    """

    def make(who=ANYBODY, **parameters):
        outlook = pages.HourlyCache(lambda: forecast_outlook(reads.database, reads.now_ms))
        outlook.get(reads.now_ms, wait_s=60)
        view = View.narrow(who, parameters)
        return pages.overview_page(reads, outlook, "http://127.0.0.1:8440", view).body.decode()

    return make


@pytest.fixture(scope="module")
def browser():
    """A tab of a Chromium, for all tests of a module."""
    if CHROMIUM is None:
        lacking("no Chromium to look with: apt-get install chromium")
    with browsing() as tab:
        yield tab


@pytest.fixture(scope="module")
def signed_in(postgres, tmp_path_factory, browser):
    """A collector of two teams with an idle job each, into which the browser has signed in: its
    address, its database, itself and its tokens.
    """
    with (
        fresh_database(postgres) as dsn,
        two_teams(dsn, tmp_path_factory.mktemp("declared")) as (collector, secrets),
    ):
        for team in (OWN, FOREIGN):
            idle_job(dsn, team)
        browser.look(1280)
        browser.sign_in(secrets["finance"])
        yield f"http://127.0.0.1:{collector.port}", dsn, collector, secrets


@pytest.fixture(scope="module")
def address(signed_in):
    """The address of that collector."""
    return signed_in[0]


@pytest.fixture
def pictured(tmp_path):
    """Takes a picture of a page given as text, at a width; skipped where there is no Chromium."""
    if CHROMIUM is None:
        pytest.skip("no Chromium to look with (apt-get install chromium)")

    def take(text: str, width: int, height: int = 1400, *, dark: bool = False) -> tuple[Path, int]:
        """The picture, and how wide the page wants to be (pixels)."""
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        (tmp_path / "frame.html").write_text(
            "<!DOCTYPE html><style>body{margin:0}iframe{border:0}</style>"
            f'<iframe id="f" src="page.html" width="{width}" height="{height}"></iframe>'
            "<script>f.onload=()=>{document.title=f.contentDocument.documentElement.scrollWidth}</script>"
        )
        target = tmp_path / f"page-{width}{'-dark' if dark else ''}.png"
        shade = ("--blink-settings=preferredColorScheme=0",) if dark else ()
        size = f"--window-size={max(width, 500)},{height}"
        with tempfile.TemporaryDirectory() as profile:
            common = (CHROMIUM, *FLAGS, *shade, size, f"--user-data-dir={profile}")
            address = (tmp_path / "frame.html").as_uri()
            subprocess.run(
                [*common, f"--screenshot={target}", address],
                capture_output=True,
                timeout=90,
                check=True,
            )
            dom = subprocess.run(
                [*common, "--virtual-time-budget=3000", "--dump-dom", address],
                capture_output=True,
                text=True,
                timeout=90,
                check=True,
            ).stdout
        return target, int(dom.partition("<title>")[2].partition("</title>")[0])

    return take
