"""Messages that the kit itself puts into mailboxes; domain actors never send them."""

from __future__ import annotations

import msgspec

from oubliette.kit.messages import Reason


class Signal(msgspec.Struct, frozen=True):
    """Base of the kit's own signals."""


class Stop(Signal, frozen=True):
    """Request to end after the messages that came before."""

    reason: Reason = "shutdown"
    """The reason in the notice to the watchers."""


class TaskFailed(Signal, frozen=True):
    """Report that something beside the mailbox failed, and the actor with it."""

    error: BaseException
    """The exception that it raised."""
