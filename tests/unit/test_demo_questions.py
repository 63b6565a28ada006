"""What the demo says to ask next."""

from datetime import UTC, datetime
from pathlib import Path

from gpuledger_collector.cli import demo
from gpuledger_collector.cli.demo_stage import Stage


def test_the_first_question_is_about_the_days_of_the_printed_bill():
    """Its answer adds up to what the demo has just printed."""
    month = demo.Month(
        datetime(2026, 10, 1, tzinfo=UTC), datetime(2026, 10, 31, 12, tzinfo=UTC), 30, ()
    )
    chargeback, *_ = demo.questions(Stage(Path("/somewhere"), {}, 0), month)
    assert f"chargeback {' '.join(month.span)} --by team,project" in chargeback
