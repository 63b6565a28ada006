"""The sender: due messages, one after the other, each under a claim that ends with this process. First what their
recipients asked for is applied (`Box.arrange`).

What it knows of a message that an earlier sender left handed over: nothing. Where a repeat does no harm it repeats;
else it leaves the message as unconfirmed for people to see, because a mail is handed over by its very last bytes
(`smtp`). `resend_unconfirmed` turns that round: then such a mail is sent again under the same Message-ID.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from gpuledger_collector.notifications import digest_mail
from gpuledger_collector.notifications.transport import NotKnown, NotTaken, OnStep, Transport, no_step
from gpuledger_collector.storage.notifications.delivery_rules import WriteDigest
from gpuledger_collector.storage.notifications.messages import Claim

log = logging.getLogger(__name__)
FIRST_WAIT_MS = 60_000
LONGEST_WAIT_MS = 3_600_000
MOST_ATTEMPTS = 24
"""With these waits: given up after about nineteen hours."""
MOST_AT_ONCE = 500


class Box(Protocol):
    """Where messages wait."""

    def arrange(self, now_ms: int, write: WriteDigest, on_step: OnStep = no_step) -> int:
        """Plan what is new by the rules of its recipients, and make the digests that are due; how many."""

    def due(self, now_ms: int, limit: int, channels: Sequence[str]) -> list[int]:
        """Ids of messages of these channels whose time has come."""

    def claim(self, message_id: int, now_ms: int) -> AbstractContextManager[Claim | None]:
        """The message, ours alone inside the block; None when another has it or it is done."""


@dataclass
class Sent:
    """What a round did."""

    sent: int = 0
    again: int = 0
    unconfirmed: int = 0
    dead: int = 0

    def __str__(self) -> str:
        """For the run's record."""
        return f"{self.sent} sent, {self.again} to try again, {self.unconfirmed} unconfirmed, {self.dead} given up"


@dataclass(frozen=True)
class Sender:
    """Sends what waits. `transports` by channel: mail, slack, webhook; a channel without one lets messages wait."""

    box: Box
    transports: Mapping[str, Transport]
    clock: Callable[[], int]
    resend_unconfirmed: bool = False
    on_step: OnStep = no_step

    def send_due(self) -> Sent:
        """One round over what is due now."""
        done = Sent()
        away: set[str] = set()
        self.box.arrange(self.clock(), digest_mail.write, self.on_step)
        for message_id in self.box.due(self.clock(), MOST_AT_ONCE, list(self.transports)):
            with self.box.claim(message_id, self.clock()) as claim:
                if claim is None:
                    continue
                channel = channel_of(claim.message.recipient)
                if channel in away:
                    continue
                self.on_step("claimed")
                if not self._send(claim, self.transports[channel], done):
                    away.add(channel)
        return done

    def _send(self, claim: Claim, transport: Transport, done: Sent) -> bool:
        """Sends one; False when the other side takes nothing now."""
        may_repeat = transport.repeatable or self.resend_unconfirmed
        if claim.in_doubt and not may_repeat:
            self._unconfirmed(claim, done, "the sender ended while it handed the message over")
            return True
        try:
            transport.deliver(claim.message, claim.hand_over, self.on_step)
        except NotTaken as error:
            self._failed(claim, done, str(error), permanent=error.permanent, wait_s=error.wait_s)
            return not error.unreachable
        except NotKnown as error:
            if may_repeat:
                self._failed(claim, done, str(error), permanent=False)
            else:
                self._unconfirmed(claim, done, str(error))
            return False
        claim.sent(self.clock())
        self.on_step("recorded")
        done.sent += 1
        return True

    def _unconfirmed(self, claim: Claim, done: Sent, sentence: str) -> None:
        claim.unconfirmed(sentence)
        done.unconfirmed += 1
        log.warning("nobody knows whether a message to %s was taken: %s", claim.message.recipient, sentence)

    def _failed(self, claim: Claim, done: Sent, sentence: str, *, permanent: bool, wait_s: int = 0) -> None:
        if permanent or claim.attempts + 1 >= MOST_ATTEMPTS:
            claim.dead(sentence)
            done.dead += 1
            log.warning("a message to %s is given up: %s", claim.message.recipient, sentence)
        else:
            wait_ms = min(FIRST_WAIT_MS << min(claim.attempts, 10), LONGEST_WAIT_MS)
            claim.again(self.clock() + max(wait_ms, min(wait_s * 1000, LONGEST_WAIT_MS)), sentence)
            done.again += 1


def channel_of(recipient: str) -> str:
    """The channel that a recipient is reached by."""
    head, colon, _ = recipient.partition(":")
    return head if colon and head in {"slack", "webhook"} else "mail"
