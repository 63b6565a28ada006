"""Links in mails: to the page that shows what a mail is about, and signed ones that acknowledge an
alert.

A signed link holds no secret and does one harmless thing once: it acknowledges the alerts of one
budget and period that one mail reported, or one notification until it expires. Opening it changes
nothing, because mail scanners open links; only the button on its page does.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

PATH = "/v1/budgets/ack"
NOTIFICATION_PATH = "/v1/notifications/ack"


DOTS = {".", ".."}
"""Names that no path can hold, for a browser takes them for steps through a folder."""


@dataclass(frozen=True)
class PageLinks:
    """Addresses of the collector's pages; who opens one needs the right to read it."""

    public_url: str

    def overview(self) -> str:
        """The page of the whole fleet."""
        return self._address_of("/")

    def statement(self, level: str, owner: str, month: str) -> str:
        """The statement of an owner for a month, `2026-10`."""
        if owner in DOTS:
            return self._address_of(f"/statements/{level}/{month}", {"owner": owner})
        return self._address_of(f"/statements/{level}/{quote(owner, safe='')}/{month}")

    def job(self, name: str) -> str:
        """The receipt of a job, by its key, its id or its name."""
        return (
            self._address_of("/jobs/", {"key": name})
            if name in DOTS
            else self._address_of(f"/jobs/{quote(name, safe='')}")
        )

    def idle(self, team: str = "", period: str = "") -> str:
        """Idle GPUs of a team (of all), now or of a period as `--period` writes it."""
        return self._address_of("/idle", {"period": period, "team": team})

    def anomalies(self, team: str) -> str:
        """Unusual spending of a team."""
        return self._address_of("/anomalies", {"team": team})

    def _address_of(self, path: str, parameters: Mapping[str, str] | None = None) -> str:
        query = urlencode(
            {name: value for name, value in (parameters or {}).items() if value}, quote_via=quote
        )
        return f"{self.public_url.rstrip('/')}{path}" + (f"?{query}" if query else "")


@dataclass(frozen=True)
class AckLinks:
    """Signs and checks links below an address with a secret of this installation."""

    public_url: str
    secret: bytes = field(repr=False)

    def budget(self, budget_id: int, period_start_ms: int, sent_ms: int) -> str:
        """The link that acknowledges the alerts of a budget in a period, as of the mail of
        `sent_ms`.
        """
        mac = self.mac(budget_id, period_start_ms, sent_ms)
        query = f"budget={budget_id}&period={period_start_ms}&sent={sent_ms}&mac={mac}"
        return f"{self.public_url.rstrip('/')}{PATH}?{query}"

    def mac(self, budget_id: int, period_start_ms: int, sent_ms: int = 0) -> str:
        """HMAC-SHA256 over what the link does; without `sent_ms` it acknowledges alerts of any
        mail.
        """
        sent = f"/{sent_ms}" if sent_ms else ""
        content = f"ack/{budget_id}/{period_start_ms}{sent}"
        return hmac.new(self.secret, content.encode(), hashlib.sha256).hexdigest()

    def holds(self, budget_id: int, period_start_ms: int, sent_ms: int, mac: str) -> bool:
        """Whether this link was signed here."""
        return hmac.compare_digest(
            self.mac(budget_id, period_start_ms, sent_ms).encode(), mac.encode()
        )

    def notification(self, notification_id: int, expires_ms: int) -> str:
        """The link that acknowledges a notification until the link expires."""
        mac = self.notification_mac(notification_id, expires_ms)
        query = f"notification={notification_id}&expires={expires_ms}&mac={mac}"
        return f"{self.public_url.rstrip('/')}{NOTIFICATION_PATH}?{query}"

    def notification_mac(self, notification_id: int, expires_ms: int) -> str:
        """HMAC-SHA256 over what the link does and its expiry."""
        return hmac.new(
            self.secret, f"letter/{notification_id}/{expires_ms}".encode(), hashlib.sha256
        ).hexdigest()

    def holds_notification(self, notification_id: int, expires_ms: int, mac: str) -> bool:
        """Whether this link was signed here."""
        return hmac.compare_digest(
            self.notification_mac(notification_id, expires_ms).encode(), mac.encode()
        )
