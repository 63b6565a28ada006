"""A Kubernetes API server: HTTPS on the loopback with a certificate of its own CA, lists by node,
pages, tokens.
"""

import contextlib
import json
import re
import ssl
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

TOKEN = "token-of-the-account"


def certificates(folder):
    """`ca.crt`, and a key and certificate of 127.0.0.1 that this CA signed, made by openssl."""
    made = (
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-x509",
        "-days",
        "2",
    )
    ca, ca_key, key, leaf = (
        folder / name for name in ("ca.crt", "ca.key", "server.key", "server.crt")
    )
    signs = ("-addext", "keyUsage=critical,keyCertSign")
    _openssl(*made, "-keyout", ca_key, "-out", ca, "-subj", f"/CN=cluster {folder.name}", *signs)
    signed = ("-CA", ca, "-CAkey", ca_key, "-addext", "basicConstraints=critical,CA:FALSE")
    names = ("-addext", "subjectAltName=IP:127.0.0.1")
    _openssl(*made, "-keyout", key, "-out", leaf, "-subj", "/CN=kube-apiserver", *signed, *names)
    return leaf, key


def _openssl(*words):
    subprocess.run(["openssl", "req", *map(str, words)], check=True, capture_output=True)


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.account = folder
        leaf, key = certificates(folder)
        (folder / "token").write_text(TOKEN)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(leaf, key)
        self.socket = context.wrap_socket(
            self.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://127.0.0.1:{self.server_port}"
        self.reset()

    def reset(self):
        self.pods, self.namespaces, self.slices, self.claims = [], [], {}, {}
        self.requests, self.status, self.body, self.forbidden = [], 200, None, None
        self.trickle_s, self.connections, self.keeps_connections = 0.0, 0, True
        self.single, self.lists = {}, {}

    @staticmethod
    def pod(namespace, name, uid, node="n1", annotations=None, owner=None, **labels):
        metadata = {"namespace": namespace, "name": name, "uid": uid, "labels": labels}
        if annotations:
            metadata["annotations"] = annotations
        if owner:
            metadata["ownerReferences"] = [{**owner, "controller": True}]
        return {
            "metadata": metadata,
            "spec": {"nodeName": node},
            "status": {"phase": "Running"},
        }

    def claim(self, namespace, name, *results):
        """A claim with what its status says of each device."""
        path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"
        allocation = {"devices": {"results": list(results)}}
        self.claims[path] = {"metadata": {"name": name}, "status": {"allocation": allocation}}

    def node(self, name, provider_id="", **labels):
        """A node with its labels."""
        metadata, spec = {"name": name, "labels": labels}, {"providerID": provider_id}
        self.single[f"/api/v1/nodes/{name}"] = {"metadata": metadata, "spec": spec}

    def listed(self, path):
        if path in self.lists:
            return self.lists[path]
        if path == "/api/v1/pods":
            return self.pods
        if path == "/api/v1/namespaces":
            return self.namespaces
        if re.fullmatch("/api/v1/namespaces/[^/]+/pods", path):
            return [pod for pod in self.pods if pod["metadata"]["namespace"] == path.split("/")[4]]
        version = path.removeprefix("/apis/resource.k8s.io/").removesuffix("/resourceslices")
        return self.slices.get(version)

    def handle_error(self, request, client_address):
        """A client that does not trust us hangs up: no noise."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # as a real one, it keeps connections open
    disable_nagle_algorithm = True

    def setup(self):
        super().setup()
        self.server.connections += 1

    def do_GET(self):
        address = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        self.server.requests.append((self.headers["Authorization"], self.path))
        items = self.server.listed(address.path)
        single = {**self.server.claims, **self.server.single}.get(address.path)
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self._answer(401, b"{}")
        elif self.server.forbidden and address.path.startswith(self.server.forbidden):
            self._answer(403, b"{}")
        elif single is not None and self.server.status == 200:
            self._answer(200, json.dumps(single).encode())
        elif items is None:
            self._answer(404, b"{}")
        else:
            self._answer(
                self.server.status,
                self.server.body if self.server.body is not None else _page(items, query),
            )

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if not self.server.keeps_connections:
            self.send_header("Connection", "close")
        self.end_headers()
        for piece in [body] if not self.server.trickle_s else [bytes([byte]) for byte in body]:
            self.wfile.write(piece)
            time.sleep(self.server.trickle_s)

    def log_message(self, *args):
        pass


def _page(items, query):
    mine = items
    for name, value in re.findall(r"([^=,]+)=([^,]*)", query.get("fieldSelector", "")):
        place, _, key = name.partition(".")
        mine = [item for item in mine if item[place].get(key) == value]
    begin, limit = int(query.get("continue", 0)), int(query["limit"])
    more = {"continue": str(begin + limit)} if begin + limit < len(mine) else {}
    return json.dumps(
        {"kind": "List", "metadata": more, "items": mine[begin : begin + limit]}
    ).encode()


@contextlib.contextmanager
def api_server(folder):
    """An API server until the end of the block; `account` is the folder with token and CA."""
    server = Server(folder)
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    ).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
