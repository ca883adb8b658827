"""Messages between a SessionActor and the other actors of its container."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from oubliette.kit import Message, Perishable, Reply
from oubliette.records import CallerTool, IdempotencyKey

# ------------------------------------------------------------- from the ProjectActor


class SubmittedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that is in the store."""

    turn: int
    """Its number in the session, from 1."""
    log_end: int
    """Index of the last event before the turn can have begun."""
    warnings: tuple[str, ...] = ()
    """Warnings for the sender, a sentence each."""


class SubmitTurn(Message, Reply[SubmittedTurn]):
    """Run a prompt once the agent is free.

    Answered once it is in the store: an accepted message survives a crash.
    """

    prompt: str
    caller_id: str | None = None
    caller_tools: tuple[CallerTool, ...] | None = None
    """None: the tools stay unchanged."""
    call_id: str | None = None
    idempotency: IdempotencyKey | None = None


# ------------------------------------------------------------- from what is beside it


class NoteEvent(Message):
    """Append an event of type `system` about something that was done for the session."""

    kind: str
    data: dict[str, Any]


# ------------------------------------------------------------- agent process → session


class OutputEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the agent, and its place in the agent's output."""

    type: str
    data: dict[str, Any]
    offset: int
    """Offset of the output behind the line it was read from."""
    ordinal: int
    ack: int
    """Output before this need not be read again once the item is in the log."""


class AgentStartProgress(Message):
    """The last stage of a start: the agent's process runs, or could not be started."""

    state: Literal["done", "failed"]
    elapsed_ms: int
    container_id: str = ""
    error: str = ""
    remedy: str = ""


class AgentStarting(Message, Reply[None]):
    """A process with this id is about to be started; answered once that is in the log.

    An actor that finds the id later starts it again, which is the same process.
    """

    process_id: str
    container_id: str


class AgentAttached(Perishable):
    """The agent's streams are open; it holds every frame up to `stdin_accepted`."""

    process_id: str
    container_id: str
    stdin_accepted: int
    started: bool
    """True: a new process; False: one that outlived a server or a link."""


class AgentOutput(Message, Reply[None]):
    """Output of the agent in order. Answered when there is room for more."""

    process_id: str
    items: tuple[OutputEvent, ...]
    steps: int = 0  # of its model, in the turn that the newest output is of


class OutputRefused(Message):
    """Processing the agent's output failed: the session's actor cannot continue in its state."""

    error: str


class AgentWrites(Message):
    """Frame of the agent's protocol, to be returned as a `StdinFrame` with a number."""

    data: bytes


class AgentGone(Message):
    """The agent's process ended, or cannot be reached any more."""

    reason: str
    exit_code: int | None = None
    signal: int | None = None
    start_failed: bool = False


# ------------------------------------------------------------- session → agent process


class StdinFrame(Message):
    """Input for the agent's stdin; the guest drops frames that the agent already has.

    The agent's adapter encodes it for the agent.
    """

    seq: int
    kind: Literal["prompt", "interrupt", "permission", "raw"]
    turn: int = 0
    text: str = ""
    unless_forked: str = ""
    """Text to put before `text` if the agent could not begin with the conversation of a fork."""
    request_id: str = ""
    decision: Literal["allow", "deny"] = "deny"
    raw: bytes = b""  # a frame of the protocol (`AgentWrites`)


class WithdrawPrompt(Message, Reply[bool]):
    """Withdraw the prompt in this frame; False: the agent has it, or will have."""

    seq: int


class IsBlocked(Message, Reply[bool]):
    """Request for whether the agent waits for children: it then holds no slot of its tree."""


class RootCaller(Message):
    """The current caller of a root, which decides on permissions of all its descendants.

    From the root to its tree's actor, which passes it on to them.
    """

    root_session_id: str

    principal: str
    caller_id: str | None


class ToolsListed(Message):
    """The agent's process has the tool list of our MCP server: it may be prompted."""


class ToolsNotListed(Message):
    """From the agent's process: its first prompt goes out, though it has not listed its tools."""


class AckOutput(Perishable):
    """The events up to this offset of stdout are in the log.

    Where the process lives on without its actor, the next attach acknowledges them.
    """

    out: int


class EndAgent(Perishable):
    """End the process: TERM, then KILL after `grace` seconds; the actor ends with it."""

    grace: float = 3.0


# ------------------------------------------------------------- link ↔ session


class OpenLink(Message, Reply[None]):
    """To the SocketActor: keep a link open for this session until CloseLink."""

    session_id: str
    project_id: str
    depth: int
    session: str
    """Name of the SessionActor."""
    secret: str
    """Secret with which the agent's client proves its identity to the relay."""
    principal: str = ""
    """Principal that has started the tree of the session, for which the link works."""


