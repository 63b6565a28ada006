"""The spool: every batch is acked, pending, dropped or dead, whatever happens in between."""

import contextlib
import os
import shutil
import sqlite3
import stat
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.profiles import examples
from gpuledger_agent.spool import BatchContents, DiskNearlyFull, Spool, SpoolUnavailable, uuid7

NOW = 1_790_812_800_000


def opened(folder, max_bytes=64 * 1024 * 1024):
    return Spool(folder, max_bytes, NOW, free_floor=0)


def body_of(size=100):
    return lambda epoch, seq: f"{epoch}/{seq}".encode().ljust(size, b".")


def test_what_lies_in_place_of_the_spool_is_not_written_through(tmp_path, monkeypatch):
    """A link of another user is refused; a link of ours leads to the spool; what is no file is named
    in a sentence, at once.
    """
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    folder = tmp_path / "spool"
    folder.mkdir()
    path = folder / "spool.sqlite"
    path.symlink_to(elsewhere)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        if os.getuid():
            with pytest.raises(SpoolUnavailable, match="is a link of another user: remove it"):
                opened(folder)
    if not os.getuid():
        os.lchown(path, 12_345, 12_345)
        with pytest.raises(SpoolUnavailable, match="is a link of another user: remove it"):
            opened(folder)
        os.lchown(path, 0, 0)
    assert elsewhere.read_bytes() == b""
    opened(folder).close()
    assert elsewhere.read_bytes().startswith(b"SQLite")
    for make in (os.mkfifo, os.mkdir):
        path.unlink()
        make(path)
        with pytest.raises(SpoolUnavailable, match=r"spool\.sqlite cannot be written"):
            opened(folder)


@pytest.fixture
def spool(tmp_path):
    made = opened(tmp_path)
    yield made
    made.close()


def test_what_is_spooled_is_for_nobody_else_on_the_node(tmp_path):
    """Threat: other users of a GPU node.

    Who held which GPU is kept in a folder that its owner alone may enter.
    """
    before = os.umask(0)
    try:
        opened(tmp_path / "state" / "spool")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state" / "spool").stat().st_mode) == 0o700


def test_numbers_start_at_one_and_never_come_again(spool, tmp_path):
    """seq is 1, 2, 3 ... within an epoch, also after a restart; the bytes of a batch stay the same."""
    assert [spool.add(body_of(), NOW) for _ in range(3)] == [1, 2, 3]
    first = spool.next("oldest")
    spool.close()
    again = opened(tmp_path)
    assert again.epoch == spool.epoch
    assert again.next("oldest") == first
    assert again.add(body_of(), NOW) == 4
    assert again.next("newest").seq == 4
    again.close()


@examples(30)
@given(
    st.lists(
        st.sampled_from(["add", "ack", "dead_letter", "restart", "crash", "split"]), max_size=25
    )
)
def test_every_batch_is_accounted_for(tmp_path_factory, steps):
    """produced = acked + pending + dropped + dead after any sequence, also when the file is cut off
    by a crash.
    """
    folder = tmp_path_factory.mktemp("spool")
    spool = opened(folder)
    for step in steps:
        waiting = spool.next("oldest")
        if step == "add":
            spool.add(body_of(), NOW)
        elif step == "ack" and waiting:
            spool.acknowledge(waiting.seq)
        elif step == "dead_letter" and waiting:
            spool.dead_letter(waiting.seq, "no")
        elif step == "split" and waiting:
            spool.replace(
                waiting.seq, [(body_of(), BatchContents()), (body_of(), BatchContents())], NOW
            )
        elif step in {"restart", "crash"}:
            if step == "crash":  # the files as they are at this moment, without a close
                copy = tmp_path_factory.mktemp("crashed")
                for path in folder.iterdir():
                    shutil.copy(path, copy / path.name)
                folder = copy
            spool.close()
            spool = opened(folder)
        counts = spool.counts()
        assert counts.is_conserved, counts
    spool.close()


def test_acknowledging_twice_counts_once(spool):
    """A reply that comes twice acks its batch once."""
    seq = spool.add(body_of(), NOW)
    spool.acknowledge(seq)
    spool.acknowledge(seq)
    assert (spool.counts().acked, spool.counts().pending) == (1, 0)


def test_a_full_spool_drops_the_oldest_and_says_so(tmp_path):
    """At its bound the oldest batches go, each loss with its range; the newest is always taken."""
    spool = opened(tmp_path, 1024 * 1024)
    last = [spool.add(lambda epoch, seq: seq.to_bytes(4, "big") * 10_000, NOW) for _ in range(60)][
        -1
    ]
    counts = spool.counts()
    assert last == 60
    assert counts.is_conserved
    assert counts.dropped > 0
    assert spool.next("newest").seq == 60
    losses = spool.losses()
    assert sum(batches for _, _, batches, _ in losses) == counts.dropped
    assert losses[0][0] == 1
    assert spool.next("oldest").seq == losses[-1][1] + 1
    assert (tmp_path / "spool.sqlite").stat().st_size <= 1024 * 1024
    spool.close()


