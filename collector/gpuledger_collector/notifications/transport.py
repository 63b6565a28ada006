"""What a transport promises, and how it fails: certainly not taken, or not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpuledger_collector.storage.notifications.messages import Message

OnStep = Callable[[str], None]
"""Told the name of each step as it is reached; tests end the process there."""


def no_step(_name: str) -> None:
    """Nobody watches."""


class NotTaken(Exception):
    """The other side certainly does not have the message.

    `permanent`: it never will. `unreachable`: nor will it take another one now. `wait_s`: it asked to wait so long.
    """

    def __init__(self, sentence: str, *, permanent: bool = False, unreachable: bool = False, wait_s: int = 0) -> None:
        super().__init__(sentence)
        self.wait_s = wait_s
        self.permanent = permanent
        self.unreachable = unreachable


class NotKnown(Exception):
    """The message was handed over, and no answer came: it may have been taken."""


class Transport(Protocol):
    """A way to one kind of recipient."""

    @property
    def repeatable(self) -> bool:
        """Whether handing the same message over twice is seen once at the other side."""

    def deliver(self, message: Message, hand_over: Callable[[], None], on_step: OnStep = no_step) -> None:
        """Deliver it; `hand_over` is called right before the step that completes it. Raises NotTaken or NotKnown."""
