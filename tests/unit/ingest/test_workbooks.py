"""Spreadsheets as files of jobs: .xlsx workbooks, and CSV files that Windows wrote."""

import datetime as dt
import itertools
import subprocess
import sys
import zipfile
from pathlib import Path

import openpyxl
import pytest
from typer.testing import CliRunner

from gpuledger_collector.cli import build
from gpuledger_collector.cli.common import explain
from gpuledger_collector.cli.start import _show
from gpuledger_collector.config import workbook, workbook_process
from gpuledger_collector.config.csv_rows import WINDOWS, read_table_text
from gpuledger_collector.config.prices import read_prices
from gpuledger_collector.ingest.files.headers import TableOptions
from gpuledger_collector.ingest.files.usage import UsageOptions, read_usage, understand

HEADER = ("Job ID", "Team", "GPUs", "Start", "End")
DAY = dt.datetime(2026, 10, 1, 8)
SHEET = (
    "<worksheet"
    ' xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"><sheetData>{}</sheetData></worksheet>'
)


@pytest.fixture
def book(tmp_path):
    """Writes a workbook: the rows of each sheet by its name."""

    def write(name="jobs.xlsx", **sheets):
        made = openpyxl.Workbook()
        made.remove(made.active)
        for title, rows in sheets.items():
            sheet = made.create_sheet(title)
            for row in rows:
                sheet.append(row)
        made.save(tmp_path / name)
        return tmp_path / name

    return write


@pytest.fixture
def job_rows():
    """A header and jobs of whole and broken numbers, with instants to the second."""
    return [
        HEADER,
        (101, "Größe", 8, DAY, DAY + dt.timedelta(hours=12, seconds=1)),
        ("102_a", "nlp, two", 0.5, DAY, DAY + dt.timedelta(minutes=20)),
    ]


def read(path, **options):
    """The rows of a file whose times are those of UTC."""
    return read_usage(path, UsageOptions(table=TableOptions(zone="UTC", **options)))


@pytest.fixture
def shown(capsys):
    """The column table that `gpuledger start` prints of a file."""

    def show(path, **options):
        _show(understand(path, UsageOptions(table=TableOptions(zone="UTC", **options)), []))
        return capsys.readouterr().out

    return show


def start(path, *options):
    """What `gpuledger start` says of a file that it refuses: its exit code, output and sentences."""
    done = CliRunner().invoke(build(), ["start", str(path), "--dry-run", "--zone", "UTC", *options])
    sentence, code = explain(done.exception) if done.exception else ("", done.exit_code)
    return code, done.stdout, done.stderr + sentence


def replace_part(path, name, text):
    """Give a part of a workbook another content."""
    with zipfile.ZipFile(path) as archive:
        parts = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for part, content in {**parts, name: text}.items():
            archive.writestr(part, content)


def test_a_workbook_is_read_as_its_csv_would_be(book, job_rows, tmp_path):
    """The same rows of the same lines, whichever of the two was saved."""
    csv = tmp_path / "jobs.csv"
    cells = [
        [cell.isoformat() if isinstance(cell, dt.datetime) else str(cell) for cell in row]
        for row in job_rows
    ]
    csv.write_text("".join(";".join(row) + "\n" for row in cells))
    of_book, of_csv = read(book(Jobs=job_rows)), read(csv)
    assert of_csv.problems == of_book.problems == []
    assert of_book.rows == of_csv.rows
    assert [row.gpu_micro for row in of_book.rows] == [8_000_000, 500_000]
    assert of_book.rows[0].end_ms - of_book.rows[0].start_ms == (12 * 3600 + 1) * 1000
    assert "sheet 'Jobs' of a workbook" in of_book.notes


def test_instants_of_a_sheet_are_exact_to_the_second(book):
    """A spreadsheet keeps them as parts of a day, in binary."""
    starts = [
        dt.datetime(2026, 10, 25, 23, 59, 59) + dt.timedelta(seconds=7919 * number)
        for number in range(500)
    ]
    rows = [(number, "a", 1, at, at + dt.timedelta(seconds=1)) for number, at in enumerate(starts)]
    parsed = read(book(Jobs=[HEADER, *rows]))
    assert not parsed.problems
    assert [row.start_ms for row in parsed.rows] == [
        at.replace(tzinfo=dt.UTC).timestamp() * 1000 for at in starts
    ]
    assert {row.end_ms - row.start_ms for row in parsed.rows} == {1000}


def test_durations_of_a_sheet(book):
    """A duration over a day, one below, and a number of hours beside its header."""
    rows = [(1, "a", 1, DAY, dt.timedelta(hours=30)), (2, "a", 1, DAY, dt.time(8, 30))]
    parsed = read(book(Jobs=[(*HEADER[:4], "Elapsed"), *rows]))
    assert [(row.end_ms - row.start_ms) / 3_600_000 for row in parsed.rows] == [30, 8.5]


