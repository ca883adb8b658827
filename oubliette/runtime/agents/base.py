"""Interface of agents.

An agent is one process in a container with its own protocol on its standard streams. Two things are
defined here: the command that starts it (`AgentRuntime.command`), and the meaning of its bytes
(`AgentAdapter`). An adapter does no I/O and has no clock: the same bytes, cut anywhere, give the
same events with the same positions, so that events committed before a crash are recognised when
they are read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

import msgspec

from oubliette.records import AgentChoice

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from oubliette.runtime.containers.base import Inside, Mount
    from oubliette.runtime.guest import ControlLink, Exit

EventKind: TypeAlias = Literal[
    "ready",
    "turn_started",
    "delta",
    "message",
    "tool_call",
    "tool_result",
    "permission_request",
    "usage",
    "error",
    "completion",
    "system",
]
"""Contents of `AgentEvent.data` by kind, besides `turn` where it belongs to one:
`ready` agent, version, and agent_session_id if the agent has an id for the conversation by which it
can be resumed, with forks (turn | end) if that can be forked at the end of any turn or of the last
one, and forked if it should begin with `AgentSession.fork_of`: whether it does; `turn_started`
nothing; `delta` and `message` text; `tool_call` call_id,
tool, arguments; `tool_result` call_id, tool, is_error, result; `permission_request` request_id
(all that `permission` needs to answer it, in any format), text, and asks_for if a decision
may hold for more than this text; `usage` cost_usd, tokens; `error` message; `completion`
final_text, status (completed | interrupted | failed), exactly one per turn and its last; `system`
any other output of the agent: `raw` (a line that is no message), or `type` and the other fields of
an unknown message; `retry` is a `type` of ours: attempt (from 1), message and perhaps
next_seconds, for a model that failed and is called again.
"""


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of an agent."""

    type: EventKind
    data: dict[str, Any]
    end_offset: int
    """Offset in the agent's output of the end of the line of this event."""
    ordinal: int
    """Position among the events of that line, from 0."""
    ack_offset: int
    """Once this event is committed, output before this offset need not be read again: the line's
    end for the last event of a line, its start for the others."""


class AgentCommand(msgspec.Struct, frozen=True, kw_only=True):
    """Command to start in the container."""

    argv: tuple[str, ...]
    env: dict[str, str]
    """The whole environment. Secrets belong here and never into `argv`."""
    cwd: str
    files: tuple[AgentFile, ...] = ()
    """Files to write into the session's HOME before the start."""


class AgentFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a session's HOME."""

    path: str
    """Relative to HOME, without `..`."""
    content: bytes
    mode: int = 0o600


class ForkPoint(msgspec.Struct, frozen=True, kw_only=True):
    """End of a turn in a conversation of the agent."""

    agent_session_id: str
    """The agent's own id of the conversation."""
    turn: int
    """The last turn that a fork knows."""


class AgentSession(AgentChoice, frozen=True, kw_only=True):
    """Session of an agent, as the agent needs it."""

    session_id: str
    project_id: str
    depth: int
    cwd: str
    """As documented, `/workspace/workspaces/<uuid>`; `Inside.path` maps it."""
    home: str
    """As documented, `/home/agent/<session_id>`."""
    pairing_secret: str
    """Secret of the session's relay link; only passed in the environment."""
    api_key: str | None = None
    autonomy: str = "off"
    mcp_servers: dict[str, Any] = {}
    outage_seconds: float = 600.0
    """Seconds for which our client waits with an open call for a lost server; the guest keeps the
    agent for as long."""
    agent_session_id: str | None = None
    """The agent's own id of the conversation; set for a resume."""
    fork_of: ForkPoint | None = None
    """Conversation in the files of its HOME that its own is to be forked from, or was."""
    env: dict[str, str] = {}
    """Further variables (keys of model providers)."""
    credentials: dict[str, str] = {}
    """Secrets granted to its project, by name: values of `credential:NAME`."""


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """Availability of an agent, with a remedy if it is unavailable."""

    ok: bool
    reason: str | None = None
    remedy: str | None = None


