"""Links by which a reader of a mail acknowledges an alert: signed, so that nobody can make one up.

A link bears no secret and does one harmless thing once: for the alerts of one budget and period that one mail told of,
or for one letter until it expires. Opening it changes nothing, for programs that look through mails open links; the
button on its page does.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

PATH = "/v1/budgets/ack"
NOTIFICATION_PATH = "/v1/notifications/ack"


@dataclass(frozen=True)
class AckLinks:
    """Makes and checks links under an address, by a secret of this installation."""

    public_url: str
    secret: bytes = field(repr=False)

    def link(self, budget_id: int, period_start_ms: int, told_ms: int) -> str:
        """The address that acknowledges the alerts of a budget in a period; `told_ms`: of the mail that has it."""
        mac = self.mac(budget_id, period_start_ms, told_ms)
        query = f"budget={budget_id}&period={period_start_ms}&told={told_ms}&mac={mac}"
        return f"{self.public_url.rstrip('/')}{PATH}?{query}"

    def mac(self, budget_id: int, period_start_ms: int, told_ms: int = 0) -> str:
        """HMAC-SHA256 over what the link does; links of earlier versions do not say when they were told (0)."""
        told = f"/{told_ms}" if told_ms else ""
        return hmac.new(self.secret, f"ack/{budget_id}/{period_start_ms}{told}".encode(), hashlib.sha256).hexdigest()

    def holds(self, budget_id: int, period_start_ms: int, told_ms: int, mac: str) -> bool:
        """Whether we made this link."""
        return hmac.compare_digest(self.mac(budget_id, period_start_ms, told_ms).encode(), mac.encode())

    def notification(self, notification_id: int, expires_ms: int) -> str:
        """The address that says of a letter's episode that it is meant so; it serves until it expires."""
        mac = self.notification_mac(notification_id, expires_ms)
        query = f"notification={notification_id}&expires={expires_ms}&mac={mac}"
        return f"{self.public_url.rstrip('/')}{NOTIFICATION_PATH}?{query}"

    def notification_mac(self, notification_id: int, expires_ms: int) -> str:
        """HMAC-SHA256 over what the link does, and until when."""
        return hmac.new(self.secret, f"letter/{notification_id}/{expires_ms}".encode(), hashlib.sha256).hexdigest()

    def holds_notification(self, notification_id: int, expires_ms: int, mac: str) -> bool:
        """Whether we made this link."""
        return hmac.compare_digest(self.notification_mac(notification_id, expires_ms).encode(), mac.encode())
