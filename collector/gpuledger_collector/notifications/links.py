"""Signed links by which readers of a mail acknowledge an alert.

A link holds no secret and does one harmless thing once: it acknowledges the alerts of one budget and period that one
mail reported, or one notification until it expires. Opening it changes nothing, because mail scanners open links; only
the button on its page does.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

PATH = "/v1/budgets/ack"
NOTIFICATION_PATH = "/v1/notifications/ack"


@dataclass(frozen=True)
class AckLinks:
    """Signs and checks links below an address with a secret of this installation."""

    public_url: str
    secret: bytes = field(repr=False)

    def budget(self, budget_id: int, period_start_ms: int, sent_ms: int) -> str:
        """The link that acknowledges the alerts of a budget in a period, as of the mail of `sent_ms`."""
        mac = self.mac(budget_id, period_start_ms, sent_ms)
        query = f"budget={budget_id}&period={period_start_ms}&sent={sent_ms}&mac={mac}"
        return f"{self.public_url.rstrip('/')}{PATH}?{query}"

    def mac(self, budget_id: int, period_start_ms: int, sent_ms: int = 0) -> str:
        """HMAC-SHA256 over what the link does; without `sent_ms` it acknowledges alerts of any mail."""
        sent = f"/{sent_ms}" if sent_ms else ""
        content = f"ack/{budget_id}/{period_start_ms}{sent}"
        return hmac.new(self.secret, content.encode(), hashlib.sha256).hexdigest()

    def holds(self, budget_id: int, period_start_ms: int, sent_ms: int, mac: str) -> bool:
        """Whether this link was signed here."""
        return hmac.compare_digest(self.mac(budget_id, period_start_ms, sent_ms).encode(), mac.encode())

    def notification(self, notification_id: int, expires_ms: int) -> str:
        """The link that acknowledges a notification until the link expires."""
        mac = self.notification_mac(notification_id, expires_ms)
        query = f"notification={notification_id}&expires={expires_ms}&mac={mac}"
        return f"{self.public_url.rstrip('/')}{NOTIFICATION_PATH}?{query}"

    def notification_mac(self, notification_id: int, expires_ms: int) -> str:
        """HMAC-SHA256 over what the link does and its expiry."""
        return hmac.new(self.secret, f"letter/{notification_id}/{expires_ms}".encode(), hashlib.sha256).hexdigest()

    def holds_notification(self, notification_id: int, expires_ms: int, mac: str) -> bool:
        """Whether this link was signed here."""
        return hmac.compare_digest(self.notification_mac(notification_id, expires_ms).encode(), mac.encode())