class AgentAdapter(Protocol):
    """Both directions of the agent's protocol, for one process. Deterministic; no I/O."""

    @property
    def handshake(self) -> int:
        """Number of frames of `writes` before the first prompt; the same for each process.

        Fixed, because input is numbered: a server that takes the process over identifies a frame by
        its number. A protocol with fewer frames adds empty ones.
        """
        ...

    @property
    def ready(self) -> bool:
        """Whether the handshake is over: `prompt`, `interrupt` and `permission` are valid."""
        ...

    @property
    def failed(self) -> str | None:
        """Reason why the handshake will never be over; the process is then of no use."""
        ...

    @property
    def steps(self) -> int:
        """Steps of the model in the last turn read: answers, with the calls in them."""
        ...

    def feed(self, data: bytes, offset: int) -> list[AgentEvent]:
        """The events in output that begins at `offset`.

        Output fed before is skipped. After a gap the unfinished line is dropped, and a `system`
        event reports the missing range. No output of an agent makes this raise.
        """
        ...

    def writes(self) -> list[bytes]:
        """Return frames that the protocol requires unprompted (handshakes, answers); each once.

        To be called after the adapter was made and after each `feed`; the frames are to be sent in
        order. The first `handshake` of them are the handshake.
        """
        ...

    def prompt(self, turn: int, text: str) -> bytes:
        """Return input that begins a turn."""
        ...

    def interrupt(self, turn: int) -> bytes | None:
        """Return input that ends a turn early; None if the agent takes SIGINT instead."""
        ...

    def permission(
        self, request_id: str, decision: Literal["allow", "deny"], reason: str = ""
    ) -> bytes:
        """Return input that answers a `permission_request`."""
        ...

    def state(self) -> dict[str, Any]:
        """Return the state for a new adapter to continue at the last `ack_offset`; plain JSON."""
        ...


class AgentExecutor(Protocol):
    """One running agent. One reader of `events` at a time; `send` may come from elsewhere."""

    @property
    def proc(self) -> str:
        """Process id given by the guest."""
        ...

    @property
    def exit(self) -> Exit | None:
        """End of the process; None until it has ended and its output was read."""
        ...

    @property
    def stderr(self) -> str:
        """Last part of its standard error so far, for error messages."""
        ...

    async def send(self, text: str) -> int:
        """Begin a turn and return its number.

        Raises:
            Conflict: the turn before has not ended yet.
        """
        ...

    async def interrupt(self) -> None:
        """End the running turn early; its `completion` still comes. Nothing before it began."""
        ...

    async def answer(self, request_id: str, *, allow: bool, reason: str = "") -> None:
        """Answer a `permission_request`."""
        ...

    def events(self) -> AsyncGenerator[AgentEvent, None]:
        """Yield the agent's events to its end. Unread events hold it back; none is lost.

        Raises:
            RuntimeFailure: the agent refused to begin.
        """
        ...

    async def close(self) -> None:
        """End the process: its input, then after a grace the process itself and all it started."""
        ...


def session_files(agent: AgentRuntime) -> tuple[str, ...]:
    """The paths in HOME of the files of an agent's conversations, if it declares `session_files`.

    They may be folders with nothing else in them, above all no credentials. They are brought along
    when a session is resumed on another node.
    """
    found: tuple[str, ...] = getattr(agent, "session_files", ())
    return found


class ForksConversations(Protocol):
    """An agent whose conversation can begin as a part of another one's; part of `AgentRuntime`."""

    @property
    def conversation_file(self) -> str:
        """Name in HOME of the file that has what is needed."""
        ...

    def forked_files(self, content: bytes | None, turn: int) -> dict[str, bytes]:
        """Return files for HOME of a session that knows another one up to a turn.

        Args:
            content: The other session's `conversation_file`, which its agent has written; None: it
                has none.
            turn: Number of the last turn.
        """
        ...


def forks_conversations(agent: AgentRuntime) -> ForksConversations | None:
    """Return the agent as one whose conversations can be forked; None: it cannot."""
    return cast("ForksConversations", agent) if hasattr(agent, "forked_files") else None


class AgentRuntime(Protocol):
    """One kind of agent."""

    @property
    def name(self) -> str:
        """Name of the agent: `scripted`, `droid`, `opencode` and so on."""
        ...

    @property
    def starts_mcp(self) -> bool:
        """Whether a process starts our MCP server unprompted, not only when it needs a tool."""
        ...

    @property
    def hears_tool_changes(self) -> bool:
        """Whether a running process lists the tools of an MCP server again when it is notified."""
        ...

    @property
    def slow_start(self) -> str:
        """Advice when a process does not become ready; "" if none is known."""
        ...

    async def initialize(self, config: Mapping[str, Any]) -> None:
        """Apply the configuration of this kind of agent.

        Raises:
            ConfigError: it is invalid; the message names the key.
        """
        ...

    async def is_available(self) -> Availability:
        """Return whether sessions of it can be started here; never raises."""
        ...

    def command(self, session: AgentSession, inside: Inside) -> AgentCommand: ...

    def adapter(
        self, session: AgentSession, inside: Inside, state: Mapping[str, Any] | None = None
    ) -> AgentAdapter:
        """Return an adapter for a new process, or for a running one with its former state."""
        ...

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Return read-only mounts of the agent's program for its containers."""
        ...

    async def execute(
        self, link: ControlLink, inside: Inside, session: AgentSession, prompt: str
    ) -> str:
        """Run one turn in a process of its own; return its final text.

        Raises:
            RuntimeFailure: the turn failed or the process ended first.
        """
        ...

    async def execute_streaming(
        self, link: ControlLink, inside: Inside, session: AgentSession
    ) -> AgentExecutor:
        """Start the process and converse with it turn by turn."""
        ...

    async def close(self) -> None:
        """Release this object's resources; agents go on."""
        ...
