"""A spool file cut off, or with flipped bytes, at every offset: the agent starts, and loses nothing
unseen.
"""

import hashlib
import shutil
import tempfile
import time
from pathlib import Path

import pytest

import guardian
from gpuledger_agent.spool import BatchContents, Spool

pytestmark = pytest.mark.slow

NOW = 1_790_812_800_000
WAITING = 12
MARK = bytes(range(64))


def body_of(epoch, seq):
    return hashlib.sha512(f"{epoch}/{seq}".encode()).digest() * 19 + MARK


@pytest.fixture(scope="module")
def files():
    """A spool as a stop left it (all in the file), and one as a crash did (the latest batches in
    the log beside it).
    """
    folder = Path(tempfile.mkdtemp(prefix="gpuledger-torn-", dir=guardian.memory_folder()))
    spool = Spool(folder, 2**20, NOW, free_floor=0)
    for _ in range(WAITING + 3):
        spool.add(body_of, NOW, BatchContents(1, 4))
    for _ in range(2):
        spool.acknowledge(spool.next("oldest").seq)
    spool.dead_letter(3, "no")
    spool.close()
    stopped = (folder / "spool.sqlite").read_bytes()
    spool = Spool(folder, 2**20, NOW, free_floor=0)
    spool.acknowledge(4)
    spool.add(body_of, NOW, BatchContents(1, 4))
    crashed = (folder / "spool.sqlite").read_bytes(), (folder / "spool.sqlite-wal").read_bytes()
    spool.close()
    shutil.rmtree(folder)
    return stopped, crashed


def started(main, log=b"", stalled=False):
    """What became of a spool whose files are these: it takes a batch, and delivers what it has byte
    for byte.

    A start of two seconds is tried once more: it is a fault if it is the file's, none if the
    machine stood still.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpuledger-torn-", dir=guardian.memory_folder()))
    try:
        (folder / "spool.sqlite").write_bytes(main)
        if log:
            (folder / "spool.sqlite-wal").write_bytes(log)
        start = time.monotonic()
        spool = Spool(folder, 2**20, NOW, free_floor=0)
        took = time.monotonic() - start
        try:
            waited = spool.counts().pending
            new = spool.add(body_of, NOW, BatchContents(1, 4))
            delivered = 0
            while batch := spool.next("newest" if delivered % 2 else "oldest"):
                if batch.seq == new:
                    assert batch.body == body_of(spool.epoch, new)
                assert len(batch.body) == 1280
                spool.acknowledge(batch.seq)
                delivered += 1
            counts = spool.counts()
            assert counts.is_conserved, counts
            if took >= 2:
                assert not stalled, took
                return started(main, log, stalled=True)
            if spool.quarantined is not None:
                assert bodies(spool.quarantined.read_bytes()) >= bodies(main) - 1
                assert (waited, delivered) == (0, 1)
                return "quarantined"
            dead_lettered = waited + 1 - delivered
            assert counts.dead - (1 if waited else 0) == dead_lettered or not waited
            return "healthy" if not dead_lettered else "dead_lettered"
        finally:
            spool.close()
    finally:
        shutil.rmtree(folder)


def bodies(file):
    """How many batches a person could still find in it."""
    return file.count(MARK)


EVERY = [
    pytest.param(193, id="every 193rd"),
    pytest.param(1, id="every", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
]


@pytest.mark.parametrize("step", EVERY)
def test_a_file_cut_off_at_every_offset(files, step):
    """Put aside whole, and a new epoch begins; only the tail of the last page torn: its batch is a
    dead letter.
    """
    stopped, _ = files
    fates = {length: started(stopped[:length]) for length in range(0, len(stopped), step)}
    filled = {length for length, fate in fates.items() if fate == "healthy"}
    assert 0 in filled
    # Empty to SQLite, or only zeros are missing.
    assert filled <= {
        0,
        1,
        *range(len(stopped) - 128, len(stopped)),
    }
    dead_lettered = {length for length, fate in fates.items() if fate == "dead_lettered"}
    assert dead_lettered
    assert min(dead_lettered) > len(stopped) - 4096


@pytest.mark.parametrize("step", EVERY)
def test_bytes_flipped_at_every_offset(files, step):
    """A byte inverted: seen by SQLite, by the numbers, or by the batch's own hash; or it lay where
    nothing is.
    """
    stopped, _ = files
    fates = []
    for at in range(0, len(stopped), step):
        torn = bytearray(stopped)
        torn[at] ^= 0xFF
        fates.append(started(bytes(torn)))
    assert set(fates) == {"healthy", "dead_lettered", "quarantined"}
    assert fates.count("dead_lettered") > len(fates) // 20


@pytest.mark.parametrize("step", EVERY)
def test_a_log_cut_off_or_flipped_at_every_offset(files, step):
    """What the log holds whole is there, what is torn was never committed; the file itself stays
    sound.
    """
    _, (main, log) = files
    for at in range(0, len(log), step):
        torn = bytearray(log)
        torn[at] ^= 0xFF
        assert started(main, log[:at]) == "healthy"
        assert started(main, bytes(torn)) == "healthy"
