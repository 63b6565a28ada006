"""gpuledger mcp: answers for an assistant over standard input and output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Option

from gpuledger_collector import wiring
from gpuledger_collector.cli import options
from gpuledger_collector.cli.common import new_app
from gpuledger_collector.cli.session import load_settings
from gpuledger_collector.logs import configure_logging

app = new_app()


@app.command(
    epilog=(
        "Example: gpuledger mcp --config /etc/gpuledger/collector.toml --token-file"
        " ~/.gpuledger-token"
    )
)
def mcp(
    token_file: Annotated[
        Path | None,
        Option(
            "--token-file",
            metavar="FILE",
            help="Reader's token: see only what it may see (mcp_token_file).",
        ),
    ] = None,
    dsn: options.Dsn = None,
    config: options.Config = None,
) -> None:
    """Answer an assistant over the Model Context Protocol on standard input and output; it starts
    this command itself.

    Nothing is written to the ledger. Numbers are as the collector last rated them.
    """
    wiring.require_mcp()
    settings = load_settings(config, dsn)
    if token_file is not None:
        settings = replace(settings, mcp_token_file=token_file)
    configure_logging(settings)
    with wiring.database(settings) as opened:
        wiring.mcp_server(settings, opened).run("stdio")
