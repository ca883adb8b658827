"""Types of events: one class for each type of docs/events.md, for `match` with keywords.

```python
match event:
    case oubliette.Delta(text=text):
        print(text, end="")
    case oubliette.Completion(status="failed", final_text=reason):
        print("failed:", reason)
```

All are immutable. Fields that a later release adds are ignored; an event of a type that it adds is
an `UnknownEvent`.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec


class Event(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """One entry of a session's log: the fields that all types have."""

    type: str
    """Type of the event, as in docs/events.md."""
    session_id: str = ""
    """Id of the session."""
    index: int = -1
    """Position in the session's log: 0, 1, 2 …"""
    seq: int = -1
    """Position in the order of commits over all sessions; increasing, with gaps."""
    ts: float = 0.0
    """Time of the event, in seconds since 1970."""
    version: int = 1
    """Version of the event's format."""
    turn: int | None = None
    """Number of the turn, from 1; None of an event of no turn."""
    redelivered: bool = False
    """Whether a listener may have received the event before."""


class Status(Event, frozen=True, kw_only=True):
    """The status of the session has changed."""

    type: Literal["status"] = "status"
    status: str
    """`created`, `running`, `idle`, `completed`, `failed` or `timed_out`."""
    reason: str | None = None
    """Reason, of a session that has finished."""
    message: str | None = None
    """Of `running`: message to the agent that began the turn; None under earlier releases."""
    resumed: bool = False
    """Of `created`: whether the session continues an earlier conversation."""
    parent_session_id: str | None = None
    """Of `created`: id of the parent; None of a root session, or if it is in another project."""
    depth: int | None = None
    """Of `created`: number of ancestors."""
    isolation: str | None = None
    """Of `created`: `container`, also for a sandbox of bubblewrap, or `none`."""


class Delta(Event, frozen=True, kw_only=True):
    """A piece of the agent's answer, while the model writes it."""

    type: Literal["delta"] = "delta"
    text: str
    """The piece."""


class Message(Event, frozen=True, kw_only=True):
    """A whole message of the agent, of which the deltas were pieces."""

    type: Literal["message"] = "message"
    text: str
    """The message."""
    role: str = "assistant"
    """Always `assistant`."""


class ToolCall(Event, frozen=True, kw_only=True):
    """The agent calls a tool: one of its own, a caller's, or one of Oubliette's."""

    type: Literal["tool_call"] = "tool_call"
    call_id: str
    """Names the call within the session."""
    tool: str
    """Name of the tool as the agent uses it, often with `oubliette` before the tool's own name."""
    arguments: dict[str, Any] = {}
    """Arguments of the call."""


class ToolResult(Event, frozen=True, kw_only=True):
    """A tool call has ended, or its turn ended before it."""

    type: Literal["tool_result"] = "tool_result"
    call_id: str
    """Of the call."""
    tool: str = ""
    """Of the call."""
    is_error: bool = False
    """Whether the call failed."""
    result: Any = None
    """In the form of an MCP result if the agent reports that much, else as it reports it."""


class Completion(Event, frozen=True, kw_only=True):
    """A turn has ended: exactly one for each turn that began."""

    type: Literal["completion"] = "completion"
    status: str
    """`completed`, `interrupted` or `failed`."""
    final_text: str | None = None
    """The agent's last message; if the turn failed or its agent was ended, the reason."""


class ErrorEvent(Event, frozen=True, kw_only=True):
    """An error in a turn, which continues or ends, or in the agent."""

    type: Literal["error"] = "error"
    message: str = ""
    """A sentence about the error."""
    kind: str | None = None
    """`limit`: a limit was reached, of a turn, a tree or a project. `not_run`: a message was not
    passed to the agent, because the session finished."""
    limit: str | None = None
    """Of `limit`: its name, such as `max_turn_seconds`."""
    exit_code: int | None = None
    """Exit code of an agent's process that has ended."""
    signal: int | None = None
    """Number of the signal that ended an agent's process."""


class CallerToolRequest(Event, frozen=True, kw_only=True):
    """The agent calls a caller tool; the caller answers by `request_id`."""

    type: Literal["caller_tool_request"] = "caller_tool_request"
    request_id: str
    """Names the request."""
    tool: str
    """Name of the tool as the caller provided it."""
    arguments: dict[str, Any] = {}
    """Arguments of the call."""
    deadline: float = 0.0
    """Time at which the request ends, in seconds since 1970."""
    ancestry: tuple[str, ...] = ()
    """Session ids from the root of the tree down to this session."""
    caller_id: str | None = None
    """Id of the caller that is asked."""


class CallerToolProgress(Event, frozen=True, kw_only=True):
    """The caller has reported progress with a request that is open."""

    type: Literal["caller_tool_progress"] = "caller_tool_progress"
    request_id: str
    """Of the request."""
    tool: str = ""
    """Of the request."""
    message: str
    """A sentence by the caller."""
    caller_id: str | None = None
    """Of the request."""


