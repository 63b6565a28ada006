"""gpuledger keda serve: KEDA's external scaler over gRPC."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gpuledger_collector.cli.common import LACKING, Config, Dsn, database, refuse

if TYPE_CHECKING:
    from gpuledger_collector.api.keda import Scaler, Secured

GRACE_SECONDS = 5.0


def register(root: typer.Typer) -> None:
    """Add `gpuledger keda serve`."""
    group = typer.Typer(help="KEDA's external scaler: a pool's advice over gRPC.", no_args_is_help=True)
    group.command(epilog="Example: gpuledger keda serve --listen 127.0.0.1:8441")(serve)
    group.callback()(_group)
    root.add_typer(group, name="keda")


def _group() -> None:
    """KEDA's external scaler: a pool's advice over gRPC."""


def serve(
    listen: str = typer.Option("127.0.0.1:8441", "--listen", metavar="ADDRESS:PORT", help="Where KEDA calls."),
    certificate: Path | None = typer.Option(None, "--tls-cert", metavar="FILE", help="Certificate chain, PEM."),
    key: Path | None = typer.Option(None, "--tls-key", metavar="FILE", help="Its key, PEM."),
    authority: Path | None = typer.Option(
        None, "--client-ca", metavar="FILE", help="Only clients with a certificate of this authority may call, PEM."
    ),
    dsn: Dsn = None,
    config: Config = None,
) -> None:
    """Answer KEDA's external scaler calls with what GET /v1/scaling/{pool} says, until a signal.

    Advice on demand that is not known of late is UNAVAILABLE and never a number. Beyond loopback KEDA has to show a
    certificate. Reads the database; rates and writes nothing.
    """
    secured = certificates(listen, certificate, key, authority)
    try:
        from gpuledger_collector.api.keda import Advised, Scaler
    except ModuleNotFoundError as error:
        if error.name != "grpc":
            raise
        refuse("gRPC is not installed: pip install 'gpuledger[collector,keda]'", LACKING)
    from gpuledger_collector import wiring

    with database(dsn, config) as opened:
        asyncio.run(answer(Scaler(Advised(wiring.advice(opened))), listen, secured))


def certificates(listen: str, certificate: Path | None, key: Path | None, authority: Path | None) -> Secured | None:
    """What secures the calls, None on loopback without certificates. Refuses an open port and half of a pair."""
    from gpuledger_collector.settings import is_loopback

    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        refuse(f"--listen: {listen!r} is not ADDRESS:PORT, such as 127.0.0.1:8441")
    given = [one for one in (certificate, key, authority) if one is not None]
    if not given and is_loopback(host.strip("[]")):
        return None
    if certificate is None or key is None or authority is None:
        refuse("--tls-cert, --tls-key and --client-ca: give all three; beyond loopback KEDA shows a certificate")
    try:
        from gpuledger_collector.api.keda import Secured
    except ModuleNotFoundError:
        refuse("gRPC is not installed: pip install 'gpuledger[collector,keda]'", LACKING)
    return Secured(key.read_bytes(), certificate.read_bytes(), authority.read_bytes())


async def answer(scaler: Scaler, listen: str, secured: Secured | None) -> None:
    """Serve until INT or TERM; calls under way have a few seconds to end."""
    from gpuledger_collector.api.keda import bind

    try:
        server, port = bind(scaler, listen, secured)
    except RuntimeError:
        doubt = ", or the certificates are no PEM that belongs together" if secured else ""
        refuse(f"--listen: {listen} cannot be listened on: something runs there already{doubt}", LACKING)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await server.start()
    print(f"KEDA's external scaler listens on {listen.rpartition(':')[0]}:{port}", flush=True)
    await stop.wait()
    await server.stop(GRACE_SECONDS)
