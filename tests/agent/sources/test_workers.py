"""Workers: what hangs, hangs alone."""

import threading
import time

import pytest

from gpuledger_agent.sources.nvml_worker import Worker


def soon() -> float:
    return time.monotonic() + 30


def test_a_busy_worker_takes_no_more_work_until_it_is_back():
    """While a call hangs nothing queues behind it; when it returns the worker is free again."""
    worker, gate = Worker("test"), threading.Event()
    hanging = worker.submit(gate.wait)
    assert hanging is not None
    with pytest.raises(TimeoutError):
        hanging.take(time.monotonic())
    assert worker.submit(lambda: 1) is None
    gate.set()
    assert hanging.take(soon()) is True
    answer = worker.submit(lambda: 2)
    assert answer is not None
    assert answer.take(soon()) == 2
    worker.end()


def test_workers_do_not_wait_for_each_other():
    """One worker's hang leaves another's answer alone."""
    sick, well, gate = Worker("sick"), Worker("well"), threading.Event()
    sick.submit(gate.wait)
    answer = well.submit(lambda: "here")
    assert answer is not None
    assert answer.take(soon()) == "here"
    assert sick.submit(lambda: 1) is None
    gate.set()


def test_what_a_call_raises_is_raised_where_it_is_taken():
    """The caller sees the error; the worker lives on."""
    worker = Worker("test")
    failing = worker.submit(lambda: 1 // 0)
    assert failing is not None
    with pytest.raises(ZeroDivisionError):
        failing.take(soon())


def test_whoever_has_an_answer_may_submit_at_once():
    """An answer that was taken leaves no moment in which the worker still looks busy."""
    worker = Worker("test")
    for number in range(2000):
        answer = worker.submit(lambda number=number: number)
        assert answer is not None
        assert answer.take(soon()) == number
