"""Messages to chats and to other programs: one POST to an address in the settings.

`slack:NAME` posts what Slack, Mattermost and others accept, `teams:NAME` an Adaptive Card, which is
what a Workflow of Microsoft Teams takes (its older connectors are retired). `webhook:NAME` posts a
JSON object with an Idempotency-Key, by which a receiver recognizes repeats, signed as Standard
Webhooks prescribe (https://www.standardwebhooks.com) if its hook has a secret; a JSON file attached
to the message becomes a part of the object, under its name. Redirects are not followed. A name is
resolved once and exactly that address is connected to; an address in a private network is refused
unless the hook allows it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gpuledger_collector.accounting.period import format_instant
from gpuledger_collector.insight.notifications.messages import Message
from gpuledger_collector.notifications.addresses import is_public
from gpuledger_collector.notifications.transport import (
    DeliveryUnknown,
    NotAccepted,
    OnStep,
    no_step,
)
from gpuledger_common.escapes import escape_lines, escape_text
from gpuledger_common.http_exchange import BoundedConnection, resolve

MAX_ANSWER = 64 * 1024
TIMEOUT_S = 20.0
"""To resolve and connect, each, and for the exchange as a whole."""
MAX_SLACK_TEXT = 3000
BLOCK_BYTES = 70
"""Of a line's block around its text."""
MAX_CARD_BYTES = 20_000
"""Of a card's text as JSON: Teams takes messages of 28 KB."""


@dataclass(frozen=True)
class WebhookTransport:
    """POSTs messages of one channel to configured addresses by name."""

    channel: str
    addresses: Mapping[str, str]
    timeout_s: float = TIMEOUT_S
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Keys that sign messages, by name."""
    private: frozenset[str] = frozenset()
    """Names of hooks that may be in a private network."""
    clock: Callable[[], int] = lambda: round(time.time())
    """Unix seconds for signatures."""

    @property
    def repeatable(self) -> bool:
        """A webhook's receiver recognizes a repeat by its key; a chat shows it twice."""
        return self.channel == "webhook"

    def deliver(
        self, message: Message, hand_over: Callable[[], None], on_step: OnStep = no_step
    ) -> None:
        """POST it once. Raises NotAccepted or DeliveryUnknown."""
        name = message.recipient.partition(":")[2]
        address = self.addresses.get(name)
        if address is None:
            raise NotAccepted(f"no hook {name!r} is configured (hooks_file)", permanent=True)
        parts = urlsplit(address)
        is_private = name in self.private or parts.scheme == "http"
        try:
            # Resolved here and connected to exactly that address: a name that is resolved again at
            # the connection may point into the private network by then (DNS rebinding).
            pinned = resolve_address(address, self.timeout_s, private=is_private)
            connection = BoundedConnection(
                address, timeout_s=self.timeout_s, max_bytes=MAX_ANSWER, pinned=pinned
            )
            connection.open()
        except PrivateAddress as error:
            raise NotAccepted(f"hook {name}: {error}", permanent=True) from error
        except OSError as error:
            sentence = str(error) or f"no connection within {self.timeout_s:g} s"
            raise NotAccepted(f"hook {name}: {sentence}", unreachable=True) from error
        try:
            on_step("connected")
            # Before the first byte of the request: once a body is on its way, nobody knows whether
            # it was accepted.
            hand_over()
            on_step("handing_over")
            try:
                body = self._body(message)
                query = f"?{parts.query}" if parts.query else ""
                # Only the status matters, and the other side is trusted with neither our memory nor
                # our time: whoever answers a byte now and then would keep every other message
                # waiting.
                answer = connection.exchange_head(
                    "POST", parts.path + query, body, self._headers(name, message, body)
                )
                status, wait = answer.status, answer.headers.get("retry-after", "")
            except (OSError, http.client.HTTPException) as error:
                raise DeliveryUnknown(f"hook {name} gave no answer ({error})") from error
            on_step("taken")
        finally:
            connection.close()
        if not 200 <= status < 300:
            # 408, 425 and 429 ask to come back; any other 4xx says that the request itself is
            # wrong.
            permanent = 400 <= status < 500 and status not in {408, 425, 429}
            wait_s = int(wait) if wait.isascii() and wait.isdigit() else 0
            raise NotAccepted(f"hook {name} answered {status}", permanent=permanent, wait_s=wait_s)

    def _body(self, message: Message) -> bytes:
        content = message.content
        subject, text = escape_text(content.subject), escape_lines(content.text)
        if self.channel == "slack":
            page = f"\n<{content.page}|Open the page>" if content.page else ""
            link = f"\n<{content.link}|Answer it>" if content.link else ""
            # Cut before the closing fence, so that the code block always ends.
            fenced = f"```{_slack(text)[:MAX_SLACK_TEXT]}```"
            return json.dumps({"text": f"*{_slack(subject)}*{page}\n{fenced}{link}"}).encode()
        if self.channel == "teams":
            return json.dumps(adaptive_card(subject, text, content.page, content.link)).encode()
        body: dict[str, object] = {
            "id": message.digest,
            "kind": message.kind,
            "made_at": format_instant(message.made_ms),
            "subject": subject,
            "text": text,
        }
        if content.page:
            body["page"] = content.page
        if content.link:
            body["link"] = content.link
        for name, attachment in content.attachments.items():
            if name.endswith(".json"):
                body[name.removesuffix(".json")] = json.loads(attachment)
        return json.dumps(body).encode()

    def _headers(self, name: str, message: Message, body: bytes) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": message.digest,
            "User-Agent": "gpuledger",
        }
        secret = self.secrets.get(name)
        if secret is not None and self.channel == "webhook":
            headers |= signature(secret, message.digest, self.clock(), body)
        return headers


