"""Every way in over HTTP has a row of what it admits, and no row is left over."""

import gpuledger_collector.api.admission as routes
import gpuledger_collector.mcp.admission as assistants
from gpuledger_collector import wiring
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.database import Database
from gpuledger_common.admission import BOUNDS


def operations(tmp_path):
    """Method and path of every route of the application with all its options; HEAD is a GET."""
    (tmp_path / "secret").write_text("a secret that signs the links of mails\n")
    settings = Settings(
        data_dir=tmp_path,
        mcp=True,
        public_url="https://gpuledger.example.com",
        link_secret_file=tmp_path / "secret",
        scaling_gauge_delay_seconds=600,
    )
    app = wiring.collector(settings, Database("postgresql://nobody@127.0.0.1:1/none")).app
    return {f"{method} {route.path}" for route in leaves(app.routes) for method in route.methods if method != "HEAD"}


def leaves(found):
    """Routes, also those of routers that the installed version of FastAPI keeps as routers."""
    for route in found:
        if hasattr(route, "original_router"):
            yield from leaves(route.original_router.routes)
        else:
            yield route


def test_every_route_and_method_has_a_row(tmp_path):
    """One that is added without a row fails here, and so does a row of a route that is gone."""
    rows = [row.way_in for row in (*routes.ADMISSIONS, *assistants.ADMISSIONS)]
    assert len(rows) == len(set(rows))
    assert set(rows) == operations(tmp_path)


def test_every_row_has_a_payer_and_bounds():
    """Each bound is a text; a payer, a deadline and what is in progress are never without meaning."""
    for row in (*routes.ADMISSIONS, *assistants.ADMISSIONS):
        assert all(getattr(row, bound) for bound in BOUNDS), row.way_in
        assert "-" not in (row.payer, row.deadline), row.way_in
        assert row.in_progress != "-" or row.bytes != "-", row.way_in
