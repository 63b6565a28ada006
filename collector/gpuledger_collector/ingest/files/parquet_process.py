"""Read columns of a Parquet file and print them as JSON: a process of its own, whose memory and
time are bounded.

    python -P -m gpuledger_collector.ingest.files.parquet_process FILE COLUMN...

A text that stands once in the file may be in each of a million rows, and a footer may say of its
pages what it likes: a file of some kilobytes asks for gigabytes. The first line of the output names
the columns and says how many rows there are; then each line is a list with the cells of a row as
the text that a CSV would hold. What is wrong with the file is an object with a `problem`, the last
line.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

from gpuledger_collector.config.bounded_process import bound_process
from gpuledger_collector.config.files import MAX_COLUMNS, MAX_RECORDS

ROWS_AT_ONCE = 1_000


def print_rows(path: Path, wanted: Sequence[str]) -> str | None:
    """Print header and rows; what is wrong with the file, or None."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Each thread would reserve memory of its own.
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    try:
        file = pq.ParquetFile(path)
        header, count = list(file.schema_arrow.names), file.metadata.num_rows
        if len(header) > MAX_COLUMNS:
            return f"has {len(header)} columns; at most {MAX_COLUMNS} are read"
        if count > MAX_RECORDS:
            return f"has more than {MAX_RECORDS} rows; split it"
        _print({"header": header, "rows": count})
        columns = [name for name in header if name in wanted]
        # Bills have dozens of columns; only the needed ones are read.
        for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns, use_threads=False):
            for row in batch.to_pylist():
                _print([text_of(row[name]) for name in columns])
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
        return f"is not Parquet: {' '.join(str(error).split())[:500]}"
    return None


def _print(line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")


def text_of(value: object) -> str:
    """A cell as a CSV would have it."""
    if value is None:
        return ""
    if isinstance(value, dt.datetime):
        # FOCUS dates are UTC, and a timestamp of Parquet may carry no zone
        return (value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)).isoformat()
    if isinstance(value, Decimal):
        return format(value, "f")
    return repr(value) if isinstance(value, float) else str(value)


def main(arguments: list[str]) -> int:
    """Print the rows, or what is wrong in a sentence; 0 for both."""
    # Other allocators reserve more than they use.
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    bound_process()
    problem = print_rows(Path(arguments[0]), arguments[1:])
    if problem is not None:
        _print({"problem": problem})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
