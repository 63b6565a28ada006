"""A real podman service on a unix socket.

Only the last step is stood in for: its OCI runtime isolates nothing.

A CDI specification named nvidia.com/gpu is put where podman looks for them, and taken away again;
where the machine has one of its own, or has no podman, or the user is not root, the test is
skipped.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

CDI = Path("/var/run/cdi/gpuledger-test.json")
SPECIFICATION = """{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [
  {"name": "0", "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}},
  {"name": "1", "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}}]}"""
RUNTIME = """#!/bin/sh
for word in "$@"; do
  [ "$before" = --pid-file ] && pidfile=$word
  case "$word" in create|start|state|kill|delete) [ -n "$verb" ] || verb=$word ;; esac
  last_but_one=$before; before=$word
done
id=$before
[ "$verb" = kill ] && id=$last_but_one
own="$(dirname "$0")/$id.pid"
case "$verb" in
  create) sleep 120 >/dev/null 2>&1 & printf %s $! > "$pidfile"; printf %s $! > "$own" ;;
  state) printf '{"ociVersion":"1.0.2","id":"%s","status":"running","pid":%s,"bundle":"/"}' "$id" "$(cat "$own")" ;;
  kill|delete) kill -9 "$(cat "$own")" 2>/dev/null ;;
esac
exit 0
"""
"""An OCI runtime of which every container is a `sleep`: the engine does all the rest as always."""


class Podman:
    def __init__(self, folder):
        self.path, self._folder, self._names = folder / "podman.sock", folder, []
        runtime = folder / "runtime"
        runtime.write_text(RUNTIME)
        runtime.chmod(0o755)
        (folder / "rootfs/bin").mkdir(parents=True)
        self._words = [
            "podman",
            "--root",
            folder / "root",
            "--runroot",
            folder / "run",
            "--tmpdir",
            folder / "tmp",
            "--storage-driver",
            "vfs",
            "--cgroup-manager",
            "cgroupfs",
            "--events-backend",
            "file",
            "--runtime",
            runtime,
        ]
        self._service = None

    def start(self):
        self._service = subprocess.Popen(
            [*self._words, "system", "service", "--time=0", f"unix://{self.path}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        until = time.monotonic() + 60
        while not self.path.exists():
            if self._service.poll() is not None or time.monotonic() > until:
                pytest.skip(f"podman's service does not start here: {self._stop()}")
            time.sleep(0.05)

    def run(self, name, *words):
        made = self._call(
            "run",
            "-d",
            "--name",
            name,
            "--network",
            "host",
            *words,
            "--rootfs",
            self._folder / "rootfs",
            "x",
        )
        self._names.append(name)
        if made.returncode:
            pytest.skip(f"podman runs no container here: {made.stderr.strip()[-200:]}")

    def remove(self, name):
        self._call("rm", "-f", "-t", "0", name)

    def close(self):
        for name in self._names:
            self.remove(name)
        if self._service.poll() is None:
            self._stop()

    def _call(self, *words):
        return subprocess.run([*self._words, *words], capture_output=True, text=True, timeout=60)

    def _stop(self):
        self._service.terminate()
        return self._service.communicate(timeout=60)[1].decode(errors="replace")[-200:]


@contextlib.contextmanager
def running():
    """A podman until the end of the block; all that it keeps lies in a folder of its own of a short
    name.
    """
    specifications = [
        one for place in (Path("/etc/cdi"), CDI.parent) if place.is_dir() for one in place.iterdir()
    ]
    if (
        shutil.which("podman") is None
        or os.geteuid() != 0
        or any("nvidia" in one.name for one in specifications)
    ):
        pytest.skip("needs podman, root, and no CDI specification of NVIDIA's")
    made = not CDI.parent.exists()
    CDI.parent.mkdir(parents=True, exist_ok=True)
    CDI.write_text(SPECIFICATION)
    folder = Path(tempfile.mkdtemp(prefix="podman-"))
    podman = Podman(folder)
    try:
        podman.start()
        yield podman
    finally:
        podman.close()
        until = time.monotonic() + 30
        # conmon may still be writing that a container has ended.
        while folder.exists() and time.monotonic() < until:
            shutil.rmtree(folder, ignore_errors=True)
        CDI.unlink()
        if made:
            CDI.parent.rmdir()
