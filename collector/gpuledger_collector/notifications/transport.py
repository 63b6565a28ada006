"""What a transport promises, and how it fails: certainly not accepted, or unknown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gpuledger_collector.insight.notifications.messages import Message

OnStep = Callable[[str], None]
"""Called with the name of each step as it is reached; tests end the process there."""


def no_step(_name: str) -> None:
    """Ignore the step."""


class NotAccepted(Exception):
    """The other side certainly does not have the message.

    `permanent`: it never will. `unreachable`: it accepts no other message now either. `wait_s`: it
    asked us to wait.
    """

    def __init__(
        self, sentence: str, *, permanent: bool = False, unreachable: bool = False, wait_s: int = 0
    ) -> None:
        super().__init__(sentence)
        self.wait_s = wait_s
        self.permanent = permanent
        self.unreachable = unreachable


class DeliveryUnknown(Exception):
    """The message was handed over and no answer came: it may have been accepted."""


class Transport(Protocol):
    """Delivers messages to one kind of recipient."""

    @property
    def repeatable(self) -> bool:
        """Whether the other side recognizes a repeated message."""

    def deliver(
        self, message: Message, hand_over: Callable[[], None], on_step: OnStep = no_step
    ) -> None:
        """Deliver a message, calling `hand_over` right before the step that completes it.

        Raises NotAccepted or DeliveryUnknown.
        """
