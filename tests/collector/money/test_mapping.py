"""The language of --map."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuledger_collector.ingest.files.mapping import BadExpression, parse
from gpuledger_collector.ingest.files.usage import is_column

HEADER = ["gpu_milli", "num_gpu", "scheduled time", "qos", "job-id", "empty"]
CELLS = {"gpu_milli": "480", "num_gpu": "2", "scheduled time": "90.5", "qos": "LS", "job-id": "x7", "empty": " "}


def made(text: str) -> str:
    return parse(text, HEADER, is_column).make(CELLS)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("gpus=gpu_milli/1000*num_gpu", "0.96"),
        ("gpus = (gpu_milli - 80) / (num_gpu + 2) * 0.1", "10"),
        ("gpus=-gpu_milli+500", "20"),
        ("gpus=2-3*-4", "14"),
        ('start="scheduled time"+@1970-01-01T00:01:00Z', "150.5"),
        ("start=@1970-01-01T01:00:00+01:00+5", "5"),
        ('start="scheduled time"', "90.5"),
        ("workload_id=job-id", "x7"),
        ("tag:team='qos-{qos}'", "qos-LS"),
        ("tag:team=qos-{qos}/{job-id}", "qos-LS/x7"),
        ("pool='trace'", "trace"),
        ("end=empty+@2026-10-01T00:00:00Z", ""),
        ("end=empty", " "),
    ],
)
def test_value(text: str, value: str) -> None:
    """An expression makes the text that its row's cells say, exactly, and nothing where a cell is empty."""
    assert made(text) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpus", "is not OURS=EXPRESSION"),
        ("colour=qos", "'colour' is not a column"),
        ("tag:=qos", "not a column"),
        ("gpus=gpu_mili", "is it 'gpu_milli'?"),
        ("gpus=gpu_milli/", "ends where"),
        ("gpus=(gpu_milli", "left open"),
        ("gpus=gpu_milli num_gpu", "not expected"),
        ("gpus=__import__('os')", "is not understood"),
        ("gpus=gpu_milli**2", "not expected"),
        ("gpus=" + "(" * 500 + "1" + ")" * 500, "nested too deeply"),
        ("tag:team={qos", "left open"),
        ("start=@yesterday", "not understood"),
    ],
)
def test_refused_expression(text: str, words: str) -> None:
    """An expression that means nothing is refused with a sentence before any row is read."""
    with pytest.raises(BadExpression, match=words.replace("?", r"\?")):
        parse(text, HEADER, is_column)


@pytest.mark.parametrize(
    ("text", "words"),
    [("gpus=1/3", "no finite decimal"), ("gpus=1/(num_gpu-2)", "divides by zero"), ("gpus=qos+1", "'LS'")],
)
def test_refused_cell(text: str, words: str) -> None:
    """A cell that an expression cannot use is refused with the reason."""
    with pytest.raises(BadExpression, match=words):
        made(text)


@given(st.decimals(-(10**9), 10**9, places=6), st.decimals(-(10**9), 10**9, places=6))
def test_sums_are_exact(a: Decimal, b: Decimal) -> None:
    """A sum of decimals is the decimal sum, never a float's."""
    text = parse("gpus=a+b", ["a", "b"], is_column).make({"a": str(a), "b": str(b)})
    assert Decimal(text) == a + b
