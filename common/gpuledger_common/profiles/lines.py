"""The samples of a page in the Prometheus text format, read in time and memory that grow with the
page alone.

Whoever owns the exporter's port writes the page, so no pattern here backtracks: every quantifier is
possessive, every match is anchored, and each character is matched a bounded number of times.
Comments and types are skipped; elided labels (`...`), as in documentation, are removed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpuledger_common.plurals import plural

MAX_LINES = 50_000
"""Samples of one page; 16 GPUs in seven parts each have fewer than 20,000."""
MAX_LINE_CHARACTERS = 64 * 1024
MAX_LABEL_CHARACTERS = 500
"""Longer values of labels are cut, so that the usage of a job with an endless name is still
counted.
"""
_NAME = re.compile(r"[A-Za-z_:][\w:]{0,249}+", re.ASCII)
_SEPARATOR = re.compile(r"[ \t]*+,?+[ \t]*+")
_LABEL = re.compile(
    r'(?:([A-Za-z_:][\w:]{0,249}+)|"((?:[^"\\]|\\.){1,250}+)")[ \t]*+=['
    r' \t]*+"((?:[^"\\]++|\\.)*+)"',
    re.ASCII,
)
_VALUE = re.compile(
    r"[ \t]++([-+]?+(?:\d[\d.eE+-]{0,63}+|NaN|nan|\+?+Inf))(?:[ \t]++(?:\d++\s*+)?+)?+$", re.ASCII
)
_DOTS = re.compile(r"(\.{3,}+)")
_ESCAPE = re.compile(r'\\[\\n"]')
_ESCAPES = {"\\\\": "\\", "\\n": "\n", '\\"': '"'}


@dataclass(frozen=True, slots=True)
class PageSample:
    """A line: its family without a prefix, its labels with the joined and derived ones, and its
    value.
    """

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Lines:
    """The samples of a page by profile-independent name, and messages about malformed lines."""

    samples: tuple[PageSample, ...]
    problems: tuple[str, ...]


def read_lines(text: str) -> Lines:
    """The samples of a page. Raises ValueError for text that no exporter prints."""
    samples: list[PageSample] = []
    stray = elided = long = cut = 0
    for number, raw in enumerate(text.splitlines(), 1):
        if not raw or raw.isspace() or raw.startswith("#"):
            continue
        if len(raw) > MAX_LINE_CHARACTERS:
            long += 1
            continue
        line = _without_elisions(raw)
        elided += line != raw
        sample = _read_line(line, number)
        if sample is None:
            stray += 1
            continue
        if len(samples) == MAX_LINES:
            raise ValueError(f"the page has more than {MAX_LINES} samples")
        samples.append(_with_bounded_labels(sample))
        cut += samples[-1] is not sample
    counts = (
        (stray, "without a sample: skipped"),
        (long, f"of more than {MAX_LINE_CHARACTERS} characters: skipped"),
        (cut, f"with labels of more than {MAX_LABEL_CHARACTERS} characters: cut"),
        (elided, "with elided labels"),
    )
    return Lines(
        tuple(samples), tuple(f"{plural(count, 'line')} {what}" for count, what in counts if count)
    )


def _read_line(line: str, number: int) -> PageSample | None:
    """The sample of a line; None for what is not one. Raises ValueError for malformed labels."""
    name = _NAME.match(line)
    if name is None:
        return None
    end, labels = name.end(), dict[str, str]()
    has_labels = line.startswith("{", end)
    value = _VALUE.match(line, line.rfind("}") + 1 if has_labels else end)
    if value is None:
        return None
    if has_labels and _read_labels(line, end + 1, labels, number) != value.start():
        raise ValueError(f"line {number} has malformed labels")
    return PageSample(name[0], labels, _number(value[1]))


def _read_labels(line: str, begin: int, labels: dict[str, str], number: int) -> int:
    """Add the labels that begin at a position; returns the position behind the next character, the
    closing brace.
    """
    at = _skip_separator(line, begin)
    while (match := _LABEL.match(line, at)) is not None:
        name = match[1] or _unescape(match[2])
        if name in labels:
            raise ValueError(f"line {number} names a label twice")
        labels[name] = _unescape(match[3])
        at = _skip_separator(line, match.end())
    return at + 1


def _skip_separator(line: str, at: int) -> int:
    match = _SEPARATOR.match(line, at)
    return at if match is None else match.end()


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda escape: _ESCAPES[escape[0]], text) if "\\" in text else text


def _with_bounded_labels(sample: PageSample) -> PageSample:
    """The sample, or one whose values of labels are cut."""
    if all(len(value) <= MAX_LABEL_CHARACTERS for value in sample.labels.values()):
        return sample
    return replace(
        sample, labels={name: value[:MAX_LABEL_CHARACTERS] for name, value in sample.labels.items()}
    )


def _number(text: str) -> float:
    """The value of a sample; whole numbers stay exact. Raises ValueError."""
    try:
        return int(text)
    except ValueError:
        return float(text)


def _without_elisions(line: str) -> str:
    """The line without each `...` that stands for labels, with the comma before it; of more dots,
    the last three.
    """
    if "..." not in line:
        return line
    first, *rest = _DOTS.split(line)
    kept = [first]
    for dots, text in zip(rest[::2], rest[1::2], strict=True):
        behind = text.lstrip()
        if behind[:1] not in {",", "}"}:
            kept += [dots, text]
        elif len(dots) == 3:
            kept[-1] = kept[-1].rstrip().removesuffix(",")
            kept.append(behind)
        else:
            kept += [dots[:-3], behind]
    return "".join(kept)
