"""gpuledger keda: KEDA's external scaler, asked by a real gRPC client over loopback about a real ledger."""

import asyncio
import contextlib
import datetime as dt
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from fakes.collector import running
from gpuledger_collector import wiring
from gpuledger_collector.accounting.period import DAY_MS, HOUR_MS
from gpuledger_collector.api.keda import METRIC, Advised, Scaler, Secured, bind, wish_of
from gpuledger_collector.services.hourly_usage import ALWAYS
from gpuledger_collector.services.refresh import refresh
from gpuledger_collector.storage.database import Database
from gpuledger_collector.storage.ledger.ledgers import Ledger

NOW_MS = int(dt.datetime.now(dt.UTC).timestamp() * 1000)
GPULEDGER = Path(sys.executable).with_name("gpuledger")

# What protoc makes of the public externalscaler.proto, declared apart from the product's own declaration.
PROTO = """
name: "client.proto" package: "externalscaler" syntax: "proto3"
message_type { name: "ScaledObjectRef"
  field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "namespace" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "scalerMetadata" number: 3 type: TYPE_MESSAGE label: LABEL_REPEATED
          type_name: ".externalscaler.ScaledObjectRef.Entry" }
  nested_type { name: "Entry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL } } }
message_type { name: "IsActiveResponse"
  field { name: "result" number: 1 type: TYPE_BOOL label: LABEL_OPTIONAL } }
message_type { name: "MetricSpec"
  field { name: "metricName" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "targetSize" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "targetSizeFloat" number: 3 type: TYPE_DOUBLE label: LABEL_OPTIONAL } }
message_type { name: "GetMetricSpecResponse"
  field { name: "metricSpecs" number: 1 type: TYPE_MESSAGE label: LABEL_REPEATED
          type_name: ".externalscaler.MetricSpec" } }
message_type { name: "GetMetricsRequest"
  field { name: "scaledObjectRef" number: 1 type: TYPE_MESSAGE label: LABEL_OPTIONAL
          type_name: ".externalscaler.ScaledObjectRef" }
  field { name: "metricName" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL } }
message_type { name: "MetricValue"
  field { name: "metricName" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "metricValue" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "metricValueFloat" number: 3 type: TYPE_DOUBLE label: LABEL_OPTIONAL } }
message_type { name: "GetMetricsResponse"
  field { name: "metricValues" number: 1 type: TYPE_MESSAGE label: LABEL_REPEATED
          type_name: ".externalscaler.MetricValue" } }
"""


def client_classes():
    file = text_format.Parse(PROTO, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        made.name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"externalscaler.{made.name}"))
        for made in file.message_type
    }


C = client_classes()


class Keda:
    """The calls that KEDA's operator makes, for one ScaledObject."""

    def __init__(self, port, credentials=None, **metadata):
        address = f"127.0.0.1:{port}"
        self.channel = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
        self.ref = C["ScaledObjectRef"](name="serve", namespace="ml", scalerMetadata=metadata)

    def call(self, name, request, answer, stream=False):
        kind = self.channel.unary_stream if stream else self.channel.unary_unary
        made = kind(
            f"/externalscaler.ExternalScaler/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=C[answer].FromString,
        )
        return made(request, timeout=60)

    def active(self):
        return self.call("IsActive", self.ref, "IsActiveResponse").result

    def spec(self):
        (spec,) = self.call("GetMetricSpec", self.ref, "GetMetricSpecResponse").metricSpecs
        return spec

    def value(self, name=METRIC):
        request = C["GetMetricsRequest"](scaledObjectRef=self.ref, metricName=name)
        (value,) = self.call("GetMetrics", request, "GetMetricsResponse").metricValues
        return value

    def stream(self):
        return self.call("StreamIsActive", self.ref, "IsActiveResponse", stream=True)


