"""The port behind which agents live.

An agent is one process in a container that speaks its own protocol on its standard streams. Two
things are known of it here: how to start it (`AgentRuntime.command`), and what its bytes mean
(`AgentAdapter`). An adapter does no I/O and knows no clock: the same bytes, cut anywhere, give
the same events with the same places, so that what was committed before a crash is recognised
when it is read again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

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
"""What `AgentEvent.data` holds by kind, besides `turn` where it belongs to one:

`ready` agent, version, and agent_session_id where the agent has a name for the conversation that it
can be resumed by; `turn_started` nothing; `delta` and `message` text; `tool_call` call_id,
tool, arguments; `tool_result` call_id, tool, is_error, result; `permission_request` request_id
(all that `permission` needs to answer it, in whatever words), text, and asks_for where a decision
may hold for more than this text; `usage` cost_usd, tokens; `error` message; `completion`
final_text, status (completed | interrupted | failed), exactly one per turn and its last; `system`
whatever else the agent said: `raw` (a line that is no message), or `type` and the other fields of
a message that we do not know; `retry` is a `type` of ours: attempt (from 1), message and perhaps
next_seconds, for a model that failed and is asked again.
"""


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that an agent said."""

    type: EventKind
    data: dict[str, Any]
    end_offset: int
    """Offset in the agent's output of the end of the line that it was read from."""
    ordinal: int
    """Its place among the events of that line, from 0."""
    ack_offset: int
    """Once this event is committed, output before this offset need not be read again: the line's
    end for the last event of a line, its start for the others."""


class AgentCommand(msgspec.Struct, frozen=True, kw_only=True):
    """What to start in the container."""

    argv: tuple[str, ...]
    env: dict[str, str]
    """The whole environment. Secrets belong here and never into `argv`."""
    cwd: str
    files: tuple[AgentFile, ...] = ()
    """To be written into the session's HOME before the start."""


class AgentFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a session's HOME."""

    path: str
    """Relative to HOME, without `..`."""
    content: bytes
    mode: int = 0o600


class AgentSession(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent is told about the session that it is."""

    session_id: str
    project_id: str
    depth: int
    cwd: str
    """As documented, `/workspace/workspaces/<uuid>`; `Inside.path` says where that is."""
    home: str
    """As documented, `/home/agent/<session_id>`."""
    pairing_secret: str
    """Opens the session's relay link; goes into the environment only."""
    api_key: str | None = None
    model: str | None = None
    autonomy: str = "off"
    mcp_servers: dict[str, Any] = {}
    outage_seconds: float = 600.0
    """How long our client waits with an open call for a server that is away; for so long the host
    keeps the agent."""
    agent_session_id: str | None = None
    """What the agent called itself before; set for a resume."""
    env: dict[str, str] = {}
    """Further variables (keys of model providers)."""
    credentials: dict[str, str] = {}
    """Secrets that its project was given, by name: what `credential:NAME` refers to."""


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an agent can be used; `remedy` is what to do if not."""

    ok: bool
    reason: str | None = None
    remedy: str | None = None


class AgentAdapter(Protocol):
    """The agent's protocol, both ways, for one process. Deterministic; no I/O."""

    @property
    def handshake(self) -> int:
        """How many frames of `writes` come before the first prompt; the same for each process.

        Fixed, because input is numbered: a server that takes the process over knows from the
        number of a frame which it was. A protocol with fewer to say fills up with empty ones.
        """
        ...

    @property
    def ready(self) -> bool:
        """Whether the handshake is over: `prompt`, `interrupt` and `permission` make sense."""
        ...

    @property
    def failed(self) -> str | None:
        """Why the handshake will never be over; the process is of no use then."""
        ...

    @property
    def steps(self) -> int:
        """Steps of its model in the turn that was read last: answers, with the calls in them."""
        ...

    def feed(self, data: bytes, offset: int) -> list[AgentEvent]:
        """Events in output that begins at `offset`.

        What was fed before is skipped. After a gap the unfinished line is given up, and a `system`
        event says what is missing. Nothing that an agent sends makes this raise.
        """
        ...

    def writes(self) -> list[bytes]:
        """What the protocol wants said without anybody asking (handshakes, answers); each once.

        One frame each. To be called after the adapter was made and after each `feed`, and to be
        sent in order. The first `handshake` of them are the handshake.
        """
        ...

    def prompt(self, turn: int, text: str) -> bytes:
        """Input that begins a turn."""
        ...

    def interrupt(self, turn: int) -> bytes | None:
        """Input that ends a turn early; None where the agent takes a signal (SIGINT) instead."""
        ...

    def permission(
        self, request_id: str, decision: Literal["allow", "deny"], reason: str = ""
    ) -> bytes:
        """Input that answers a `permission_request`."""
        ...

    def state(self) -> dict[str, Any]:
        """What a new adapter needs to go on at the last `ack_offset`; plain JSON."""
        ...


class AgentExecutor(Protocol):
    """One running agent. One reader of `events` at a time; `send` may come from elsewhere."""

    @property
    def proc(self) -> str:
        """Its id at the host."""
        ...

    @property
    def exit(self) -> Exit | None:
        """How the process ended; None until it has, and its output was read."""
        ...

    @property
    def stderr(self) -> str:
        """The end of what it wrote to standard error so far, for error messages."""
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
        """What the agent says, to its end. What is not read holds it back; nothing is lost.

        Raises:
            RuntimeFailure: the agent refused to begin.
        """
        ...

    async def close(self) -> None:
        """End the process: its input, then after a grace the process itself and all it started."""
        ...


class AgentRuntime(Protocol):
    """One kind of agent."""

    @property
    def name(self) -> str:
        """`scripted`, `droid`, `opencode` and so on."""
        ...

    @property
    def reattach(self) -> bool:
        """A running process can be taken over by a new server from any `ack_offset`."""
        ...

    @property
    def resume(self) -> bool:
        """A new process can go on where an ended one of the same session stopped."""
        ...

    @property
    def starts_mcp(self) -> bool:
        """A process starts our MCP server by itself, not only when it needs a tool."""
        ...

    @property
    def hears_tool_changes(self) -> bool:
        """A running process lists the tools of an MCP server again when it is notified."""
        ...

    @property
    def slow_start(self) -> str:
        """What to look at when a process does not get ready; "" where nothing special is known."""
        ...

    async def initialize(self, config: Mapping[str, Any]) -> None:
        """Take the configuration of this kind of agent.

        Raises:
            ConfigError: it cannot be used; the message names the key.
        """
        ...

    async def is_available(self) -> Availability:
        """Whether sessions of it can be started here; never raises."""
        ...

    def command(self, session: AgentSession, inside: Inside) -> AgentCommand:
        """How to start the process of a session."""
        ...

    def adapter(
        self, session: AgentSession, inside: Inside, state: Mapping[str, Any] | None = None
    ) -> AgentAdapter:
        """An adapter for a new process, or for a running one with the state it had."""
        ...

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """What its containers need from this side: the agent's program, read-only."""
        ...

    async def execute(
        self, link: ControlLink, inside: Inside, session: AgentSession, prompt: str
    ) -> str:
        """One turn in a process of its own; its final text.

        Raises:
            RuntimeFailure: the turn failed or the process ended before it did.
        """
        ...

    async def execute_streaming(
        self, link: ControlLink, inside: Inside, session: AgentSession
    ) -> AgentExecutor:
        """Start the process and talk to it turn by turn."""
        ...

    async def close(self) -> None:
        """Let go of what this object holds; agents go on."""
        ...