def test_empty_rows_keep_the_numbers_of_the_others(book, job_rows):
    """A problem names the row as the spreadsheet does; a line end within a cell is none."""
    rows = [
        [],
        [],
        job_rows[0],
        job_rows[1],
        [],
        (7, "two\nlines", 1, DAY, DAY),
        ("8", "x", "many", DAY, DAY),
    ]
    parsed = read(book(Jobs=rows))
    (problem,) = parsed.problems
    assert problem.source.endswith("jobs.xlsx:7:GPUs")
    assert [(row.line, row.tags["team"]) for row in parsed.rows] == [(4, "Größe"), (6, "two lines")]


def test_the_first_sheet_or_the_one_that_is_named(book, job_rows, shown):
    """A name that no sheet has is refused with the nearest one."""
    path = book(Jobs=job_rows, September=[HEADER, (1, "old", 1, DAY, DAY)])
    assert len(read(path).rows) == 2
    assert [row.tags["team"] for row in read(path, sheet="September").rows] == ["old"]
    assert "sheet 'September' of a workbook, 1 row" in shown(path, sheet="September")
    code, _, err = start(path, "--sheet", "Septembr")
    assert code == 2
    assert f"{path}: has no sheet 'Septembr'; did you mean 'September'?" in err


def test_a_sheet_of_a_file_that_is_no_workbook(tmp_path):
    """The option is refused, and not ignored."""
    path = tmp_path / "jobs.csv"
    path.write_text("job_id,team,gpus,start,end\n")
    assert (
        "is no workbook, and has no sheets; leave out --sheet" in start(path, "--sheet", "Jobs")[2]
    )


def test_prices_come_from_a_workbook_too(book):
    """Whatever reads rows of CSV reads them of a sheet."""
    path = book(
        "prices.xlsx",
        Prices=[
            ("pool", "gpu_model", "purchase", "rate_per_gpu_hour", "currency", "effective_from")
        ],
    )
    made = openpyxl.load_workbook(path)
    made.active.append(("", "", "on_demand", 2.5, "USD", dt.date(2026, 1, 1)))
    made.save(path)
    parsed = read_prices(path)
    (price,) = parsed.rows
    assert (parsed.problems, parsed.notes) == ([], ["sheet 'Prices' of a workbook"])
    assert str(price.rate) == "2.5"


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (
            '<c r="E2"><f>D2+1</f></c>',
            "cell E2 of sheet 'Jobs' has a formula and no value; open the file in a",
        ),
        ('<c r="E2"><f>D2+1</f><v/></c>', "cell E2 of sheet 'Jobs' has a formula and no value"),
        ('<c r="E2" t="e"><v>#N/A</v></c>', "cell E2 of sheet 'Jobs' holds the error #N/A"),
    ],
)
def test_a_cell_that_is_not_empty_is_not_read_as_empty(book, job_rows, cells, words):
    """An end that is read as empty would be billed up to now."""
    path = book(Jobs=job_rows)
    replace_part(path, "xl/worksheets/sheet1.xml", SHEET.format(f'<row r="2">{cells}</row>'))
    code, _, err = start(path)
    assert code == 2
    assert words in err


def test_a_formula_with_a_value_is_its_value(book, job_rows):
    """What the spreadsheet computed, also where that is an empty text."""
    path = book(Jobs=job_rows)
    row = "".join(
        f'<c r="{column}1" t="inlineStr"><is><t>{name}</t></is></c>'
        for column, name in zip("ABCDE", HEADER, strict=True)
    )
    start_s = 46296.333333333336
    cells = (
        '<c r="A2"><v>7</v></c><c r="B2" t="str"><f>""</f><v></v></c><c'
        ' r="C2"><f>1+1</f><v>2</v></c>'
    )
    cells += f'<c r="D2"><v>{start_s}</v></c><c r="E2"><f>D2+1</f><v>{start_s + 1}</v></c>'
    replace_part(
        path,
        "xl/worksheets/sheet1.xml",
        SHEET.format(f'<row r="1">{row}</row><row r="2">{cells}</row>'),
    )
    (job,) = read(path).rows
    assert (job.gpu_micro, job.end_ms - job.start_ms) == (2_000_000, 86_400_000)
    assert "team" not in job.tags


