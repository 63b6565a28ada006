"""Send due messages, one after the other, each under a claim that ends with this process.

The delivery rules of the recipients are applied first (`Outbox.arrange`). When an earlier sender
ended after handing a message over, nobody knows whether it was accepted. If a repeat does no harm
the message is sent again; otherwise it is left as unconfirmed for people to see, because a mail is
handed over by its very last bytes (`smtp`). With `resend_unconfirmed` such a mail is sent again
under the same Message-ID.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuledger_collector.notifications import digest_mail
from gpuledger_collector.notifications.transport import (
    DeliveryUnknown,
    NotAccepted,
    OnStep,
    Transport,
    no_step,
)
from gpuledger_collector.storage.notifications.outbox import Claim, Outbox

log = logging.getLogger(__name__)
FIRST_WAIT_MS = 60_000
MAX_WAIT_MS = 3_600_000
MAX_ATTEMPTS = 24
"""With these waits a message is given up after about nineteen hours."""
MAX_AT_ONCE = 500


@dataclass
class SendReport:
    """What a run did."""

    sent: int = 0
    retried: int = 0
    unconfirmed: int = 0
    dead: int = 0

    def __str__(self) -> str:
        """One line for the record of job runs."""
        return (
            f"{self.sent} sent, {self.retried} to be retried, {self.unconfirmed} unconfirmed,"
            f" {self.dead} given up"
        )


@dataclass(frozen=True)
class Sender:
    """Sends due messages.

    `transports` by channel: mail, slack, teams, webhook; messages of other channels wait.
    """

    box: Outbox
    transports: Mapping[str, Transport]
    clock: Callable[[], int]
    resend_unconfirmed: bool = False
    on_step: OnStep = no_step

    def send_due(self) -> SendReport:
        """Send what is due now."""
        report = SendReport()
        # A channel that answers nothing now is left alone for this run: each further message would
        # wait for a timeout.
        unreachable: set[str] = set()
        self.box.arrange(self.clock(), digest_mail.write, self.on_step)
        for message_id in self.box.due(self.clock(), MAX_AT_ONCE, list(self.transports)):
            # None: another sender has sent it or put it off since the list was read.
            with self.box.claim(message_id, self.clock()) as claim:
                if claim is None:
                    continue
                channel = channel_of(claim.message.recipient)
                if channel in unreachable:
                    continue
                self.on_step("claimed")
                if not self._send(claim, self.transports[channel], report):
                    unreachable.add(channel)
        return report

    def _send(self, claim: Claim, transport: Transport, report: SendReport) -> bool:
        """Send one message; False when the other side accepts nothing now."""
        may_repeat = transport.repeatable or self.resend_unconfirmed
        # Before the transport is asked: sending again could deliver a mail twice.
        if claim.in_doubt and not may_repeat:
            self._note_unconfirmed(
                claim, report, "the sender ended while it handed the message over"
            )
            return True
        try:
            transport.deliver(claim.message, claim.hand_over, self.on_step)
        except NotAccepted as error:
            self._note_failure(
                claim, report, str(error), permanent=error.permanent, wait_s=error.wait_s
            )
            return not error.unreachable
        except DeliveryUnknown as error:
            if may_repeat:
                self._note_failure(claim, report, str(error), permanent=False)
            else:
                self._note_unconfirmed(claim, report, str(error))
            return False
        # Recorded after delivery: a crash in between leaves the claim in doubt, never a message
        # unsent and marked as sent.
        claim.note_sent(self.clock())
        self.on_step("recorded")
        report.sent += 1
        return True

    def _note_unconfirmed(self, claim: Claim, report: SendReport, sentence: str) -> None:
        claim.note_unconfirmed(sentence)
        report.unconfirmed += 1
        log.warning(
            "delivery of a message to %s is unconfirmed: %s", claim.message.recipient, sentence
        )

    def _note_failure(
        self, claim: Claim, report: SendReport, sentence: str, *, permanent: bool, wait_s: int = 0
    ) -> None:
        if permanent or claim.attempts + 1 >= MAX_ATTEMPTS:
            claim.dead_letter(sentence)
            report.dead += 1
            log.warning("a message to %s is given up: %s", claim.message.recipient, sentence)
        else:
            # Doubling from a minute to an hour; the shift is bounded so that it cannot grow with
            # the attempts. A longer wait that the other side asks for is respected up to the same
            # hour.
            wait_ms = min(FIRST_WAIT_MS << min(claim.attempts, 10), MAX_WAIT_MS)
            claim.retry(self.clock() + max(wait_ms, min(wait_s * 1000, MAX_WAIT_MS)), sentence)
            report.retried += 1


def channel_of(recipient: str) -> str:
    """The channel of a recipient: mail, slack, teams or webhook."""
    head, colon, _ = recipient.partition(":")
    return head if colon and head in {"slack", "teams", "webhook"} else "mail"
