"""The spool: batches on the node's disk until the collector has committed them.

It is SQLite in WAL mode with synchronous=FULL. Numbering, storing and counting are one transaction,
so that after a crash at any point `produced = acked + pending + dropped + dead` holds. A spool file
has its own epoch; a damaged one is quarantined and a new epoch begins, so that sampling never waits
for a repair. Damage that SQLite does not see is detected too: the numbers must add up when the file
is opened, and before a batch is sent its SHA-256 must be the stored one; else it becomes a dead
letter, never a wrong bill.

The file is bounded. When it is full, batches with readings only are dropped first, oldest first;
batches with usage intervals, which are billed, only when there is nothing else. Each loss is
recorded with its range and reason, and counted by its records. To allow this choice, the sampler
puts readings and usage intervals into separate batches as soon as batches pile up (`downsampling`).
Waiting batches are never re-encoded: the collector may have committed the bytes under this number
already, its answer lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpuledger_common.readings import AgentError

PAGE_BYTES = 4096
DEAD_LETTERS_KEPT = 1000
LOCK_WAIT_S = 10.0
"""How long another program (a backup, a person with sqlite3) may lock the file before an error is
reported.
"""
MAX_QUARANTINED = 2
"""Damaged spools kept for inspection; older ones are removed."""
FREE_FLOOR_BYTES = 256 * 1024 * 1024
"""With less free space on the filesystem the file does not grow: the node needs it more."""
SMALL_BYTES = 1024 * 1024
"""The file may always grow to this size: a batch or two on their way to the collector."""
BOUND_REACHED = 0.8
"""Above this fill level, a full spool has reached its own bound; below it, the disk is full."""
LOG_PAGES = 128
"""Pages in the write-ahead log before a checkpoint: half a megabyte instead of SQLite's four."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batch (
    seq INTEGER PRIMARY KEY, created_ms INTEGER NOT NULL, sha256 BLOB NOT NULL, body BLOB NOT NULL,
    undecodable INTEGER NOT NULL DEFAULT 0, usage_intervals INTEGER NOT NULL, readings INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS dead (
    id INTEGER PRIMARY KEY, seq INTEGER NOT NULL, record TEXT NOT NULL, reason TEXT NOT NULL, body BLOB
);
CREATE TABLE IF NOT EXISTS loss (
    id INTEGER PRIMARY KEY, first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL, batches INTEGER NOT NULL,
    reason TEXT NOT NULL, at_ms INTEGER NOT NULL
);
"""
_EPOCH = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_COUNTERS = (
    "produced",
    "acked",
    "dropped",
    "dead",
    "usage_intervals_dropped",
    "readings_dropped",
    "readings_downsampled",
)

Encode = Callable[[str, int], bytes]
"""Gives the bytes of a batch for an epoch and a sequence number."""


@dataclass(frozen=True, slots=True)
class BatchContents:
    """Numbers of records in a batch; `downsampled` are readings that were left out of it to save
    space.
    """

    usage_intervals: int = 0
    readings: int = 0
    downsampled: int = 0


EMPTY = BatchContents()


@dataclass(frozen=True, slots=True)
class RecordLosses:
    """Numbers of records that an epoch has lost for lack of space."""

    usage_intervals_dropped: int
    readings_dropped: int
    readings_downsampled: int


class DiskNearlyFull(AgentError):
    """A batch would make the file grow on a nearly full disk."""


class SpoolUnavailable(AgentError):
    """The spool's folder cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class SpooledBatch:
    """A waiting batch; its bytes never change."""

    seq: int
    body: bytes
    undecodable: int


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """The conservation numbers of an epoch, in batches."""

    produced: int
    acked: int
    pending: int
    dropped: int
    dead: int

    @property
    def is_conserved(self) -> bool:
        """Whether every batch produced is accounted for."""
        return self.produced == self.acked + self.pending + self.dropped + self.dead


