"""Files that somebody wrote to take the memory or the time of whoever reads them: each ends in a
sentence, with work that grows as the file does.

Where a test says that reading is linear, a square of its size would take hours.
"""

import csv
import io
import json
import tracemalloc

import pytest
from typer.testing import CliRunner

from gpuledger_collector.accounting.problems import SHOWN, Problem, shorten_problems
from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain
from gpuledger_collector.cli.read_series import read_series
from gpuledger_collector.config import bounded_csv, files, model
from gpuledger_collector.config.csv_rows import split_rows
from gpuledger_collector.config.declared import read_declared
from gpuledger_collector.export.focus_check import PRESENT, check
from gpuledger_collector.ingest.files import sacct
from gpuledger_collector.ingest.files.bill import read_bill
from gpuledger_collector.ingest.files.headers import delimiter_of
from gpuledger_collector.ingest.files.instants import is_local
from gpuledger_collector.ingest.files.job_table import gpus_of
from gpuledger_collector.ingest.files.samples import read_samples
from gpuledger_collector.ingest.files.shares import read_shares
from gpuledger_collector.ingest.files.usage import UsageOptions, read_usage
from gpuledger_collector.insight import series
from gpuledger_common import bounded_file
from gpuledger_common.bounded_file import MAX_TOML_PARTS, FileTooLarge
from gpuledger_common.settings import SettingsError, read_toml

LONG = 200_000


def write(tmp_path, text, name="file.txt"):
    path = tmp_path / name
    path.write_text(text)
    return path


def messages(problems):
    return [problem.message for problem in problems]


def refused(arguments):
    """Sentence and code with which a command ends."""
    return explain(CliRunner().invoke(build(), [str(word) for word in arguments]).exception)


# Tables


def test_a_header_names_a_bounded_number_of_columns(tmp_path):
    """However long it is: comparing each name with each other one is a square of them."""
    problems = []
    header, rows = split_rows(tmp_path / "x", "," * LONG, problems)
    assert (header, [*rows]) == ([], [])
    assert messages(problems) == [f"the header names {LONG + 1} columns; at most 1024 are read"]
    assert delimiter_of(";" * LONG) == ";"


def test_a_row_without_an_end_is_a_bad_row(tmp_path, monkeypatch):
    """On one line or on many; the rows after it are read, because a person whose job is in a file
    may have written it.
    """
    monkeypatch.setattr(bounded_csv, "MAX_ROW_CHARACTERS", 1_000)
    for row in ("x" * 2_000, ",".join(['"a\n"'] * 400)):
        problems = []
        _, records = split_rows(tmp_path / "x", f"a,b\n{row}\n1,2\n", problems)
        cells = [record.cells for record in records]
        assert "is not CSV: a row is longer than 1000 characters" in messages(problems)
        assert cells[-1:] == [{"a": "1", "b": "2"}] or "\n" in row


def test_mistakes_are_bounded(tmp_path, monkeypatch):
    """Of a file of nothing but bad rows, in each format; and a few are printed."""
    monkeypatch.setattr(files, "MAX_PROBLEMS", 5)
    bad = write(tmp_path, "start,end,gpus,team\n" + "too,many,cells,in,this\n" * 20)
    jobs = write(tmp_path, "1|2\n" * 20, "sacct.txt")
    lines = write(tmp_path, "{\n" * 20, "samples.jsonl")
    several = write(tmp_path, json.dumps({"ts": 1, "samples": [1] * 20}), "several.jsonl")
    declared = write(tmp_path, "[[price]]\n" * 20, "prices.toml")
    for read, path in (
        (lambda path: [*split_rows(path, path.read_text(), [])[1]], bad),
        (lambda path: [*sacct._split(path, path.read_text(), [], print)], jobs),
        (read_samples, lines),
        (read_samples, several),
        (read_declared, declared),
    ):
        with pytest.raises(FileTooLarge, match="more than 5 mistakes; is it another file"):
            read(path)


def test_few_mistakes_are_printed():
    """The first by their lines, and how many more there are."""
    problems = [Problem("x", f"f.csv:{line}:a", "is bad") for line in range(500, 0, -1)]
    sentences = shorten_problems(problems)
    assert sentences[0] == "f.csv:1:a: is bad"
    assert sentences[SHOWN:] == ["and 400 more of the kind"]
    assert len(shorten_problems(problems[:SHOWN])) == SHOWN


