"""The frame of every page: what it loads, what its policy allows, and that it answers whoever asks."""

import gzip
import hashlib
import http.client
import tomllib
from importlib import resources

import pytest

from fakes.collector import running
from fakes.pages import Page
from fakes.postgres import fresh_database
from fakes.two_teams import token
from gpuledger_collector.accounting.period import UTC_DAYS
from gpuledger_collector.export import html
from gpuledger_collector.export.assets import CHARTS, FOLLOW, HTMX, ICON, asset

BROWSER = {"Accept": "text/html,*/*;q=0.8"}
ASSETS = resources.files("gpuledger_collector") / "assets"


@pytest.fixture(scope="module")
def collector(postgres):
    with fresh_database(postgres) as dsn, running(dsn) as serving:
        yield serving


def raw(collector, path, method="GET", **headers):
    """Status, headers and bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", collector.port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def test_a_page_loads_the_collectors_own_files_for_good(collector):
    """Each under an address with the hash of its content; another hash is nothing."""
    _, _, text = collector.request("GET", "/", headers=BROWSER)
    loaded = set(Page(text).loads)
    assert loaded == {asset(name).address for name in (HTMX, CHARTS, FOLLOW, ICON)}
    for address in loaded:
        status, headers, content = raw(collector, address)
        assert (status, headers["Cache-Control"]) == (200, "public, max-age=31536000, immutable")
        assert hashlib.sha256(content).hexdigest()[:12] in address
        assert headers["Content-Type"] in ("text/javascript; charset=utf-8", "image/svg+xml")
        small = raw(collector, address, **{"Accept-Encoding": "br, gzip"})
        assert small[1]["Content-Encoding"] == "gzip"
        assert gzip.decompress(small[2]) == content
        assert len(small[2]) < 20_000
        for accepted in ("gzip;q=0", "gzip; Q=0.0, *", "br", "identity"):
            plain = raw(collector, address, **{"Accept-Encoding": accepted})
            assert (plain[1]["Content-Encoding"], plain[2]) == (None, content), accepted
        for accepted in ("gzip;q=0.1", "*", "br;q=1.0, GZIP"):
            assert raw(collector, address, **{"Accept-Encoding": accepted})[2] == small[2], accepted
    for wrong in ("/assets/charts.js", "/assets/charts.000000000000.js", "/assets/vendored.toml"):
        assert collector.request("GET", wrong)[0] == 404, wrong
    status, headers, content = raw(collector, "/favicon.ico")
    assert (status, headers["Content-Type"]) == (200, "image/svg+xml")
    assert content == asset(ICON).content


def test_a_served_page_runs_our_scripts_and_no_others(collector):
    """Nothing inline, nothing evaluated, nothing from elsewhere; forms ask the collector."""
    _, headers, text = collector.request("GET", "/jobs", headers=BROWSER)
    policy = headers["Content-Security-Policy"]
    for part in (
        "default-src 'none'",
        "script-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    ):
        assert part in policy.split("; "), part
    assert "unsafe" not in policy
    assert Page(text).faults == []
    for forbidden in ('"allowEval": true', '"includeIndicatorStyles": true'):
        assert forbidden not in html.HTMX_CONFIG


BARE = {"site": None, "now_ms": 0, "calendar": UTC_DAYS}
"""What every page is told."""


def test_a_file_runs_nothing():
    """What is exported or mailed has no script, no form and nothing to load."""
    policy = html.policy()
    assert "script-src" not in policy
    assert "form-action 'none'" in policy
    text = html.environment().get_template("base.html").render(BARE | {"policy": policy})
    assert "<script" not in text
    assert "/assets/" not in text


def test_the_page_reader_finds_what_runs():
    """The judge of pages: a script of a file, a foreign one, one within the page, a form that posts."""
    served = html.environment().get_template("base.html")

    def faults(policy, body):
        text = served.render(BARE | {"policy": policy})
        return set(Page(text.replace("<main", f"{body}<main")).faults)

    heading = "not exactly one h1, first"
    own = '<script src="/assets/charts.0.js" defer></script>'
    assert faults(html.policy(is_served=True), own) == {heading}
    assert faults(html.policy(), own) == {heading, "<script>", "src= in <script>"}
    foreign = own.replace("/assets", "https://cdn.example/assets")
    assert "<script>" in faults(html.policy(is_served=True), foreign)
    inline = "<script>alert(1)</script>"
    assert "a script within the page" in faults(html.policy(is_served=True), inline)
    posting = '<form method="post" action="/jobs"></form>'
    assert "a form that changes something" in faults(html.policy(is_served=True), posting)


def test_vendored_files_are_those_that_the_list_names():
    """The bill of materials is made from the list: version, license and hash hold for the file."""
    (package,) = tomllib.loads((ASSETS / "vendored.toml").read_text())["package"]
    content = (ASSETS / package["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == package["sha256"]
    assert f'version:"{package["version"]}"' in content.decode()
    assert "Zero-Clause BSD" in (ASSETS / package["license_file"]).read_text()
    assert len((ASSETS / CHARTS).read_text().splitlines()) < 150


@pytest.mark.parametrize("path", ["/", "/jobs", "/idle", "/docs", "/v1/nodes", "/healthz", "/none"])
def test_head_is_a_get_without_a_body(collector, path):
    """The same status and type; uptime checks and `curl -I` ask so."""
    status, headers, _ = raw(collector, path, **BROWSER)
    answered, head, body = raw(collector, path, "HEAD", **BROWSER)
    assert (answered, body) == (status, b"")
    assert head["Content-Type"] == headers["Content-Type"]


def test_an_error_has_the_header_of_its_reader(dsn):
    """404, 403 and 422 lead on for who may read; who may not is shown no way to pages."""
    made = {
        "finance": token(dsn, "finance"),
        "viewer": token(dsn, "viewer", owner={"team": "vision"}),
    }
    with running(dsn) as collector:

        def links(path, role):
            signed = {"Authorization": f"Bearer {made[role]}"} if role else {}
            status, _, text = collector.request("GET", path, headers={**BROWSER, **signed})
            page = Page(text)
            assert page.faults == []
            return status, {link.partition("?")[0] for link in page.links}

        for path, status in (
            ("/nothing", 404),
            ("/jobs/nothing", 404),
            ("/jobs?period=never", 422),
        ):
            answered, led = links(path, "finance")
            assert answered == status
            assert led >= {"/", "/jobs", "/idle", "/anomalies", "/demand", "/trust", "/docs"}
        answered, led = links("/trust", "viewer")
        assert answered == 403
        assert "/jobs" in led
        assert "/trust" not in led
        answered, led = links("/jobs", "")
        assert (answered, led & {"/jobs", "/idle"}) == (401, set())
        assert "/demand" in links("/docs", "finance")[1]
        assert "/jobs" not in links("/docs", "")[1]


def test_a_cut_address_leads_to_this_month(collector):
    """`/statements/team` is that of the month; another level keeps its level."""
    status, headers, _ = collector.request("GET", "/statements/project", headers=BROWSER)
    assert status == 303
    assert headers["Location"].startswith("/statements/project/20")
