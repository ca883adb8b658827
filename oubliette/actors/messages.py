"""Messages that cross between the domain actors, the tools and the front.

Requests are imperative, notices are in the past tense. Messages between only two neighbours are
defined beside them. Every message can be encoded as msgpack.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from oubliette.kit import Message, Reply
from oubliette.records import CallerRequest, CallerTool, Event, Limits, Project, Session

Outcome = Literal["result", "tool_error", "timeout", "caller_gone", "cancelled"]


def caller_actor_name(principal: str, caller_id: str) -> str:
    """Return the name of the CallerActor of this caller."""
    return f"callers/{caller_key(principal, caller_id)}"


def caller_key(principal: str, caller_id: str) -> str:
    """Return the key under which the store publishes a caller's events."""
    return f"{principal}/{caller_id}"


class Idempotency(msgspec.Struct, frozen=True, kw_only=True):
    """Idempotency key of a request, so that it is safe to send again."""

    key: str
    tool: str
    digest: bytes


# ---------------------------------------------------------------------- projects


class CreateProject(Message, Reply[Project]):
    """To `projects`: create a project, its folder and its default workspace."""

    principal: str
    name: str
    description: str = ""
    remote_url: str | None = None
    init_git: bool = True
    container_type: str | None = None
    agent: str | None = None
    model: str | None = None
    autonomy: str | None = None
    workspace_isolation: bool = False
    accept_bare: bool | None = None
    limits: Limits = Limits()
    mcp_servers: dict[str, Any] = {}
    idempotency: Idempotency | None = None


class OpenProject(Message, Reply[str]):
    """To `projects`: the name of the project's actor, which is started if necessary."""

    project_id: str


class DeleteProject(Message, Reply[None]):
    """To `projects`: refused with `Conflict`, before any change, while sessions live."""

    project_id: str


class DeleteWorkspace(Message, Reply[None]):
    """To a ProjectActor: the default workspace and those with live sessions are refused."""

    workspace_id: str


class OpenContainer(Message, Reply[str]):
    """To a ProjectActor: the name of a container's supervisor, which is started if necessary."""

    workspace_id: str | None = None
    """Workspace, if workspaces are isolated; None = the default one."""


# ---------------------------------------------------------------------- sessions


class SpawnResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of session_spawn and session_message."""

    session_id: str
    project_id: str
    workspace_id: str
    workspace_created: bool
    status: str
    spawned: bool
    resumed: bool
    last_index: int
    turn: int = 0
    warnings: tuple[str, ...] = ()


class SharedTree(msgspec.Struct, frozen=True, kw_only=True):
    """A tree of several roots: sessions that its principal starts in one project with this id."""

    id: str
    limits: Limits = Limits()
    """Limits that were given with it."""


class SpawnSession(Message, Reply[SpawnResult]):
    """To a ProjectActor: resume or start a session and give it a prompt.

    With `session_id` it is that session, live or resumed; else the newest of the workspace and
    principal that was not ended, unless `new_session`; else a new one.
    """

    principal: str
    prompt: str
    session_id: str | None = None
    workspace_id: str | None = None
    create_workspace: bool = False
    new_session: bool = False
    external_id: str | None = None
    source: str | None = None
    caller_id: str | None = None
    caller_tools: tuple[CallerTool, ...] | None = None
    """None: unchanged (a new session of an agent inherits them)."""
    agent: str | None = None
    model: str | None = None
    autonomy: str | None = None
    api_key: str | None = None
    """A key for the agent's environment, given or minted by the caller of this message."""
    minted_token_id: str | None = None
    parent_session_id: str | None = None
    call_id: str | None = None
    """`{parent}/{call}` of the agent's call that waits for the turn; makes it idempotent."""
    tree: SharedTree | None = None
    """The tree that a new root joins; None: one of its own."""
    idempotency: Idempotency | None = None


class InterruptSession(Message, Reply[str]):
    """To a SessionActor: end the running turn; answers the status. No running turn is no error."""


class EndSession(Message, Reply[str]):
    """To a SessionActor, or with `session_id` to its ProjectActor if it does not run.

    Interrupts, ends the agent within 5 s, settles open requests; the session is never resumed.
    """

    session_id: str = ""
    reason: str = "session_end"
    final: bool = True
    """False: the server stops; a new message may resume it."""


class SessionEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to ReadEvents; `events` end where the committed log ended or a cap was reached."""

    session: Session
    events: tuple[Event, ...]
    last_index: int
    """Index of the last event returned, or `since_index` if there is none."""
    log_end: int
    """Index of the last committed event, -1 if there is none."""
    truncated_before: int | None = None
    turn_done: bool = False


class ReadEvents(Message, Reply[SessionEvents]):
    """To a SessionActor: events after `since_index`; waits up to `wait_seconds` for the first."""

    since_index: int = -1
    max_events: int = 500
    max_bytes: int = 4 * 1024 * 1024
    wait_seconds: float = 0.0


class GetSession(Message, Reply[Session]):
    """To a SessionActor: request for the current record."""


class AnswerCallerTool(Message, Reply[bool]):
    """To a SessionActor: the caller's answer. False: not open here, or not this principal's.

    True is answered only once the outcome is in the log.
    """

    principal: str
    request_id: str
    result: Any = None
    error: str | None = None


class ReportCallProgress(Message, Reply[bool]):
    """To a SessionActor: a caller's progress with a call of its tool.

    False: not open here, or not this principal's. Messages in quick succession replace each other.
    """

    principal: str
    request_id: str
    message: str


class AnswerPermission(Message, Reply[bool]):
    """To a SessionActor: a decision on a permission. False: not open here, not this principal's.

    True is answered only once the decision is in the log.
    """

    principal: str
    request_id: str
    decision: Literal["allow", "deny"]
    remember: bool = False
    """Whether it applies to all further requests of this kind, as long as the session lasts."""


# ---------------------------------------------------------------------- callers


class OpenCaller(Message, Reply[str]):
    """To `callers`: the name of the CallerActor of this caller; starts it."""

    principal: str
    caller_id: str


class CallerSeen(Message):
    """To a CallerActor: its principal used this caller_id; counts as a poll."""


class TrackRequest(Message):
    """To a CallerActor: send `reply_to` `CallerDisconnected` when the caller is, or goes, away.

    At once if the caller has no stream and no recent poll; never for a `durable` request.
    """

    request_id: str
    session_id: str
    reply_to: str
    """Name of the CallerRequestActor."""
    durable: bool = False
    adopted: bool = False
    """Recovered after a restart: an absent caller has until `grace` to come back."""
    grace: float = 0.0


class UntrackRequest(Message):
    """To a CallerActor: this request was settled."""

    request_id: str


class CallerDisconnected(Message):
    """To a CallerRequestActor: the caller is not there to answer."""

    reason: str


class EventsCommitted(Message):
    """From the store to a CallerActor, or to a subscriber: events that are in the log.

    They come in the order of their commit. A subscriber is asked: its answer, of any value,
    acknowledges them.
    """

    events: tuple[Event, ...]


# ---------------------------------------------------------------------- subscriptions


class SubscriptionOpened(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to OpenSubscription."""

    name: str
    """Name of the subscription, for CloseSubscription."""
    after: int
    """Cursor after which events are sent: an index of the session, else a seq."""


class OpenSubscription(Message, Reply[SubscriptionOpened]):
    """To `subscriptions`: send the events of a session, a project or all sessions to an actor.

    The subscriber is asked `EventsCommitted`, one batch at a time, in order and without gaps. A
    restarted subscriber of the same name continues after the last batch that it acknowledged.
    Opening a subscription again under its name changes nothing.
    """

    subscriber: str
    """Name of an actor that is alive."""
    session_id: str | None = None
    project_id: str | None = None
    """All sessions of this project; neither of the two: all sessions."""
    after: int | None = None
    """Cursor: the index of an event of the session, else a seq. -1: from the first event that is
    kept. None: from now on."""
    name: str | None = None
    """With a name, the cursor is stored, and takes the place of `after` when it is opened again."""
    restart_seconds: float = 30.0
    """Seconds that a subscriber that ended has to come back under its name."""


class CloseSubscription(Message, Reply[bool]):
    """To `subscriptions`: end a subscription. Answers whether there was one of this name."""

    name: str
    forget: bool = False
    """Whether its stored cursor is deleted too."""


class EventsDeleted(Message):
    """From a subscription to its subscriber: older events of a session were deleted from the log.

    Those from `first` to `before` that were not sent earlier are not sent. The subscriber is asked;
    one without a handler for it is not asked again.
    """

    session_id: str
    first: int
    """Index of the first event after the cursor; 0 if the cursor is a seq."""
    before: int
    """First index that is kept."""


class SubscriptionEnded(Message):
    """From a subscription to its subscriber: it sends nothing more, for this reason."""

    name: str
    reason: str


__all__ = [
    "AnswerCallerTool",
    "AnswerPermission",
    "CallerDisconnected",
    "CallerRequest",
    "CallerSeen",
    "CloseSubscription",
    "CreateProject",
    "DeleteProject",
    "DeleteWorkspace",
    "EndSession",
    "EventsCommitted",
    "EventsDeleted",
    "GetSession",
    "Idempotency",
    "InterruptSession",
    "OpenCaller",
    "OpenProject",
    "OpenSubscription",
    "Outcome",
    "ReadEvents",
    "SessionEvents",
    "SpawnResult",
    "SpawnSession",
    "SubscriptionEnded",
    "SubscriptionOpened",
    "TrackRequest",
    "UntrackRequest",
    "caller_actor_name",
    "caller_key",
]
