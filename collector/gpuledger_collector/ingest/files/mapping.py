"""The little language of `--map OURS=EXPRESSION`: how our columns are made from the columns of a foreign file.

    gpus=gpu_milli/1000*num_gpu              numbers, exact (fractions, never floats): + - * / and brackets
    start=scheduled_time+@2026-10-01T00:00:00Z   @INSTANT is that instant in unix seconds
    workload_id=job_id                       a column alone is taken as it is, text or number
    pool='trace'                             text between quotes
    tag:team=qos-{qos}                       text with columns in braces, quotes not needed
    user="Job Owner"                         a column whose name is no plain word, between double quotes

An empty cell in arithmetic makes the result empty: what is not there is not zero. Nothing is evaluated by Python.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fractions import Fraction

from gpuledger_collector.accounting.period import parse_instant
from gpuledger_collector.accounting.problems import Problem

Cells = Mapping[str, str]
Value = Fraction | None
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)
          |@(?P<instant>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)|\d+)
          |"(?P<quoted>[^"]+)"
          |(?P<word>[^\W\d]\w*)
          |(?P<sign>[-+*/()]))""",
    re.VERBOSE,
)
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,2})?")
_BRACES = re.compile(r"\{([^{}]*)\}")
MAX_DEPTH = 50


class BadExpression(Exception):
    """An expression of `--map` that means nothing, or a cell that it cannot use; the message is one sentence."""


@dataclass(frozen=True)
class ColumnMap:
    """One `--map`: the name of our column and how its text is made from a row's cells.

    `make` raises BadExpression for a cell that the expression cannot use.
    """

    target: str
    make: Callable[[Cells], str]


def parse(text: str, header: Sequence[str], known: Callable[[str], bool]) -> ColumnMap:
    """One `OURS=EXPRESSION` against the file's header. Raises BadExpression with a sentence."""
    target, equals, expression = text.partition("=")
    target, expression = target.strip(), expression.strip()
    if not equals or not target or not expression:
        raise BadExpression(f"--map {text!r} is not OURS=EXPRESSION, such as start=start_s")
    if not known(target):
        raise BadExpression(f"--map {text!r}: {target!r} is not a column of the usage import")
    try:
        return ColumnMap(target, _compile(expression, header))
    except BadExpression as error:
        raise BadExpression(f"--map {text!r}: {error}") from None


def _compile(expression: str, header: Sequence[str]) -> Callable[[Cells], str]:
    if expression in header:
        return _column_text(expression)
    quoted = len(expression) > 1 and expression[0] == expression[-1] == "'"
    if quoted or "{" in expression:
        return _template(expression[1:-1] if quoted else expression, header)
    parser = _Parser(expression, header)
    if parser.single_column is not None:
        return _column_text(parser.single_column)
    tree = parser.whole()
    return lambda cells: _decimal_text(tree(cells))


def _column_text(name: str) -> Callable[[Cells], str]:
    return lambda cells: cells.get(name, "")


def _template(text: str, header: Sequence[str]) -> Callable[[Cells], str]:
    for name in _BRACES.findall(text):
        _check_column(name, header)
    if "{" in _BRACES.sub("", text) or "}" in _BRACES.sub("", text):
        raise BadExpression("a brace is left open")
    return lambda cells: _BRACES.sub(lambda found: cells.get(found[1], "").strip(), text)


def _check_column(name: str, header: Sequence[str]) -> None:
    if name not in header:
        near = get_close_matches(name, header, 1)
        hint = f"; is it {near[0]!r}?" if near else f"; text stands between quotes: \"'{name}'\""
        raise BadExpression(f"the file has no column {name!r}{hint}")


def _decimal_text(value: Value) -> str:
    """A fraction as finite decimal text. Raises BadExpression for one that has none, such as 1/3."""
    if value is None:
        return ""
    places, rest = 0, value.denominator
    for prime in (2, 5):
        count = 0
        while rest % prime == 0:
            rest //= prime
            count += 1
        places = max(places, count)
    if rest != 1:
        raise BadExpression(f"gives {value}, which no finite decimal writes exactly")
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    whole = digits[: len(digits) - places] + ("." + digits[len(digits) - places :] if places else "")
    return ("-" if value < 0 else "") + whole


Tree = Callable[[Cells], Value]


class _Parser:
    """Recursive descent over + - * / and brackets; a tree is a function from cells to an exact number."""

    def __init__(self, text: str, header: Sequence[str]) -> None:
        self._header = header
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0

    @property
    def single_column(self) -> str | None:
        """The column's name when the expression is one column and nothing else."""
        if len(self._tokens) == 1 and self._tokens[0][0] in ("word", "quoted"):
            _check_column(self._tokens[0][1], self._header)
            return self._tokens[0][1]
        return None

    def whole(self) -> Tree:
        tree = self._sum()
        if self._at < len(self._tokens):
            raise BadExpression(f"{self._tokens[self._at][1]!r} is not expected there")
        return tree

    def _take(self, signs: str) -> str | None:
        if self._at < len(self._tokens):
            kind, value = self._tokens[self._at]
            if kind == "sign" and value in signs:
                self._at += 1
                return value
        return None

    def _sum(self) -> Tree:
        left = self._product()
        while sign := self._take("+-"):
            left = _combine(sign, left, self._product())
        return left

    def _product(self) -> Tree:
        left = self._factor()
        while sign := self._take("*/"):
            left = _combine(sign, left, self._factor())
        return left

    def _factor(self) -> Tree:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise BadExpression("is nested too deeply")
        try:
            return self._rating_interval()
        finally:
            self._depth -= 1

    def _rating_interval(self) -> Tree:
        if self._take("-"):
            inner = self._factor()
            return _combine("-", lambda _: Fraction(0), inner)
        if self._take("("):
            inner = self._sum()
            if not self._take(")"):
                raise BadExpression("a bracket is left open")
            return inner
        if self._at >= len(self._tokens):
            raise BadExpression("ends where a column or a number is expected")
        kind, value = self._tokens[self._at]
        self._at += 1
        if kind in ("number", "instant"):
            constant = Fraction(value) if kind == "number" else _seconds(value)
            return lambda _: constant
        if kind in ("word", "quoted"):
            _check_column(value, self._header)
            return _column_number(value)
        raise BadExpression(f"{value!r} is not expected there")


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while at < len(text.rstrip()):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadExpression(f"{text[at:].strip()[:1]!r} is not understood; text stands between quotes: \"'text'\"")
        found.append((str(match.lastgroup), match[str(match.lastgroup)]))
        at = match.end()
    return found


def _seconds(text: str) -> Fraction:
    try:
        return Fraction(parse_instant(text), 1000)
    except ValueError as error:
        raise BadExpression(str(error)) from None


def _column_number(name: str) -> Tree:
    def number(cells: Cells) -> Value:
        text = cells.get(name, "").strip()
        if not text:
            return None
        if not _NUMBER.fullmatch(text):
            raise BadExpression(f"column {name!r} holds {text!r}, which is not a number")
        return Fraction(text)

    return number


def _combine(sign: str, left: Tree, right: Tree) -> Tree:
    def value(cells: Cells) -> Value:
        a, b = left(cells), right(cells)
        if a is None or b is None:
            return None
        if sign == "/":
            if b == 0:
                raise BadExpression("divides by zero")
            return a / b
        return a + b if sign == "+" else a - b if sign == "-" else a * b

    return value


def problem_of(error: BadExpression, file: str, line: int, target: str) -> Problem:
    """The Problem of a cell that an expression cannot use."""
    return Problem("bad_expression", f"{file}:{line}:{target}", str(error))
