"""Debian's pgbouncer before a Postgres, in a mode of pooling."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator

from psycopg.conninfo import make_conninfo

from fakes.engines import DATABASE, OWNER, Engine, lacking
from fakes.ports import free_port
from gpuledger_collector.storage.server.binaries import server_user

CONFIGURATION = """
[databases]
{database} = host=127.0.0.1 port={server_port} dbname={database}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = plain
auth_file = {folder}/users-{port}.txt
pool_mode = {mode}
default_pool_size = 4
max_client_conn = 200
logfile = {folder}/pgbouncer-{port}.log
{more}
"""


@contextlib.contextmanager
def pgbouncer(server: Engine, mode: str, more: str = "", **users: str) -> Iterator[str]:
    """The owner's DSN through a pooler that runs until the block ends; `users` are further roles
    with passwords.
    """
    program = shutil.which("pgbouncer", path=os.environ["PATH"] + ":/usr/sbin")
    if program is None:
        lacking("no pgbouncer: apt-get install pgbouncer")
    port = free_port()
    known = {OWNER: server.password, **users}
    configuration = server.folder / f"pgbouncer-{port}.ini"
    configuration.write_text(
        CONFIGURATION.format(
            database=DATABASE,
            server_port=server.port,
            port=port,
            folder=server.folder,
            mode=mode,
            more=more,
        )
    )
    passwords = server.folder / f"users-{port}.txt"
    passwords.write_text("".join(f'"{role}" "{password}"\n' for role, password in known.items()))
    log = server.folder / f"pgbouncer-{port}.log"
    log.touch()
    user = server_user(os.geteuid(), None)  # it refuses to run as root
    own = {} if user is None else {"user": user.uid, "group": user.gid, "extra_groups": []}
    for path in (configuration, passwords, log) if user is not None else ():
        os.chown(path, user.uid, user.gid)
    process = subprocess.Popen(
        [program, "-q", configuration],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        **own,
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
                break
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield make_conninfo(
            "", host="127.0.0.1", port=port, user=OWNER, password=server.password, dbname=DATABASE
        )
    finally:
        process.terminate()
        process.wait(30)
