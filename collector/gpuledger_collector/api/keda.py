"""KEDA's external scaler over gRPC: the advice of GET /v1/scaling/{pool} for a ScaledObject.

Metadata of the trigger: `pool` (required), `delaySeconds` (from an order to the GPU that serves; without it the pool's
own lead time, 600 where none is declared), `gpusPerReplica`
(the HPA's target, 1), `activationGpus` (active above so many GPUs, 0). Demand that is not known of late, or a database
that is away, is UNAVAILABLE and never a number, so that KEDA's `fallback` and the HPA's refusal to scale down act.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from fastapi import HTTPException

from gpuledger_collector.api.keda_messages import CLASSES, PACKAGE

Ask = Callable[[str, int | None], Mapping[str, Any]]
"""Pool and delay in s (None: its own) -> the object of GET /v1/scaling/{pool}; may block and raise HTTPException."""

METRIC = "gpuledger-desired-gpus"
FRESH_SECONDS = 15.0
MOST_POOLS = 1000
MOST_NAME = 253
MOST_CALLS = 256
CODES = {
    404: grpc.StatusCode.NOT_FOUND,
    422: grpc.StatusCode.INVALID_ARGUMENT,
    503: grpc.StatusCode.UNAVAILABLE,
}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a trigger asks for. GPUs may be fractional."""

    pool: str
    delay_s: int | None = None
    gpus_per_replica: float = 1.0
    activation_gpus: float = 0.0


def wish_of(metadata: Mapping[str, str]) -> Wish:
    """The metadata of a trigger. Raises ValueError with a sentence that names the key."""
    pool = metadata.get("pool", "")
    if not pool or len(pool) > MOST_NAME:
        raise ValueError(f"pool: name a pool of the ledger in the trigger's metadata, {MOST_NAME} characters at most")
    delay = number(metadata, "delaySeconds", 0, 1, 86_400)
    if delay != int(delay):
        raise ValueError("delaySeconds: whole seconds are asked for")
    return Wish(
        pool,
        int(delay) or None,
        number(metadata, "gpusPerReplica", 1.0, 0.001, 1e6),
        number(metadata, "activationGpus", 0.0, 0.0, 1e6),
    )