def test_a_good_row_takes_the_memory_that_is_told(tmp_path):
    """However many there are: owners, models and tags of rows are kept once."""

    def kept_bytes(count):
        rows = (
            f"{1_000_000 + row},team{row % 9},project{row % 50},user{row % 99},train,H100,"
            f"{1 + row % 8},2026-10-01T{row % 24:02d}:{row % 60:02d}:00Z,2026-10-02T{row % 24:02d}:00Z"
            for row in range(count)
        )
        header = "job_id,team,project,user,partition,gpu_model,gpus,start,end"
        path = write(tmp_path, "\n".join([header, *rows]), f"{count}.csv")
        tracemalloc.start()
        try:
            parsed = read_usage(path, UsageOptions())
            return tracemalloc.get_traced_memory()[0], parsed
        finally:
            tracemalloc.stop()

    few, parsed_few = kept_bytes(2_000)
    many, parsed_many = kept_bytes(12_000)
    assert (len(parsed_few.rows), len(parsed_many.rows)) == (2_000, 12_000)
    assert (many - few) / 10_000 < files.ROW_MEMORY_BYTES


# Slurm


def test_a_record_of_sacct_has_a_bounded_length(tmp_path, monkeypatch):
    """A comment may hold line ends, so a record could take all lines of the file."""
    monkeypatch.setattr(sacct, "MAX_ROW_CHARACTERS", 1_000)
    begun = "1|c|a|u|p|q|s|0|0|0|0|0|0|gres/gpu=1|n|"
    good = "2|c|a|u|p|q|COMPLETED|1790812800|1790812800|1790812800|1790816400|3600|0|gres/gpu=1|n||w|name"
    path = write(tmp_path, begun + "\nmore" * 500 + "||\n" + good + "\n")
    parsed = sacct.read_sacct(path)
    assert messages(parsed.problems) == ["is longer than 1000 characters"]
    assert [row.job_name for row in parsed.rows] == ["name"]


@pytest.mark.parametrize(
    "comment", ["a" * LONG, " " * LONG, "a=" * LONG, "a " * LONG, "-.a" * LONG]
)
def test_a_comment_is_read_once(comment):
    """Users write it: reading is linear."""
    sacct.tags_of({"comment": comment, "wckey": "", "account": ""})


@pytest.mark.parametrize(
    ("comment", "tags"),
    [
        ("project=llm;x=1, y = a b ;", {"project": "llm", "x": "1", "y": "a b"}),
        ("please run project = llm", {"project": "llm"}),
        ("9ab=1;1=2;1=c=3", {"ab": "1", "c": "3"}),
        ("a==b;=c;é=1;éa=2", {"a": "=b", "c;": ""} | {"a": "2"}),
    ],
)
def test_pairs_of_a_comment(comment, tags):
    """As users write them: the name is the word before the sign, the value all up to the next
    semicolon or comma.
    """
    found = sacct.tags_of({"comment": comment, "wckey": "", "account": ""})
    assert found == {name: value for name, value in tags.items() if value}


def test_an_allocation_is_read_once(tmp_path):
    """Types without an end, and counts of more digits than int() takes."""
    assert gpus_of("gres/gpu:" * LONG) == (0, "")
    assert gpus_of("gres/gpu=" + "9" * 10_000)[0] == int("9" * 20)
    job = (
        "2|c|a|u|p|q|COMPLETED|1790812800|1790812800|1790812800|1790816400|3600|0|gres/gpu="
        + "9" * 30
        + "|n||w|name"
    )
    parsed = sacct.read_sacct(write(tmp_path, job))
    assert messages(parsed.problems) == [f"{'9' * 20} GPUs are too many"]


def test_a_date_is_read_once():
    """A cell of blanks with a line end in it."""
    for date in ("2026/01/01", "01.01.2026"):
        assert not is_local(date + " " * LONG + "\nx")


def test_lines_that_are_empty_take_no_list():
    """A list of empty lines takes eight times what the text does."""
    for text in ("", "\n", "a\r\nb\rc\x0bd\x1ee\x85f\u2028g", "a\n\n", "\r\r\n"):
        assert [*files.lines_of(text)] == text.splitlines()


# Shares


def associations(rows):
    return "Account|ParentName|User|Share|GrpTRES\n" + "".join(f"{row}\n" for row in rows)