def uuid7(at_ms: int, random: bytes) -> str:
    """A version 7 UUID (RFC 9562 §5.7) from unix milliseconds and ten random bytes."""
    value = (at_ms & (1 << 48) - 1) << 80 | int.from_bytes(random[:10], "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(0x3 << 62) | 2 << 62
    digits = f"{value:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class Spool:
    """One spool file. Methods may be called from several threads."""

    def __init__(
        self, folder: Path, max_bytes: int, now_ms: int, free_floor: int = FREE_FLOOR_BYTES
    ) -> None:
        self.path = folder / "spool.sqlite"
        self._max_bytes, self._free_floor = max_bytes, free_floor
        # Reentrant: methods that hold a transaction call others that read.
        self._lock = threading.RLock()
        self.quarantined: Path | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SpoolUnavailable(
                f"the spool folder {folder} cannot be created: {error.strerror}"
            ) from error
        refuse_link_of_others(self.path)
        try:
            self._db = self._open_or_replace(folder, now_ms)
        except sqlite3.OperationalError as error:
            why = f"({error})" if os.access(folder, os.W_OK) else "by this user"
            raise SpoolUnavailable(f"the spool {self.path} cannot be written {why}") from error
        self.epoch = str(self._value("SELECT value FROM meta WHERE name = 'epoch'"))

    def _open_or_replace(self, folder: Path, now_ms: int) -> sqlite3.Connection:
        """Open the file, or a new one if it is damaged.

        Locked, unwritable or on a full disk, it is not damaged.
        """
        try:
            return self._open(now_ms)
        except sqlite3.OperationalError as error:
            # The lower byte is the primary result code; the others only refine it.
            code = error.sqlite_errorcode & 0xFF
            # SQLITE_ERROR: a foreign table in place of ours. Read-only though writable: a flipped
            # byte in the header.
            flipped = (
                code == sqlite3.SQLITE_READONLY
                and os.access(self.path, os.W_OK)
                and os.access(folder, os.W_OK)
            )
            if code != sqlite3.SQLITE_ERROR and not flipped:
                raise
        except sqlite3.DatabaseError:
            pass
        return self._replace(folder, now_ms)

    def _open(self, now_ms: int) -> sqlite3.Connection:
        # isolation_level=None: transactions begin where `_transaction` says so, not implicitly
        # before a write.
        database = sqlite3.connect(
            self.path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False
        )
        # A flipped bit must not raise.
        database.text_factory = lambda value: value.decode(errors="replace")
        try:
            # quick_check leaves out the comparison of indexes with their tables, which takes far
            # longer on a full spool.
            verdict = database.execute("PRAGMA quick_check(1)").fetchone()
            if verdict is None or verdict[0] != "ok":
                raise sqlite3.DatabaseError(f"quick_check: {verdict}")
            # auto_vacuum takes effect only before the first table is created.
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
            database.execute("PRAGMA journal_mode = WAL")
            # In WAL mode only FULL syncs the log at each commit; with NORMAL a power failure could
            # undo the last batches.
            database.execute("PRAGMA synchronous = FULL")
            # SQLite enforces the bound itself: a write beyond it fails with SQLITE_FULL and is
            # rolled back.
            database.execute(f"PRAGMA max_page_count = {max(64, self._max_bytes // PAGE_BYTES)}")
            database.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            # The write-ahead log is a file besides the bounded one: after a checkpoint it is
            # truncated to this size.
            database.execute(f"PRAGMA journal_size_limit = {LOG_PAGES * PAGE_BYTES}")
            database.executescript(_SCHEMA)
            with database:
                database.execute("BEGIN IMMEDIATE")
                fresh = uuid7(now_ms, os.urandom(10))
                database.execute("INSERT OR IGNORE INTO meta VALUES ('epoch', ?)", (fresh,))
                database.executemany(
                    "INSERT OR IGNORE INTO counter VALUES (?, 0)", [(name,) for name in _COUNTERS]
                )
            _check_rows(database)
        except UnicodeDecodeError as error:  # sqlite3 quotes a flipped name in its message
            database.close()
            raise sqlite3.DatabaseError("a name is not text") from error
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _replace(self, folder: Path, now_ms: int) -> sqlite3.Connection:
        """Move a damaged file into quarantine and begin a new epoch."""
        quarantine = folder / "quarantine"
        quarantine.mkdir(exist_ok=True)
        # Names contain the time, so they sort by age; one place is kept for the file that is moved
        # now.
        for old in sorted(quarantine.glob("spool-*.sqlite"))[: 1 - MAX_QUARANTINED]:
            for path in quarantine.glob(f"{old.name}*"):
                path.unlink()
        self.quarantined = quarantine / f"spool-{now_ms}.sqlite"
        # The log holds commits that are not in the main file yet: the three belong together.
        for suffix in ("", "-wal", "-shm"):
            damaged = Path(f"{self.path}{suffix}")
            if damaged.exists():
                damaged.rename(f"{self.quarantined}{suffix}")
        return self._open(now_ms)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # `with self._db` commits at the end, or rolls back when the block raises.
        with self._lock, self._db:
            # IMMEDIATE takes the write lock now: a later upgrade from a read lock could fail as
            # busy.
            self._db.execute("BEGIN IMMEDIATE")
            yield

    def _rows(self, query: str, *arguments: object) -> list[Any]:
        with self._lock:
            return self._db.execute(query, arguments).fetchall()

    def _value(self, query: str, *arguments: object) -> object:
        rows = self._rows(query, *arguments)
        return rows[0][0] if rows else None

    def _count(self, name: str, by: int) -> None:
        self._db.execute("UPDATE counter SET value = value + ? WHERE name = ?", (by, name))

    def add(self, encode: Encode, now_ms: int, contents: BatchContents = EMPTY) -> int:
        """Number and store one batch; returns its sequence number.

        When the file has reached its bound, waiting batches are dropped and counted until the new
        one fits, readings before usage intervals; if nothing is left to drop, the new batch itself
        is the loss. When the disk is full, only batches of readings are dropped: it may have space
        later, and until then intervals wait in memory. Raises DiskNearlyFull in that case, and
        sqlite3.Error when nothing can be written.
        """
        # Each round either stores the batch, makes room for another try, or gives up with an
        # exception or a recorded loss.
        while True:
            try:
                return self._add(encode, now_ms, contents)
            except DiskNearlyFull:
                if not self._drop_oldest(now_ms, "disk nearly full", only_readings=True):
                    raise
            except sqlite3.OperationalError as error:
                # SQLITE_FULL has two causes: the bound of the file (`max_page_count`), or no space
                # left on the filesystem.
                if not _is_full(error):
                    raise
                at_bound = self.fill() > BOUND_REACHED
                if self._drop_oldest(
                    now_ms, "spool full" if at_bound else "disk full", only_readings=True
                ):
                    continue
                if not at_bound:
                    raise
                if not self._drop_oldest(now_ms, "spool full"):
                    with self._transaction():
                        return self._lose_new("spool full", now_ms, contents)

    def _add(self, encode: Encode, now_ms: int, contents: BatchContents) -> int:
        with self._transaction():
            # Number, body and counter are one transaction: a crash leaves neither a gap nor a
            # number that is used twice.
            seq = self._next_seq()
            body = encode(self.epoch, seq)
            # It would displace all others, and might not fit even then.
            if len(body) > self._max_bytes // 2:
                return self._lose_new("larger than half the spool", now_ms, contents)
            disk = os.statvfs(self.path.parent)
            free = disk.f_bavail * disk.f_frsize
            # A batch that fits into free pages of the file takes nothing from the disk.
            grows = self._int("PRAGMA freelist_count") * PAGE_BYTES < len(body) + PAGE_BYTES
            if (
                grows
                and free < self._free_floor
                and self._int("PRAGMA page_count") * PAGE_BYTES > SMALL_BYTES
            ):
                raise DiskNearlyFull("the disk is nearly full")
            self._insert(seq, now_ms, body, contents)
            self._count("readings_downsampled", contents.downsampled)
        return seq

    def _next_seq(self) -> int:
        return self._int("SELECT value FROM counter WHERE name = 'produced'") + 1

    def _insert(self, seq: int, now_ms: int, body: bytes, contents: BatchContents) -> None:
        self._db.execute(
            "INSERT INTO batch (seq, created_ms, sha256, body, usage_intervals, readings) VALUES"
            " (?, ?, ?, ?, ?, ?)",
            (
                seq,
                now_ms,
                hashlib.sha256(body).digest(),
                body,
                contents.usage_intervals,
                contents.readings,
            ),
        )
        self._count("produced", 1)

    def _lose_new(self, reason: str, now_ms: int, contents: BatchContents) -> int:
        """Number a new batch and record it as lost. Call it within a transaction."""
        seq = self._next_seq()
        self._count("produced", 1)
        self._lose(seq, seq, 1, reason, now_ms, contents)
        return seq

    def _int(self, query: str, *arguments: object) -> int:
        value = self._value(query, *arguments)
        return value if isinstance(value, int) else 0

    def _drop_oldest(self, now_ms: int, reason: str, only_readings: bool = False) -> bool:
        """Drop the oldest eighth of the waiting batches (at least one) and record it as one loss.

        `only_readings` keeps batches with usage intervals. Returns False when there was nothing to
        drop.
        """
        droppable = "usage_intervals = 0" if only_readings else "1"
        with self._transaction():
            waiting = self._int(f"SELECT count(*) FROM batch WHERE {droppable}")
            if not waiting:
                return False
            # An eighth at a time: dropping batch by batch would repeat the failing write for each
            # of them.
            last = self._int(
                f"SELECT seq FROM batch WHERE {droppable} ORDER BY seq LIMIT 1 OFFSET ?",
                max(1, waiting // 8) - 1,
            )
            chosen = f"FROM batch WHERE {droppable} AND seq <= ?"
            ((first, count, usage_intervals, readings),) = self._rows(
                f"SELECT min(seq), count(*), sum(usage_intervals), sum(readings) {chosen}", last
            )
            self._db.execute(f"DELETE {chosen}", (last,))
            self._lose(first, last, count, reason, now_ms, BatchContents(usage_intervals, readings))
        if not only_readings:  # outside of the transaction, where vacuum is allowed
            self._db.execute("PRAGMA incremental_vacuum")
        return True

    def _lose(
        self, first: int, last: int, batches: int, reason: str, now_ms: int, contents: BatchContents
    ) -> None:
        """Record the loss of `batches` numbers from `first` to `last`.

        Call it within a transaction.
        """
        self._count("dropped", batches)
        self._count("usage_intervals_dropped", contents.usage_intervals)
        self._count("readings_dropped", contents.readings)
        self._db.execute(
            "INSERT INTO loss (first_seq, last_seq, batches, reason, at_ms) VALUES (?, ?, ?, ?, ?)",
            (first, last, batches, reason, now_ms),
        )

    def next(self, lane: Literal["oldest", "newest"]) -> SpooledBatch | None:
        """The oldest or the newest waiting batch, None without one.

        A damaged one becomes a dead letter instead.
        """
        order = "ASC" if lane == "oldest" else "DESC"
        # A damaged batch becomes a dead letter, which removes it: the next round sees the next
        # batch.
        while rows := self._rows(
            f"SELECT seq, body, undecodable, sha256 FROM batch ORDER BY seq {order} LIMIT 1"
        ):
            *columns, sha256 = rows[0]
            batch = SpooledBatch(*columns)
            if hashlib.sha256(batch.body).digest() == sha256:
                return batch
            self.dead_letter(batch.seq, "its bytes were damaged on the disk")
        return None

    def acknowledge(self, seq: int, rejected: tuple[tuple[str, str], ...] = ()) -> None:
        """Remove a batch that the collector has committed; its refused records become dead letters
        with reasons.
        """
        with self._transaction():
            # A batch may be acknowledged twice (a request in flight while the agent stops), but is
            # counted once.
            if self._db.execute("DELETE FROM batch WHERE seq = ?", (seq,)).rowcount:
                self._count("acked", 1)
            self._db.executemany(
                "INSERT INTO dead (seq, record, reason) VALUES (?, ?, ?)",
                [(seq, record, reason) for record, reason in rejected],
            )
            self._limit_dead_letters()

    def dead_letter(self, seq: int, reason: str) -> None:
        """Turn a batch that can never be delivered into a dead letter, with its bytes for
        inspection.

        Only the latest dead letters keep their bytes, up to an eighth of the spool, so that
        refusals do not displace waiting batches.
        """
        with self._transaction():
            body = self._value("SELECT body FROM batch WHERE seq = ?", seq)
            if not isinstance(body, bytes):
                return
            # First, so that its pages serve the copy.
            self._db.execute("DELETE FROM batch WHERE seq = ?", (seq,))
            room = self._max_bytes // 8 - len(body)
            self._clear_dead_letter_bodies(room)
            self._db.execute(
                "INSERT INTO dead (seq, record, reason, body) VALUES (?, 'batch', ?, ?)",
                (seq, reason, body if room >= 0 else None),
            )
            self._count("dead", 1)
            self._limit_dead_letters()

    def _clear_dead_letter_bodies(self, room: int) -> None:
        """Clear the bytes, not the reasons, of the oldest dead letters until the others fit into
        `room` bytes.
        """
        for identity, size in self._rows(
            "SELECT id, length(body) FROM dead WHERE body IS NOT NULL ORDER BY id DESC"
        ):
            room -= size
            if room < 0:
                self._db.execute("UPDATE dead SET body = NULL WHERE id = ?", (identity,))

    def _limit_dead_letters(self) -> None:
        self._db.execute(
            "DELETE FROM dead WHERE id <= (SELECT max(id) FROM dead) - ?", (DEAD_LETTERS_KEPT,)
        )

    def undecodable(self, seq: int) -> int:
        """Count a refusal to decode the batch; returns how many there were."""
        with self._transaction():
            self._db.execute("UPDATE batch SET undecodable = undecodable + 1 WHERE seq = ?", (seq,))
        return self._int("SELECT undecodable FROM batch WHERE seq = ?", seq)

    def replace(self, seq: int, halves: list[tuple[Encode, BatchContents]], now_ms: int) -> None:
        """Replace a batch that was too large by several new ones; the old number counts as dropped."""
        with self._transaction():
            if not self._db.execute("DELETE FROM batch WHERE seq = ?", (seq,)).rowcount:
                return
            # A number stands for the same bytes forever (the collector refuses others as a
            # conflict), so halves get new numbers.
            for encode, contents in halves:
                number = self._next_seq()
                self._insert(number, now_ms, encode(self.epoch, number), contents)
            # EMPTY: the records are not lost, they are in the halves.
            self._lose(seq, seq, 1, f"split into {len(halves)}", now_ms, EMPTY)

    def counts(self) -> BatchCounts:
        """The conservation numbers, read at one instant."""
        # One statement, hence one snapshot: read one by one, the numbers would not add up while
        # another thread writes.
        rows = dict(
            self._rows(
                "SELECT name, value FROM counter UNION ALL SELECT 'pending', count(*) FROM batch"
            )
        )
        return BatchCounts(
            rows["produced"], rows["acked"], rows["pending"], rows["dropped"], rows["dead"]
        )

    def lost_counts(self) -> RecordLosses:
        """Numbers of records lost in this epoch."""
        rows = dict(self._rows("SELECT name, value FROM counter"))
        return RecordLosses(
            rows["usage_intervals_dropped"], rows["readings_dropped"], rows["readings_downsampled"]
        )

    def fill(self) -> float:
        """The fill level, 0 to 1: pages in use divided by the most that the file may have."""
        with self._lock:
            # Free pages are reused before the file grows, so they do not count as used.
            used = self._int("PRAGMA page_count") - self._int("PRAGMA freelist_count")
            return used / self._int("PRAGMA max_page_count")

    def oldest_ms(self) -> int | None:
        """When the oldest waiting batch was created; None without one."""
        value = self._value("SELECT created_ms FROM batch ORDER BY seq LIMIT 1")
        return value if isinstance(value, int) else None

    def losses(self) -> list[tuple[int, int, int, str]]:
        """Every recorded loss: first and last number, number of batches, reason."""
        return self._rows("SELECT first_seq, last_seq, batches, reason FROM loss ORDER BY id")

    def dead_letters(self) -> list[tuple[int, str, str]]:
        """Batches and records that could not be delivered: number, record, reason."""
        return self._rows("SELECT seq, record, reason FROM dead ORDER BY id")

    def renew(self, now_ms: int) -> None:
        """Reopen the file after it was found damaged while in use; if it cannot be repaired, it is
        quarantined.
        """
        with self._lock:
            self.quarantined = None
            self._db.close()
            self._db = self._open_or_replace(self.path.parent, now_ms)
            self.epoch = str(self._value("SELECT value FROM meta WHERE name = 'epoch'"))

    def close(self) -> None:
        """Close the file; everything is on disk already."""
        self._db.close()


def refuse_link_of_others(path: Path) -> None:
    """Refuse a symbolic link that another user put in place of the spool: through it, the agent
    would write wherever that user wants. Raises SpoolUnavailable.
    """
    try:
        status = path.lstat()
    except OSError:
        return
    if stat.S_ISLNK(status.st_mode) and status.st_uid not in {0, os.geteuid()}:
        raise SpoolUnavailable(f"the spool {path} is a link of another user: remove it")


def _check_rows(database: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError when readable rows cannot be ours, as after a bit flip inside a
    value.
    """
    # Compare with the schema as this SQLite version writes it, instead of with a copy of its
    # output.
    with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(_SCHEMA)
        if _columns(database) != _columns(fresh):
            raise sqlite3.DatabaseError("unexpected columns")
    counters = dict(database.execute("SELECT name, value FROM counter"))
    ((pending, highest, mistyped),) = database.execute(
        "SELECT count(*), coalesce(max(seq), 0), coalesce(sum(typeof(created_ms) <> 'integer' OR"
        " typeof(body) <> 'blob' OR typeof(undecodable) <> 'integer' OR typeof(usage_intervals) <>"
        " 'integer' OR typeof(readings) <> 'integer'), 0) FROM batch"
    )
    numbers = [counters.get(name) for name in _COUNTERS]
    by_key = [
        database.execute("SELECT value FROM counter WHERE name = ?", (name,)).fetchone()
        for name in _COUNTERS
    ]
    # Keys out of order, which quick_check does not detect.
    if by_key != [(number,) for number in numbers]:
        raise sqlite3.DatabaseError("counters that are not found by their names")
    if mistyped or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise sqlite3.DatabaseError("values of other types than were written")
    counts = BatchCounts(
        counters["produced"], counters["acked"], pending, counters["dropped"], counters["dead"]
    )
    epochs = [
        value for name, value in database.execute("SELECT name, value FROM meta") if name == "epoch"
    ]
    if not counts.is_conserved or highest > counts.produced or not _EPOCH.fullmatch(str(epochs[0])):
        raise sqlite3.DatabaseError(
            f"the numbers do not add up: {counts}, highest {highest}, epoch {epochs[0]!r}"
        )


def _columns(database: sqlite3.Connection) -> dict[str, set[tuple[object, ...]]]:
    """The columns of each of our tables: name, type, not null, default, position in the key."""
    tables = ("meta", "counter", "batch", "dead", "loss")
    return {
        name: {row[1:] for row in database.execute(f"PRAGMA table_info({name})")} for name in tables
    }


def _is_full(error: sqlite3.OperationalError) -> bool:
    return getattr(error, "sqlite_errorcode", None) in {sqlite3.SQLITE_FULL}