def ole(text):
    """A file as older office programs begin theirs, and those with a password."""
    return workbook.OLE + bytes(512) + text.encode("utf-16-le") + bytes(512)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "old.xls",
            ole("Workbook"),
            "is a workbook of an old kind (.xls); save its sheet as .xlsx",
        ),
        (
            "locked.xlsx",
            ole("EncryptedPackage"),
            "is protected by a password; save its sheet as .xlsx",
        ),
        ("torn.xlsx", workbook.ZIP + b"torn", "is no whole workbook"),
        (
            "report.pdf",
            b"%PDF-1.7\n\xb5\xb5\xb5\n",
            "is no text; save its table as CSV UTF-8 or .xlsx",
        ),
        ("report.pdf", b"%PDF-1.7\nplain\n", "is no text; save its table as CSV UTF-8 or .xlsx"),
        ("jobs.json", b'{"jobs": [{"id": 1}]}', "is JSON and no table; write its rows as CSV"),
        ("jobs.json", b'[\n  {"id": 1}\n]', "is JSON and no table; write its rows as CSV"),
    ],
)
def test_what_is_no_table_is_one_sentence_with_the_cure(tmp_path, name, content, words):
    """Whatever its name says; nothing else is said of it."""
    path = tmp_path / name
    path.write_bytes(content)
    code, out, err = start(path)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 2  # the sentence, and that nothing was imported


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            {"xl/vbaProject.bin": b"macro"},
            "is a workbook with macros (.xlsm); save its sheet as .xlsx",
        ),
        ({"xl/workbook.xml": b"<workbook"}, "is no whole workbook"),
        ({"xl/worksheets/sheet1.xml": b"<worksheet>"}, "is no whole workbook"),
        (
            {"xl/_rels/workbook.xml.rels": b"<Relationships/>"},
            "is a workbook without a sheet of cells",
        ),
    ],
)
def test_workbooks_of_other_kinds_are_refused(book, job_rows, part, words):
    """Macros, and parts that are broken or missing."""
    path = book(Jobs=job_rows)
    ((name, content),) = part.items()
    replace_part(path, name, content)
    code, _, err = start(path)
    assert code == 2
    assert words in err


def test_other_archives_are_no_workbooks(tmp_path):
    """An OpenDocument sheet, a binary workbook, and any archive."""
    for name, parts, words in (
        ("jobs.ods", ("mimetype", "content.xml"), "is another kind of workbook and no .xlsx"),
        ("jobs.xlsb", ("xl/workbook.bin",), "is another kind of workbook and no .xlsx"),
        ("jobs.zip", ("jobs.csv",), "is an archive and no .xlsx"),
    ):
        path = tmp_path / name
        with zipfile.ZipFile(path, "w") as archive:
            for part in parts:
                archive.writestr(part, "x")
        assert words in start(path)[2]


def test_what_inflates_beyond_the_bound_is_refused_before_it_is_read(book, job_rows):
    """The archive says how large its parts are."""
    path = book(Jobs=job_rows)
    replace_part(path, "xl/media/image1.png", bytes(workbook_process.MAX_INFLATED_BYTES))
    assert path.stat().st_size < 2**20
    code, _, err = start(path)
    assert code == 2
    assert "is larger than 256 MiB when it is inflated; split it" in err


@pytest.mark.parametrize(
    "attack", ["far apart", "a size that is not true", "one text in every cell"]
)
def test_a_small_file_cannot_take_the_machine(book, attack):
    """The kernel ends the reader, and the command says so in a sentence.

    Its own memory stays small.
    """
    path = book(Jobs=[HEADER])
    if attack == "far apart":
        far = (
            '<row r="1"><c r="A1"><v>1</v></c></row><row r="1048576"><c'
            ' r="XFD1048576"><v>2</v></c></row>'
        )
        replace_part(path, "xl/worksheets/sheet1.xml", SHEET.format(far))
    elif attack == "one text in every cell":
        replace_part(path, "xl/sharedStrings.xml", f"<sst><si><t>{'x' * 2**20}</t></si></sst>")
        row = "".join(
            f'<row r="{number}"><c r="A{number}" t="s"><v>0</v></c></row>'
            for number in range(1, 4000)
        )
        replace_part(path, "xl/worksheets/sheet1.xml", SHEET.format(row))
        _name_shared_strings(path)
    else:
        cells = "<row>" + "<c><v>1</v></c>" * 2_000 + "</row>"
        replace_part(path, "xl/worksheets/sheet1.xml", SHEET.format(cells * 2_000))
        _lie_about_size(path, "xl/worksheets/sheet1.xml")
    assert path.stat().st_size < 8 * 2**20
    code, _, err = start(path)
    assert code == 2
    assert "is a workbook that takes over 1 GiB to read" in err or "is no whole workbook" in err
    assert len(err.splitlines()) == 2