class CallerToolSettled(Event, frozen=True, kw_only=True):
    """A caller tool request has its outcome."""

    type: Literal["caller_tool_settled"] = "caller_tool_settled"
    request_id: str
    """Of the request."""
    tool: str = ""
    """Of the request."""
    caller_id: str | None = None
    """Of the request."""
    outcome: str
    """`result`, `tool_error`, `timeout`, `caller_gone` or `cancelled`."""
    error: str | None = None
    """Reason why there is no result."""


class MapProgress(Event, frozen=True, kw_only=True):
    """Progress of a `session_map` of the agent."""

    type: Literal["session_map"] = "session_map"
    call_id: str = ""
    """Names the map."""
    total: int
    """Number of its parts."""
    done: int
    """Number of parts that have ended, failed ones too."""
    failed: int = 0
    """Number of parts that have failed."""


class WorkspaceSnapshot(Event, frozen=True, kw_only=True):
    """The files of the session's workspace have changed, and a snapshot of them was taken."""

    type: Literal["snapshot"] = "snapshot"
    ref: str
    """Names the snapshot."""
    moment: str = "end"
    """`start` or `end` of the turn; `interrupt`: before an interrupt, or the end of the session,
    was passed on to the agent."""
    files: int = 0
    """Number of files that differ from the snapshot before it."""
    insertions: int | None = 0
    """Lines that are new in them; None: they take longer than ten seconds to count."""
    deletions: int | None = 0
    """Lines that are gone from them; None as for `insertions`."""
    left_out: int = 0
    """Number of entries that it lacks: sockets, pipes, devices, unreadable and large files."""
    left_out_shown: dict[str, str] = {}
    """Some of them, each with the reason."""
    torn: bool = False
    """Whether files were changing while it was taken."""


class PermissionRequest(Event, frozen=True, kw_only=True):
    """The agent asks for permission; a decision is sent by `request_id`."""

    type: Literal["permission_request"] = "permission_request"
    request_id: str
    """Names the request."""
    text: str = ""
    """The question."""
    asks_for: str = ""
    """Scope of a decision for the session."""
    tool_call: dict[str, Any] | None = None
    """The call that the agent asks for, as it describes it, if it does."""
    deadline: float = 0.0
    """Time at which the request is denied, in seconds since 1970."""
    ancestry: tuple[str, ...] = ()
    """Session ids from the root of the tree down to the one that asks."""
    caller_id: str | None = None
    """Id of the caller that is asked."""


class PermissionSettled(Event, frozen=True, kw_only=True):
    """A permission request is decided."""

    type: Literal["permission_settled"] = "permission_settled"
    request_id: str
    """Of the request."""
    asks_for: str = ""
    """Of the request."""
    caller_id: str | None = None
    """Of the request."""
    decision: str
    """`allow` or `deny`."""
    reason: str | None = None
    """The cause of the decision: the caller, a deadline, an earlier decision."""
    by: str | None = None
    """Principal that decided; None: none did, or the key is an agent's or may only read."""
    remember: str = "once"
    """`once`, or `session` if it applies to later requests with the same `asks_for` too."""


class SystemEvent(Event, frozen=True, kw_only=True):
    """Any other event: a stage of the start, usage, or a report of the agent about itself."""

    type: Literal["system"] = "system"
    kind: str | None = None
    """One of docs/events.md, or the agent's own name; None of output that is no message."""
    data: dict[str, Any] = {}
    """All other fields."""


class LargeEvent(Event, frozen=True, kw_only=True):
    """An event that is too large for a list: `event_read` returns it in pieces.

    `type` is the type of the whole event. The iterators of the API read it and return it whole.
    """

    size: int
    """Size of the whole event, in bytes."""
    data: dict[str, Any] = {}
    """Fields that are kept: of a request, its `request_id` and others that an answer needs."""


class UnknownEvent(Event, frozen=True, kw_only=True):
    """An event of a type that this release does not know, or with a field of an unexpected type."""

    data: dict[str, Any] = {}
    """The whole event as it was received."""
    problem: str | None = None
    """Description of the first field that has another type than documented."""


CLASSES: Final[dict[str, type[Event]]] = {
    field.default: kind
    for kind in Event.__subclasses__()
    for field in msgspec.structs.fields(kind)
    if field.name == "type" and isinstance(field.default, str)
}
"""Class by type, of events whose fields are known."""

EventType = Literal[
    "system",
    "message",
    "delta",
    "tool_call",
    "tool_result",
    "completion",
    "error",
    "status",
    "caller_tool_request",
    "caller_tool_progress",
    "caller_tool_settled",
    "session_map",
    "snapshot",
    "permission_request",
    "permission_settled",
]