def test_shares_of_many_accounts_are_linear(tmp_path):
    """All below the root; asking each for its parent's children would be a square."""
    rows = (f"a{number}|root||1|" for number in range(60_000))
    _, parsed = read_shares(write(tmp_path, associations(rows)), "p", None)
    assert len(parsed.rows) == 60_000


def test_accounts_are_bounded(tmp_path, monkeypatch):
    """In number, and in how many stand above each other: a share has as many digits."""
    deep = (f"a{number}|{f'a{number - 1}' if number else 'root'}||2|" for number in range(500))
    _, parsed = read_shares(write(tmp_path, associations(deep)), "p", None)
    assert messages(parsed.problems) == ["has accounts below each other more than 100 deep"]
    from gpuledger_collector.ingest.files import shares

    monkeypatch.setattr(shares, "MAX_ACCOUNTS", 3)
    with pytest.raises(FileTooLarge, match="more than 3 accounts"):
        read_shares(write(tmp_path, associations(f"a{n}|root||1|" for n in range(9))), "p", None)


@pytest.mark.parametrize(
    "text", ['{"items":' + "[" * LONG, '{"items":[' + "[]," * 500_000 + "[]]}"]
)
def test_quotas_that_nest_or_are_many_are_a_sentence(tmp_path, text, monkeypatch):
    """Counted before they become objects."""
    monkeypatch.setattr(files, "MAX_JSON_VALUES", 100_000)
    _, parsed = read_shares(write(tmp_path, text), "p", None)
    assert messages(parsed.problems) == ["is not what kubectl get resourcequota -A -o json prints"]


@pytest.mark.parametrize("values", [3, [], "x", [["a", 1]], None])
def test_quotas_of_another_shape_are_a_sentence(tmp_path, values):
    """Whatever stands where names and amounts are."""
    item = {"metadata": {"namespace": [1]}, "spec": {"hard": values}}
    _, parsed = read_shares(write(tmp_path, json.dumps({"items": [item]})), "p", None)
    assert len(parsed.problems) == 1


# Samples


def test_samples_are_bounded_in_a_line_and_in_all(tmp_path, monkeypatch):
    """A line may hold any number of them."""
    sample = {"uuid": "GPU-0", "values": {}}
    path = write(tmp_path, json.dumps({"ts": 1_790_812_800, "samples": [sample] * 10}))
    monkeypatch.setattr(files, "MAX_RECORDS", 5)
    with pytest.raises(FileTooLarge, match="more than 5 rows"):
        read_samples(path)
    from gpuledger_collector.ingest.files import samples

    monkeypatch.setattr(samples, "MAX_ROW_CHARACTERS", 100)
    parsed = read_samples(path)
    assert "is not JSON: it is longer than 100 characters" in messages(parsed.problems)
    deep = write(tmp_path, '{"ts":' + "[" * 90)
    assert "is not JSON" in messages(read_samples(deep).problems)[0]


# FOCUS


FOCUS = (
    "InvoiceId,BilledCost,BillingCurrency,SkuPriceId,ChargeCategory,ResourceId,ResourceType,ChargeClass"
    ",ConsumedUnit,ConsumedQuantity,ChargePeriodStart,ChargePeriodEnd"
)


def check_output(path):
    """What the check of a file prints, which has violations."""
    done = CliRunner().invoke(build(), ["focus", "check", str(path)])
    assert done.exit_code == 1, done.exception
    return done.output


def focus_row(number):
    """A row of an invoice, a price and a GPU that no other row has."""
    instants = "2026-10-01T00:00:00Z,2026-10-01T01:00:00Z"
    return f"i{number},1,USD,p{number},Usage,GPU-{number},GPU,,GPU-Seconds,3600,{instants}"


@pytest.mark.parametrize(
    ("bound", "value", "sentence"),
    [
        ("MAX_RECORDS", 5, "more than 5 rows; split it"),
        ("MAX_REMEMBERED_BYTES", 10_000, "more invoices, prices and resources than can be"),
    ],
)
def test_a_focus_file_is_bounded_in_rows_and_in_what_they_are_compared_with(
    tmp_path, monkeypatch, bound, value, sentence
):
    """Each row may name an invoice, a price and a resource of its own."""
    monkeypatch.setattr(files, bound, value)
    rows = "\n".join([FOCUS, *(focus_row(number) for number in range(50))])
    said, code = refused(["focus", "check", write(tmp_path, rows)])
    assert (code, sentence in said) == (2, True)
    few = "\n".join([FOCUS, *(focus_row(1) for _ in range(5))])
    assert "violations" in check_output(write(tmp_path, few))


