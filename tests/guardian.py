"""Ends everything that a run of tests, of a benchmark or of `./dev` started, however the run itself
ends.

`enter()` splits the calling process in three:

    front the process that was called: waits, passes signals on, and ends as the run ends guardian
    adopts every orphan of the run, outside the terminal's session; ends all of them and removes
    TMPDIR
                when the run ends, or when the front does, be it by SIGKILL
    run goes on after `enter()`, in the front's process group: Ctrl-C, Ctrl-Z and standard input
    reach it

Needs Linux; elsewhere `enter()` changes nothing. Standard library only: `./dev` has nothing else.
docs/decisions/0034-guardian.md says why it is made like this.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import NoReturn

FOLDER = "GUARDED_FOLDER"
"""Variable that names the run's temporary folder; what has it runs below a guardian already."""
PASSED_ON = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
FRONT_ENDED = signal.SIGUSR1
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SENT_BY_KERNEL = 0x80
"""si_code of a signal that comes from a terminal's key."""
GROUP_SECONDS = 2.0
"""How long an interrupt waits to be passed on: one that was sent to the whole group ends the run by
itself.
"""
SETTLE_SECONDS = 1.0
"""How long what a run leaves may take to end by itself."""
GRACE_SECONDS = 20.0
"""How long it may take after SIGTERM."""
GIVE_UP_SECONDS = 10.0
"""How long after SIGKILL: a process of another user cannot be killed."""
MEMORY = Path("/dev/shm")
CONTROL_SEGMENT, CONTROL_MAGIC = struct.Struct("=4I"), 0x9A503D32
"""Head of the segment in which a Postgres lists its others: magic, how many of its items are used,
items, padding.
"""
OPEN = 0o755
"""Mode of the run's folders: the user of an embedded Postgres walks through them."""


def enter(*, nested: bool = False) -> None:
    """Go on as a run below a guardian.

    Does nothing below another one, unless `nested`, and where it cannot work.
    """
    is_guarded = FOLDER in os.environ and not nested
    # The thread that forks is the only one that goes on.
    if is_guarded or not can_guard() or threading.active_count() > 1:
        return
    front = os.getpid()
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON | {signal.SIGCHLD})
    guardian = os.fork()
    if guardian:
        stand_in_front(guardian)
    folder = begin_run(front)
    os.environ[FOLDER] = os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # read TMPDIR again
    signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def can_guard() -> bool:
    """Return whether this system has what a guardian needs."""
    return sys.platform == "linux" and Path(f"/proc/self/task/{os.getpid()}/children").exists()


def memory_folder() -> Path | None:
    """Return a folder in memory for the run's files, where the system has such a file system;
    removed with the run.
    """
    if not MEMORY.is_dir() or FOLDER not in os.environ:
        return MEMORY if MEMORY.is_dir() else None
    folder = MEMORY / Path(os.environ[FOLDER]).name
    folder.mkdir(exist_ok=True)
    folder.chmod(OPEN)
    return folder


def stand_in_front(guardian: int) -> NoReturn:
    """Pass on signals until the guardian ends, and end as it does."""
    try:
        while True:
            ended, status = os.waitpid(guardian, os.WNOHANG)
            if ended:
                end_as(status)
            received = signal.sigwaitinfo(PASSED_ON | {signal.SIGCHLD})
            if received.si_signo == signal.SIGCHLD or received.si_code == SENT_BY_KERNEL:
                continue  # the terminal has sent it to the run as well
            if received.si_signo == signal.SIGINT and signal.sigtimedwait(
                {signal.SIGCHLD}, GROUP_SECONDS
            ):
                continue
            os.kill(guardian, received.si_signo)
    finally:
        os._exit(1)


def begin_run(front: int) -> Path:
    """Fork the run from its guardian, which this process is; return in the run, with its temporary
    folder.
    """
    try:
        # Before the fork: from its first instant on the run is watched.
        signal.pthread_sigmask(signal.SIG_BLOCK, {FRONT_ENDED})
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_PDEATHSIG, FRONT_ENDED)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        # Short: sockets below it have at most 107 characters.
        folder = Path(tempfile.mkdtemp(prefix="gl-"))
        folder.chmod(OPEN)
        standing, stands = os.pipe()
        run = os.fork()
        if run:
            os.close(standing)
            # Not before the fork: the run stays in the terminal's session, and a killed group
            # spares the guardian.
            os.setsid()
            os.close(stands)
            end_as(guard(run, front, folder))
        # Until then an interrupt of the group would reach the guardian as well, which would pass it
        # on.
        os.close(stands)
        os.read(standing, 1)
        os.close(standing)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    return folder


