"""Errors that programs catch: those of the server by their codes, and those of the API itself.

All are in the tree of `oubliette.errors.OublietteError`. An error of the server is of the same
class in process and over the wire: `from_wire` makes it of the code, and of a code that belongs to
a class of the server's inside, the class above it that programs know. The code itself is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette import errors
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = (
    "AgentNeverSawTools",
    "BadResultType",
    "Closed",
    "EventsMissing",
    "PermissionDenied",
    "ResultInvalid",
    "SessionFailed",
    "ToolFailed",
    "TurnInterrupted",
    "from_wire",
    "to_wire",
)


class SessionFailed(OublietteError):
    """A turn failed, or the session with it."""

    code = "session_failed"

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        session_id: str | None = None,
        turn: int | None = None,
        hint: str | None = None,
    ) -> None:
        """Describe the failure.

        Args:
            message: A sentence for readers, with the session and the reason.
            reason: The reason alone, as the agent or the server reported it.
            session_id: Id of the session.
            turn: Number of the turn; None if the session failed between turns.
            hint: The remedy.
        """
        super().__init__(message, hint=hint)
        self.reason = message if reason is None else reason
        self.session_id = session_id
        self.turn = turn


class TurnInterrupted(OublietteError):
    """A turn was interrupted; the session takes further messages.

    `text` is the part of the answer that the agent had written.
    """

    code = "turn_interrupted"

    def __init__(
        self,
        message: str,
        *,
        text: str = "",
        session_id: str | None = None,
        turn: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.text = text
        self.session_id = session_id
        self.turn = turn


class ToolFailed(OublietteError):
    """A tool answered with an error; `tool` names it."""

    code = "tool_failed"

    def __init__(self, message: str, *, tool: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.tool = tool


class PermissionDenied(OublietteError, PermissionError):
    """The agent was not permitted to do what it asked for; `asks_for` is its scope."""

    code = "permission_denied"
    exit_code = 4

    def __init__(
        self, message: str, *, asks_for: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.asks_for = asks_for


class AgentNeverSawTools(OublietteError):
    """The agent began a turn without having fetched the tools that the program provides."""

    code = "agent_never_saw_tools"

    def __init__(
        self, message: str, *, session_id: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.session_id = session_id


class ResultInvalid(OublietteError, ValueError):
    """The agent did not give an answer of the wanted type.

    `answer` is its last answer, `reason` the error in it, `attempts` the number of answers.
    """

    code = "result_invalid"

    def __init__(
        self,
        message: str,
        *,
        answer: str = "",
        reason: str | None = None,
        attempts: int = 1,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.answer = answer
        self.reason = message if reason is None else reason
        self.attempts = attempts


class BadResultType(OublietteError, TypeError):
    """A type that cannot be the type of an answer; the message names it and the remedy."""

    code = "bad_result_type"
    exit_code = 2


class Closed(OublietteError):
    """The object was used after the end of its `async with` block."""

    code = "closed"


class EventsMissing(OublietteError, LookupError):
    """Events between the cursor and the next event that exists cannot be read any more.

    `after` is the index of the last event that was read, `truncated_before` the index of the first
    one that is kept.
    """

    code = "events_missing"
    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        after: int = -1,
        truncated_before: int | None = None,
        session_id: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.after = after
        self.truncated_before = truncated_before
        self.session_id = session_id


def from_wire(error: Mapping[str, Any]) -> OublietteError:
    """Return the error that an answer of the server describes.

    Args:
        error: `code`, `message` and, if the error has them, `hint`, `field`, `retry_after` and
            other attributes of its class; others are ignored. Never refused, however malformed.

    Returns:
        An error of the class of the code. Of an unknown code, as later servers have them, it is an
        `OublietteError`, whose `code` is that code.
    """
    code, message, hint = error.get("code"), error.get("message"), error.get("hint")
    named = code if isinstance(code, str) else OublietteError.code
    kind = _CLASSES.get(named) or _CLASSES.get(_INSIDE.get(named, ""), OublietteError)
    made = kind(
        message if isinstance(message, str) and message else f"the server failed ({named})",
        hint=hint if isinstance(hint, str) and hint else None,
    )
    attributes = vars(made)
    for name, default in list(attributes.items()):
        given = error.get(name)
        if name not in _HEAD and _is_like(default, given):
            attributes[name] = given
    if kind.code != named:
        attributes["code"] = named
    return made


def to_wire(error: OublietteError) -> dict[str, Any]:
    """Return the error as JSON values, for `from_wire`; what is None is left out."""
    told = {name: value for name, value in vars(error).items() if isinstance(value, _SCALARS)}
    return {**told, "code": error.code, "message": error.message}


_SCALARS: Final = (str, int, float)
_HEAD: Final = {"code", "message", "hint"}


def _is_like(default: object, given: object) -> bool:
    """Return whether a value can take the place of an attribute's default."""
    return type(given) is type(default) or (default is None and isinstance(given, _SCALARS))


def _below(kind: type[OublietteError]) -> Iterator[type[OublietteError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _below(each)


_CLASSES: Final = {
    kind.code: kind
    for kind in _below(OublietteError)
    if kind.__module__ in {errors.__name__, __name__}
}
"""Class by code, of those that programs know."""

_INSIDE: Final = {
    "agent_program_missing": "runtime_failure",
    "agent_program_out_of_reach": "runtime_failure",
    "ask_timeout": "deadline_exceeded",
    "branch_diverged": "runtime_failure",
    "branch_not_found": "runtime_failure",
    "build_failed": "runtime_failure",
    "build_timeout": "deadline_exceeded",
    "container_start": "runtime_failure",
    "engine_missing": "unavailable",
    "engine_refused": "runtime_failure",
    "history_missing": "runtime_failure",
    "host_absent": "unavailable",
    "host_impostor": "protocol_violation",
    "host_refused": "runtime_failure",
    "host_unreachable": "unavailable",
    "host_verb_failed": "runtime_failure",
    "host_version": "runtime_failure",
    "image": "runtime_failure",
    "image_not_found": "runtime_failure",
    "lfs_missing": "runtime_failure",
    "link_closed": "unavailable",
    "paths_clash": "runtime_failure",
    "pull_timeout": "deadline_exceeded",
    "registry_busy": "runtime_failure",
    "registry_denied": "runtime_failure",
    "registry_unreachable": "runtime_failure",
    "registry_untrusted": "runtime_failure",
    "repository": "runtime_failure",
    "repository_denied": "runtime_failure",
    "repository_empty": "runtime_failure",
    "repository_not_found": "runtime_failure",
    "repository_too_large": "limit_exceeded",
    "repository_unreachable": "runtime_failure",
    "repository_untrusted": "runtime_failure",
}
"""Code of the class above, by code of a class that only the server imports."""
