"""A container engine: HTTP on a unix socket that answers as docker 27 does, with the parts that the
agent reads.
"""

import contextlib
import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler


def container(
    digit,
    name,
    *,
    image="nvcr.io/nvidia/pytorch:25.03-py3",
    runtime="runc",
    requests=None,
    env=(),
    devices=None,
    **labels,
):
    """An answer of /containers/ID/json."""
    return {
        "Id": digit * 64,
        "Created": "2026-01-05T08:00:00.123456789Z",
        "State": {"Status": "running", "Running": True, "Pid": 4711},
        "Image": "sha256:" + "ab" * 32,
        "Name": f"/{name}",
        "HostConfig": {
            "NetworkMode": "bridge",
            "Runtime": runtime,
            "Devices": devices,
            "DeviceRequests": requests,
            "Memory": 0,
        },
        "Config": {
            "Hostname": digit * 12,
            "Env": ["PATH=/usr/bin", *env],
            "Cmd": ["python"],
            "Image": image,
            "Labels": {name.replace("__", "."): value for name, value in labels.items()},
        },
    }


def gpus(*ids, count=0, driver="", capabilities=("gpu",)):
    """What `--gpus` becomes: `device=...` gives ids, a number a count, `all` the count -1."""
    return [
        {
            "Driver": driver,
            "Count": count,
            "DeviceIDs": list(ids) or None,
            "Capabilities": [list(capabilities)],
            "Options": {},
        }
    ]


class Engine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, path):
        super().__init__(str(path), Handler)
        self.path, self.containers, self.asked, self.odd, self.hang = (
            path,
            [],
            [],
            {},
            threading.Event(),
        )
        self.hang.set()

    def answer(self, target):
        """(status, body) for an address; `odd` has what is answered instead."""
        if target in self.odd:
            return self.odd[target]
        if target == "/containers/json":
            return 200, json.dumps(
                [{"Id": one["Id"], "Names": [one["Name"]]} for one in self.containers]
            ).encode()
        found = [one for one in self.containers if target == f"/containers/{one['Id']}/json"]
        return (
            (200, json.dumps(found[0]).encode())
            if found
            else (404, b'{"message":"No such container"}')
        )


class Handler(BaseHTTPRequestHandler):
    def address_string(self):
        return "unix"

    def do_GET(self):
        self.server.asked.append(self.path)
        self.server.hang.wait(10)
        status, body = self.server.answer(self.path)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def running(path):
    """An engine that answers at a socket until the end of the block."""
    engine = Engine(path)
    threading.Thread(
        target=engine.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    ).start()
    try:
        yield engine
    finally:
        engine.hang.set()
        engine.shutdown()
        engine.server_close()
        path.unlink(missing_ok=True)
