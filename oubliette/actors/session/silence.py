"""How long an agent may be silent in a turn, and what it is busy with meanwhile."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Protocol

from oubliette.actors.session.ports import AgentPort
from oubliette.actors.session.waits import Wait
from oubliette.kit import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.actors.session.recovery import StoredSession
    from oubliette.records import Session

_CALLED: Final = "tool_call"
_RETURNED: Final = "tool_result"
_OURS: Final = re.compile(r"(mcp[_.:]+oubliette[_.:]+|oubliette_+)[\w-]+")
"""What agents call tools of our MCP server, which they know as `oubliette`."""
_BASE: Final = frozenset({"session_message", "session_map", "session_events"})


class SilenceCheck(Message):
    """Perhaps the agent has said nothing for too long."""

    turn: int


class RequestServer(Protocol):
    """Serves the requests of the agent's client."""

    @property
    def serves(self) -> bool:
        """Whether a request waits for its answer."""
        ...


class SilencePort(AgentPort, Protocol):
    """A session whose agent asks for things, and is not silent while it waits for them."""

    @property
    def link(self) -> RequestServer:
        """Serves the agent's requests."""
        ...


class Silence:
    """The clock of one session's agent in its turns. Lives and dies with its actor.

    It stands still until the agent is ready, and while somebody else is at work for it: a tool of
    its own, or we, on a call that has reached us and is not answered. What it makes of an answer
    is its own business again, whether or not it says that the call is over.
    """

    def __init__(self, session: SilencePort) -> None:
        self._session = session
        self._limit = session.context.config.agents.silence_timeout_seconds
        self._spoke = 0.0
        self._watched: int | None = None
        """The turn whose silence is watched."""
        self._tools: dict[str, tuple[str, float]] = {}
        """Tool calls of the running turn that have no result yet: the tool, and since when."""

    def take_over(self, stored: StoredSession) -> None:
        """Take over which tools the running turn waits for."""
        self._tools = dict(stored.open_tools)

    def broken(self) -> None:
        """The agent has given a sign of life, or was given something to go on with."""
        self._spoke = self._session.clock.monotonic()

    def turn_started(self, turn: int) -> None:
        """Listen from now on."""
        self.broken()
        if self._watched != turn:
            self._watched = turn
            self._check_after(self._limit, turn)

    def turn_ended(self) -> None:
        """Nothing is expected any more."""
        self._tools.clear()
        self._watched = None

    def heard(self, kind: str, data: dict[str, Any]) -> None:
        """The agent said something."""
        self.broken()
        if kind == _CALLED:
            since = self._session.clock.time()
            self._tools[str(data.get("call_id"))] = (str(data.get("tool")), since)
        elif kind == _RETURNED:
            self._tools.pop(str(data.get("call_id")), None)

    def check(self, message: SilenceCheck) -> str | None:
        """Why the turn is to be given up, if it is; else it is looked at again."""
        session = self._session
        if self._watched != message.turn or session.turn != message.turn:
            return None
        left = self._spoke + self._limit - session.clock.monotonic()
        if self._stands_still:
            left = self._limit  # a tool, a child or a person may take as long as they have
        if left <= 0:
            limit = f"{self._limit:g} seconds (agents.silence_timeout_seconds)"
            return f"the agent said nothing for {limit}{self._unclosed}"
        self._check_after(left, message.turn)
        return None

    def _check_after(self, seconds: float, turn: int) -> None:
        self._session.after(seconds, SilenceCheck(turn=turn))

    @property
    def _stands_still(self) -> bool:
        session = self._session
        if not session.attached or not session.writer.record.agent_ready:
            return True
        return bool(self._own) or session.waits or session.link.serves

    @property
    def _own(self) -> list[tuple[str, float]]:
        """Its open calls of tools that are not ours: how long they take it alone knows."""
        record = self._session.writer.record
        return [call for call in self._tools.values() if not is_ours(call[0], record)]

    @property
    def _unclosed(self) -> str:
        tools = ", ".join(sorted({tool for tool, _ in self._tools.values()}))
        return f"; it has the answer to its call of {tools}" if tools else ""

    def waits(self, turn_since: float | None, retry: str | None) -> Iterator[Wait]:
        """What the agent does by itself, as far as it is known."""
        clock = self._session.clock
        calls = list(self._tools.values()) if self._session.link.serves else self._own
        spoke = clock.time() - clock.monotonic() + self._spoke
        for tool, since in calls:
            yield Wait(kind="tool", what=f"its own tool {tool}", since=since, last_event_at=spoke)
        if not calls:
            yield Wait(
                kind="model",
                what="the model of its agent",
                since=turn_since,
                until=spoke + self._limit,
                detail=retry,
                last_event_at=spoke,
            )


def is_ours(tool: str, record: Session) -> bool:
    """Whether a tool, as the agent calls it, is one that this session's agent has from us."""
    if _OURS.fullmatch(tool) or tool in _BASE:
        return True
    return any(
        tool in {lent.name, f"{record.caller_id}_{lent.name}"} for lent in record.caller_tools
    )
