"""Workers: what hangs, hangs alone."""

import threading
import time

import pytest

from gpuledger_agent.sources.nvml import NvmlSource
from gpuledger_agent.sources.nvml_events import DriverEvents
from gpuledger_agent.sources.nvml_worker import Worker
from gpuledger_common.readings import SourceUnavailable, StillStarting


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


class ColdDriver:
    """NVML of a machine without GPUs whose init comes back when `warm` is set; `held` counts inits
    without shutdown.
    """

    class NVMLError(Exception):
        value = 999

    class NVMLLibraryMismatchError(Exception):
        pass

    def __init__(self):
        self.warm, self.held, self.ready = threading.Event(), 0, threading.Event()
        self.counts = True

    def nvmlInit(self):
        self.warm.wait(30)
        self.held += 1

    def nvmlShutdown(self):
        self.held -= 1
        self.ready.set()

    def nvmlDeviceGetCount(self):
        if not self.counts:
            raise self.NVMLError
        return 0

    def nvmlSystemGetDriverVersion(self):
        return "580.1"

    def nvmlEventSetCreate(self):
        raise self.NVMLError


@pytest.fixture
def cold():
    driver = ColdDriver()
    yield driver, NvmlSource(driver, events=DriverEvents(), init_deadline_s=0.05)
    driver.warm.set()


def test_a_driver_that_starts_slowly_is_asked_again_and_not_waited_for(cold):
    """A cold machine takes seconds for each card; each attempt waits for the same start, and the
    last has it.
    """
    driver, source = cold
    for _ in range(3):
        began = time.monotonic()
        with pytest.raises(StillStarting, match=r"not answered for 0\.05 s"):
            source.open()
        assert time.monotonic() - began < 5
    driver.warm.set()
    source._starting.take(soon())
    assert source.open().driver == "580.1"
    assert driver.held == 1
    source.close()
    assert driver.held == 0


def test_a_driver_that_comes_up_after_a_release_is_not_held(cold):
    """A release while the driver starts: when it is up at last, its library is shut down again, and
    opens anew.
    """
    driver, source = cold
    with pytest.raises(StillStarting):
        source.open()
    source.close()
    with pytest.raises(StillStarting, match="previous attempt"):
        source.open()
    source.close()
    driver.warm.set()
    assert driver.ready.wait(30)
    assert driver.held == 0
    deadline = soon()
    while time.monotonic() < deadline:
        try:
            source.open()
        except StillStarting:
            continue
        break
    assert driver.held == 1


def test_a_driver_that_cannot_count_is_not_held(cold):
    """NVML counts its inits: after a start that failed half way there is none left open."""
    driver, source = cold
    driver.warm.set()
    driver.counts = False
    with pytest.raises(SourceUnavailable, match="cannot count"):
        source.open()
    assert driver.held == 0