def number(metadata: Mapping[str, str], key: str, default: float, least: float, most: float) -> float:
    """A number of the metadata. Raises ValueError with a sentence when it is none or out of bounds."""
    text = metadata.get(key, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not least <= value <= most:
        raise ValueError(f"{key}: {text[:40]!r} is no number from {least:g} to {most:g}")
    return value


@dataclass(slots=True)
class Advised:
    """The advice, asked at most once in `FRESH_SECONDS` for each pool and delay, however many ask at once."""

    ask: Ask
    steady: Callable[[], float] = time.monotonic
    _told: dict[tuple[str, int | None], tuple[float, asyncio.Future[Mapping[str, Any]]]] = field(default_factory=dict)

    async def of(self, pool: str, delay_s: int | None) -> Mapping[str, Any]:
        """The object of GET /v1/scaling/{pool}. Raises HTTPException."""
        key, now = (pool, delay_s), self.steady()
        told = self._told.get(key)
        if told is None or (told[1].done() and now - told[0] > FRESH_SECONDS):
            if len(self._told) >= MOST_POOLS:
                self._told = {name: one for name, one in self._told.items() if not one[1].done()}
            told = (now, asyncio.ensure_future(asyncio.to_thread(self.ask, pool, delay_s)))
            self._told[key] = told
        return await asyncio.shield(told[1])  # one caller who gives up does not take the answer from the others


@dataclass(slots=True)
class Scaler:
    """The four calls of externalscaler.ExternalScaler. `again_s`: how often a stream looks whether it changed."""

    advised: Advised
    again_s: float = FRESH_SECONDS

    async def is_active(self, request: Any, context: Any) -> Any:
        """Whether the pool should hold more GPUs than `activationGpus`."""
        return CLASSES["IsActiveResponse"](result=await self._active(await wished(request, context), context))

    async def stream_is_active(self, request: Any, context: Any) -> AsyncIterator[Any]:
        """The same, at once and at each change; the stream ends with UNAVAILABLE when it cannot be said."""
        wish = await wished(request, context)
        before = None
        while True:
            active = await self._active(wish, context)
            if active != before:
                yield CLASSES["IsActiveResponse"](result=active)
                before = active
            await asyncio.sleep(self.again_s)

    async def get_metric_spec(self, request: Any, context: Any) -> Any:
        """The metric's name and the GPUs of a replica: no data, so that an HPA stands while the ledger is away."""
        wish = await wished(request, context)
        made = CLASSES["GetMetricSpecResponse"]()
        # Whole numbers are for KEDA before 2.15; a smaller target asks for more replicas, never for fewer.
        made.metricSpecs.add(
            metricName=METRIC, targetSize=max(1, int(wish.gpus_per_replica)), targetSizeFloat=wish.gpus_per_replica
        )
        return made

    async def get_metrics(self, request: Any, context: Any) -> Any:
        """GPUs that the pool should hold now; below the demand of now only where a ceiling or the money says so."""
        if request.metricName not in {"", METRIC}:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"metricName: there is only {METRIC}")
        wish = await wished(request.scaledObjectRef, context)
        desired = await self._desired(wish, context)
        made = CLASSES["GetMetricsResponse"]()
        made.metricValues.add(metricName=METRIC, metricValue=math.ceil(desired), metricValueFloat=desired)
        return made

    async def _active(self, wish: Wish, context: Any) -> bool:
        return await self._desired(wish, context) > wish.activation_gpus

    async def _desired(self, wish: Wish, context: Any) -> float:
        try:
            advice = await self.advised.of(wish.pool, wish.delay_s)
        except HTTPException as error:
            await context.abort(CODES.get(error.status_code, grpc.StatusCode.INTERNAL), str(error.detail))
        if advice.get("limited"):
            return float(advice["desired_gpus"])  # the pool's ceiling or money, which people have set
        return max(float(advice["desired_gpus"]), float(advice["demand_gpus"]))


async def wished(reference: Any, context: Any) -> Wish:
    """What a ScaledObjectRef asks for; ends the call with INVALID_ARGUMENT and a sentence when it cannot be read."""
    try:
        return wish_of(dict(reference.scalerMetadata))
    except ValueError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise


@dataclass(frozen=True, slots=True)
class Secured:
    """Certificates in PEM: the server's own, and the authority of the clients that may call."""

    key: bytes
    chain: bytes
    client_authority: bytes


def bind(scaler: Scaler, address: str, secured: Secured | None) -> tuple[grpc.aio.Server, int]:
    """A server of this scaler that is not yet started, and its port. Raises RuntimeError when it cannot listen."""
    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    calls: dict[str, tuple[Callable[..., Any], Callable[..., Awaitable[Any] | AsyncIterator[Any]], str, str]] = {
        "IsActive": (unary, scaler.is_active, "ScaledObjectRef", "IsActiveResponse"),
        "StreamIsActive": (stream, scaler.stream_is_active, "ScaledObjectRef", "IsActiveResponse"),
        "GetMetricSpec": (unary, scaler.get_metric_spec, "ScaledObjectRef", "GetMetricSpecResponse"),
        "GetMetrics": (unary, scaler.get_metrics, "GetMetricsRequest", "GetMetricsResponse"),
    }
    handlers = {
        name: make(call, CLASSES[asked].FromString, CLASSES[answered].SerializeToString)
        for name, (make, call, asked, answered) in calls.items()
    }
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 65_536)]
    server = grpc.aio.server(options=options, maximum_concurrent_rpcs=MOST_CALLS)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(f"{PACKAGE}.ExternalScaler", handlers)])
    if secured is None:
        return server, server.add_insecure_port(address)
    credentials = grpc.ssl_server_credentials([(secured.key, secured.chain)], secured.client_authority, True)
    return server, server.add_secure_port(address, credentials)
