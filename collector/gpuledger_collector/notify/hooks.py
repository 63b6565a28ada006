"""Messages to chat and to other programs: one POST to an address that the settings name, and to no other.

`slack:NAME` posts what Slack, Mattermost and others take; `webhook:NAME` posts a flat JSON object with an
Idempotency-Key, by which a receiver knows a message that it has had. Redirects are not followed.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from gpuledger_collector.accounting.messages import Message
from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.notify.delivery import NotKnown, NotTaken, OnStep, no_step

LONGEST_SLACK_TEXT = 3000


@dataclass(frozen=True)
class Hook:
    """POSTs messages of one channel to configured addresses by name."""

    channel: str
    addresses: Mapping[str, str]
    timeout_s: float = 20.0

    @property
    def repeatable(self) -> bool:
        """A webhook's receiver has the key to tell a repeat; a chat shows it twice."""
        return self.channel == "webhook"

    def deliver(self, message: Message, hand_over: Callable[[], None], on_step: OnStep = no_step) -> None:
        """POST it once. Raises NotTaken or NotKnown."""
        name = message.recipient.partition(":")[2]
        address = self.addresses.get(name)
        if address is None:
            raise NotTaken(f"no hook {name!r} is configured (hooks_file)", permanent=True)
        parts = urlsplit(address)
        connection = _connection(parts.scheme, parts.netloc, self.timeout_s)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise NotTaken(f"hook {name}: {error}", unreachable=True) from error
            on_step("connected")
            hand_over()
            on_step("handing_over")
            try:
                connection.request("POST", parts.path + (f"?{parts.query}" if parts.query else ""),
                                   self._body(message), self._headers(message))  # fmt: skip
                status = connection.getresponse().status
            except (OSError, http.client.HTTPException) as error:
                raise NotKnown(f"hook {name} gave no answer ({error})") from error
            on_step("taken")
        finally:
            connection.close()
        if not 200 <= status < 300:
            raise NotTaken(f"hook {name} answered {status}", permanent=400 <= status < 500 and status not in {408, 429})

    def _body(self, message: Message) -> bytes:
        content = message.content
        if self.channel == "slack":
            return json.dumps({"text": f"*{content.subject}*\n```{content.text[:LONGEST_SLACK_TEXT]}```"}).encode()
        said = {"id": message.digest, "kind": message.kind, "made_at": format_instant(message.made_ms)}
        return json.dumps({**said, "subject": content.subject, "text": content.text}).encode()

    def _headers(self, message: Message) -> dict[str, str]:
        return {"Content-Type": "application/json", "Idempotency-Key": message.digest, "User-Agent": "gpuledger"}


def _connection(scheme: str, place: str, timeout_s: float) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(place, timeout=timeout_s, context=ssl.create_default_context())
    return http.client.HTTPConnection(place, timeout=timeout_s)
