"""Lists of statements of a ledger without a rated day."""

import pytest

from fakes.pages import Page
from gpuledger_collector.api import pages
from gpuledger_collector.api.auth.principal import Principal
from gpuledger_collector.api.page_routes import View

EVERYTHING = View(Principal("admin", "a"))


@pytest.mark.parametrize("month", ["2024-01", "2025-10", "2025-12"])
def test_a_month_without_charges_leads_to_this_month(furnished, reads, month):
    """Before the ledger, now or still to come: no month has charges that a link could lead to."""
    text = pages.month_page(reads, "team", month, EVERYTHING).body.decode()
    page = Page(text)
    assert page.faults == []
    assert "The latest month with charges" not in text
    if month == "2025-12":
        assert "it is still to come" in page.text
        assert '<a href="/statements/team/2025-10">This month</a>' in text
