"""Pages say instants as people do, in the billing zone where the ledger has one."""

import re
from zoneinfo import ZoneInfo

from fakes.collector import running
from fakes.pages import written_instants
from gpuledger_collector.accounting.period import (
    DAY_MS,
    HOUR_MS,
    UTC_DAYS,
    Calendar,
    Zone,
    parse_instant,
)
from gpuledger_collector.api.narrowing import WHOLE
from gpuledger_collector.api.page_routes import backlog_text
from gpuledger_collector.export import html
from gpuledger_collector.export.instants import say_instant, say_sentence, say_when
from gpuledger_collector.export.list_form import list_form
from gpuledger_collector.export.site import MODELS, Site
from gpuledger_collector.services.rated_period import LedgerExtent

BERLIN = Calendar((Zone("Europe/Berlin", ZoneInfo("Europe/Berlin")),))
AT_MS = parse_instant("2026-11-08T05:00:00Z")
NOW_MS = parse_instant("2026-11-23T04:00:00Z")
OCTOBER_NIGHT_MS = parse_instant("2025-10-31T12:00:00Z")
BROWSER = {"Accept": "text/html,*/*;q=0.8"}
PAGES = (
    "/",
    "/statements/team/2025-10",
    "/statements/team/vision/2025-10",
    "/jobs",
    "/jobs/slurm%3A%3A4",
    "/spend?period=2025-10",
    "/idle",
    "/anomalies",
    "/trust?period=2025-10",
    "/demand",
)


def test_instants_are_said_as_people_do():
    """Day and hour, how long ago, the year where it is another, and all of it in the element."""
    assert say_when(AT_MS, NOW_MS) == (
        '<time datetime="2026-11-08T05:00Z" title="2026-11-08 05:00 UTC">'
        "8 Nov, 05:00, 15 days ago</time>"
    )
    assert ">8 Nov, 05:00<" in say_instant(AT_MS, NOW_MS)
    assert ">8 Nov 2026, 05:00<" in say_when(AT_MS)
    assert ">8 Nov 2026, 05:00, 365 days ago<" in say_when(AT_MS, AT_MS + 365 * DAY_MS)
    assert ">8 Nov, 05:00<" in say_when(AT_MS, AT_MS - HOUR_MS)


def test_a_note_about_model_servers_says_its_instant_as_people_do():
    """What a reading names by its instant, and a command in it, where an instant stays as it is."""
    site = Site(path=MODELS, sees_fleet=True, now_ms=NOW_MS)
    notes = ["lost 2026-11-08T05:00:00Z: `gpuledger reconcile --at 2026-11-08T05:00:00Z`"]
    form = list_form(site, WHOLE, {}, {})
    facts = {"named": "", "options": "", "servers": [], "listed": 0, "form": form, "notes": notes}
    text = html.render("models.html", site=site, **facts)
    assert f"Lost {say_instant(AT_MS, NOW_MS)}: <code>gpuledger reconcile" in text
    assert "--at 2026-11-08T05:00:00Z</code>" in text


def test_the_zone_of_the_bill_is_the_zone_of_its_instants():
    """The hour that clocks show twice has its offset in the title; the year is the zone's, too."""
    assert say_instant(AT_MS, NOW_MS, BERLIN) == (
        '<time datetime="2026-11-08T05:00Z" title="2026-11-08 06:00 +01:00 Europe/Berlin">'
        "8 Nov, 06:00</time>"
    )
    again_ms = parse_instant("2026-10-25T00:30:00Z")
    first, second = (say_instant(ms, NOW_MS, BERLIN) for ms in (again_ms, again_ms + HOUR_MS))
    assert "02:30 +02:00" in first
    assert "02:30 +01:00" in second
    new_year_ms = parse_instant("2026-12-31T23:30:00Z")
    assert ">1 Jan 2027, 00:30<" in say_instant(new_year_ms, NOW_MS, BERLIN)
    assert ">1 Jan, 00:30<" in say_instant(new_year_ms, new_year_ms, BERLIN)


def test_a_sentence_keeps_what_a_command_reads_and_what_is_no_instant():
    """Instants are said, code is copied, and markup of a name is none."""
    said = say_sentence(
        "rated up to 2026-11-08T05:00:00Z <b>: `--at 2026-11-08T05:00Z`, x9999-99-99T99:99Z"
        " 2026-13-41T25:61Z",
        NOW_MS,
        UTC_DAYS,
    )
    assert ">8 Nov, 05:00</time> &lt;b&gt;: <code>--at 2026-11-08T05:00Z</code>, x9999" in said
    assert said.endswith(" 2026-13-41T25:61Z")


def test_every_page_is_in_the_billing_zone(furnished, run, dsn, tmp_path):
    """No instant of UTC is left where days begin in Berlin; each names its zone in its title."""
    (tmp_path / "zone.toml").write_text('billing_zone = "Europe/Berlin"\n')
    assert run("apply", tmp_path / "zone.toml")[0] == 0
    run("chargeback", "--from", "2025-09-01", "--to", "2025-11-01")
    files = {
        "run.html": ("runs", "show", "slurm::4", "--format", "html"),
        "statement.html": ("statement", "--owner", "vision", "--period", "2025-10"),
    }
    for name, command in files.items():
        assert run(*command, "-o", tmp_path / name)[0] == 0
        text = (tmp_path / name).read_text()
        assert written_instants(text) == []
        titles = re.findall(r'<time [^>]*title="([^"]*)"', text)
        assert titles
        assert all(title.endswith(" Europe/Berlin") for title in titles), name
    with running(dsn, clock=lambda: OCTOBER_NIGHT_MS) as collector:
        for path in PAGES:
            status, _, text = collector.request("GET", path, headers=BROWSER)
            assert (status, written_instants(text)) == (200, []), path
            titles = re.findall(r'<time [^>]*title="([^"]*)"', text)
            assert all(title.endswith(" Europe/Berlin") for title in titles), path
            assert titles or path.startswith("/statements/team/2025"), path


def test_what_is_being_added_up_begins_on_a_day_of_the_billing_zone():
    """The first hour of a day in Berlin lies in the day before of UTC."""
    extent = LedgerExtent(BERLIN, [], parse_instant("2025-12-31T23:00:00Z"))
    assert backlog_text(extent) == "New evidence from 1 Jan 2026 on is being added up"
