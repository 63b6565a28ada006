"""Mails as .eml files in a folder: for trials, and for mail systems that pick files up."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuledger_collector.insight.notifications.messages import Message
from gpuledger_collector.notifications.mime import compose
from gpuledger_collector.notifications.transport import NotAccepted, OnStep, no_step
from gpuledger_common.instants import to_datetime


@dataclass(frozen=True)
class MailFolder:
    """Writes each mail atomically under a name of its own, so that writing it again changes
    nothing.
    """

    path: Path
    sender: str
    repeatable: bool = True

    def deliver(
        self, message: Message, hand_over: Callable[[], None], on_step: OnStep = no_step
    ) -> None:
        """Write the mail. Raises NotAccepted when the folder is not writable."""
        try:
            mail = bytes(compose(message, self.sender))
        except ValueError as error:
            raise NotAccepted(str(error), permanent=True) from error
        on_step("composed")
        hand_over()
        on_step("handing_over")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path, prefix=".", delete=False) as file:
                file.write(mail)
            Path(file.name).chmod(0o640)
            Path(file.name).replace(self.path / file_name(message))
        except OSError as error:
            raise NotAccepted(f"{self.path}: {error.strerror}", unreachable=True) from error
        on_step("taken")


def file_name(message: Message) -> str:
    """Time, kind, recipient and digest: names sort by time, and the same message has the same name."""
    at = to_datetime(message.made_ms)
    label = re.sub(
        r"[^a-z0-9]+", "-", f"{message.kind} {message.recipient.partition('@')[0]}".lower()
    ).strip("-")
    return f"{at:%Y%m%dT%H%M%SZ}-{label[:60]}-{message.digest[:8]}.eml"
