"""Programs that stand ready built beside the project, in ../shared/engines: Helm, kubeconform,
etcd, kube-apiserver.

They are in no package index that CI installs from. So their tests are skipped with a reason where
that folder is missing, also where GPULEDGER_TEST_ENGINES asks for every other engine.
"""

import contextlib
import http.client
import json
import shutil
import ssl
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fakes.apiserver import TOKEN, certificates
from fakes.ports import free_port
from fakes.postgres import open_folder

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "engines"
CRDS = FOLDER.parent / "data" / "crds"


@contextmanager
def unpacked(archive: str) -> Iterator[Path]:
    """The folder with the programs of the one archive whose name begins so; skips the test where it
    is missing.
    """
    archives = sorted(FOLDER.glob(f"{archive}-*.tar.xz"))
    if not archives:
        pytest.skip(f"no {archive} in ../shared/engines")
    folder = open_folder("gpuledger-programs-")
    try:
        with tarfile.open(archives[-1]) as packed:
            packed.extractall(folder, filter="data")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def program(folder: Path, name: str) -> Path:
    """A program below the folder."""
    (path,) = [path for path in folder.rglob(name) if path.is_file()]
    return path


ADMIN_TOKEN = "token-of-the-administrator"
_PATIENCE_S = 300


class ControlPlane:
    """etcd and kube-apiserver on the loopback: no scheduler, no controllers, no kubelet.

    `account` is a folder with `token` and `ca.crt`, as every pod has it: of a user with no right
    until a test grants it.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self.account, self._programs, self._folder = folder, programs, folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._etcd, self._peer, self._port = free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start both; returns when the API server is ready."""
        folder = self._folder
        leaf, key = certificates(folder)
        signing = folder / "accounts.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", str(signing), "2048"], check=True, capture_output=True
        )
        (folder / "token").write_text(TOKEN)
        tokens = folder / "tokens.csv"
        tokens.write_text(f'{TOKEN},agent,1\n{ADMIN_TOKEN},admin,2,"system:masters"\n')
        etcd, peer = f"http://127.0.0.1:{self._etcd}", f"http://127.0.0.1:{self._peer}"
        self._spawn(
            "etcd",
            f"--data-dir={folder}/etcd",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )
        self._spawn(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--tls-cert-file={leaf}",
            f"--tls-private-key-file={key}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={signing}",
            f"--service-account-signing-key-file={signing}",
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.0.0.0/24",
        )
        deadline = time.monotonic() + _PATIENCE_S
        while not (self.serves("/readyz") and self.serves("/api/v1/namespaces/default")):
            assert all(process.poll() is None for process in self._processes), self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def stop(self) -> None:
        """End both; nothing of them is kept."""
        for process in reversed(self._processes):
            process.kill()
            process.wait(60)

    def log(self) -> str:
        return "".join(path.read_text()[-3000:] for path in sorted(self._folder.glob("*.log")))

    def request(
        self, method: str, path: str, body: object = None, kind: str = "application/json"
    ) -> dict[str, object]:
        """Ask as administrator. Raises AssertionError with the server's words unless it agrees."""
        context = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
        line = http.client.HTTPSConnection("127.0.0.1", self._port, context=context, timeout=60)
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}", "Content-Type": kind}
        with contextlib.closing(line):
            line.request(method, path, None if body is None else json.dumps(body), headers)
            answer = line.getresponse()
            text = answer.read().decode()
        assert answer.status < 300, f"{method} {path}: {answer.status} {text[:2000]}"
        parsed = json.loads(text) if text.startswith("{") else {}
        assert isinstance(parsed, dict)
        return parsed

    def serves(self, path: str) -> bool:
        """Whether the administrator gets an answer."""
        try:
            self.request("GET", path)
        except (OSError, AssertionError, http.client.HTTPException):
            return False
        return True

    def _spawn(self, name: str, *arguments: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [program(self._programs, name), *arguments],
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        self._processes.append(process)


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """A control plane without nodes until the end of the block; skips the test where its programs
    are missing.
    """
    with unpacked("etcd") as programs:
        plane = ControlPlane(programs, open_folder("gpuledger-control-plane-"))
        try:
            plane.start()
            yield plane
        finally:
            plane.stop()
            shutil.rmtree(plane.account, ignore_errors=True)
