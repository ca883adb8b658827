"""End of a session, without I/O: its reason, and who ends it first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from oubliette.actors.session import lifecycle
from oubliette.actors.session.effects import AppendEvent, ChangeRecord, Effects
from oubliette.actors.session.messages import LimitNotice
from oubliette.errors import Conflict, SessionHandover
from oubliette.kit import Message

if TYPE_CHECKING:
    from oubliette.actors.messages import EndSession
    from oubliette.actors.session.messages import AgentGone
    from oubliette.records import Session, SessionStatus

END_LIMIT: Final = 5.0  # seconds from session_end to a dead agent
LOG_STEP: Final = 1024 * 1024  # bytes by which a log grows until its tree counts it again


class EndOverdue(Message):
    """Deadline at which an agent that was asked to end should have ended."""


@dataclass(frozen=True, slots=True)
class EndOfSession:
    """End of a session: the step and its reason."""

    step: lifecycle.Step
    outcome: str
    """Status that readers of the log get."""
    reason: str


@dataclass(slots=True)
class RequestedEnd:
    """The end that was requested (`EndSession`), from the request to the end of the agent."""

    reason: str | None = None
    """None: no end is requested."""
    final: bool = True
    """Whether no message may resume the session."""
    since: float | None = None
    """Wall second of the request."""

    def requested(
        self, message: EndSession, record: Session, *, finished: bool, released: bool
    ) -> tuple[Effects, Literal["begin"] | None]:
        """Decide on a request to end the session.

        Args:
            message: The request.
            record: Of the session.
            finished: Whether the session has finished.
            released: Whether its end is in the log, so that nothing more may be written.

        Returns:
            The effects, and `begin` if the end begins with them.
        """
        final = message.final and record.ended_by is None
        if finished:
            late = final and not released
            return ((ChangeRecord({"ended_by": message.reason}),) if late else ()), None
        if self.reason is not None and not (final and not self.final):
            return (), None
        change = ChangeRecord({"ending": message.reason, "ending_final": message.final})
        if self.reason is not None:
            self.reason, self.final = message.reason, True
            return (change,), None
        return (change,), "begin"

    def begin(self, record: Session, now: float) -> None:
        self.reason, self.final = record.ending, record.ending_final
        self.since = now

    @property
    def end(self) -> EndOfSession:
        return EndOfSession("ended", "completed", self.reason or "session_end")

    def refusal(self, record: Session) -> Conflict:
        """The error for a message that comes while the session ends."""
        if record.ended_by is None and not (self.reason is not None and self.final):
            return SessionHandover(
                "the session is ending, and a message resumes it then", hint="try again in a moment"
            )
        return Conflict(
            "the session was ended and takes no more messages",
            hint="start another one: new_session=true, in Python project.spawn",
        )

    def agent_gone(
        self, message: AgentGone, status: SessionStatus, given_up: str | None
    ) -> tuple[Effects, EndOfSession]:
        """Return the effects of the loss of the agent, and the end of the session that follows.

        Args:
            message: How the agent ended.
            status: Of the session.
            given_up: Reason for which its running turn is to fail, if there is one.
        """
        if self.reason is not None:
            return (), self.end
        shown = {
            "message": message.reason,
            "exit_code": message.exit_code,
            "signal": message.signal,
        }
        step = step_of_loss(status, start_failed=message.start_failed)
        end = EndOfSession(step, "failed", given_up or message.reason)
        return (AppendEvent("error", shown),), end


def limit_noticed(message: LimitNotice) -> tuple[Effects, EndOfSession | None]:
    """Return the effects of a limit that is near or reached, and the end that follows, if any."""
    shown = {"kind": "limit", "limit": message.limit, "message": message.message}
    effects = (AppendEvent("system" if message.action == "warn" else "error", shown),)
    if message.action != "time_out":
        return effects, None
    return effects, EndOfSession("time_ran_out", "timed_out", message.message)


def log_too_large(name: str, whole: str, size: int, limit: int) -> LimitNotice:
    """The notice of a log that has reached its limit: nothing but a cleanup shortens it.

    Args:
        name: Name of the limit.
        whole: `session` or `tree`: the one whose events are counted.
        size: Their bytes.
        limit: Limit of the bytes.
    """
    text = (
        f"{name}: the events of this {whole} take {size} of {limit} bytes: its turns are"
        f" interrupted; go on in another {whole}"
    )
    return LimitNotice(limit=name, action="interrupt", message=text)


def step_of_loss(status: SessionStatus, *, start_failed: bool) -> lifecycle.Step:
    """The step that a session takes whose agent is gone."""
    if start_failed and lifecycle.allowed(status, "start_failed"):
        return "start_failed"
    return "agent_lost"
