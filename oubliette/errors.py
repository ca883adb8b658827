"""Errors of Oubliette, in one tree; every leaf has a code that scripts may rely on.

The message of an error is a sentence that a caller can act on; `hint` is the remedy, unless the
message contains it. Neither may contain a secret: both reach logs, clients and agents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean NEAREST? ", with the blank, or "" if no known name is near."""
    import difflib  # takes a while to import, and most names are right

    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}? " if near else ""


class OublietteError(Exception):
    """Base of all errors that Oubliette raises on purpose."""

    code: ClassVar[str] = "error"
    jsonrpc_code: ClassVar[int] = -32000
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} (hint: {self.hint})" if self.hint else self.message


class InvalidParameter(OublietteError, ValueError):
    """A parameter is missing, unknown, of the wrong type or out of range; `field` names it."""

    code = "invalid_parameter"
    jsonrpc_code = -32602
    exit_code = 2

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.field = field


class ConfigError(OublietteError, ValueError):
    """The configuration is unusable; the message names the key and its source."""

    code = "config"
    exit_code = 2


class NotFound(OublietteError, LookupError):
    """The object does not exist, or the client must not learn that it does."""

    code = "not_found"
    exit_code = 3


class Unauthenticated(OublietteError):
    """The key is missing, unknown, revoked or expired."""

    code = "unauthenticated"
    jsonrpc_code = -32001
    exit_code = 4


class Forbidden(OublietteError, PermissionError):
    """The key is valid, but its scope does not allow this."""

    code = "forbidden"
    jsonrpc_code = -32002
    exit_code = 4


class Conflict(OublietteError):
    """The object's state does not allow it now; the message names a state that would."""

    code = "conflict"


class AlreadyExists(Conflict):
    """An object with the same name or id exists already; `existing_id` is its id, if known."""

    code = "already_exists"
    exit_code = 7

    def __init__(
        self, message: str, *, hint: str | None = None, existing_id: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.existing_id = existing_id


class SessionHandover(Conflict):
    """The session has no actor at this moment, but is about to get one; ask again."""

    code = "changing_hands"


class LimitExceeded(OublietteError):
    """A limit refuses the request; the message names the limit, its value and its source."""

    code = "limit_exceeded"
    exit_code = 6


class RateLimited(LimitExceeded):
    """Too many calls in too little time; try again after `retry_after` seconds."""

    code = "rate_limited"

    def __init__(self, message: str, *, hint: str | None = None, retry_after: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class DeadlineExceeded(OublietteError, TimeoutError):
    """The time limit was exceeded."""

    code = "deadline_exceeded"
    exit_code = 5


class Unavailable(OublietteError):
    """A required part does not answer now; trying again later may work."""

    code = "unavailable"


class ProjectMoves(Unavailable):
    """A project is on its way to another node of a cluster; nothing was done for the request."""

    code = "project_moves"


class StorageUnavailable(Unavailable, OSError):
    """The log cannot be written (disk full, I/O error); nothing was lost, writes are refused."""

    code = "storage_unavailable"


class StaleNode(OublietteError):
    """The node's epoch has ended: it stores nothing more and must start again with a new one."""

    code = "stale_node"


class NotHere(Conflict):
    """The project's home is another node, `node`, if it has one at all."""

    code = "not_here"

    def __init__(self, message: str, *, node: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.node = node


class DatabaseTooNew(ConfigError):
    """The database was written by a later release."""

    code = "database_too_new"


class HomeInUse(ConfigError):
    """Another server uses this home."""

    code = "home_in_use"


class RuntimeFailure(OublietteError):
    """An operation of a container or agent runtime failed; the message names the step."""

    code = "runtime_failure"


class ContainerLost(RuntimeFailure):
    """The container is gone, with all processes in it."""

    code = "container_lost"


class ProtocolViolation(OublietteError):
    """The peer broke the protocol; the link to it was closed."""

    code = "protocol_violation"
