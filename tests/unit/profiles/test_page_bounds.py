"""A page is read in steps that grow with its length alone, and gives a bounded number of devices
and names.
"""

import contextlib
import re
import re._constants
import re._parser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gpuledger_common.profiles import lines
from gpuledger_common.profiles.library import packaged_profile
from gpuledger_common.profiles.lines import (
    MAX_LABEL_CHARACTERS,
    MAX_LINE_CHARACTERS,
    MAX_LINES,
    read_lines,
)
from gpuledger_common.profiles.page import MAX_DEVICES, MAX_HOLDERS, MAX_PROBLEMS, read_page
from gpuledger_common.profiles.read import parse_profile

PATTERNS = {name: value for name, value in vars(lines).items() if isinstance(value, re.Pattern)}
PIECES = [
    "a",
    "_",
    "{",
    "}",
    '"',
    "\\",
    ",",
    "=",
    "...",
    " ",
    "\t",
    "1",
    "9",
    ".",
    "e",
    "-",
    "NaN",
    "Inf",
    "#",
]
adversarial = st.lists(
    st.tuples(st.sampled_from(PIECES), st.sampled_from([1, 1, 1, 2, 3, 500])).map(
        lambda pair: pair[0] * pair[1]
    ),
    max_size=12,
).map("".join)
"""Runs of what a pattern might try to match in more than one way."""


class Counting:
    """A pattern that counts the characters that it may have looked at: those of a match, or the
    rest of the text.
    """

    def __init__(self, pattern, counted):
        self.pattern, self.counted = pattern, counted

    def match(self, text, at=0):
        found = self.pattern.match(text, at)
        self.counted.append((len(text) if found is None else found.end()) - at)
        return found

    def sub(self, replacement, text):
        self.counted.append(len(text))
        return self.pattern.sub(replacement, text)

    def split(self, text):
        self.counted.append(len(text))
        return self.pattern.split(text)


def quantifiers(parsed):
    """Every quantifier of a parsed pattern that may give back what it took."""
    for operator, argument in parsed:
        if operator in {re._constants.MAX_REPEAT, re._constants.MIN_REPEAT}:
            yield operator
        for part in argument if isinstance(argument, (tuple, list)) else [argument]:
            for nested in part if isinstance(part, list) else [part]:
                if isinstance(nested, re._parser.SubPattern):
                    yield from quantifiers(nested)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_gives_back_what_it_took(name):
    """So a match looks at each character once; the pattern that was quadratic shows that this test
    sees one.
    """
    assert list(quantifiers(re._parser.parse(PATTERNS[name].pattern))) == []
    assert list(quantifiers(re._parser.parse(r",?\s*\.\.\.\s*(?=[,}])"))) != []
    assert list(quantifiers(re._parser.parse(r"(?:(a)|b*)"))) != []


@given(st.lists(adversarial, max_size=4), st.sampled_from([1, 40]))
def test_the_characters_looked_at_are_a_multiple_of_the_page(entries, times):
    """Whatever the page repeats, no text is matched again from every position of it."""
    text = "\n".join(["a{" + 'x="y",' * times + entry * times for entry in entries] + entries)
    counted = []
    with pytest.MonkeyPatch.context() as patch:
        for name, pattern in PATTERNS.items():
            patch.setattr(lines, name, Counting(pattern, counted))
        with contextlib.suppress(ValueError):
            read_lines(text)
    assert sum(counted) <= 6 * len(text) + 10


ELISION = re.compile(r",?\s*\.\.\.\s*(?=[,}])")


@given(st.text("a ,.}\t", max_size=30))
@example("....,")
@example("a{b, ...... , ...}")
def test_elisions_are_those_of_the_pattern_that_was_quadratic(text):
    """The line without them is the same, in one pass."""
    assert lines._without_elisions(text) == ELISION.sub("", text)


LABELS = st.dictionaries(
    st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(
        lambda name: not name.startswith("__")
    ),
    st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=20),
    max_size=5,
)
SAMPLES = st.lists(
    st.tuples(
        st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", fullmatch=True),
        LABELS,
        st.one_of(st.integers(-(10**15), 10**15), st.floats(allow_nan=False, allow_infinity=False)),
        st.booleans(),
    ),
    max_size=5,
)