@contextlib.contextmanager
def serving(ask, again_s=15.0, secured=None):
    """A scaler on a loopback port of its own, in a loop of its own; gives the port."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start():
        server, port = bind(Scaler(Advised(ask), again_s), "127.0.0.1:0", secured)
        await server.start()
        return server, port

    server, port = asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    try:
        yield port
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def fill(dsn, shift_ms=0, gpus=3):
    """Twelve days of a pool whose GPUs are held by day; the last full hour is always held. `shift_ms` earlier."""
    end = NOW_MS // HOUR_MS * HOUR_MS - shift_ms
    hours = 24 * 12
    usage_intervals = [
        {"accelerator": gpu, "start_ms": end - (back + 1) * HOUR_MS, "end_ms": end - back * HOUR_MS}
        | (
            {"state": "held", "workload": 0, "held_ms": HOUR_MS, "busy_ms": HOUR_MS, "idle_ms": 0}
            if back % 24 < 10
            else {"state": "unallocated"}
        )
        for back in range(hours)
        for gpu in range(gpus)
    ]
    made = {
        "version": 1,
        "node": "n1",
        "epoch": "0192aaaa-0000-7000-8000-000000000001",
        "seq": 1,
        "heartbeat": {"agent_version": "0", "source": "simulated", "status": "ok"},
        "accelerators": [
            {"uuid": f"GPU-{gpu}", "device_uuid": f"GPU-{gpu}", "index": gpu, "model": "NVIDIA L4", "pool": "serve"}
            for gpu in range(gpus)
        ],
        "workloads": [{"id": "1", "kind": "slurm", "tags": {"team": "vision"}}],
        "usage_intervals": usage_intervals,
    }
    with running(dsn) as collector:
        status, answer = collector.post(json.dumps(made).encode(), {"Content-Type": "application/json"})
        assert status == 200, answer
    refresh(Ledger(dsn), ALWAYS, NOW_MS)


@pytest.fixture
def ask(dsn):
    opened = Database(dsn)
    yield wiring.advice(opened)
    opened.close()


def test_the_four_calls_say_what_the_api_says(dsn, ask):
    """A ScaledObject gets the desired GPUs of GET /v1/scaling, at least the demand of now, and its own target."""
    fill(dsn)
    with running(dsn) as collector:
        status, _, told = collector.request("GET", "/v1/scaling/serve?delay_s=300")
    assert status == 200, told
    assert told["demand_gpus"] == 3
    with serving(ask) as port:
        keda = Keda(port, scalerAddress="x:1", pool="serve", delaySeconds="300", gpusPerReplica="0.5")
        spec, value = keda.spec(), keda.value()
        assert (spec.metricName, spec.targetSizeFloat, spec.targetSize) == (METRIC, 0.5, 1)
        assert (value.metricName, value.metricValueFloat) == (METRIC, told["desired_gpus"])
        assert value.metricValue >= value.metricValueFloat >= told["demand_gpus"]
        assert keda.active() is True
        assert Keda(port, pool="serve", activationGpus="1000").active() is False
        stream = keda.stream()
        assert next(stream).result is True
        stream.cancel()


def test_stale_demand_is_unavailable_and_never_a_number(dsn, ask):
    """Evidence that ended days ago: values, activity and the stream are refused; the spec stands."""
    fill(dsn, shift_ms=5 * DAY_MS)
    with serving(ask) as port:
        keda = Keda(port, pool="serve")
        for call in (keda.value, keda.active, lambda: next(keda.stream())):
            with pytest.raises(grpc.RpcError) as raised:
                call()
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "no number" in raised.value.details()
        assert keda.spec().targetSizeFloat == 1


def test_a_database_that_is_away_is_unavailable():
    """Nobody listens where the database should be."""
    opened = Database("postgresql://nobody@127.0.0.1:1/none")
    with serving(wiring.advice(opened)) as port, pytest.raises(grpc.RpcError) as raised:
        Keda(port, pool="serve").value()
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("metadata", "code", "words"),
    [
        ({}, "INVALID_ARGUMENT", "name a pool"),
        ({"pool": "p" * 254}, "INVALID_ARGUMENT", "253 characters"),
        ({"pool": "serve", "delaySeconds": "soon"}, "INVALID_ARGUMENT", "delaySeconds: 'soon'"),
        ({"pool": "serve", "delaySeconds": "0.5"}, "INVALID_ARGUMENT", "delaySeconds"),
        ({"pool": "serve", "gpusPerReplica": "nan"}, "INVALID_ARGUMENT", "gpusPerReplica"),
        ({"pool": "serve", "gpusPerReplica": "-1"}, "INVALID_ARGUMENT", "gpusPerReplica"),
        ({"pool": "serve"}, "NOT_FOUND", "no pool 'serve'"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_its_sentence(dsn, ask, metadata, code, words):
    """A trigger that is wrong learns which key is."""
    with serving(ask) as port, pytest.raises(grpc.RpcError) as raised:
        Keda(port, **metadata).value()
    assert raised.value.code().name == code
    assert words in raised.value.details()


def test_another_metric_is_not_ours():
    """A metric name that the spec did not give is NOT_FOUND."""

    def ask(pool, delay):
        return {"desired_gpus": 1.0, "demand_gpus": 1.0}

    with serving(ask) as port, pytest.raises(grpc.RpcError) as raised:
        Keda(port, pool="a").value("other")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_many_calls_ask_the_ledger_once_and_the_stream_tells_changes():
    """Calls within the same seconds share one answer; a stream speaks at once and when the answer turned."""
    asked = []

    def ask(pool, delay):
        asked.append(pool)
        return {"desired_gpus": 2.0, "demand_gpus": 1.0}

    with serving(ask) as port:
        keda = Keda(port, pool="a")
        assert [keda.value().metricValueFloat for _ in range(5)] == [2.0] * 5
        assert keda.active()
    assert asked == ["a"]

    clock = iter(range(0, 100_000, 60))  # every look is a minute after the one before
    turns = iter([0.0, 0.0, 5.0, 5.0, 0.0])

    async def told():
        advised = Advised(lambda pool, delay: {"desired_gpus": next(turns), "demand_gpus": 0.0}, lambda: next(clock))
        stream = Scaler(advised, 0.001).stream_is_active(C["ScaledObjectRef"](scalerMetadata={"pool": "a"}), None)
        return [(await anext(stream)).result for _ in range(3)]

    assert asyncio.run(told()) == [False, True, False]


def test_the_value_is_never_below_the_demand_of_now():
    """Whatever the advice says."""
    with serving(lambda pool, delay: {"desired_gpus": 1.0, "demand_gpus": 7.25}) as port:
        value = Keda(port, pool="a").value()
    assert (value.metricValue, value.metricValueFloat) == (8, 7.25)


def test_defaults_of_a_trigger():
    """Only the pool is required."""
    wish = wish_of({"pool": "serve", "scalerAddress": "x:1"})
    assert (wish.delay_s, wish.gpus_per_replica, wish.activation_gpus) == (None, 1.0, 0.0)


def test_the_command_serves_until_it_is_told_to_stop(dsn):
    """A process of its own answers on the port that it names, and ends with 0."""
    fill(dsn)
    child = subprocess.Popen(
        [GPULEDGER, "keda", "serve", "--listen", "127.0.0.1:0", "--dsn", dsn],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(os.environ),
    )
    try:
        said = child.stdout.readline()
        port = re.fullmatch(r".* listens on 127\.0\.0\.1:(\d+)\n", said)
        assert port, said + child.stderr.read()
        assert Keda(port[1], pool="serve").value().metricValueFloat >= 3
    finally:
        child.send_signal(signal.SIGTERM)
        _, complaints = child.communicate(timeout=60)
    assert (child.returncode, complaints) == (0, "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--listen", "0.0.0.0:8441"], "give all three"),
        (["--listen", "127.0.0.1:0", "--tls-cert", "x"], "give all three"),
        (["--listen", "here"], "not ADDRESS:PORT"),
    ],
)
def test_an_open_port_needs_certificates(options, words):
    """Exit 2 and one sentence."""
    done = subprocess.run(
        [GPULEDGER, "keda", "serve", *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert words in done.stderr


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_with_certificates_only_clients_of_the_authority_may_call(tmp_path):
    """KEDA with a certificate is answered; one without, and one in the clear, get no answer at all."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl(tmp_path, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ca")
    for name in ("server", "client"):
        openssl(tmp_path, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        (tmp_path / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl(
            tmp_path,
            "x509",
            "-req",
            "-in",
            f"{name}.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-out",
            f"{name}.pem",
            "-extfile",
            "names",
        )
    pem = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def ask(pool, delay):
        return {"desired_gpus": 2.0, "demand_gpus": 1.0}

    with serving(ask, secured=Secured(pem["server.key"], pem["server.pem"], pem["ca.pem"])) as port:
        known = grpc.ssl_channel_credentials(pem["ca.pem"], pem["client.key"], pem["client.pem"])
        assert Keda(port, known, pool="a").value().metricValueFloat == 2
        for credentials in (grpc.ssl_channel_credentials(pem["ca.pem"]), None):
            with pytest.raises(grpc.RpcError) as raised:
                Keda(port, credentials, pool="a").value()
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_port_that_is_taken_and_certificates_that_are_none_are_refused(dsn, tmp_path):
    """Exit 3 and one sentence; never a second server on one port."""
    (tmp_path / "pem").write_text("no certificate\n")
    pems = [part for name in ("--tls-cert", "--tls-key", "--client-ca") for part in (name, str(tmp_path / "pem"))]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for options, words in (
            (["--listen", address], "runs there already\n"),
            (["--listen", "127.0.0.1:0", *pems], "PEM"),
        ):
            done = subprocess.run(
                [GPULEDGER, "keda", "serve", "--dsn", dsn, *options],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 3, done.stderr
            assert words in done.stderr
            assert "Traceback" not in done.stderr


def test_without_grpc_the_command_says_what_to_install(tmp_path):
    """Exit 3 and the name of the extra."""
    (tmp_path / "grpc.py").write_text("raise ModuleNotFoundError(\"No module named 'grpc'\", name='grpc')\n")
    done = subprocess.run(
        [GPULEDGER, "keda", "serve"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 3, done.stderr
    assert "gpuledger[collector,keda]" in done.stderr
