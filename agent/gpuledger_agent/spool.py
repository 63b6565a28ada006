"""The spool: batches on the node's disk until the collector has committed them.

SQLite in WAL mode with synchronous=FULL, never a file format of our own. Numbering, storing and counting are one
transaction, so that after a crash at any point `produced = acked + pending + dropped + dead` holds. A spool file has
its own epoch; a damaged one is put into quarantine and a new epoch begins, so that sampling never waits for a repair.
Damage that SQLite does not see is looked for as well: the numbers must add up when the file is opened, and a batch must
have the SHA-256 that it was stored with before it is sent; else it is a dead letter, never a wrong bill. The file is
bounded. When it is full, batches that hold readings alone go first, the oldest before the others; batches with usage
intervals, which are the money, go only when there is nothing else. Each loss is counted with its range and reason, and
by what it held. So that there is such a choice, the sampler keeps readings and usage intervals apart as soon as batches
begin to pile up (`downsampling`): to take readings out of a batch that waits would change its bytes under its number,
and the collector may have them already, its answer lost. For the same reason nothing that waits is re-encoded.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sqlite3
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
"""How long another program may hold the file (a backup, a person with sqlite3) before we say so."""
QUARANTINED_KEPT = 2
"""Damaged spools that are kept for a person to look at; older ones make room."""
FREE_FLOOR_BYTES = 256 * 1024 * 1024
"""Below this much free space on the filesystem the file does not grow: the node needs it more."""
SMALL_BYTES = 1024 * 1024
"""So small the file may always be: a batch or two on their way to a collector that answers are no burden."""
BOUND_REACHED = 0.8
"""Fuller than this, a spool that is full has reached its own bound; else the disk has."""
LOG_PAGES = 128
"""Pages in the write-ahead log after which they are moved into the file: half a megabyte, not SQLite's four."""
MOST_LOG_BYTES = LOG_PAGES * PAGE_BYTES
"""To what the log is cut back after it was larger."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batch (
    seq INTEGER PRIMARY KEY, made_ms INTEGER NOT NULL, sha256 BLOB NOT NULL, body BLOB NOT NULL,
    undecodable INTEGER NOT NULL DEFAULT 0, usage_intervals INTEGER NOT NULL DEFAULT 1, readings INTEGER NOT
    NULL DEFAULT 0
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
    "readings_thinned",
)
_ADDED = {"usage_intervals": 1, "readings": 0}
"""Columns of `batch` that a file of an older version lacks, with what its rows get: they may hold usage intervals."""


@dataclass(frozen=True, slots=True)
class Holds:
    """What a batch holds, in records; `thinned` are readings that were left out of it for want of room."""

    usage_intervals: int = 0
    readings: int = 0
    thinned: int = 0


NOTHING = Holds()


@dataclass(frozen=True, slots=True)
class Lost:
    """What an epoch has lost by want of room, in records."""

    usage_intervals_dropped: int
    readings_dropped: int
    readings_thinned: int


class DiskNearlyFull(AgentError):
    """A batch would make the file grow on a disk that has no room to spare."""


class SpoolUnavailable(AgentError):
    """The spool's folder cannot be used; the sentence says why."""


@dataclass(frozen=True, slots=True)
class Spooled:
    """A batch as it waits; its bytes never change."""

    seq: int
    made_ms: int
    body: bytes
    undecodable: int