def test_a_batch_larger_than_the_spool_drives_out_no_other(tmp_path):
    """It is the loss itself, with its number and reason; what waited still waits, and the next one
    is taken.
    """
    spool = opened(tmp_path, 1024 * 1024)
    spool.add(body_of(), NOW)
    assert spool.add(lambda epoch, seq: bytes(2_000_000), NOW) == 2
    assert spool.losses() == [(2, 2, 1, "larger than half the spool")]
    assert spool.add(body_of(), NOW) == 3
    counts = spool.counts()
    assert (counts.pending, counts.dropped, counts.is_conserved) == (2, 1, True)
    spool.close()


def test_on_a_disk_without_room_to_spare_little_is_spooled_and_nothing_dropped(tmp_path):
    """Batches pass through while the collector takes them; when they pile up, the next ones are
    refused, not lost.
    """
    spool = Spool(tmp_path, 64 * 1024 * 1024, NOW, free_floor=2**62)
    for _ in range(100):
        spool.acknowledge(spool.add(body_of(100_000), NOW))

    def pile_up():
        for _ in range(100):
            spool.add(body_of(100_000), NOW, BatchContents(usage_intervals=1))

    with pytest.raises(DiskNearlyFull, match="the disk is nearly full"):
        pile_up()
    counts = spool.counts()
    assert (counts.dropped, counts.is_conserved) == (0, True)
    assert 9 <= counts.pending <= 12
    spool.close()
    assert (tmp_path / "spool.sqlite").stat().st_size <= 1_250_000


@pytest.mark.parametrize(
    "damage", [b"", b"not a database at all, but long enough to be looked at" * 100, None]
)
def test_a_damaged_spool_is_put_aside_and_sampling_goes_on(tmp_path, damage):
    """Junk or a torn file goes to quarantine/, a new epoch begins; an empty file is simply filled."""
    spool = opened(tmp_path)
    for _ in range(50):
        spool.add(body_of(3000), NOW)
    epoch = spool.epoch
    spool.close()
    path = tmp_path / "spool.sqlite"
    if damage is None:
        torn = bytearray(path.read_bytes())
        torn[4096:40_960] = b"\xff" * 36_864
        damage = bytes(torn)
    path.write_bytes(damage)
    again = opened(tmp_path)
    assert again.epoch != epoch
    assert again.add(body_of(), NOW) == 1
    assert (again.quarantined is None) == (damage == b"")
    if again.quarantined is not None:
        assert again.quarantined.read_bytes() == damage
    again.close()


def test_a_file_that_somebody_locks_is_not_a_damaged_one(tmp_path, monkeypatch):
    """A backup that holds the file for too long is a sentence; nothing is put aside, all batches
    are there later.
    """
    monkeypatch.setattr("gpuledger_agent.spool.LOCK_WAIT_S", 0.1)
    spool = opened(tmp_path)
    spool.add(body_of(), NOW)
    spool.close()
    with contextlib.closing(
        sqlite3.connect(tmp_path / "spool.sqlite", isolation_level=None)
    ) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SpoolUnavailable, match="database is locked"):
            opened(tmp_path)
    again = opened(tmp_path)
    assert (again.epoch, again.counts().pending, again.quarantined) == (spool.epoch, 1, None)
    again.close()


def test_a_file_of_another_program_is_put_aside(tmp_path):
    """A database with a table of our names but other columns is no spool of ours."""
    with contextlib.closing(sqlite3.connect(tmp_path / "spool.sqlite")) as other:
        other.execute("CREATE TABLE meta (something TEXT)")
    spool = opened(tmp_path)
    assert spool.quarantined is not None
    assert spool.add(body_of(), NOW) == 1
    spool.close()


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path):
    """A file in the place of the folder: which one, and why."""
    (tmp_path / "state").write_text("")
    with pytest.raises(
        SpoolUnavailable, match=r"the spool folder .*/state/agent cannot be created"
    ):
        opened(tmp_path / "state" / "agent")
    (tmp_path / "spool.sqlite").mkdir()
    with pytest.raises(SpoolUnavailable, match=r"spool\.sqlite cannot be written"):
        opened(tmp_path)


def test_a_batch_that_fails_to_be_made_uses_no_number(spool):
    """Numbering and storing are one transaction: an error in between leaves no hole."""

    def broken(epoch, seq):
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(sqlite3.OperationalError):
        spool.add(broken, NOW)
    assert spool.add(body_of(), NOW) == 1
    assert spool.counts().is_conserved