def test_what_a_check_of_a_focus_file_shows_is_bounded(tmp_path, monkeypatch):
    """A sentence quotes its cell up to a length, and --all has as many as other files may have."""
    row = "x" * 500_000
    said = check_output(write(tmp_path, f"{FOCUS}\n{row}{',1' * 11}"))
    assert len(max(said.splitlines(), key=len)) < 2_000
    monkeypatch.setattr(files, "MAX_PROBLEMS", 100)
    bad = "\n".join([FOCUS, *("a,b,c,d,e,f,g,h,i,j,k,l" for _ in range(120))])
    said, code = refused(["focus", "check", "--all", write(tmp_path, bad)])
    assert (code, "more than 100 mistakes" in said) == (2, True)
    assert "more like these" in check_output(write(tmp_path, bad))


# Series


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ts,demand\n" + "1,2\n" * 20, "more than 10 rows; split it"),
        ("ts,demand\n1,2" + "," * 2_000, "a line is longer than 1000 characters"),
        ("ts,demand" + "," * 60 + "\n1\n", "the header names 62 columns; at most 50 are read"),
        (
            "ts,demand" + "," * 28 + "\n" + "1\n" * 9,
            "more than 200 cells; leave columns out, or split it",
        ),
        ("ts,demand\n" + '"a\r,"' * 8 + "," * 195, "more than 200 cells"),
    ],
)
def test_a_table_of_series_has_bounded_cells(tmp_path, text, sentence, monkeypatch):
    """Short rows are filled up to the header, so that a few megabytes ask for gigabytes."""
    from gpuledger_collector.cli import read_series as module

    bounds = {"MAX_RECORDS": 10, "MAX_ROW_CHARACTERS": 1_000, "MAX_COLUMNS": 50, "MAX_CELLS": 200}
    for name, bound in bounds.items():
        monkeypatch.setattr(module, name, bound)
    code = refused(["forecast", "--series", write(tmp_path, text)])
    assert code[1] == 2
    assert sentence in code[0]


def test_the_steps_of_all_series_are_bounded(tmp_path, monkeypatch, capsys):
    """Each may span few steps while all of them fill the memory."""
    monkeypatch.setattr(series, "MAX_STEPS", 1_000)
    rows = [f"{at},s{name},1" for name in range(30) for at in (0, 60, 120, 36_000)]
    path = write(tmp_path, "ts,series,value\n" + "\n".join(rows) + "\n")
    with pytest.raises(Exception, match="with those before it, would span more than 1000 steps"):
        read_series(str(path))


# Declarations and settings


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a" + ".a" * LONG + "=1", "line 1 has more than 1000 dots; divide it"),
        ("price=[" + "{}," * MAX_TOML_PARTS + "]", f"holds more than {MAX_TOML_PARTS} keys"),
    ],
)
def test_a_table_in_toml_has_bounded_keys(tmp_path, text, sentence):
    """Before they are parsed: the parser's time grows with the square of a dotted key's parts."""
    path = write(tmp_path, text, "table.toml")
    said, code = refused(["apply", path, "--dsn", "dbname=none"])
    assert code == 2
    assert sentence in said
    with pytest.raises(SettingsError, match=sentence.split(";")[0]):
        read_toml(path)


def test_unknown_keys_are_named_up_to_a_number(tmp_path, monkeypatch):
    """At the top of a file, and in a table: each is compared with all known ones."""
    text = "".join(f"a{number} = 1\n" for number in range(500))
    for before in ("", "[[price]]\n"):
        parsed = read_declared(write(tmp_path, before + text, "table.toml"))
        assert len(parsed.problems) == model.MAX_OF_ROW


def test_bounds_of_toml_leave_room_for_large_tables(tmp_path):
    """Twenty thousand prices of ten keys."""
    line = "[[price]]\n" + "".join(f'key{number} = "value of it"\n' for number in range(10))
    assert len(bounded_file.read_toml_text(write(tmp_path, line * 20_000))) == len(line) * 20_000


# FOCUS