@dataclass(frozen=True, slots=True)
class Counts:
    """The conservation numbers of an epoch, in batches."""

    produced: int
    acked: int
    pending: int
    dropped: int
    dead: int

    @property
    def conserved(self) -> bool:
        """Whether every batch that was made is accounted for."""
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

    def __init__(self, folder: Path, max_bytes: int, now_ms: int, free_floor: int = FREE_FLOOR_BYTES) -> None:
        self.path = folder / "spool.sqlite"
        self._max_bytes, self._free_floor = max_bytes, free_floor
        self._lock = threading.RLock()
        self.quarantined: Path | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SpoolUnavailable(f"the spool folder {folder} cannot be made: {error.strerror}") from error
        try:
            self._db = self._open_or_replace(folder, now_ms)
        except sqlite3.OperationalError as error:
            why = f"({error})" if os.access(folder, os.W_OK) else "by this user"
            raise SpoolUnavailable(f"the spool {self.path} cannot be written {why}") from error
        self.epoch = str(self._value("SELECT value FROM meta WHERE name = 'epoch'"))

    def _open_or_replace(self, folder: Path, now_ms: int) -> sqlite3.Connection:
        """Opens the file, or a new one if it is damaged. Locked, unwritable or on a full disk, it is not damaged."""
        try:
            return self._open(now_ms)
        except sqlite3.OperationalError as error:
            code = error.sqlite_errorcode & 0xFF
            flipped = code == sqlite3.SQLITE_READONLY and os.access(self.path, os.W_OK) and os.access(folder, os.W_OK)
            if code != sqlite3.SQLITE_ERROR and not flipped:  # a foreign table where ours should be, a byte of a header
                raise
        except sqlite3.DatabaseError:
            pass
        return self._replace(folder, now_ms)

    def _open(self, now_ms: int) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, timeout=LOCK_WAIT_S, isolation_level=None, check_same_thread=False)
        database.text_factory = _text
        try:
            verdict = database.execute("PRAGMA quick_check(1)").fetchone()
            if verdict is None or verdict[0] != "ok":
                raise sqlite3.DatabaseError(f"quick_check: {verdict}")
            database.execute("PRAGMA auto_vacuum = INCREMENTAL")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute(f"PRAGMA max_page_count = {max(64, self._max_bytes // PAGE_BYTES)}")
            database.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            database.execute(f"PRAGMA journal_size_limit = {MOST_LOG_BYTES}")
            database.executescript(_SCHEMA)
            known = {row[1] for row in database.execute("PRAGMA table_info(batch)")}
            for name, value in _ADDED.items():
                if name not in known:
                    database.execute(f"ALTER TABLE batch ADD COLUMN {name} INTEGER NOT NULL DEFAULT {value}")
            with database:
                database.execute("BEGIN IMMEDIATE")
                fresh = uuid7(now_ms, os.urandom(10))
                database.execute("INSERT OR IGNORE INTO meta VALUES ('epoch', ?)", (fresh,))
                database.executemany("INSERT OR IGNORE INTO counter VALUES (?, 0)", [(name,) for name in _COUNTERS])
            _look_over(database)
        except UnicodeDecodeError as error:  # sqlite3 quotes a flipped name in its sentence
            database.close()
            raise sqlite3.DatabaseError("a name is no text") from error
        except sqlite3.Error:
            database.close()
            raise
        return database

    def _replace(self, folder: Path, now_ms: int) -> sqlite3.Connection:
        """Moves a damaged file away, never in the way of starting, and begins a new epoch."""
        quarantine = folder / "quarantine"
        quarantine.mkdir(exist_ok=True)
        for old in sorted(quarantine.glob("spool-*.sqlite"))[: 1 - QUARANTINED_KEPT]:
            for path in quarantine.glob(f"{old.name}*"):
                path.unlink()
        self.quarantined = quarantine / f"spool-{now_ms}.sqlite"
        for suffix in ("", "-wal", "-shm"):
            damaged = Path(f"{self.path}{suffix}")
            if damaged.exists():
                shutil.move(damaged, f"{self.quarantined}{suffix}")
        return self._open(now_ms)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._db:
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

    def add(self, make: Callable[[str, int], bytes], now_ms: int, holds: Holds = NOTHING) -> int:
        """Numbers and stores one batch; `make(epoch, seq)` gives its bytes. Returns its sequence number.

        When the file has reached its bound, waiting batches are dropped and counted until it fits, readings before
        usage intervals; if nothing is left to drop, the new batch itself is the loss. When it is the disk that has no
        room, only readings make room: the disk may have some tomorrow, and until then time waits in memory. Raises
        DiskNearlyFull then, and sqlite3.Error when nothing can be written.
        """
        while True:
            try:
                return self._add(make, now_ms, holds)
            except DiskNearlyFull:
                if not self._drop_oldest(now_ms, "disk nearly full", only_readings=True):
                    raise
            except sqlite3.OperationalError as error:
                if not _is_full(error):
                    raise
                at_bound = self.fill() > BOUND_REACHED
                if self._drop_oldest(now_ms, "spool full" if at_bound else "disk full", only_readings=True):
                    continue
                if not at_bound:
                    raise
                if not self._drop_oldest(now_ms, "spool full"):
                    with self._transaction():
                        return self._lose_new("spool full", now_ms, holds)

    def _add(self, make: Callable[[str, int], bytes], now_ms: int, holds: Holds) -> int:
        with self._transaction():
            seq = self._int("SELECT value FROM counter WHERE name = 'produced'") + 1
            body = make(self.epoch, seq)
            if len(body) > self._max_bytes // 2:  # it would drive out all others, and might not fit even then
                return self._lose_new("larger than half the spool", now_ms, holds)
            free = shutil.disk_usage(self.path.parent).free
            grows = self._int("PRAGMA freelist_count") * PAGE_BYTES < len(body) + PAGE_BYTES
            if grows and free < self._free_floor and self._int("PRAGMA page_count") * PAGE_BYTES > SMALL_BYTES:
                raise DiskNearlyFull("the disk is nearly full")
            self._insert(seq, now_ms, body, holds)
            self._count("readings_thinned", holds.thinned)
        return seq

    def _insert(self, seq: int, now_ms: int, body: bytes, holds: Holds) -> None:
        self._db.execute(
            "INSERT INTO batch (seq, made_ms, sha256, body, usage_intervals, readings) VALUES (?, ?, ?, ?, ?, ?)",
            (seq, now_ms, hashlib.sha256(body).digest(), body, holds.usage_intervals, holds.readings),
        )
        self._count("produced", 1)

    def _lose_new(self, reason: str, now_ms: int, holds: Holds) -> int:
        """Within a transaction: a new batch is numbered and lost, and both are counted."""
        seq = self._int("SELECT value FROM counter WHERE name = 'produced'") + 1
        self._count("produced", 1)
        self._lose((seq, seq, 1), reason, now_ms, holds)
        return seq

    def _int(self, query: str, *arguments: object) -> int:
        value = self._value(query, *arguments)
        return value if isinstance(value, int) else 0

    def _drop_oldest(self, now_ms: int, reason: str, only_readings: bool = False) -> bool:
        """Makes room: the oldest eighth of what waits (at least one batch) goes, as one accounted loss.

        `only_readings` leaves batches with usage intervals alone. False when there was nothing to drop.
        """
        which = "usage_intervals = 0" if only_readings else "1"
        with self._transaction():
            waiting = self._int(f"SELECT count(*) FROM batch WHERE {which}")
            if not waiting:
                return False
            last = self._int(
                f"SELECT seq FROM batch WHERE {which} ORDER BY seq LIMIT 1 OFFSET ?", max(1, waiting // 8) - 1
            )
            ((first, going, usage_intervals, readings),) = self._rows(
                f"SELECT min(seq), count(*), sum(usage_intervals), sum(readings) FROM batch WHERE {which} AND seq <= ?",
                last,
            )
            self._db.execute(f"DELETE FROM batch WHERE {which} AND seq <= ?", (last,))
            self._lose((first, last, going), reason, now_ms, Holds(usage_intervals, readings))
        if not only_readings:
            self._db.execute("PRAGMA incremental_vacuum")
        return True

    def _lose(self, which: tuple[int, int, int], reason: str, now_ms: int, holds: Holds) -> None:
        """Within a transaction: `which` is the first and the last number, and how many batches between them."""
        self._count("dropped", which[2])
        self._count("usage_intervals_dropped", holds.usage_intervals)
        self._count("readings_dropped", holds.readings)
        self._db.execute(
            "INSERT INTO loss (first_seq, last_seq, batches, reason, at_ms) VALUES (?, ?, ?, ?, ?)",
            (*which, reason, now_ms),
        )

    def next(self, lane: Literal["oldest", "newest"]) -> Spooled | None:
        """The oldest or the newest batch that waits; None when none does. One that was damaged is buried instead."""
        order = "ASC" if lane == "oldest" else "DESC"
        while rows := self._rows(
            f"SELECT seq, made_ms, body, undecodable, sha256 FROM batch ORDER BY seq {order} LIMIT 1"
        ):
            *found, sha256 = rows[0]
            batch = Spooled(*found)
            if hashlib.sha256(batch.body).digest() == sha256:
                return batch
            self.dead_notification(batch.seq, "its bytes were damaged on the disk")
        return None

    def acknowledge(self, seq: int, rejected: tuple[tuple[str, str], ...] = ()) -> None:
        """The collector has committed this batch; refused records of it go to the dead letters with their reasons."""
        with self._transaction():
            if self._db.execute("DELETE FROM batch WHERE seq = ?", (seq,)).rowcount:
                self._count("acked", 1)
            self._db.executemany(
                "INSERT INTO dead (seq, record, reason) VALUES (?, ?, ?)",
                [(seq, record, reason) for record, reason in rejected],
            )
            self._bound_dead()

    def dead_notification(self, seq: int, reason: str) -> None:
        """This batch can never be delivered: it leaves the queue, its bytes are kept for a person to look at.

        Bytes are kept for the latest ones only, up to an eighth of the spool: refusals must not crowd out what waits.
        """
        with self._transaction():
            body = self._value("SELECT body FROM batch WHERE seq = ?", seq)
            if not isinstance(body, bytes):
                return
            self._db.execute("DELETE FROM batch WHERE seq = ?", (seq,))  # first: its pages serve the copy
            self._forget_bodies(self._max_bytes // 8 - len(body))
            kept = body if len(body) <= self._max_bytes // 8 else None
            self._db.execute(
                "INSERT INTO dead (seq, record, reason, body) VALUES (?, 'batch', ?, ?)", (seq, reason, kept)
            )
            self._count("dead", 1)
            self._bound_dead()

    def _forget_bodies(self, room: int) -> None:
        """Drops the bytes, not the reasons, of the oldest dead letters until the others fit into `room`."""
        for notification, size in self._rows(
            "SELECT id, length(body) FROM dead WHERE body IS NOT NULL ORDER BY id DESC"
        ):
            room -= size
            if room < 0:
                self._db.execute("UPDATE dead SET body = NULL WHERE id = ?", (notification,))

    def _bound_dead(self) -> None:
        self._db.execute("DELETE FROM dead WHERE id <= (SELECT max(id) FROM dead) - ?", (DEAD_LETTERS_KEPT,))

    def undecodable(self, seq: int) -> int:
        """Counts a refusal of the whole batch; how many there were by now."""
        with self._transaction():
            self._db.execute("UPDATE batch SET undecodable = undecodable + 1 WHERE seq = ?", (seq,))
        return self._int("SELECT undecodable FROM batch WHERE seq = ?", seq)

    def replace(self, seq: int, halves: list[tuple[Callable[[str, int], bytes], Holds]], now_ms: int) -> None:
        """A batch that was too large becomes several new ones, in one transaction; the old number counts as dropped."""
        with self._transaction():
            if not self._db.execute("DELETE FROM batch WHERE seq = ?", (seq,)).rowcount:
                return
            for make, holds in halves:
                number = self._int("SELECT value FROM counter WHERE name = 'produced'") + 1
                self._insert(number, now_ms, make(self.epoch, number), holds)
            self._lose((seq, seq, 1), f"split into {len(halves)}", now_ms, NOTHING)

    def counts(self) -> Counts:
        """The conservation numbers, read at one instant."""
        rows = dict(self._rows("SELECT name, value FROM counter UNION ALL SELECT 'pending', count(*) FROM batch"))
        return Counts(rows["produced"], rows["acked"], rows["pending"], rows["dropped"], rows["dead"])

    def lost(self) -> Lost:
        """What was dropped and left out in this epoch, in records."""
        rows = dict(self._rows("SELECT name, value FROM counter"))
        return Lost(rows["usage_intervals_dropped"], rows["readings_dropped"], rows["readings_thinned"])

    def fill(self) -> float:
        """How full the file is, 0 to 1: its pages in use by those that it may have."""
        with self._lock:
            used = self._int("PRAGMA page_count") - self._int("PRAGMA freelist_count")
            return used / self._int("PRAGMA max_page_count")

    def oldest_ms(self) -> int | None:
        """When the oldest waiting batch was made; None when none waits."""
        value = self._value("SELECT made_ms FROM batch ORDER BY seq LIMIT 1")
        return value if isinstance(value, int) else None

    def losses(self) -> list[tuple[int, int, int, str]]:
        """Every accounted loss: first and last number, how many batches, why."""
        return self._rows("SELECT first_seq, last_seq, batches, reason FROM loss ORDER BY id")

    def dead_letters(self) -> list[tuple[int, str, str]]:
        """What could not be delivered: number, record, reason."""
        return self._rows("SELECT seq, record, reason FROM dead ORDER BY id")

    def renew(self, now_ms: int) -> None:
        """Opens the file again after it was found damaged while in use: what is beyond repair goes to quarantine."""
        with self._lock:
            self.quarantined = None
            self._db.close()
            self._db = self._open_or_replace(self.path.parent, now_ms)
            self.epoch = str(self._value("SELECT value FROM meta WHERE name = 'epoch'"))

    def close(self) -> None:
        """Closes the file; everything is on disk already."""
        self._db.close()


def _look_over(database: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError when rows that SQLite can read cannot be ours: a bit flipped inside of a value."""
    with contextlib.closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(_SCHEMA)
        if _columns(database) != _columns(fresh):
            raise sqlite3.DatabaseError("other columns than ours")
    counters = dict(database.execute("SELECT name, value FROM counter"))
    ((pending, highest, odd),) = database.execute(
        "SELECT count(*), coalesce(max(seq), 0), coalesce(sum(typeof(made_ms) <> 'integer' OR typeof(body) <> 'blob'"
        " OR typeof(undecodable) <> 'integer' OR typeof(usage_intervals) <> 'integer' OR typeof(readings) <> "
        "'integer'), 0)"
        " FROM batch"
    )
    numbers = [counters.get(name) for name in _COUNTERS]
    found = [database.execute("SELECT value FROM counter WHERE name = ?", (name,)).fetchone() for name in _COUNTERS]
    if found != [(number,) for number in numbers]:  # keys out of order: quick_check does not look at that
        raise sqlite3.DatabaseError("counters that are not found by their names")
    if odd or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise sqlite3.DatabaseError("values of other types than were written")
    counts = Counts(counters["produced"], counters["acked"], pending, counters["dropped"], counters["dead"])
    epochs = [value for name, value in database.execute("SELECT name, value FROM meta") if name == "epoch"]
    if not counts.conserved or highest > counts.produced or not _EPOCH.fullmatch(str(epochs[0])):
        raise sqlite3.DatabaseError(f"the numbers do not add up: {counts}, highest {highest}, epoch {epochs[0]!r}")


def _columns(database: sqlite3.Connection) -> dict[str, set[tuple[object, ...]]]:
    """Of each of our tables its columns: name, type, whether null is refused, default, place in the key."""
    tables = ("meta", "counter", "batch", "dead", "loss")
    return {name: {row[1:] for row in database.execute(f"PRAGMA table_info({name})")} for name in tables}


def _text(value: bytes) -> str:
    """A text of the file: a flipped bit must not raise what nobody expects from a database."""
    return value.decode(errors="replace")


def _is_full(error: sqlite3.OperationalError) -> bool:
    return getattr(error, "sqlite_errorcode", None) in {sqlite3.SQLITE_FULL}
