"""Errors between actors, all part of the one hierarchy of `oubliette.errors`."""

from __future__ import annotations

import traceback
from typing import ClassVar

from oubliette.errors import OublietteError


class ActorError(OublietteError):
    """Base of the errors that the actor kit raises."""

    code: ClassVar[str] = "actor_error"


class ActorDead(ActorError):
    """The actor has ended, or ended before it answered; it may or may not have done the work."""

    code: ClassVar[str] = "actor_dead"

    def __init__(self, message: str, *, hint: str | None = None, reason: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason
        """Reason of its latest failure; None if it has not failed."""


class AskTimeout(ActorError, TimeoutError):
    """No answer came before the deadline of the ask; the actor may still do the work."""

    code: ClassVar[str] = "ask_timeout"
    exit_code: ClassVar[int] = 5


class MailboxFull(ActorError):
    """The mailbox is at its bound; `await ref.send(...)` waits for room instead."""

    code: ClassVar[str] = "mailbox_full"


class DeadlockError(ActorError):
    """The wait would close a circle of actors that wait for each other."""

    code: ClassVar[str] = "deadlock"


class WouldBlockError(ActorError):
    """A blocking call on the thread of an event loop; it would stop every actor of that loop."""

    code: ClassVar[str] = "would_block"


class RestartIntensity(ActorError):
    """A supervisor restarted its children too often and gave up (escalation)."""

    code: ClassVar[str] = "restart_intensity"


class UnhandledMessage(ActorError):
    """The actor has no handler for this kind of message."""

    code: ClassVar[str] = "unhandled_message"


def reason_of(error: BaseException) -> str:
    """Return the reason that an error is for others; the text of a foreign one may be secret."""
    if isinstance(error, OublietteError):
        return error.message
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


def format_error(error: BaseException) -> str:
    """Return the traceback without local variables, which may be secrets."""
    return "".join(traceback.format_exception(error))
