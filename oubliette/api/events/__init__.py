"""Events of sessions as programs get them: types, decoding, cursors, and results of turns."""

from oubliette.api.events.cursors import (
    EventCursor,
    ListenCursor,
    LogPage,
    TreeCursor,
    page_of,
)
from oubliette.api.events.decoding import decode_event
from oubliette.api.events.turn_result import (
    ToolCallRecord,
    TurnFold,
    TurnResult,
    plain_result,
    result_of,
)
from oubliette.api.events.types import (
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
    ToolResult,
    UnknownEvent,
)
from oubliette.api.events.usage import Usage, usage_of

__all__ = (
    "CallerToolRequest",
    "CallerToolSettled",
    "Completion",
    "Delta",
    "ErrorEvent",
    "Event",
    "EventCursor",
    "LargeEvent",
    "ListenCursor",
    "LogPage",
    "MapProgress",
    "Message",
    "PermissionRequest",
    "PermissionSettled",
    "Status",
    "SystemEvent",
    "ToolCall",
    "ToolCallRecord",
    "ToolResult",
    "TreeCursor",
    "TurnFold",
    "TurnResult",
    "UnknownEvent",
    "Usage",
    "decode_event",
    "page_of",
    "plain_result",
    "result_of",
    "usage_of",
)
