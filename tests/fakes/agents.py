"""Real agent processes for tests, quick enough for them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuledger_agent.spool import Spool

AGENT = str(Path(sys.executable).with_name("gpuledger-agent"))


class Agent:
    """`gpuledger-agent run`, ten rounds a second and a batch each second."""

    def __init__(self, folder, url, source="simulated", **settings):
        self.spool = folder / "spool"
        self.log = folder / "log"
        self.config = folder / "agent.toml"
        self.config.write_text("sample_interval_s = 0.1\npush_interval_s = 1\n")
        self.environment = {
            **os.environ,
            "GPULEDGER_AGENT_COLLECTOR_URL": url,
            "GPULEDGER_AGENT_SPOOL_DIR": str(self.spool),
            "GPULEDGER_AGENT_METRICS_LISTEN": "",
            "GPULEDGER_AGENT_NODE": "h100-03",
            "GPULEDGER_AGENT_SOURCE": source,
            **{f"GPULEDGER_AGENT_{name.upper()}": str(value) for name, value in settings.items()},
        }

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [AGENT, "run", "--config", self.config], env=self.environment, stderr=log
            )
        return self

    def wait_for(self, true, seconds=90):
        deadline = time.monotonic() + seconds
        while not true():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def said(self, words):
        return lambda: words in self.log.read_text()

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(60)

    def counts(self):
        spool = Spool(self.spool, 2**29, 0)
        try:
            return spool.counts()
        finally:
            spool.close()


@pytest.fixture
def agent(tmp_path):
    made = []

    def build(url, **settings):
        made.append(Agent(tmp_path, url, **settings).start())
        return made[-1]

    yield build
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