def _name_shared_strings(path):
    """Add the part of shared texts to the relations of the workbook, where the writer made none."""
    name = "xl/_rels/workbook.xml.rels"
    with zipfile.ZipFile(path) as archive:
        text = archive.read(name).decode()
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/sharedStrings"
    if kind not in text:
        row = f'<Relationship Id="rId99" Type="{kind}" Target="sharedStrings.xml"/></Relationships>'
        replace_part(path, name, text.replace("</Relationships>", row))


def _lie_about_size(path, name):
    """Say in both headers of a part that it inflates to a hundred bytes."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(name)
    true, lie = info.file_size.to_bytes(4, "little"), (100).to_bytes(4, "little")
    content = path.read_bytes()
    assert content.count(true) == 2
    path.write_bytes(content.replace(true, lie))


def test_the_reader_does_not_run_code_of_the_folder(book, job_rows, tmp_path):
    """A module that lies beside the file has the name of the reader."""
    path = book(Jobs=job_rows)
    (tmp_path / "python_calamine.py").write_text("raise SystemExit('from the folder')")
    module = (
        "from gpuledger_collector.config.workbook import read_sheet; from pathlib import Path; "
    )
    code = f"{module}path = Path({str(path)!r}); print(read_sheet(path, path.read_bytes()).name)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("Jobs\n", "")


def test_a_file_of_windows_is_read_and_said(tmp_path, shown):
    """Umlauts of Windows-1252 are no UTF-8; a file that is UTF-8 is never read so."""
    text = "job_id;Team;gpus;start;end\n1;Größe;1;1759276800;\n"
    path, other = tmp_path / "jobs.csv", tmp_path / "utf8.csv"
    path.write_bytes(text.encode("cp1252"))
    other.write_text(text, encoding="utf-8")
    assert (
        [row.tags["team"] for row in read(path).rows]
        == [row.tags["team"] for row in read(other).rows]
        == ["Größe"]
    )
    assert WINDOWS in read(path).notes
    assert WINDOWS not in read(other).notes
    assert f"{path}: {WINDOWS}, columns separated by semicolons, 1 row" in shown(path)


@pytest.mark.parametrize("letters", ["é", "日本", "ß€", "Å"])
def test_a_file_of_utf8_with_one_wrong_byte_is_not_taken_for_windows(tmp_path, letters):
    """Else every other letter of it would be read as two or three."""
    for place, line in ((b"%s,x\n\xe9,x\n", 2), (b"\xe9,%s\n", 1)):
        path = tmp_path / "jobs.csv"
        path.write_bytes(place.replace(b"%s", letters.encode()))
        problems = []
        assert read_table_text(path, problems) is None
        (problem,) = problems
        assert problem.source == f"{path}:{line}"
        assert "some of it was written otherwise: save it as CSV UTF-8" in problem.message


def test_every_letter_of_windows(tmp_path):
    """All bytes above ASCII that have a letter in Windows-1252; one without is refused."""
    path = tmp_path / "jobs.csv"
    undefined = {0x81, 0x8D, 0x8F, 0x90, 0x9D}
    letters = bytes(
        itertools.chain.from_iterable(
            (byte, 0x61) for byte in range(0x80, 0x100) if byte not in undefined
        )
    )
    path.write_bytes(letters)
    assert read_table_text(path, []).text == letters.decode("cp1252")
    for byte in undefined:
        path.write_bytes(letters + bytes([byte]))
        problems = []
        assert read_table_text(path, problems) is None
        assert problems[0].message == "is not UTF-8 text; save it as CSV UTF-8"


def test_a_folder_is_one_sentence(tmp_path):
    """What was named, and that it is no file."""
    code, _, err = start(tmp_path)
    assert (code, err) == (2, f"{tmp_path}: is a folder and no file")


def test_a_workbook_in_gzip(book, job_rows, tmp_path):
    """It is compressed already; the sentence says how to unpack it."""
    import gzip

    path = tmp_path / "jobs.xlsx.gz"
    path.write_bytes(gzip.compress(book(Jobs=job_rows).read_bytes()))
    assert "is a workbook in a .gz; unpack it: gunzip -k jobs.xlsx.gz" in start(path)[2]


def test_a_large_sheet_fits(book):
    """Five thousand jobs with ten columns; the output of the process is more than a pipe holds."""
    rows = ((number, "a", 1, DAY, DAY, *["text"] * 5) for number in range(5_000))
    parsed = read(book(Jobs=[(*HEADER, "a", "b", "c", "d", "e"), *rows]))
    assert len(parsed.rows) == 5_000


def test_paths_that_begin_with_a_dash(book, job_rows, monkeypatch, tmp_path):
    """A file is named by its whole path to the process that reads it."""
    book("-m.xlsx", Jobs=job_rows)
    monkeypatch.chdir(tmp_path)
    assert len(read(Path("-m.xlsx")).rows) == 2