@given(SAMPLES)
def test_a_page_is_read_as_the_library_of_prometheus_reads_it(samples):
    """Names, labels with their escapes, and values are the same."""
    text = ""
    for name, labels, value, has_time in samples:
        pairs = ",".join(f'{label}="{escaped(content)}"' for label, content in labels.items())
        text += f"{name}{{{pairs}}} {value!r}{' 1700000000000' if has_time else ''}\n"
    expected = [
        (sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert [
        (sample.name, sample.labels, sample.value) for sample in read_lines(text).samples
    ] == expected


def escaped(text):
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@pytest.mark.parametrize(
    "line",
    [
        'a{b="c" 1}  1',
        "a{b=c} 1",
        'a{b="c",,d="e"} 1',
        'a{b="1",b="2"} 1',
        "a{}{} 1",
        'a{b="c\\"} 1',
    ],
)
def test_a_page_with_malformed_labels_is_refused(line):
    """A label that is misread bills another; what has no value is only skipped, as text around a
    page is.
    """
    with pytest.raises(ValueError, match=r"^line 2 "):
        read_lines(f"a 1\n{line}\n")
    assert read_lines('a{b="c"\na{b=c}\n').samples == ()


def test_a_page_has_a_number_of_lines_and_a_line_a_length():
    """A sentence each; long names are cut, so that their usage is still counted."""
    with pytest.raises(ValueError, match=f"more than {MAX_LINES} samples"):
        read_lines("a 1\n" * (MAX_LINES + 1))
    text = (
        'a{b="'
        + "x" * (MAX_LINE_CHARACTERS + 1)
        + '"} 1\n'
        + 'a{b="'
        + "y" * (MAX_LABEL_CHARACTERS + 1)
        + '"} 1\n'
    )
    read = read_lines(text)
    assert [sample.labels for sample in read.samples] == [{"b": "y" * MAX_LABEL_CHARACTERS}]
    assert read.problems == (
        f"1 line of more than {MAX_LINE_CHARACTERS} characters: skipped",
        f"1 line with labels of more than {MAX_LABEL_CHARACTERS} characters: cut",
    )


def line(device, **labels):
    more = "".join(f',{name}="{value}"' for name, value in labels.items())
    return f'DCGM_FI_DEV_GPU_UTIL{{gpu="{device}",UUID="GPU-{device}",modelName="H100"{more}}} 5\n'


def read(text):
    return read_page(packaged_profile("dcgm-exporter"), read_lines(text), "node")


def test_a_page_shows_a_bounded_number_of_devices():
    """The first ones are read, and the problems, which the heartbeat and the log carry, say so."""
    shown = read("".join(line(number) for number in range(MAX_DEVICES + 3)))
    assert len(shown.accelerators) == MAX_DEVICES
    assert f"3 lines of more than {MAX_DEVICES} accelerators: not counted" in shown.problems


def test_a_device_has_a_bounded_number_of_holders():
    """Each pod of a line would get a share of the device, and a record in each batch."""
    text = "".join(line(0, pod=f"p{number}", namespace="n") for number in range(MAX_HOLDERS + 5))
    shown = read(text)
    (entry,) = shown.accelerators.values()
    assert len(entry.owners) == MAX_HOLDERS
    assert (
        f"5 lines of more than {MAX_HOLDERS} holders of one accelerator: not counted"
        in shown.problems
    )


SMALL = """
id = "small"
title = "A small exporter"
energy = "unknown"
[evidence]
repository = "somebody/exporter"
status = "synthetic"
[match]
families = ["small_*"]
[device]
keys = [["serial"]]
[part]
labels = ["slice"]
share = "value"
values = [{ family = "small_share" }]
[[metrics]]
metric = "gpu_power_watts"
families = ["small_watts"]
"""


def test_the_messages_about_a_page_are_bounded():
    """A heartbeat carries them: neither their number nor the names in one grow with the page."""
    profile = parse_profile(SMALL, "small.toml")
    odd = "".join(f'small_watts{{serial="1",odd{number}="1"}} 5\n' for number in range(300))
    (problem,) = read_page(profile, read_lines(odd)).problems
    assert "300 different series" in problem
    assert len(problem) < 300
    parts = "".join(f'small_watts{{serial="{number}",slice="a"}} 5\n' for number in range(200))
    problems = read_page(profile, read_lines(parts)).problems
    assert problems[0] == "0/a: no share was read, so it is not counted"
    assert (len(problems), problems[-1]) == (
        MAX_PROBLEMS + 1,
        f"{200 - MAX_PROBLEMS} more messages",
    )
