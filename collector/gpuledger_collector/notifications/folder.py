"""Mails as .eml files of a folder: for trying out, and for a mail system that picks files up."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpuledger_collector.notifications.mime import compose
from gpuledger_collector.notifications.transport import NotTaken, OnStep, no_step
from gpuledger_collector.storage.notifications.messages import Message


@dataclass(frozen=True)
class Folder:
    """Writes each mail whole under a name of its own, so that writing it again changes nothing."""

    path: Path
    sender: str
    repeatable: bool = True

    def deliver(self, message: Message, hand_over: Callable[[], None], on_step: OnStep = no_step) -> None:
        """Write the mail. Raises NotTaken when the folder cannot be written."""
        try:
            mail = bytes(compose(message, self.sender))
        except ValueError as error:
            raise NotTaken(str(error), permanent=True) from error
        on_step("composed")
        hand_over()
        on_step("handing_over")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path, prefix=".", delete=False) as file:
                file.write(mail)
            Path(file.name).chmod(0o640)
            Path(file.name).replace(self.path / name_of(message))
        except OSError as error:
            raise NotTaken(f"{self.path}: {error.strerror}", unreachable=True) from error
        on_step("taken")


def name_of(message: Message) -> str:
    """Instant, kind, recipient and digest: sorts by time, and is the same for the same message."""
    at = datetime.fromtimestamp(message.made_ms / 1000, UTC)
    said = re.sub(r"[^a-z0-9]+", "-", f"{message.kind} {message.recipient.partition('@')[0]}".lower()).strip("-")
    return f"{at:%Y%m%dT%H%M%SZ}-{said[:60]}-{message.digest[:8]}.eml"
