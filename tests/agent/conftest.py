"""For every test of the agent: what a command does to the log ends with its test."""

import logging

import pytest


@pytest.fixture(autouse=True)
def log_as_it_was():
    """A command that runs within a test sets the agent's log up; another test of the process must
    not inherit it.
    """
    log = logging.getLogger("gpuledger_agent")
    handlers, level = log.handlers[:], log.level
    yield
    log.handlers[:] = handlers
    log.setLevel(level)
