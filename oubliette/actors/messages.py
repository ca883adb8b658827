"""Messages that cross between the domain actors, the tools and the front.

Requests are imperative, notices are in the past tense. Messages between only two neighbours are
defined beside them. Every message can be encoded as msgpack.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from oubliette.contract.project import Answers, BranchInfo
from oubliette.kit import Message, Reply
from oubliette.records import (
    AgentChoice,
    CallerTool,
    Conversation,
    Event,
    Limits,
    Project,
    ProjectRepository,
    Session,
)

Outcome = Literal["result", "tool_error", "timeout", "caller_gone", "cancelled"]


def caller_actor_name(principal: str, caller_id: str) -> str:
    return f"callers/{caller_key(principal, caller_id)}"


def caller_key(principal: str, caller_id: str) -> str:
    """The key under which the store publishes a caller's events."""
    return f"{principal}/{caller_id}"


class Idempotency(msgspec.Struct, frozen=True, kw_only=True):
    """Idempotency key of a request, so that it is safe to send again."""

    key: str
    tool: str
    digest: bytes


# ---------------------------------------------------------------------- projects


class CreateProject(AgentChoice, Message, Reply[Project]):
    """To `projects`: create a project, its folder and its default workspace."""

    principal: str
    name: str
    description: str = ""
    remote_url: str | None = None
    init_git: bool = True
    container_type: str | None = None
    workspace_isolation: bool = False
    accept_bare: bool | None = None
    limits: Limits = Limits()
    mcp_servers: dict[str, Any] = {}
    labels: dict[str, str] = {}
    """Labels that its node must have, in a cluster."""
    runtime: str | None = None
    """Container runtime that its node must have, in a cluster; None: any."""
    idempotency: Idempotency | None = None
    repository: ProjectRepository | None = None
    """Repository to clone; None: it begins empty."""
    progress_to: str | None = None
    """Name of an actor that gets `CloneProgressed`; None: none does."""
    answers: Answers = "owner"


class CloneProgressed(Message):
    """From `projects` or a ProjectActor to the actor that a request names: its progress."""

    text: str


class GetCloneProgress(Message, Reply[str | None]):
    """To `projects`: how far a project's clone is; None: none is under way here."""

    project_id: str


class RepositoryFetched(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to FetchRepository."""

    updated: tuple[str, ...] = ()
    """Branches that are new or have another commit."""
    removed: tuple[str, ...] = ()


class OpenProject(Message, Reply[str]):
    """To `projects`: the name of the project's actor, which is started if necessary."""

    project_id: str


class GetProblem(Message, Reply[str | None]):
    """To a ProjectActor: why its folders cannot be used; None: they can."""

    workspace_id: str | None = None
    """Workspace that is meant; None: the project and all of its workspaces."""


class FetchRepository(Message, Reply[RepositoryFetched]):
    """To a ProjectActor: fetch what is new where the project was cloned from."""

    progress_to: str | None = None
    """Name of an actor that gets `CloneProgressed`."""


class ListBranches(Message, Reply[tuple[BranchInfo, ...]]):
    """To a ProjectActor: the branches that were fetched, those with the newest commits first."""


class UpdateProject(Message, Reply[Project]):
    """To `projects`: change what is given; `allow_push` is refused without a repository."""

    project_id: str
    allow_push: bool | None = None
    answers: Answers | None = None


class ServeRepository(Message, Reply[str]):
    """To a ProjectActor: the folder of a repository that has its branches and its snapshots.

    git's clients are to fetch from it; it is as new as the answer.
    """


class DeleteProject(Message, Reply[None]):
    """To `projects`: refused with `Conflict`, before any change, while sessions live."""

    project_id: str


class DeleteWorkspace(Message, Reply[None]):
    """To a ProjectActor: the default workspace and those with live sessions are refused.

    So is one with something that its last snapshot does not contain, unless `discard` names its
    tree.
    """

    workspace_id: str
    discard: str | None = None


class OpenContainer(Message, Reply[str]):
    """To a ProjectActor: the name of a container's supervisor, which is started if necessary."""

    workspace_id: str | None = None
    """Workspace, if workspaces are isolated; None = the default one."""
    for_use: bool = False
    """Whether its workspaces are used: files that are on another node come before the answer."""
    command: bool = False
    """Whether a command is to run in it: refused in a project above `projects.max_bytes`."""


class ImageStored(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to SnapshotContainer."""

    image: str
    image_id: str
    size_bytes: int | None


class SnapshotContainer(Message, Reply[ImageStored]):
    """To a ProjectActor: make an image of a container; the project's next ones begin with it."""

    name: str
    """Tag of the image."""
    workspace_id: str | None = None
    """Workspace, if workspaces are isolated; None = the default one."""


class ResetImage(Message, Reply[None]):
    """To a ProjectActor: make the next containers of the image of their type again."""


# ---------------------------------------------------------------------- sessions


class SessionFork(msgspec.Struct, frozen=True, kw_only=True):
    """Session that a new one is a fork of: its files, and its conversation up to a turn."""

    session_id: str
    workspace_id: str
    """Workspace of that session."""
    snapshot: str | None
    """Name of the snapshot with the files; None: the workspace always was empty."""
    turn: int
    """Last turn of the conversation; 0: none."""
    large_files: bool = False
    """Whether files of which snapshots have no content are copied from that workspace."""
    missing_count: int = 0
    """Files that are not as they were, as the snapshot does not have their content."""
    missing: dict[str, str] = {}
    """Some of them, and what is known."""
    new_session_id: str | None = None
    """Id of the fork, once its HOME is made."""
    native: bool = False
    """Whether that has what its agent needs to know the conversation."""
    agent_session_id: str | None = None
    """The agent's own id of the conversation in it, which a fork's agent is to fork."""


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
    fork: SessionFork | None = None
    """Origin of a new session that is a fork."""
    conversation: Conversation | None = None
    """Origin of what a fork knows of the conversation."""


class SharedTree(msgspec.Struct, frozen=True, kw_only=True):
    """A tree of several roots: sessions that its principal starts in one project with this id."""

    id: str
    limits: Limits = Limits()
    """Limits that were given with it."""


class SpawnSession(AgentChoice, Message, Reply[SpawnResult]):
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
    title: str | None = None
    """Of a new session; None: the first line of the prompt."""
    caller_id: str | None = None
    caller_tools: tuple[CallerTool, ...] | None = None
    """None: unchanged (a new session of an agent inherits them)."""
    api_key: str | None = None
    """A key for the agent's environment, given or minted by the caller of this message."""
    minted_token_id: str | None = None
    given_token_id: str | None = None
    parent_session_id: str | None = None
    call_id: str | None = None
    """`{parent}/{call}` of the agent's call that waits for the turn; makes it idempotent."""
    tree: SharedTree | None = None
    """The tree that a new root joins; None: one of its own."""
    fork: SessionFork | None = None
    """Session that the new one is a fork of, in a new workspace; None: of none."""
    branch_from: str | None = None
    """Workspace whose files a new workspace has, as they are now; None: that of none."""
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
    at_rest: bool = False
    """Refuse it with `Conflict` while a turn runs or waits."""


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
    whole_bytes: int | None = None
    """Bytes above which a stored event comes as a reference; None: all come whole."""


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
    """To a SessionActor: a decision on a permission, by a principal that may. False: not open here.

    True is answered only once the decision is in the log.
    """

    principal: str
    """Principal that decides. The sender has checked its rights."""
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
