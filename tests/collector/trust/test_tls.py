"""TLS of the server itself, with a certificate authority of the test's own."""

import contextlib
import http.client
import socket
import ssl
import subprocess
import threading
import warnings

import pytest
import uvicorn

from gpuledger_collector import serving, wiring
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.errors import EnvironmentLacks
from gpuledger_collector.wiring import Database


def openssl(*arguments, folder):
    subprocess.run(["openssl", *map(str, arguments)], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """ca.pem, and server.pem with server.key for 127.0.0.1; other.pem is an authority that signed nothing."""
    folder = tmp_path_factory.mktemp("authority")
    for name in ("ca", "other"):
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout",
                f"{name}.key", "-out", f"{name}.pem", "-days", 2, "-subj", f"/CN={name}", folder=folder)  # fmt: skip
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", "server.key", "-out",
            "server.csr", "-subj", "/CN=collector", folder=folder)  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", 2,
            "-extfile", "names", "-out", "server.pem", folder=folder)  # fmt: skip
    return folder


@contextlib.contextmanager
def serving_tls(folder, dsn):
    """The port of a collector that serves as `gpuledger serve` does."""
    settings = Settings(tls_certificate_file=folder / "server.pem", tls_key_file=folder / "server.key", drain_seconds=2)
    parts = wiring.collector(settings, Database(dsn))
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(serving.configuration(settings, parts))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
        listener.close()


def healthy(port, context):
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status, connection.sock.version() if connection.sock else None
    finally:
        connection.close()


def test_tls_is_served_and_nothing_below_1_2(authority, dsn):
    """Who trusts the authority is answered over TLS 1.2 or newer; older versions, others and plain HTTP are not."""
    with serving_tls(authority, dsn) as port:
        trusting = ssl.create_default_context(cafile=authority / "ca.pem")
        assert healthy(port, trusting)[0] == 200
        exact = ssl.create_default_context(cafile=authority / "ca.pem")
        exact.maximum_version = ssl.TLSVersion.TLSv1_2
        assert healthy(port, exact)[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            healthy(port, ssl.create_default_context(cafile=authority / "other.pem"))
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings(action="ignore"):
            old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            healthy(port, old)
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as plain:
            plain.request("GET", "/healthz")
            with pytest.raises((http.client.HTTPException, ConnectionError)):
                plain.getresponse()


def test_a_certificate_that_cannot_be_used_is_a_sentence(authority, dsn, tmp_path):
    """The wrong key, or none, is said at the start and not at the first connection."""
    for key in (authority / "ca.key", tmp_path / "none.key"):
        settings = Settings(tls_certificate_file=authority / "server.pem", tls_key_file=key)
        with pytest.raises(EnvironmentLacks, match=r"server\.pem and .*\.key cannot be used for TLS"):
            serving.configuration(settings, wiring.collector(settings, Database(dsn)))
