"""A real Slurm of the test's own: munged, MariaDB, slurmdbd, slurmctld and slurmd on loopback, GPUs
that are copies of /dev/null.

Everything lies in one folder with its own configuration, key, sockets and ports, so that it touches
no Slurm of the machine; the daemons are children of the test and are ended by their own pid.
"""

import contextlib
import os
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fakes.ports import free_port

NODE = socket.gethostname().partition(".")[0]
GPUS = 4
SHARDS_PER_GPU = 4
NEEDED = (
    "munged",
    "mariadbd",
    "mariadb-install-db",
    "slurmdbd",
    "slurmctld",
    "slurmd",
    "sbatch",
    "sacct",
    "sacctmgr",
)
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "slurm"

SLURM_CONF = """\
ClusterName=tetra
SlurmctldHost={node}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={home}/munge.sock
CredType=cred/munge
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=defer,batch_sched_delay=0,sched_interval=1
ReturnToService=2
KillWait=1
Prolog={home}/prolog
Epilog={home}/epilog
PrologFlags=Alloc
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd}
AccountingStoragePass={home}/munge.sock
AccountingStorageTRES=gres/gpu,gres/gpu:h100
AccountingStoreFlags=job_comment
AccountingStorageEnforce=associations
GresTypes=gpu,shard
NodeName={node} NodeAddr=127.0.0.1 CPUs={cpus} Gres=gpu:h100:{gpus},shard:{shards} State=UNKNOWN
PartitionName=gpu Nodes={node} Default=YES MaxTime=60 State=UP OverSubscribe=FORCE:8
"""
DBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={home}/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={dbd}
SlurmUser=root
PidFile={home}/slurmdbd.pid
LogFile={home}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={mysql}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct
"""


def why_not() -> str | None:
    """Why no Slurm can be started on this machine; None when one can."""
    readiness_problems = [name for name in NEEDED if shutil.which(name, path=PATH) is None]
    if readiness_problems:
        return f"{', '.join(readiness_problems)} not installed: apt-get install {PACKAGES}"
    if os.geteuid() != 0:
        return "slurmd starts jobs as their users and has to run as root"
    with tempfile.TemporaryDirectory() as folder:
        try:
            make_device(Path(folder) / "nvidia0")
        except OSError as error:
            return f"device files cannot be made here ({error.strerror})"
    return None


def make_device(path: Path) -> None:
    """A GPU as far as slurmd looks: a character device, another /dev/null."""
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))


PACKAGES = "slurmctld slurmd slurmdbd slurm-client munge mariadb-server"


class Cluster:
    """One node with fake GPUs. `jobs` is the folder that the prolog writes into."""

    def __init__(self, home: Path, accounts: tuple[str, ...], cpus: int) -> None:
        self.home, self.accounts = home, accounts
        self.jobs, self.devices = home / "jobs", home / "dev"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
            "PATH": PATH,
            "SLURM_CONF": str(home / "slurm.conf"),
            "TZ": "UTC",
            "SLURM_TIME_FORMAT": "%s",
        }
        self._values = {
            "node": NODE,
            "home": str(home),
            "ctld": free_port(),
            "slurmd": free_port(),
            "dbd": free_port(),
            "mysql": free_port(),
            "password": secrets.token_hex(12),
            "cpus": cpus,
            "gpus": GPUS,
            "shards": GPUS * SHARDS_PER_GPU,
        }
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """All daemons and the accounts.

        Raises AssertionError with the log of the one that failed.
        """
        self._write_configuration()
        home, values = self.home, self._values
        self._spawn(
            "munged",
            "--foreground",
            "--force",
            f"--socket={home}/munge.sock",
            f"--key-file={home}/munge.key",
            f"--pid-file={home}/munge.pid",
            f"--seed-file={home}/munge.seed",
            "--log-file",
            home / "munge.log",
            "--num-threads=1",
        )
        self.run(
            "mariadb-install-db",
            "--no-defaults",
            f"--datadir={home}/mysql",
            "--skip-test-db",
            "--user=root",
            "--auth-root-authentication-method=normal",
            "--skip-name-resolve",
        )
        setup = home / "setup.sql"
        setup.write_text(
            "CREATE DATABASE slurm_acct;\nCREATE USER slurm@'127.0.0.1' IDENTIFIED BY"
            f" '{values['password']}';\nGRANT ALL ON slurm_acct.* TO slurm@'127.0.0.1';\n"
        )
        self._spawn(
            "mariadbd",
            "--no-defaults",
            f"--datadir={home}/mysql",
            f"--socket={home}/mysql.sock",
            f"--port={values['mysql']}",
            "--bind-address=127.0.0.1",
            "--user=root",
            "--skip-name-resolve",
            "--innodb-flush-log-at-trx-commit=0",
            f"--init-file={setup}",
        )
        self._wait(lambda: answers(values["mysql"]), "mariadbd")
        self._spawn("slurmdbd", "-D")
        self._wait(lambda: answers(values["dbd"]), "slurmdbd")
        self.run("sacctmgr", "-i", "-Q", "add", "cluster", "tetra")
        self._spawn("slurmctld", "-D")
        for account in self.accounts:
            self.run("sacctmgr", "-i", "-Q", "add", "account", account, "cluster=tetra")
            self.run(
                "sacctmgr",
                "-i",
                "-Q",
                "add",
                "user",
                "root,nobody",
                f"account={account}",
                "cluster=tetra",
            )
        self._wait(lambda: answers(values["ctld"]), "slurmctld")
        self._spawn("slurmd", "-D")
        self._wait(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"), "slurmd")

    def _write_configuration(self) -> None:
        for folder in ("state", "spool", "jobs", "dev", "mysql"):
            (self.home / folder).mkdir()
        key = self.home / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        for number in range(GPUS):
            make_device(self.devices / f"nvidia{number}")
        (self.home / "slurm.conf").write_text(SLURM_CONF.format(**self._values))
        (self.home / "gres.conf").write_text(
            f"Name=gpu Type=h100 File={self.devices}/nvidia[0-{GPUS - 1}]\nName=shard"
            f" Count={GPUS * SHARDS_PER_GPU}\n"
        )
        dbd = self.home / "slurmdbd.conf"
        dbd.write_text(DBD_CONF.format(**self._values))
        dbd.chmod(0o600)
        for name in ("prolog", "epilog"):
            script = self.home / name
            script.write_text(
                "#!/bin/sh\nenv >"
                f" {self.home}/{name}.env\nGPULEDGER_SLURM_JOBS_DIR={self.jobs}\nexport"
                f" GPULEDGER_SLURM_JOBS_DIR\nexec {DEPLOY}/{name}.sh\n"
            )
            script.chmod(0o755)

    def _spawn(self, program: str, *arguments: object) -> None:
        found = shutil.which(program, path=PATH)
        assert found is not None, program
        with (self.home / f"{program}.out").open("wb") as log:
            self._children.append(
                subprocess.Popen(
                    [found, *map(str, arguments)], env=self.environment, stdout=log, stderr=log
                )
            )

    def run(self, *command: object) -> str:
        """What a command of this cluster prints.

        Raises AssertionError with what it complains about.
        """
        done = subprocess.run(
            [str(part) for part in command],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout[-1000:]}{done.stderr[-1000:]}"
        return done.stdout

    def _wait(self, ready: Callable[[], bool], daemon: str, seconds: float = 40) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            dead = [child.args for child in self._children if child.poll() is not None]
            assert not dead, f"{dead} ended\n{self.log(daemon)}"
            assert time.monotonic() < deadline, f"{daemon} is not up\n{self.log(daemon)}"
            time.sleep(0.1)

    def log(self, daemon: str) -> str:
        """The end of a daemon's logs."""
        texts = [
            path.read_text(errors="replace")[-3000:]
            for path in self.home.glob(f"{daemon}.[lo][ou][gt]")
        ]
        return "\n".join(texts)

    def submit(
        self, account: str, gres: str, seconds: float, *options: str, user: str = "root"
    ) -> str:
        """A batch job that sleeps; its id."""
        script = f"#!/bin/sh\nsleep {seconds}\n"
        done = subprocess.run(
            [
                "sbatch",
                "--parsable",
                f"--account={account}",
                f"--gres={gres}",
                "--ntasks=1",
                "--chdir=/tmp",
                "--output=/dev/null",
                f"--uid={user}",
                *options,
            ],
            env=self.environment,
            input=script,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def stop(self) -> None:
        """Ends the jobs, which would outlive slurmd, and then the daemons in the opposite order of
        their start.
        """
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("scancel", "--state=PENDING")
            self.run("scancel", "--state=RUNNING")
            self._wait(lambda: not self.run("squeue", "-h").strip(), "squeue", 15)
        for child in reversed(self._children):
            child.terminate()
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def answers(port: object) -> bool:
    """Whether somebody listens on this port of the loopback."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", int(str(port))), timeout=1),
    ):
        return True
    return False


@contextlib.contextmanager
def cluster(home: Path, *accounts: str) -> Iterator[Cluster]:
    """A running cluster whose accounts are known to slurmdbd; its daemons are gone when the block
    ends.
    """
    made = Cluster(home, accounts, os.cpu_count() or 1)
    try:
        made.start()
        yield made
    finally:
        made.stop()
