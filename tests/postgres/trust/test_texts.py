"""Texts that people choose: what leaves in a cell or a header stays a text."""

import csv
import io
import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from fakes.collector import running
from fakes.two_teams import day, two_teams
from gpuledger_collector.export.cells import neutral
from gpuledger_common.escapes import escape_text

FORMULA = set("=+-@\t\r\n")
hostile = st.text(max_size=20) | st.builds(
    "".join, st.tuples(st.sampled_from("=+-@\t\r\n＝＋－＠﹢⁺"), st.text(max_size=20))
)


@given(hostile)
def test_no_cell_begins_a_formula(text):
    """Threat: formulas in CSV.

    The first character is harmless, wide forms too; the text is all there, in one line.
    """
    made = neutral(text)
    assert unicodedata.normalize("NFKC", made[:1])[:1] not in FORMULA
    assert made in {escape_text(text), f"'{escape_text(text)}"}
    assert made.splitlines() in ([made], [])
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerow([made, "x"])
    assert list(csv.reader(io.StringIO(buffer.getvalue(), newline=""))) == [[made, "x"]]


def test_a_hostile_team_is_harmless_in_the_csv(dsn, tmp_path, command, monkeypatch):
    """From an agent's tag to the file that finance opens."""
    from fakes import two_teams as made

    monkeypatch.setattr(made, "FOREIGN", "=HYPERLINK(A1)")
    with two_teams(dsn, tmp_path):
        pass
    shown = command(
        "chargeback", "--from", day(-4), "--to", day(-1), "--by", "team", "--format", "csv"
    )
    assert shown.exit_code == 0
    first = [row[0] for row in csv.reader(io.StringIO(shown.stdout))]
    assert not [cell for cell in first if cell[:1] in FORMULA]
    assert "'=HYPERLINK(A1)" in first


def test_no_text_of_a_request_becomes_a_header(dsn):
    """Line breaks in a path or a query are in no header of the answer."""
    with running(dsn) as collector:
        for path in (
            "/v1/scaling/a%0d%0aX-Injected:%20yes",
            "/v1/nodes?after=a%0d%0aX-Injected:%20yes",
            "/%0d%0aX-Injected: y".replace(" ", "%20"),
        ):
            _, headers, text = collector.request("GET", path)
            assert "X-Injected" not in headers
            assert "\r\nX-Injected" not in json.dumps(dict(headers))
            assert "Traceback" not in json.dumps(text)
