"""Oubliette runs coding agents in containers and lets them call their sender's tools.

The names of the API for Python programs are imported when they are first used, so that a program
pays for what it uses: a client of a server elsewhere needs none of the server's libraries.
"""

import importlib
import sys

from oubliette.version import __version__

TYPE_CHECKING = False  # as in `typing`, whose import would take longer than all of this
if TYPE_CHECKING:
    from oubliette import errors, kit
    from oubliette.api.errors import (
        AgentNeverSawTools,
        BadResultType,
        Closed,
        EventsMissing,
        PermissionDenied,
        ResultInvalid,
        SessionFailed,
        ToolFailed,
        TurnInterrupted,
    )
    from oubliette.errors import (
        AlreadyExists,
        ConfigError,
        Conflict,
        ContainerLost,
        DatabaseTooNew,
        DeadlineExceeded,
        Forbidden,
        HomeInUse,
        InvalidParameter,
        LimitExceeded,
        NotFound,
        OublietteError,
        ProtocolViolation,
        RateLimited,
        RuntimeFailure,
        SessionHandover,
        StorageUnavailable,
        Unauthenticated,
        Unavailable,
    )

__all__ = (
    "AgentNeverSawTools",
    "AlreadyExists",
    "BadResultType",
    "Closed",
    "ConfigError",
    "Conflict",
    "ContainerLost",
    "DatabaseTooNew",
    "DeadlineExceeded",
    "EventsMissing",
    "Forbidden",
    "HomeInUse",
    "InvalidParameter",
    "LimitExceeded",
    "NotFound",
    "OublietteError",
    "PermissionDenied",
    "ProtocolViolation",
    "RateLimited",
    "ResultInvalid",
    "RuntimeFailure",
    "SessionFailed",
    "SessionHandover",
    "StorageUnavailable",
    "ToolFailed",
    "TurnInterrupted",
    "Unauthenticated",
    "Unavailable",
    "__version__",
    "errors",
    "kit",
)

_NAMES = {
    "oubliette.api.errors": (
        "AgentNeverSawTools",
        "BadResultType",
        "Closed",
        "EventsMissing",
        "PermissionDenied",
        "ResultInvalid",
        "SessionFailed",
        "ToolFailed",
        "TurnInterrupted",
    ),
    "oubliette.errors": (
        "AlreadyExists",
        "ConfigError",
        "Conflict",
        "ContainerLost",
        "DatabaseTooNew",
        "DeadlineExceeded",
        "Forbidden",
        "HomeInUse",
        "InvalidParameter",
        "LimitExceeded",
        "NotFound",
        "OublietteError",
        "ProtocolViolation",
        "RateLimited",
        "RuntimeFailure",
        "SessionHandover",
        "StorageUnavailable",
        "Unauthenticated",
        "Unavailable",
    ),
}
"""Module → names that it gives to the package."""
_SUBMODULES = ("errors", "kit")
_WHERE = {name: module for module, names in _NAMES.items() for name in names}

if not TYPE_CHECKING:  # to type checkers, a name that is not listed above is a mistake

    def __getattr__(name: str) -> object:
        """Import a public name at its first use."""
        if name in _SUBMODULES:
            return _imported(f"{__name__}.{name}", name)
        if name not in _WHERE:
            raise AttributeError(
                f"module {__name__!r} has no attribute {name!r}",
                name=name,
                obj=sys.modules[__name__],
            )
        found = getattr(_imported(_WHERE[name], name), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _imported(module: str, name: str) -> object:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or __name__).partition(".")[0]
        if missing == __name__:
            raise
        raise ModuleNotFoundError(
            f"oubliette.{name} needs {missing}, which is not installed:"
            f" {sys.executable} -m pip install oubliette-agents",
            name=error.name,
        ) from error