def test_an_epoch_is_a_uuid_of_version_7():
    """The epoch sorts by the time at which the spool was made (RFC 9562)."""
    made = [uuid.UUID(uuid7(NOW + step, bytes(10))) for step in (0, 1, 1000)]
    assert [one.version for one in made] == [7, 7, 7]
    assert made == sorted(made)
    assert made[0].variant == uuid.RFC_4122


def test_dead_letters_are_bounded(spool):
    """The latest thousand refused records are kept for a person to look at."""
    seq = spool.add(body_of(), NOW)
    spool.acknowledge(seq, tuple((f"usage_intervals[{number}]", "no") for number in range(1500)))
    notifications = spool.dead_letters()
    assert len(notifications) == 1000
    assert notifications[-1] == (seq, "usage_intervals[1499]", "no")


def test_refusals_never_crowd_out_what_waits(tmp_path):
    """However many batches are buried, their bytes keep to an eighth of the spool; the rest stays
    for new ones.
    """
    spool = opened(tmp_path, 1024 * 1024)
    for _ in range(60):
        spool.dead_letter(spool.add(lambda epoch, seq: seq.to_bytes(4, "big") * 12_000, NOW), "no")
    assert [notification[0] for notification in spool.dead_letters()] == list(range(1, 61))
    for _ in range(12):
        spool.add(lambda epoch, seq: bytes(48_000), NOW)
    counts = spool.counts()
    assert (counts.dead, counts.pending, counts.dropped, counts.is_conserved) == (60, 12, 0, True)
    spool.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "spool.sqlite")) as file:
        kept = file.execute(
            "SELECT seq, body FROM dead WHERE body IS NOT NULL ORDER BY seq"
        ).fetchall()
    assert kept == [(seq, seq.to_bytes(4, "big") * 12_000) for seq in (59, 60)]


def test_burying_twice_counts_once(spool):
    """A batch that has left the queue is not buried again."""
    seq = spool.add(body_of(), NOW)
    spool.dead_letter(seq, "no")
    spool.dead_letter(seq, "no")
    assert (spool.counts().dead, spool.dead_letters()) == (1, [(seq, "batch", "no")])


def test_what_was_damaged_on_the_disk_is_never_sent(spool):
    """A batch whose bytes are not those that were stored is a dead letter; the next one is handed
    out.
    """
    for _ in range(3):
        spool.add(body_of(), NOW)
    spool._db.execute("UPDATE batch SET body = zeroblob(100) WHERE seq IN (1, 3)")
    assert spool.next("oldest").seq == 2
    assert spool.next("newest").seq == 2
    assert spool.dead_letters() == [
        (seq, "batch", "its bytes were damaged on the disk") for seq in (1, 3)
    ]
    assert (spool.counts().dead, spool.counts().is_conserved) == (2, True)


def test_numbers_that_do_not_add_up_are_damage(spool, tmp_path):
    """A counter that is not what it was: the file is put aside, not trusted."""
    spool.add(body_of(), NOW)
    spool._db.execute("UPDATE counter SET value = 77 WHERE name = 'acked'")
    spool.close()
    again = opened(tmp_path)
    assert again.quarantined is not None
    assert again.epoch != spool.epoch
    again.close()


def test_a_spool_that_is_damaged_while_in_use_is_begun_anew(tmp_path):
    """The pages change under the open file: the write fails, `renew` puts it aside, and the next
    batch is taken.
    """
    spool = opened(tmp_path)
    for _ in range(50):
        spool.add(body_of(3000), NOW)
    spool._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    path = tmp_path / "spool.sqlite"
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * (path.stat().st_size - 4096))
    spool._db.execute("PRAGMA shrink_memory")
    with contextlib.suppress(sqlite3.OperationalError), pytest.raises(sqlite3.DatabaseError):
        spool._rows("SELECT count(*), sum(length(body)) FROM batch")
    epoch = spool.epoch
    spool.renew(NOW)
    assert spool.epoch != epoch
    assert spool.quarantined is not None
    assert spool.add(body_of(), NOW) == 1
    spool.close()


def test_quarantine_does_not_fill_the_disk(tmp_path):
    """Of damaged spools the latest two are kept."""
    for moment in range(5):
        (tmp_path / "spool.sqlite").write_bytes(b"junk " * 1000)
        Spool(tmp_path, 64 * 1024 * 1024, NOW + moment, free_floor=0).close()
    kept = sorted(path.name for path in (tmp_path / "quarantine").iterdir())
    assert kept == [f"spool-{NOW + moment}.sqlite" for moment in (3, 4)]
