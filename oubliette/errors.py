"""One error tree; every leaf has a code that scripts may rely on.

The message of an error is a sentence that a caller can act on. `hint` holds the remedy where the
sentence alone does not. Nothing secret may stand in either: both reach logs, clients and agents.
"""

from __future__ import annotations

from typing import ClassVar


class OublietteError(Exception):
    """Base of everything that Oubliette raises on purpose."""

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
    """The configuration cannot be used; the message names the key and where it came from."""

    code = "config"
    exit_code = 2


class NotFound(OublietteError, LookupError):
    """It does not exist, or the asker may not know that it does."""

    code = "not_found"
    exit_code = 3


class Unauthenticated(OublietteError):
    """The key is missing, unknown, revoked or expired."""

    code = "unauthenticated"
    jsonrpc_code = -32001
    exit_code = 4


class Forbidden(OublietteError, PermissionError):
    """The key is good, its scope does not reach this far."""

    code = "forbidden"
    jsonrpc_code = -32002
    exit_code = 4


class Conflict(OublietteError):
    """The state of the thing does not allow it now; the message says what would."""

    code = "conflict"


class AlreadyExists(Conflict):
    """There is one already, with the same name or id."""

    code = "already_exists"


class SessionHandover(Conflict):
    """Nobody runs the session at this moment, and somebody is about to; ask again."""

    code = "changing_hands"


class LimitExceeded(OublietteError):
    """A limit holds this back; the message names the limit, its value and who set it."""

    code = "limit_exceeded"
    exit_code = 6


class RateLimited(LimitExceeded):
    """Too many calls in too little time; `retry_after` says in how many seconds to try again."""

    code = "rate_limited"

    def __init__(self, message: str, *, hint: str | None = None, retry_after: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class DeadlineExceeded(OublietteError, TimeoutError):
    """It did not happen in the time that was given."""

    code = "deadline_exceeded"
    exit_code = 5


class Unavailable(OublietteError):
    """A part that is needed does not answer now; trying again later may work."""

    code = "unavailable"


class StorageUnavailable(Unavailable, OSError):
    """The log cannot be written (disk full, I/O error); nothing was lost, writes are refused."""

    code = "storage_unavailable"


class DatabaseTooNew(ConfigError):
    """The database was written by a later release."""

    code = "database_too_new"


class HomeInUse(ConfigError):
    """Another server owns this home."""

    code = "home_in_use"


class RuntimeFailure(OublietteError):
    """A container or agent runtime could not do what was asked; the message says which step."""

    code = "runtime_failure"


class ContainerLost(RuntimeFailure):
    """The container is gone, and what ran in it with it."""

    code = "container_lost"


class ProtocolViolation(OublietteError):
    """The peer broke the protocol; the link to it was closed."""

    code = "protocol_violation"
