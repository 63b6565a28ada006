"""GET /docs: every operation of the API on one page that needs nothing from elsewhere."""

from fakes.collector import running
from fakes.pages import Page
from gpuledger_collector.api.handbook import operations


def test_every_operation_stands_on_the_page(dsn, request):
    """As openapi.json has them, with their parameters; the page is sound, fetches nothing, and fits
    a phone.
    """
    with running(dsn) as collector:
        schema = collector.request("GET", "/openapi.json")[2]
        status, headers, text = collector.request("GET", "/docs")
    assert status == 200
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")
    page = Page(text)
    assert page.faults == []
    told = [operation for _, operation in operations(schema)]
    assert len(told) == sum(len(methods) for methods in schema["paths"].values()) > 10
    for operation in told:
        assert f"{operation.method} {operation.path}" in page.text
        for name, _, _ in operation.parameters:
            assert name in page.text
        if operation.path in {"/v1/chargeback", "/v1/runs"}:
            days = [meaning for name, _, meaning in operation.parameters if name in {"from", "to"}]
            assert len([meaning for meaning in days if "(of the billing zone)" in meaning]) == 2
    dumb = {(one.path, name) for one in told for name, _, meaning in one.parameters if not meaning}
    assert dumb == set(), "every parameter says what it is"
    assert "`" not in text
    assert r"\n" not in page.text, "its paragraphs are one text"
    assert "<code>gpuledger chargeback --format json</code>" in text
    # Only now: without a Chromium all the rest is still judged.
    pictured = request.getfixturevalue("pictured")
    assert pictured(text, 390)[1] <= 390
