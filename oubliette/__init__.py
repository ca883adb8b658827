"""Oubliette runs coding agents in containers and lets them call their sender's tools.

The names of the API for Python programs are imported when they are first used, so that a program
pays for what it uses: a client of a server elsewhere needs none of the server's libraries.
"""

import importlib
import sys

from oubliette.version import __version__

TYPE_CHECKING = False  # as in `typing`, whose import would take longer than all of this
if TYPE_CHECKING:
    from oubliette import errors, kit, messages, sync
    from oubliette.api.agent_files import BadAgent
    from oubliette.api.browser_port import (
        BrowserPort,
    )
    from oubliette.api.callers.caller import (
        Caller,
    )
    from oubliette.api.changes import (
        ExportInfo,
        ForkInfo,
    )
    from oubliette.api.client import (
        Oubliette,
    )
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
    from oubliette.api.events import (
        CallerToolProgress,
        CallerToolRequest,
        CallerToolSettled,
        Completion,
        Delta,
        ErrorEvent,
        Event,
        LargeEvent,
        MapProgress,
        Message,
        PermissionRequest,
        PermissionSettled,
        Status,
        SystemEvent,
        ToolCall,
        ToolCallRecord,
        ToolResult,
        TurnResult,
        UnknownEvent,
        Usage,
        WorkspaceSnapshot,
    )
    from oubliette.api.files.records import (
        CopiedFiles,
        FileInfo,
    )
    from oubliette.api.files.workspace_files import (
        WorkspaceFiles,
    )
    from oubliette.api.opening import (
        connect,
        open,  # noqa: A004 - as programs call it
    )
    from oubliette.api.own_agent import (
        AgentFunction,
        AgentTurn,
        agent,
    )
    from oubliette.api.permissions import (
        PermissionRules,
        rules,
    )
    from oubliette.api.project import (
        Project,
    )
    from oubliette.api.repositories import (
        FetchedBranches,
    )
    from oubliette.api.results.views import (
        ProjectInfo,
        SessionInfo,
    )
    from oubliette.api.session import (
        Session,
    )
    from oubliette.api.tools import (
        BadTool,
        Call,
        ToolError,
        mcp,
        tool,
    )
    from oubliette.api.tree import (
        Tree,
    )
    from oubliette.api.turn import (
        Turn,
    )
    from oubliette.contract.changes import (
        CheckpointInfo,
        ConflictInfo,
        Diff,
        FileDiff,
        MergeInfo,
        PushInfo,
        RestoreInfo,
        TurnLog,
    )
    from oubliette.contract.overview import (
        LimitState,
        TreeInfo,
        TreeRow,
        TreeState,
        TreeWait,
        UsageReport,
        UsageRow,
        UsageTotal,
    )
    from oubliette.contract.project import (
        BranchInfo,
        RepositoryInfo,
    )
    from oubliette.contract.session import (
        PermissionInfo,
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
        NotHere,
        OublietteError,
        ProjectMoves,
        ProtocolViolation,
        RateLimited,
        RuntimeFailure,
        SessionHandover,
        StaleNode,
        StorageUnavailable,
        Unauthenticated,
        Unavailable,
    )