def guard(run: int, front: int, folder: Path) -> int:
    """Wait until the run or the front ends, end what is left and remove the folder; return the
    run's status.
    """
    begun = time.time()
    try:
        status = wait_for_end(run, front)
        left = end_children(SETTLE_SECONDS if os.getppid() == front else 0.0)
        if left and os.WIFEXITED(status):
            print(f"ended what the run left behind: {', '.join(left)}", file=sys.stderr, flush=True)
    finally:
        remove(MEMORY / folder.name)
        remove(folder)
        remove_shared_memory(begun)
    return status


def wait_for_end(run: int, front: int) -> int:
    """Pass on to the run what the front passes on, until one of them ends; return the run's status."""
    while os.getppid() == front:
        received = signal.sigwaitinfo(PASSED_ON | {signal.SIGCHLD, FRONT_ENDED})
        if received.si_signo in PASSED_ON:
            os.kill(run, received.si_signo)
        ended = collect()
        if ended is None or run in ended:
            return (ended or {}).get(run, 0)
    return 0


def end_children(settle_seconds: float) -> list[str]:
    """End all children, which orphans become: SIGTERM, then SIGKILL. Return what had to be ended.

    Only children get signals: nothing else can have their numbers. Theirs are children as soon as
    they have ended.
    """
    begun = time.monotonic()
    asked: dict[int, str] = {}
    while (
        collect() is not None
        and (passed := time.monotonic() - begun) < GRACE_SECONDS + GIVE_UP_SECONDS
    ):
        for child in children() if passed >= settle_seconds else ():
            if child not in asked:
                asked[child] = f"{name_of(child)} ({child})"
                send(child, signal.SIGTERM, signal.SIGCONT)
            elif passed > GRACE_SECONDS:
                send(child, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, 0.1)
    return list(asked.values())


def children() -> list[int]:
    """Return the ids of this process' children."""
    return [
        int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    ]


def collect() -> dict[int, int] | None:
    """Return the statuses of children that have ended, by their ids; None when there are no
    children at all.
    """
    ended: dict[int, int] = {}
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended or None
        if not child:
            return ended
        ended[child] = status


def remove(folder: Path) -> None:
    """Remove a folder with all that is in it, also in folders that were closed to their owner."""
    for path, names, _ in os.walk(folder):
        for inner in (Path(path, name) for name in names):
            with contextlib.suppress(OSError):
                if not inner.is_symlink():
                    inner.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def remove_shared_memory(begun: float) -> None:
    """Remove the segments of Postgres servers that were killed since then; only their next start
    would do so.

    A server that lives has its control segment mapped, before the magic is in it.
    """
    # Clocks of file systems are coarse.
    segments = [path for path in MEMORY.glob("PostgreSQL.*") if has_changed(path, begun - 1.0)]
    controls = {path: handles for path in segments if (handles := handles_in(path))}
    if not controls:
        return
    mapped = "".join(maps_of(process) for process in Path("/proc").glob("[0-9]*"))
    for control, handles in controls.items():
        if f"{control}\n" not in mapped:
            for segment in (*(MEMORY / f"PostgreSQL.{handle}" for handle in handles), control):
                with contextlib.suppress(OSError):
                    segment.unlink()


def has_changed(path: Path, since: float) -> bool:
    """Return whether a file that this user may remove was made or changed since then."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_ctime >= since and os.geteuid() in {0, status.st_uid}
    return False


def handles_in(segment: Path) -> list[int]:
    """Return the numbers of the segments that a control segment lists, its own too; none for any
    other segment.
    """
    try:
        content = segment.read_bytes()
        magic, used, items, _ = CONTROL_SEGMENT.unpack_from(content)
        if magic != CONTROL_MAGIC:
            return []
        size = (len(content) - CONTROL_SEGMENT.size) // items
        listed = [
            struct.unpack_from("=2I", content, CONTROL_SEGMENT.size + at * size)
            for at in range(min(used, items))
        ]
    except (OSError, struct.error, ZeroDivisionError):
        return []
    return [int(segment.suffix[1:]), *(handle for handle, references in listed if references)]


def maps_of(process: Path) -> str:
    """Return what a process has mapped; nothing when it has ended, or another user runs it."""
    try:
        return (process / "maps").read_text(errors="replace")
    except OSError:
        return ""


def name_of(child: int) -> str:
    """Return the name of a child's program."""
    return Path(f"/proc/{child}/comm").read_text().strip()


def send(child: int, *signals: signal.Signals) -> None:
    """Send signals to a child, unless another user runs it."""
    for number in signals:
        with contextlib.suppress(PermissionError):
            os.kill(child, number)


def end_as(status: int) -> NoReturn:
    """End this process as another one has: with its code, or by its signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the other one has written its own
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        os._exit(128 + number)
    os._exit(os.WEXITSTATUS(status))