def signature(secret: bytes, digest: str, at_s: int, body: bytes) -> dict[str, str]:
    """The three headers of Standard Webhooks: HMAC-SHA256 over id, instant and body."""
    mac = hmac.new(secret, f"{digest}.{at_s}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": digest,
        "webhook-timestamp": str(at_s),
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }


def adaptive_card(subject: str, text: str, page: str = "", link: str = "") -> dict[str, object]:
    """A message with one Adaptive Card: the subject, the text line by line as aligned, and a button
    for each link.

    Text is in RichTextBlocks, which show it literally: a TextBlock would take a job's name for
    Markdown.
    """
    lines: list[dict[str, object]] = []
    spacing, left = "Medium", MAX_CARD_BYTES
    for line in text.rstrip().splitlines():
        if not line.strip():
            spacing = "Medium"
            continue
        run = {"type": "TextRun", "text": line, "fontType": "Monospace", "size": "Small"}
        left -= len(json.dumps(run)) + BLOCK_BYTES
        if left < 0:
            run["text"] = "..."
        lines.append({"type": "RichTextBlock", "spacing": spacing, "inlines": [run]})
        if left < 0:
            break
        spacing = "None"
    heading = {"type": "TextRun", "text": subject, "weight": "Bolder"}
    buttons = [("Open the page", page), ("Answer it", link)]
    card: dict[str, object] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "msteams": {"width": "Full"},
        "body": [{"type": "RichTextBlock", "inlines": [heading]}, *lines],
    }
    actions = [
        {"type": "Action.OpenUrl", "title": title, "url": address}
        for title, address in buttons
        if address
    ]
    if actions:
        card["actions"] = actions
    attachment = {
        "contentType": "application/vnd.microsoft.card.adaptive",
        "contentUrl": None,
        "content": card,
    }
    return {"type": "message", "attachments": [attachment]}


def _slack(text: str) -> str:
    """Text that Slack shows literally: no mention of everybody, no link, no end of a code block."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("`", "'")


class PrivateAddress(Exception):
    """A hook's name resolves to an address outside of the public network."""


def resolve_address(address: str, timeout_s: float, *, private: bool) -> tuple[str, int]:
    """Resolve the name of an address once.

    Raises OSError, and PrivateAddress when no result may be used.
    """
    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    for *_, place in resolve(host, port, timeout_s):
        if private or is_public(str(place[0])):
            return str(place[0]), int(place[1])
    raise PrivateAddress(
        f"{host} is an address of a private network; private = true in the hooks_file allows it"
    )
