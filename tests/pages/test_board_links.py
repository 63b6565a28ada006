"""From a page to the board that answers the same, and back, where addresses are configured."""

import json
import re
from pathlib import Path

import pytest

from fakes.collector import running
from gpuledger_collector.cli.board_links import PAGES
from gpuledger_collector.export.site import BOARDS, Site
from gpuledger_collector.settings import SettingsError, load

FOLDER = Path(__file__).parents[2] / "dashboards" / "json"
UIDS = {json.loads(path.read_text())["uid"] for path in FOLDER.glob("*.json")}
BROWSER = {"Accept": "text/html"}


def board_of(text):
    """Where the link of a page's header to its board leads."""
    found = re.findall(r'<a href="([^"]+)">Board</a>', text)
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.slow
def test_a_page_links_to_its_board_where_grafana_is_known(dsn):
    """Each to its own; without the setting no page names an address outside."""
    with running(dsn, grafana_url="https://grafana.example.com/") as collector:
        for path, uid in (("/", "finops"), ("/idle", "idle"), ("/demand", "demand")):
            text = collector.request("GET", path, headers=BROWSER)[2]
            assert board_of(text) == f"https://grafana.example.com/d/gpuledger-{uid}", path
        assert board_of(collector.request("GET", "/no-such-page", headers=BROWSER)[2]) is not None
    with running(dsn) as collector:
        assert board_of(collector.request("GET", "/idle", headers=BROWSER)[2]) is None


def test_who_sees_one_team_is_led_to_no_board():
    """Boards show the whole fleet."""
    for sees_fleet in (True, False):
        site = Site(path="/idle", sees_fleet=sees_fleet, boards_url="https://grafana.example.com")
        assert ("Board" in {link.name for link in site.links}) is sees_fleet


def test_both_ways_name_boards_that_there_are():
    """And a board's page leads back to a board."""
    assert set(BOARDS.values()) | set(PAGES) <= UIDS
    pages = {page.partition("/$")[0] for page in PAGES.values()}
    assert pages - set(BOARDS) <= {"/spend", "/models"}


def test_an_address_that_is_none_is_refused(tmp_path):
    """Before anything is served with it."""
    with pytest.raises(SettingsError, match="GPULEDGER_GRAFANA_URL"):
        load(None, {"GPULEDGER_GRAFANA_URL": "javascript:alert(1)"}, tmp_path)