@pytest.mark.parametrize(
    "cells",
    [
        {"BilledCost": "1e999999999999"},
        {"BilledCost": "9" * LONG},
        {"BilledCost": "9" * 40, "InvoiceId": "1"},
        {"PricingQuantity": "1e99999999999999999999"},
        {"ConsumedQuantity": "1e-99999999"},
        {"Tags": "[" * LONG},
        {"AllocatedTags": '{"a":' * (LONG // 5)},
        {"AllocatedMethodDetails": '{"Elements":[{"AllocatedRatio":1e9999999999999999999}]}'},
        {"AllocatedMethodDetails": '{"Elements":[{"AllocatedRatio":1e999999999999999999}]}'},
        {"AllocatedMethodDetails": "[" * LONG},
    ],
)
def test_numbers_and_objects_of_any_size_are_violations(cells):
    """Arithmetic with them has an end, and no traceback."""
    names = [*PRESENT, *cells, "AllocatedMethodId", "BillingCurrency"]
    known = {
        "BillingCurrency": "USD",
        "ConsumedUnit": "GPU-Seconds",
        "PricingUnit": "GPU-Hours",
        "InvoiceId": "1",
        "AllocatedMethodId": "m",
    }
    file = io.StringIO()
    writer = csv.DictWriter(file, sorted({*names, *known}))
    writer.writeheader()
    for _ in range(2):
        writer.writerow(dict.fromkeys(names, "1") | known | cells)
    file.seek(0)
    assert {violation.column for violation in check(file)} & {*cells, "BilledCost"}


def test_a_focus_header_is_bounded():
    """Comparing each name with each other one is a square of them."""
    from gpuledger_collector.export.focus_check import NotFocus

    with pytest.raises(NotFocus, match="names 200001 columns; at most 1024 are read"):
        [*check(["," * LONG])]


# Parquet

BILL = {
    "ProviderName": "p",
    "ChargePeriodStart": "2026-01-01T00:00:00Z",
    "ChargePeriodEnd": "2026-02-01T00:00:00Z",
    "BillingPeriodStart": "2026-01-01T00:00:00Z",
    "BillingPeriodEnd": "2026-02-01T00:00:00Z",
    "ChargeCategory": "Usage",
    "BillingCurrency": "USD",
    "BilledCost": "1",
}


@pytest.fixture
def parquet(tmp_path):
    """Writes a bill of so many rows with a description."""
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def write(rows, description):
        index = arrow.array([0] * rows, arrow.int32())
        columns = {
            name: arrow.DictionaryArray.from_arrays(index, arrow.array([text]))
            for name, text in {**BILL, "ChargeDescription": description}.items()
        }
        path = tmp_path / "bill.parquet"
        parquet.write_table(arrow.table(columns), path, compression="zstd")
        return path

    return write


def test_a_text_that_stands_once_in_parquet_fills_no_memory(parquet):
    """Each of the rows has it: a reader of its own runs out of what it may have."""
    path = parquet(1_000, "A" * 4_000_000)
    assert path.stat().st_size < 1_000_000
    assert messages(read_bill(path).problems) == [
        "takes over 1 GiB to read, or is damaged; write it as CSV"
    ]
    assert refused(["import", "bill", path]) == (
        f"{path}: 1 bad row, nothing was imported",
        2,
    )


def test_what_parquet_prints_is_bounded(parquet, monkeypatch):
    """As text, as of any other file."""
    path = parquet(1_000, "A" * 3_000)
    assert len(next(iter(read_bill(path).bills.values()))) == 1_000
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 1_000_000)
    with pytest.raises(FileTooLarge, match="larger than 1000000 bytes"):
        read_bill(path)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_a_forged_footer_is_a_sentence(parquet, share):
    """Whatever it says of its pages."""
    path = parquet(3, "a")
    content = bytearray(path.read_bytes())
    footer = int.from_bytes(content[-8:-4], "little")
    at = len(content) - 8 - footer + int(share * footer)
    content[at : at + 12] = b"\xff" * 12
    path.write_bytes(content)
    bill = read_bill(path)
    assert bill.bills or len(bill.problems) == 1


def test_a_footer_alone_is_a_sentence(tmp_path):
    """Of a length that the file does not have."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "bill.parquet"
    path.write_bytes(b"PAR1" + b"\xff" * 8 + b"\xff\xff\xff\x7fPAR1")
    assert len(read_bill(path).problems) == 1
