"""Heat maps of temperature and power on the fleet board: every GPU counts once in each part, and no
band is missing.
"""

import datetime as dt
from collections import defaultdict

import pytest

from fakes.boards import BOARDS, UNTIL, asked, chosen
from fakes.grafana import Range

pytestmark = pytest.mark.slow
PANELS = {
    "Temperature of the fleet": ("temperature_celsius", 5),
}
PARTS, QUARTER_MS, MINUTE_MS = 24, 900_000, 60_000


def cells(reader, title, span):
    (query,) = (
        query
        for query in asked("fleet", chosen(BOARDS["fleet"], {}, "all"), span)
        if query.title == title
    )
    return reader.execute(query.sql.encode()).fetchall()


def counted(reader, column, size, span):
    """The same from the minutes by plain Python: accelerators by part of the range and band of
    their first minute.
    """
    start, end = (int(at.timestamp() * 1000) for at in (span.since, span.until))
    step = max(MINUTE_MS, (end - start) // PARTS)
    minutes = reader.execute(
        f"SELECT m.accelerator_id, m.minute_ms, m.{column}::float8 FROM gpu_minute m JOIN capacity"
        f" c ON c.accelerator_id = m.accelerator_id AND c.out_ms IS NULL WHERE m.{column} IS NOT"
        " NULL AND m.minute_ms >= %s AND m.minute_ms < %s ORDER BY m.minute_ms",
        (start - MINUTE_MS, end),
    ).fetchall()
    found = defaultdict(int)
    for at_ms in range(start, end, step):
        first = {}
        for accelerator, minute_ms, value in minutes:
            if at_ms - at_ms % MINUTE_MS <= minute_ms < at_ms + min(step, QUARTER_MS):
                first.setdefault(accelerator, value)
        for value in first.values():
            found[at_ms // 1000, int(value // size)] += 1
    return dict(found)


@pytest.mark.parametrize("title", PANELS)
@pytest.mark.parametrize(("hours", "seconds"), [(24, 0), (24, 217), (2, 31)])
def test_every_gpu_counts_whenever_the_board_is_opened(reader, title, hours, seconds):
    """At every length of range and every second of opening: the counts of the minutes, and a row
    for every band.
    """
    until = UNTIL - dt.timedelta(seconds=seconds)
    span = Range(until - dt.timedelta(hours=hours), until)
    column, size = PANELS[title]
    rows = cells(reader, title, span)
    shown = {(int(at.timestamp()), int(band.split()[0]) // size): count for at, band, count in rows}
    wanted = counted(reader, column, size, span)
    assert {key: count for key, count in shown.items() if count} == wanted
    bands = {band for _, band in shown}
    assert bands == set(range(min(bands), max(bands) + 1))
    assert (
        max(sum(count for (at, _), count in shown.items() if at == part) for part, _ in shown) > 40
    )
