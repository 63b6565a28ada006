"""Tokens on the hot path: one look at the database for all who wait, and an end to every wait."""

import asyncio
import threading
import time

import pytest

from gpuledger_collector.accounting.tokens import Token, hash_of
from gpuledger_collector.api.auth.keys import FRESH_SECONDS, NEW_SECONDS, Keys, KeysUnavailable

KNOWN = "Bearer gpl_known"
TOKEN = Token(1, "n", "agent", "n", None, hash_of("gpl_known"), 0)


class Shelf:
    """A token book that takes its time; `let` is what it waits for."""

    def __init__(self, seconds=0.0):
        self.seconds, self.asked, self.away = seconds, 0, False
        self.let = threading.Event()
        self.let.set()

    def version(self):
        self.asked += 1
        self.let.wait(10)
        time.sleep(self.seconds)
        if self.away:
            raise OSError("it is away")
        return 1

    def tokens(self):
        return [TOKEN]

    def note(self, used):
        pass


@pytest.mark.parametrize("header", ["Bearer gpl_stranger", KNOWN, ""])
def test_a_slow_database_answers_for_a_token_that_is_not_known(header):
    """A look that takes longer than an answer is good for still ends the wait: a token of a file is
    not known there.
    """
    shelf = Shelf(NEW_SECONDS * 1.5)
    keys = Keys(shelf, lambda: 0)
    asyncio.run(asyncio.wait_for(keys.refresh_once(header), 5))
    assert shelf.asked == 1


def test_who_comes_after_a_look_began_waits_for_the_next():
    """A token may have been made since: what was looked up before the request came does not judge a
    stranger.
    """
    shelf = Shelf()
    keys = Keys(shelf, lambda: 0)

    async def both():
        shelf.let.clear()
        first = asyncio.create_task(keys.refresh_once(KNOWN))
        while not shelf.asked:
            await asyncio.sleep(0.001)
        await asyncio.sleep(NEW_SECONDS * 1.5)
        second = asyncio.create_task(keys.refresh_once("Bearer gpl_stranger"))
        await asyncio.sleep(0.01)
        shelf.let.set()
        await asyncio.gather(first, second)

    asyncio.run(asyncio.wait_for(both(), 5))
    assert shelf.asked == 2


def test_a_thousand_who_wait_share_one_look():
    """However many headers are new at once, the database is asked once, on one thread."""
    shelf = Shelf(0.02)
    keys = Keys(shelf, lambda: 0)

    async def all_at_once():
        await asyncio.gather(*(keys.refresh_once(f"Bearer gpl_{number}") for number in range(1000)))

    asyncio.run(asyncio.wait_for(all_at_once(), 5))
    assert shelf.asked == 1


def test_all_who_wait_are_told_that_the_keys_are_away():
    """A look that fails fails for all of them, at once; after a while the next is made."""
    now = [0.0]
    shelf = Shelf()
    shelf.away = True
    keys = Keys(shelf, lambda: 0, steady=lambda: now[0])

    async def ask(many):
        return await asyncio.gather(
            *(keys.refresh_once(KNOWN) for _ in range(many)), return_exceptions=True
        )

    assert {type(one) for one in asyncio.run(asyncio.wait_for(ask(50), 5))} == {KeysUnavailable}
    assert shelf.asked == 1
    shelf.away = False
    now[0] += FRESH_SECONDS + 0.1
    assert asyncio.run(asyncio.wait_for(ask(3), 5)) == [None] * 3


def test_the_one_who_asked_first_may_go():
    """A request that is cancelled takes neither the look nor those who wait for it along."""
    shelf = Shelf()
    keys = Keys(shelf, lambda: 0)

    async def first_goes():
        shelf.let.clear()
        first, second = (
            asyncio.create_task(keys.refresh_once(KNOWN)),
            asyncio.create_task(keys.refresh_once(KNOWN)),
        )
        while not shelf.asked:
            await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.sleep(0.01)
        shelf.let.set()
        await second
        assert first.cancelled()

    asyncio.run(asyncio.wait_for(first_goes(), 5))
    assert shelf.asked == 1
    assert keys.agent(KNOWN).node == "n"
