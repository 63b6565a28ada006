"""Links by which a reader of a mail acknowledges an alert: signed, so that nobody can make one up.

A link bears no secret and does one harmless thing for one budget and period. Opening it changes nothing, for programs
that look through mails open links; the button on its page does.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

PATH = "/v1/budgets/ack"


@dataclass(frozen=True)
class AckLinks:
    """Makes and checks links under an address, by a secret of this installation."""

    public_url: str
    secret: bytes = field(repr=False)

    def link(self, budget_id: int, period_start_ms: int) -> str:
        """The address that acknowledges the alerts of a budget in a period."""
        mac = self.mac(budget_id, period_start_ms)
        return f"{self.public_url.rstrip('/')}{PATH}?budget={budget_id}&period={period_start_ms}&mac={mac}"

    def mac(self, budget_id: int, period_start_ms: int) -> str:
        """HMAC-SHA256 over what the link does."""
        said = f"ack/{budget_id}/{period_start_ms}".encode()
        return hmac.new(self.secret, said, hashlib.sha256).hexdigest()

    def holds(self, budget_id: int, period_start_ms: int, mac: str) -> bool:
        """Whether we made this link."""
        return hmac.compare_digest(self.mac(budget_id, period_start_ms).encode(), mac.encode())
