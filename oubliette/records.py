"""What the store keeps: one frozen record per table, shared by every floor above.

Times are wall-clock seconds (UTC). A record is replaced, never changed in place.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

SessionStatus = Literal["created", "running", "idle", "completed", "failed", "timed_out"]
TERMINAL: Final = frozenset({"completed", "failed", "timed_out"})

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
    "caller_tool_settled",
    "session_map",
    "permission_request",
    "permission_settled",
]


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is kept."""


class Limits(Record, frozen=True):
    """Limits of one tree of sessions; None = the configured default."""

    max_depth: int | None = None
    max_agents: int | None = None
    max_agents_at_once: int | None = None
    max_cost_usd: float | None = None
    max_wall_seconds: float | None = None
    max_turn_seconds: float | None = None
    max_turn_steps: int | None = None


def _any_object() -> dict[str, Any]:
    return {"type": "object"}


class CallerTool(Record, frozen=True, rename="camel"):
    """A tool that a caller lends (`caller_tools`)."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = msgspec.field(default_factory=_any_object)
    durable: bool = False


class Principal(Record, frozen=True):
    """Who owns tokens and sessions; a token may be replaced, a principal stays."""

    id: str
    name: str
    created_at: float
    tenant: str = "default"


class Token(Record, frozen=True):
    """A key. Only its id and the SHA-256 of its secret are kept."""

    id: str
    digest: bytes
    name: str
    scope: str
    principal: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    last_used_at: float | None = None
    session_id: str | None = None
    """Set on a minted key: good on this session's link only, dead when it ends."""
    doors: tuple[str, ...] = ("http", "socket")


class Project(Record, frozen=True):
    """A project; its folder is a view of this record."""

    id: str
    name: str
    created_at: float
    default_workspace_id: str
    uid: int
    """The user id that its agents run under, where the server may choose one."""
    description: str = ""
    remote_url: str | None = None
    container_type: str | None = None
    agent: str | None = None
    model: str | None = None
    autonomy: str | None = None
    workspace_isolation: bool = False
    accept_bare: bool | None = None
    """Whether clients without a secret are let in; None: as `relay.accept_bare` says."""
    limits: Limits = Limits()
    mcp_servers: dict[str, Any] = {}
    owner: str = ""
    deleted_at: float | None = None


class Workspace(Record, frozen=True):
    """A folder that sessions work in."""

    id: str
    project_id: str
    created_at: float
    last_session_at: float | None = None
    external_id: str | None = None
    source: str | None = None
    is_default: bool = False
    deleted_at: float | None = None


class Container(Record, frozen=True):
    """A container that this instance made, until it was removed."""

    id: str
    project_id: str
    workspace_id: str | None
    container_type: str
    runtime: str
    state: Literal["creating", "running", "stopped", "lost"]
    created_at: float
    spec_hash: str
    host_key: bytes
    """The key that proves the server to the host in it and the host to the server."""
    folder: str
    """Where its relay socket is, on this side."""
    handle: dict[str, Any] = {}
    """What the runtime needs to find it again."""


class Session(Record, frozen=True):
    """One agent session, root or child."""

    id: str
    project_id: str
    workspace_id: str
    principal: str
    agent: str
    status: SessionStatus
    created_at: float
    updated_at: float
    exploration_id: str
    depth: int = 0
    parent_session_id: str | None = None
    root_session_id: str = ""
    model: str | None = None
    autonomy: str = "off"
    isolation: str = "container"
    status_reason: str | None = None
    ended_at: float | None = None
    ended_by: str | None = None
    """`session_end` when somebody ended it for good: it is never resumed by itself."""
    ending: str | None = None
    """Why it is being ended, from when that is asked for until it rests: whoever runs it goes on
    with that."""
    ending_final: bool = True
    """Whether it is being ended for good."""
    turn_count: int = 0
    last_prompt: str | None = None
    final_response: str | None = None
    caller_id: str | None = None
    caller_tools: tuple[CallerTool, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    limits: Limits = Limits()
    container_id: str | None = None
    process_id: str | None = None
    process_out: int = 0
    """Offsets of the agent's output up to which its events are in the log."""
    process_err: int = 0
    process_frames: int = 3
    """Frames of the process's input before its first prompt; 3 for those of earlier releases."""
    pairing_secret: str | None = None
    external_id: str | None = None
    source: str | None = None
    agent_session_id: str | None = None
    minted_token_id: str | None = None
    given_key: bool = False
    agent_ready: bool = True
    """Whether the process has given a sign of life."""
    agent_contacted: bool = True
    """Whether the process has started our MCP server; True too for those that do so on demand."""
    remembered: dict[str, Literal["allow", "deny"]] = {}
    """What its agent may ask for → the decision that holds for the rest of the session."""


class Turn(Record, frozen=True):
    """One message to an agent, from its acceptance to its end."""

    session_id: str
    number: int
    prompt: str
    state: Literal["queued", "running", "done"]
    created_at: float
    stdin_seq: int | None = None
    """Sequence number of the frame that carries it; the host drops what it already has."""
    call_id: str | None = None
    """`{parent session}/{call id}` of the agent's call that waits for it."""
    outcome: str | None = None
    result: str | None = None


class Event(Record, frozen=True):
    """One entry of a session's log.

    `index` counts 0, 1, 2 … within the session; `seq` is global, in commit order, set by the store.
    `data` holds what its type says; `version` is that of the type's shape.
    """

    session_id: str
    index: int
    ts: float
    type: str
    data: dict[str, Any] = {}
    version: int = 1
    seq: int = 0
    principal: str = ""
    caller_id: str | None = None
    """With `principal`, the caller who is told of it."""
    source: str | None = None
    """`{process}:{offset}:{ordinal}` of the output it was read from; unique within the session."""


class CallerRequest(Record, frozen=True):
    """One call of a caller's tool; settled exactly once."""

    id: str
    session_id: str
    principal: str
    caller_id: str
    tool: str
    arguments: dict[str, Any]
    created_at: float
    deadline: float
    """Wall-clock second after which it is settled as a timeout."""
    event_index: int
    call_id: str | None = None
    durable: bool = False
    outcome: Literal["result", "tool_error", "timeout", "caller_gone", "cancelled"] | None = None
    result: Any = None
    error: str | None = None
    settled_at: float | None = None


class PermissionRequest(Record, frozen=True):
    """One thing that an agent asked permission for; decided exactly once."""

    id: str
    """Ours: agents count theirs anew in each process."""
    session_id: str
    principal: str
    caller_id: str | None
    """With `principal`, who is asked: the caller of the root session."""
    agent_request_id: str
    """What the agent calls it."""
    asks_for: str
    """The kind of thing, which a decision for the session covers."""
    turn: int
    created_at: float
    deadline: float
    """Wall-clock second after which it is denied."""
    event_index: int
    decision: Literal["allow", "deny"] | None = None
    reason: str = ""
    settled_at: float | None = None


class IdempotencyKey(Record, frozen=True):
    """The answer that a request with this key got (unique per principal, kept 24 h)."""

    principal: str
    tool: str
    key: str
    digest: bytes
    """SHA-256 of the arguments: the same key with other arguments is an error."""
    created_at: float
    answer: dict[str, Any] | None = None
