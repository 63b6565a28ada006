"""A real containerd on a unix socket.

Only the last step is stood in for: its runc isolates nothing.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from fakes.podman import RUNTIME


class Daemon:
    def __init__(self, folder):
        self.path, self._folder = folder / "containerd.sock", folder
        runtime = folder / "runtime"
        runtime.write_text(RUNTIME)
        runtime.chmod(0o755)
        # ctr --gpus looks for it to name it in the specification.
        hook = folder / "nvidia-container-cli"
        hook.write_text("#!/bin/sh\n")
        hook.chmod(0o755)
        (folder / "rootfs").mkdir()
        (folder / "config.toml").write_text(
            f'version = 2\nroot = "{folder}/root"\nstate = "{folder}/state"\n'
            f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\n  address = "{self.path}"\n'
        )
        self._daemon, self._names = None, []

    def start(self):
        words = ["containerd", "-c", self._folder / "config.toml"]
        self._daemon = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until = time.monotonic() + 60
        while self._ctr("version").returncode:
            if self._daemon.poll() is not None or time.monotonic() > until:
                pytest.skip("containerd does not start here")
            time.sleep(0.1)

    def run(self, namespace, name, *words):
        self._names.append((namespace, name))
        runtime = ("--rootfs", "--runc-binary", self._folder / "runtime")
        made = self._ctr(
            "-n", namespace, "run", "-d", *runtime, *words, self._folder / "rootfs", name, "x"
        )
        if made.returncode:
            pytest.skip(f"containerd runs no container here: {made.stderr.strip()[-200:]}")

    def kill(self, namespace, name):
        self._ctr("-n", namespace, "task", "kill", "-s", "KILL", name)
        until = time.monotonic() + 60
        while "STOPPED" not in self._ctr("-n", namespace, "task", "ls").stdout:
            assert time.monotonic() < until
            time.sleep(0.05)

    def close(self):
        for namespace, name in self._names:
            self._ctr("-n", namespace, "task", "rm", "-f", name)
            self._ctr("-n", namespace, "container", "rm", name)
        self._daemon.terminate()
        self._daemon.wait(60)

    def _ctr(self, *words):
        path = f"{os.environ['PATH']}:{self._folder}"
        return subprocess.run(
            ["ctr", "-a", self.path, *words],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PATH": path},
        )


@contextlib.contextmanager
def running():
    """A containerd until the end of the block."""
    if shutil.which("containerd") is None or shutil.which("ctr") is None or os.geteuid() != 0:
        pytest.skip("needs containerd, ctr and root")
    folder = Path(tempfile.mkdtemp(prefix="containerd-"))
    daemon = Daemon(folder)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.close()
        shutil.rmtree(folder, ignore_errors=True)
