"""What the kit itself puts into mailboxes; no part of anybody's vocabulary."""

from __future__ import annotations

import msgspec

from oubliette.kit.messages import Reason


class Signal(msgspec.Struct, frozen=True):
    """Base of the kit's own signals."""


class Stop(Signal, frozen=True):
    """End after the messages that came before."""

    reason: Reason = "shutdown"
    """What to tell the watchers."""


class TaskFailed(Signal, frozen=True):
    """Something beside the mailbox failed, and the actor with it."""

    error: BaseException
    """What it raised."""
