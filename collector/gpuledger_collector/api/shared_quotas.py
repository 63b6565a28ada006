"""Makes quotas hold for all workers and collectors of one database.

Each process admits by buckets of its own, at the cost of an arithmetic operation. Once a second it
writes what heavy senders have used since, in one statement, and takes over what all processes have
admitted of them. A bucket keeps its debt, so the rate holds over time. Beyond one bucket a sender
gets at most `SHARED_FROM` of it from each process, and what those admit until they have settled: a
second or two, and one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from gpuledger_collector.api.limits import Quota
from gpuledger_collector.services.database import Database
from gpuledger_collector.services.quotas import settle_quotas

EVERY_SECONDS = 1.0
EXPIRE_EVERY = 3600
"""Expire buckets once in so many settlements."""
SESSION = "-c synchronous_commit=off -c statement_timeout=5s -c lock_timeout=2s"
"""A settlement that a crash loses is made up for by the next one of the same sender."""

log = logging.getLogger(__name__)


class SharedQuotas:
    """Settles quotas, by their names, with those of other processes."""

    def __init__(self, quotas: Mapping[str, Quota], database: Database) -> None:
        self._quotas = {name: quota for name, quota in quotas.items() if quota.rate}
        self._rates = {name: quota.rate for name, quota in self._quotas.items()}
        self._database = database.as_application("gpuledger-quotas", SESSION)
        self._settlements = 0
        self._has_failed = False

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        """Settle once a second while the block runs."""
        settling = asyncio.create_task(self._run())
        try:
            yield
        finally:
            settling.cancel()

    async def settle(self) -> None:
        """Settle what was taken since the last time.

        A database that fails is asked again a second later.
        """
        used = {
            (payer, name): units
            for name, quota in self._quotas.items()
            for payer, units in quota.collect_unsettled().items()
        }
        is_expiry_due = self._settlements % EXPIRE_EVERY == EXPIRE_EVERY - 1
        self._settlements += 1
        if not used and not is_expiry_due:
            return
        try:
            settled = await asyncio.to_thread(
                settle_quotas, self._database, used, self._rates, expire=is_expiry_due
            )
        except Exception as error:  # whatever it is: each process goes on by its own buckets
            for (payer, name), units in used.items():
                self._quotas[name].return_unsettled(payer, units)
            self._report(str(error).partition("\n")[0])
            return
        self._report("")
        for (payer, name), units in settled.items():
            self._quotas[name].adopt(payer, units)

    def _report(self, failure: str) -> None:
        """Log the first of several failures."""
        if failure and not self._has_failed:
            log.warning(
                "quotas hold for this process alone until the database answers: %s", failure
            )
        self._has_failed = bool(failure)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            await self.settle()


@contextlib.asynccontextmanager
async def all_of(
    lifespans: Sequence[Callable[[Any], contextlib.AbstractAsyncContextManager[None]]], app: Any
) -> AsyncIterator[None]:
    """Enter several lifespans of an application."""
    async with contextlib.AsyncExitStack() as stack:
        for lifespan in lifespans:
            await stack.enter_async_context(lifespan(app))
        yield
