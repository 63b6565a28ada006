"""TLS of the server itself, with a certificate authority of the test's own."""

import contextlib
import http.client
import socket
import ssl
import subprocess
import threading
import time
import warnings

import psycopg
import pytest
import uvicorn

from fakes.batches import NOON_MS, batch, body_of
from fakes.collector import MSGPACK
from gpuledger_agent.push import Http
from gpuledger_collector import serving, wiring
from gpuledger_collector.accounting.tokens import Token
from gpuledger_collector.settings import Settings
from gpuledger_collector.storage.access import tokens
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.errors import EnvironmentLacks

pytestmark = pytest.mark.slow


def openssl(*arguments, folder):
    subprocess.run(
        ["openssl", *map(str, arguments)], cwd=folder, check=True, capture_output=True, timeout=60
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """ca.pem, and server.pem with server.key for 127.0.0.1; other.pem is an authority that signed
    nothing.

    expired.pem and elsewhere.pem are of the same key and authority: over since yesterday, and for
    another address.
    """
    folder = tmp_path_factory.mktemp("authority")
    for name in ("ca", "other"):
        openssl(
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.pem",
            "-days",
            2,
            "-subj",
            f"/CN={name}",
            folder=folder,
        )
    openssl(
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-keyout",
        "server.key",
        "-out",
        "server.csr",
        "-subj",
        "/CN=collector",
        folder=folder,
    )
    for name, address, days in (
        ("server", "127.0.0.1", 2),
        ("expired", "127.0.0.1", -1),
        ("elsewhere", "127.0.0.2", 2),
    ):
        (folder / "names").write_text(f"subjectAltName=IP:{address}\n")
        signing = (
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            days,
            "-extfile",
            "names",
        )
        openssl("x509", "-req", "-in", "server.csr", *signing, "-out", f"{name}.pem", folder=folder)
    return folder


@contextlib.contextmanager
def serving_tls(folder, dsn, certificate="server.pem"):
    """The port of a collector that serves as `gpuledger serve` does."""
    settings = Settings(
        tls_certificate_file=folder / certificate,
        tls_key_file=folder / "server.key",
        drain_seconds=2,
        require_tokens=True,
        max_evidence_age_days=0,
    )
    parts = wiring.collector(settings, Database(dsn))
    parts.commit.start()
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(serving.configuration(settings, parts))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)
        parts.commit.close(5)
        listener.close()


def healthy(port, context):
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
    try:
        connection.request("GET", "/healthz")
        return (
            connection.getresponse().status,
            connection.sock.version() if connection.sock else None,
        )
    finally:
        connection.close()


def test_tls_is_served_and_nothing_below_1_2(authority, dsn):
    """Who trusts the authority is answered over TLS 1.2 or newer; older versions, others and plain
    HTTP are not.
    """
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


@pytest.mark.parametrize(
    ("certificate", "trusted", "reason"),
    [
        ("server.pem", "ca.pem", None),
        ("server.pem", "other.pem", "is not of the authority that signed it"),
        ("server.pem", None, "set ca_file"),
        ("expired.pem", "ca.pem", "expired"),
        ("elsewhere.pem", "ca.pem", "IP address mismatch"),
    ],
)
def test_an_agent_tells_its_token_to_the_collector_of_its_authority_alone(
    authority, dsn, tmp_path, certificate, trusted, reason
):
    """Threat: a false collector.

    With a private authority a batch is committed; an unknown one, an expired certificate and one of
    another address are refused before the token is sent, and the batch stays with the agent.
    """
    with psycopg.connect(dsn) as connection:
        token = Token(0, "node-1", "agent", "node-1", None, "", made_ms=round(time.time() * 1000))
        secret = tokens.create(connection, token)[1]
    (tmp_path / "token").write_text(secret)
    with serving_tls(authority, dsn, certificate) as port:
        agent = Http(
            f"https://127.0.0.1:{port}", tmp_path / "token", trusted and authority / trusted
        )
        reply = agent.post(body_of(batch(1, "node-1")), NOON_MS)
        agent.close()
    assert reply.status == (200 if reason is None else None)
    assert (reason or "") in reply.error
    with psycopg.connect(dsn) as connection:
        committed = connection.execute("SELECT count(*) FROM ingest_batch").fetchone()
    assert committed == (1 if reason is None else 0,)


def test_a_certificate_of_a_client_that_a_header_claims_is_none(authority, dsn):
    """Threat: a forged header of a proxy that ended mTLS.

    Without a token it opens nothing, whatever it says.
    """
    claims = {
        "X-Forwarded-Client-Cert": 'Hash=00;Subject="CN=admin";URI=spiffe://ledger/admin',
        "X-SSL-Client-Verify": "SUCCESS",
        "X-SSL-Client-S-DN": "CN=admin",
        "X-Forwarded-User": "admin",
    }
    with serving_tls(authority, dsn) as port:
        context = ssl.create_default_context(cafile=authority / "ca.pem")
        for method, path in (("GET", "/v1/nodes"), ("GET", "/v1/audit"), ("POST", "/v1/batches")):
            connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
            with contextlib.closing(connection):
                connection.request(
                    method,
                    path,
                    None if method == "GET" else body_of(batch()),
                    {**MSGPACK, **claims},
                )
                assert connection.getresponse().status == 401, path


def test_a_certificate_that_cannot_be_used_is_a_sentence(authority, dsn, tmp_path):
    """The wrong key, or none, is said at the start and not at the first connection."""
    for key in (authority / "ca.key", tmp_path / "none.key"):
        settings = Settings(tls_certificate_file=authority / "server.pem", tls_key_file=key)
        with pytest.raises(
            EnvironmentLacks, match=r"server\.pem and .*\.key cannot be used for TLS"
        ):
            serving.configuration(settings, wiring.collector(settings, Database(dsn)))