class CloseLink(Message):
    """To the SocketActor: the session needs no link any more."""

    session_id: str


class LinkReady(Message):
    """A new connection of the client is ready; requests pending on an older one are sent again."""

    link: str
    generation: int
    bare: bool = False
    """Whether it is for a client without a secret."""


class ClientPaired(Message):
    """From the SocketActor: a client of the agent and our link were paired in the container."""

    bare: bool = False
    """Whether the client has no secret."""


class LinkRequest(Message):
    """One JSON-RPC request or notification of the agent's client."""

    link: str
    generation: int
    id: int | str | None
    method: str
    params: dict[str, Any]
    bare: bool = False
    """The client has presented no secret: it uses the protocol's first form."""


class LinkReply(Message):
    """To a SessionConnectionActor: the answer to a request of this connection."""

    generation: int
    id: int | str | None
    result: Any = None
    error: dict[str, Any] | None = None


class LinkRequestOver(Message):
    """To a SessionConnectionActor: one of its requests is over without an answer.

    Each `LinkRequest` is followed by one of these, or by a `LinkReply`.
    """


class LinkProgress(Message):
    """To a SessionConnectionActor: progress of a request of this connection."""

    generation: int
    id: int | str | None
    message: str


class LinkNotify(Message):
    """To a SessionConnectionActor: a notification for the agent's client."""

    method: str
    params: dict[str, Any]
    legacy_type: bool = False
    """Also carry the method as `type`, as clients of the relay's first form expect."""


# ------------------------------------------------------------- child → parent session


class ChildTurnEnded(Message):
    """To a parent SessionActor: the turn that one of its agent's calls waits for has ended."""

    session_id: str
    call_id: str
    outcome: str
    result: str | None


class LinkAnswered(Message):
    """From a job of the SessionActor to itself: the answer to a request of the link."""

    link: str
    generation: int
    id: int | str | None
    result: Any = None
    error: dict[str, Any] | None = None


class CallCounted(Message):
    """From a job of the SessionActor to itself: a caller tool call is within its limit, or not."""

    request_id: str
    error: dict[str, Any] | None = None
    again: bool = False
    """The owner of the limit was being restarted."""


class MapSlots(Message):
    """From a job of the SessionActor to itself: the number of agents that a map has memory for."""

    call_id: str
    fitting: int | None = None
    """None: any number."""


class ChildSpawned(Message):
    """From a job of the SessionActor to itself: the child's turn is accepted, or refused."""

    call_id: str
    session_id: str = ""
    spawned: bool = False
    done: bool = False
    outcome: str | None = None
    result: str | None = None
    workspace_id: str | None = None
    """Its workspace, if that was made as a copy."""
    branch: str | None = None
    """Branch of that workspace, if the project has a repository."""
    error: dict[str, Any] | None = None


# ------------------------------------------------------------- session → its tree


class AgentBlocked(Message):
    """To the TreeActor: this session's agent waits for a child, or does not any more."""

    session_id: str
    waits: bool


class AgentBusy(Message):
    """To the TreeActor: this session has a turn to run, or has none any more."""

    session_id: str
    works: bool


class SessionFinished(Message):
    """To the TreeActor: this session has finished, its end is in the log."""

    session_id: str


class AgentCost(Message):
    """To the TreeActor: the cost of this session so far, USD."""

    session_id: str
    cost_usd: float


class LogGrown(Message):
    """To the TreeActor: the size of this session's events so far."""

    session_id: str
    log_bytes: int


# ------------------------------------------------------------- its tree, its project → session

LimitAction = Literal["warn", "interrupt", "time_out"]


class LimitNotice(Message):
    """To a SessionActor: a limit is near (`warn`), or reached, with the consequence."""

    limit: str
    action: LimitAction
    """`interrupt` ends the running turn, `time_out` the session, which may be resumed."""
    message: str


# ------------------------------------------------------------- CallerRequestActor


class StopRequest(Message):
    """To a CallerRequestActor: its request is settled, and nothing is left to wait for."""


class CallHeld(Message):
    """To a SessionActor: a call of a caller's tool outlives its deadline, as nothing can be stored.

    The agent's client waits on then.
    """

    request_id: str


class RequestSettled(Message):
    """To a SessionActor: the outcome of a request. The first one counts.

    From its CallerRequestActor, at most once; from the session itself when there is an answer.
    """

    request_id: str
    outcome: str
    result: Any = None
    error: str | None = None
