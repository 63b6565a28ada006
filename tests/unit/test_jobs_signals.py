"""Signals of the process that runs the jobs."""

import subprocess
import sys

import pytest

WAITS = """
import os, signal, sys, threading
from gpuledger_collector import jobs_process

def elsewhere():
    signal.pthread_kill(threading.get_ident(), signal.{name})

stopped = jobs_process._signals()
threading.Timer(0.5, elsewhere).start()
os.read(stopped, 1)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_another_thread_takes_ends_the_wait(name):
    """The kernel may give a signal to any thread, and the main one may be about to sleep."""
    ended = subprocess.run([sys.executable, "-c", WAITS.format(name=name)], timeout=60, check=False)
    assert ended.returncode == 0
