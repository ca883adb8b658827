"""Records of the store: one frozen struct for each table, shared by all layers above it.

Times are wall-clock seconds (UTC). A record is replaced, never changed in place.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Literal, TypeVar

import msgspec

from oubliette import json_values
from oubliette.contract.limits import Limits
from oubliette.contract.project import Answers
from oubliette.contract.session_tools import SessionStatus

S = TypeVar("S", bound=msgspec.Struct)

MAX_TITLE: Final = 200  # characters

TERMINAL: Final = frozenset({"completed", "failed", "timed_out"})

TurnState = Literal["queued", "running", "done"]
TurnOutcome = Literal["completed", "interrupted", "failed"]

Conversation = Literal["native", "transcript"]
"""Origin of what a fork knows: its agent's own files, or a text before its first prompt."""
Forks = Literal["turn", "end"]
"""Place where an agent can fork a conversation: at the end of any turn, or of the last one."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all records."""


class AgentChoice(Record, frozen=True):
    """Choice of an agent and of how it works; None: none was made.

    What passes a choice on inherits it. `Project` and `Session` have the same fields, in the order
    that their rows have had since the first release.
    """

    agent: str | None = None
    model: str | None = None
    autonomy: str | None = None


def same_fields(source: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of `source` that `kind` has too."""
    return {name: getattr(source, name) for name in _same_names(type(source), kind)}


def made_of(source: msgspec.Struct, kind: type[S], **others: Any) -> S:
    """Return a `kind` with the fields that `source` has too; `others` have precedence."""
    return kind(**same_fields(source, kind) | others)


@cache
def _same_names(one: type[msgspec.Struct], other: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(name for name in one.__struct_fields__ if name in other.__struct_fields__)


def _any_object() -> dict[str, Any]:
    return {"type": "object"}


class CallerTool(Record, frozen=True, rename="camel"):
    """A tool that a caller provides (`caller_tools`)."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = msgspec.field(default_factory=_any_object)
    durable: bool = False


class Principal(Record, frozen=True):
    """Owner of tokens and sessions; it outlives the tokens that it replaces."""

    id: str
    name: str
    created_at: float


class Token(Record, frozen=True):
    """A key, without its secret: only its id and the SHA-256 of the secret are kept."""

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
    """Session of a minted key, which is valid on that session's link only, until it ends."""
    transports: tuple[str, ...] = msgspec.field(default=("http", "socket"), name="doors")
    """Transports over which the key is valid, of `http` and `socket`."""
    users: tuple[str, ...] = ()
    """Users (`external_id`s of workspaces) for whom the key may act; see `tools/user_rights.py`."""


class ProjectRepository(Record, frozen=True):
    """The repository that a project was cloned from."""

    url: str | None = None
    """Its URL, without a password; None: it is a folder."""
    path: str | None = None
    """Its folder on the machine of the project's home."""
    branch: str | None = None
    """Branch that workspaces begin at; None: the one that was HEAD there."""
    depth: int | None = None
    """Commits of each branch that are fetched; None: all."""
    submodules: bool = False
    """Whether workspaces have its submodules too."""
    lfs: bool = False
    """Whether Git LFS keeps some of its files."""
    fetch_lfs: bool = False
    """Whether workspaces have the content of those files, and not pointers to it."""
    dirty: bool = False
    """Whether uncommitted changes of the folder come too."""
    push: bool = False
    """Whether branches may be pushed to it."""
    ready: bool = False
    """Whether it has been cloned."""


class Project(Record, frozen=True):
    """A project; its folder is a view of this record."""

    id: str
    name: str
    created_at: float
    default_workspace_id: str
    uid: int
    """User id of its agents, if the server can choose one."""
    description: str = ""
    remote_url: str | None = None
    container_type: str | None = None
    agent: str | None = None
    model: str | None = None
    autonomy: str | None = None
    workspace_isolation: bool = False
    accept_bare: bool | None = None
    """Whether clients without a secret are accepted; None: as in `relay.accept_bare`."""
    limits: Limits = Limits()
    mcp_servers: dict[str, Any] = {}
    owner: str = ""
    deleted_at: float | None = None
    labels: dict[str, str] = {}
    """Labels that its node must have, in a cluster."""
    runtime: str | None = None
    """Container runtime that its node must have, in a cluster; None: any."""
    repository: ProjectRepository | None = None
    """Repository that it was cloned from; None: it began empty."""
    image: str | None = None
    """Image of its containers that `container_snapshot` made; None: that of its container type."""
    answers: Answers = "owner"


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
    """A container of this instance, until it is removed."""

    id: str
    project_id: str
    workspace_id: str | None
    container_type: str
    runtime: str
    state: Literal["creating", "running", "stopped", "lost"]
    created_at: float
    spec_hash: str
    host_key: bytes
    """Key with which the server and the guest authenticate each other."""
    folder: str
    """Folder of its relay socket, on the server's side."""
    handle: dict[str, Any] = {}
    """Data with which the runtime finds it again."""


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
    autonomy_chosen: bool = False
    """Whether it was given, by the request, the project or the session before; otherwise an agent
    that asks for a permission is not answered by the server.
    """
    isolation: str = "container"
    status_reason: str | None = None
    ended_at: float | None = None
    ended_by: str | None = None
    """`session_end` if it was ended on request: then no message resumes it."""
    ending: str | None = None
    """Reason of an end that was requested and is not complete; the session's next actor continues
    it."""
    ending_final: bool = True
    """Whether that end is final: no message resumes the session."""
    turn_count: int = 0
    title: str = ""
    """As given, or the first line of its first prompt; empty in records of earlier releases."""
    last_prompt: str | None = None
    final_response: str | None = None
    caller_id: str | None = None
    caller_tools: tuple[CallerTool, ...] = ()
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0
    limits: Limits = Limits()
    tree_limits: Limits | None = None
    """Limits that were given for its tree, if several roots share it; None: it has one root."""
    tree_project_id: str = ""
    """Project in which its tree began; empty in records of earlier releases: that of its root."""
    container_id: str | None = None
    process_id: str | None = None
    process_err: int = 0
    """Offset of the agent's standard error up to which it is kept."""
    process_frames: int = 3
    """Number of frames of the process's input before its first prompt; 3 in earlier releases."""
    pairing_secret: str | None = None
    external_id: str | None = None
    source: str | None = None
    agent_session_id: str | None = None
    minted_token_id: str | None = None
    given_key: bool = False
    """Whether its agent was given a key: one that was minted, or one of its owner's own."""
    given_token_id: str | None = None
    """Token of that key of its owner's own; None: it was minted, or is none of this server."""
    agent_ready: bool = True
    """Whether the agent was ready."""
    forked_from: str | None = None
    """Session that it is a fork of; None: of none."""
    forked_at: str | None = None
    """Snapshot with whose files it began; None: a fork of a workspace that always was empty."""
    forked_at_turn: int | None = None
    """Last turn of that session whose conversation it knows."""
    conversation: Conversation | None = None
    """Origin of what it knows; None: it is no fork."""
    forked_conversation: str | None = None
    """Agent's own id of the conversation that its agent is to fork; None: there is no such one."""
    agent_forks: Forks | None = None
    """Place where its agent, when it was last ready, could fork the conversation; None: nowhere."""
    agent_contacted: bool = True
    """Whether the agent has started our MCP server; True too for agents that do so on demand."""
    remembered: dict[str, Literal["allow", "deny"]] = {}
    """Kind of permission → the decision that holds for the rest of the session."""
    log_bytes: int = 0
    """Size of its events, roughly, when the record was stored last."""


def title_of(prompt: str) -> str:
    """The title of a session that begins with this prompt: its first line with a text."""
    lines = (line.strip() for line in prompt.splitlines())
    return next(filter(None, lines), "")[:MAX_TITLE]


class Turn(Record, frozen=True):
    """One message to an agent, from its acceptance to its end."""

    session_id: str
    number: int
    prompt: str
    state: TurnState
    created_at: float
    stdin_seq: int | None = None
    """Sequence number of the frame that carries it; the guest drops frames that it already has."""
    call_id: str | None = None
    """`{parent session}/{call id}` of the agent's call that waits for it."""
    outcome: str | None = None
    result: str | None = None
    context: str = ""
    """Text that the agent gets before the prompt: the conversation that a fork begins with."""
    began_at: float | None = None
    """Wall second in which it began to run; None: it has not, or under an earlier release."""
    began_index: int | None = None
    """Index of the session's next event then."""
    cost_before: float | None = None
    """Cost of the session until then, in US dollars; None: as for `began_at`."""


class Used(Record, frozen=True):
    """Usage of an agent, or a sum of it; None: nothing was reported."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    measured_usd: float | None = None
    """Cost by the configured prices, in US dollars."""
    reported_usd: float | None = None
    """Cost as the agent itself states it."""
    turns: int = 0
    """Turns that have ended, of those that began to run."""


class Event(Record, frozen=True):
    """One entry of a session's log.

    `index` counts 0, 1, 2 … within the session; `seq` is global, in commit order, set by the store.
    `data` holds the fields of its type; `version` is that of the type's fields.
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
    """With `principal`, the caller that receives it."""
    source: str | None = None
    """`{process}:{offset}:{ordinal}` of the output it was read from; unique within the session."""

    def sendable(self) -> Event:
        """The event as it can be sent to everybody.

        That is by reference if an earlier release has stored what may not enter any more.
        """
        if json_values.is_fit(self.data):
            return self
        return self.by_reference(json_values.size(self.data))

    def unnamed(self) -> Event:
        """The event without names of principals, which are not for all who may read it."""
        if self.type != "permission_settled" or "by" not in self.data:
            return self
        kept = {name: value for name, value in self.data.items() if name != "by"}
        return msgspec.structs.replace(self, data=kept)

    def by_reference(self, size: int) -> Event:
        """The event with a reference, by which `event_read` finds it, for its `size` bytes.

        Of a request it keeps enough to refuse it without reading it.
        """
        kept = {key: self.data[key] for key in _KEPT.get(self.type, ()) if key in self.data}
        if not json_values.is_fit(kept):
            kept = {"request_id": str(kept.get("request_id"))}
        ref = {"session_id": self.session_id, "index": self.index}
        return msgspec.structs.replace(self, data={**kept, "ref": ref, "size": size})


_KEPT: Final = {
    "caller_tool_request": ("request_id", "tool"),
    "permission_request": ("request_id", "asks_for", "deadline", "ancestry"),
}


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
    """One permission that an agent asked for; decided exactly once."""

    id: str
    """Our id: agents begin to count again in each process."""
    session_id: str
    principal: str
    caller_id: str | None
    """With `principal`, the caller of the root session, which decides."""
    agent_request_id: str
    """The agent's own id of the request."""
    asks_for: str
    """Kind of the permission; a decision for the session covers all of that kind."""
    turn: int
    created_at: float
    deadline: float
    """Wall-clock second after which it is denied."""
    event_index: int
    decision: Literal["allow", "deny"] | None = None
    reason: str = ""
    settled_at: float | None = None
    by: str | None = None
    """Principal that decided; None: none did, or under an earlier release."""


class IdempotencyKey(Record, frozen=True):
    """The answer to a request with this key (unique per principal, kept 24 h)."""

    principal: str
    tool: str
    key: str
    digest: bytes
    """SHA-256 of the arguments: the same key with other arguments is an error."""
    created_at: float
    answer: dict[str, Any] | None = None