__all__ = (
    "AgentFunction",
    "AgentNeverSawTools",
    "AgentTurn",
    "AlreadyExists",
    "BadAgent",
    "BadResultType",
    "BadTool",
    "BranchInfo",
    "BrowserPort",
    "Call",
    "Caller",
    "CallerToolProgress",
    "CallerToolRequest",
    "CallerToolSettled",
    "CheckpointInfo",
    "Closed",
    "Completion",
    "ConfigError",
    "Conflict",
    "ConflictInfo",
    "ContainerLost",
    "CopiedFiles",
    "DatabaseTooNew",
    "DeadlineExceeded",
    "Delta",
    "Diff",
    "ErrorEvent",
    "Event",
    "EventsMissing",
    "ExportInfo",
    "FetchedBranches",
    "FileDiff",
    "FileInfo",
    "Forbidden",
    "ForkInfo",
    "HomeInUse",
    "InvalidParameter",
    "LargeEvent",
    "LimitExceeded",
    "LimitState",
    "MapProgress",
    "MergeInfo",
    "Message",
    "NotFound",
    "NotHere",
    "Oubliette",
    "OublietteError",
    "PermissionDenied",
    "PermissionInfo",
    "PermissionRequest",
    "PermissionRules",
    "PermissionSettled",
    "Project",
    "ProjectInfo",
    "ProjectMoves",
    "ProtocolViolation",
    "PushInfo",
    "RateLimited",
    "RepositoryInfo",
    "RestoreInfo",
    "ResultInvalid",
    "RuntimeFailure",
    "Session",
    "SessionFailed",
    "SessionHandover",
    "SessionInfo",
    "StaleNode",
    "Status",
    "StorageUnavailable",
    "SystemEvent",
    "ToolCall",
    "ToolCallRecord",
    "ToolError",
    "ToolFailed",
    "ToolResult",
    "Tree",
    "TreeInfo",
    "TreeRow",
    "TreeState",
    "TreeWait",
    "Turn",
    "TurnInterrupted",
    "TurnLog",
    "TurnResult",
    "Unauthenticated",
    "Unavailable",
    "UnknownEvent",
    "Usage",
    "UsageReport",
    "UsageRow",
    "UsageTotal",
    "WorkspaceFiles",
    "WorkspaceSnapshot",
    "__version__",
    "agent",
    "connect",
    "errors",
    "kit",
    "mcp",
    "messages",
    "open",
    "rules",
    "sync",
    "tool",
)

_NAMES = {
    "oubliette.api.agent_files": ("BadAgent",),
    "oubliette.api.browser_port": ("BrowserPort",),
    "oubliette.api.callers.caller": ("Caller",),
    "oubliette.api.changes": (
        "ExportInfo",
        "ForkInfo",
    ),
    "oubliette.api.client": ("Oubliette",),
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
    "oubliette.api.events": (
        "CallerToolProgress",
        "CallerToolRequest",
        "CallerToolSettled",
        "Completion",
        "Delta",
        "ErrorEvent",
        "Event",
        "LargeEvent",
        "MapProgress",
        "Message",
        "PermissionRequest",
        "PermissionSettled",
        "Status",
        "SystemEvent",
        "ToolCall",
        "ToolCallRecord",
        "ToolResult",
        "TurnResult",
        "UnknownEvent",
        "Usage",
        "WorkspaceSnapshot",
    ),
    "oubliette.api.files.records": (
        "CopiedFiles",
        "FileInfo",
    ),
    "oubliette.api.files.workspace_files": ("WorkspaceFiles",),
    "oubliette.api.opening": (
        "connect",
        "open",
    ),
    "oubliette.api.own_agent": (
        "AgentFunction",
        "AgentTurn",
        "agent",
    ),
    "oubliette.api.permissions": (
        "PermissionRules",
        "rules",
    ),
    "oubliette.api.project": ("Project",),
    "oubliette.api.repositories": ("FetchedBranches",),
    "oubliette.api.session": ("Session",),
    "oubliette.api.tools": (
        "BadTool",
        "Call",
        "ToolError",
        "mcp",
        "tool",
    ),
    "oubliette.api.tree": ("Tree",),
    "oubliette.api.turn": ("Turn",),
    "oubliette.api.results.views": (
        "ProjectInfo",
        "SessionInfo",
    ),
    "oubliette.contract.changes": (
        "CheckpointInfo",
        "ConflictInfo",
        "Diff",
        "FileDiff",
        "MergeInfo",
        "PushInfo",
        "RestoreInfo",
        "TurnLog",
    ),
    "oubliette.contract.overview": (
        "LimitState",
        "TreeInfo",
        "TreeRow",
        "TreeState",
        "TreeWait",
        "UsageReport",
        "UsageRow",
        "UsageTotal",
    ),
    "oubliette.contract.project": (
        "BranchInfo",
        "RepositoryInfo",
    ),
    "oubliette.contract.session": ("PermissionInfo",),
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
        "NotHere",
        "OublietteError",
        "ProjectMoves",
        "ProtocolViolation",
        "RateLimited",
        "RuntimeFailure",
        "SessionHandover",
        "StaleNode",
        "StorageUnavailable",
        "Unauthenticated",
        "Unavailable",
    ),
}
"""Module → names that it gives to the package."""
_SUBMODULES = ("errors", "kit", "messages", "sync")
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
