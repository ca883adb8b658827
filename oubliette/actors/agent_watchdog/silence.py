"""Limit on the time that an agent may be silent in a turn, and its activity meanwhile."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.actors.session.waits import Wait
from oubliette.contract.agent_tools import AGENT_TOOLS
from oubliette.kit import Message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.records import Session

_CALLED: Final = "tool_call"
_RETURNED: Final = "tool_result"
_OURS: Final = re.compile(r"(mcp[_.:]+oubliette[_.:]+|oubliette_+)[\w-]+")
"""Names that agents use for tools of our MCP server, which they know as `oubliette`."""
_BASE: Final = frozenset(tool.name for tool in AGENT_TOOLS.values() if tool.kind == "base")


class SilenceCheck(Message):
    """Time to check whether the agent was silent for too long."""

    turn: int


@dataclass(frozen=True, slots=True)
class CheckAgain:
    """The turn may continue; a `SilenceCheck` is due in so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class SilentTooLong:
    """The turn is to be given up."""

    reason: str


class Silence:
    """The time since the last sign of life of one session's agent, in its turns.

    It does not count until the agent is ready, and while something else works for it: a tool of
    its own, or we, on a call that has reached us and is not answered. After the answer it counts
    again, whether or not the agent reports the end of the call.

    `now` is a monotonic second in all methods, `wall` a wall second.
    """

    __slots__ = ("_limit", "_spoke", "_tools", "_watched")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._spoke = 0.0
        self._watched: int | None = None
        """The turn whose silence is watched."""
        self._tools: dict[str, tuple[str, float]] = {}
        """Tool calls of the running turn without a result: the tool, and the time of the call."""

    def recover(self, open_tools: dict[str, tuple[str, float]]) -> None:
        """Recover the open tool calls of the running turn."""
        self._tools = dict(open_tools)

    def broken(self, now: float) -> None:
        """Record a sign of life of the agent, or new input for it."""
        self._spoke = now

    def turn_started(self, turn: int, now: float) -> float | None:
        """Return the seconds until `SilenceCheck` is due; None if the turn is watched already."""
        self.broken(now)
        if self._watched == turn:
            return None
        self._watched = turn
        return self._limit

    def turn_ended(self) -> None:
        """Expect nothing more."""
        self._tools.clear()
        self._watched = None

    def heard(self, kind: str, data: dict[str, Any], now: float, wall: float) -> None:
        """Note an item of the agent's output."""
        self.broken(now)
        if kind == _CALLED:
            self._tools[str(data.get("call_id"))] = (str(data.get("tool")), wall)
        elif kind == _RETURNED:
            self._tools.pop(str(data.get("call_id")), None)

    def check(
        self, turn: int, now: float, record: Session, *, waits: bool
    ) -> CheckAgain | SilentTooLong | None:
        """Decide whether the agent has been silent for too long in a turn.

        Args:
            turn: The turn that the check is about.
            now: Monotonic second.
            record: Of the session.
            waits: Whether the agent is not ready, or waits for others.

        Returns:
            None if the turn is not watched any more.
        """
        if self._watched != turn:
            return None
        left = self._spoke + self._limit - now
        if waits or self._own(record):
            left = self._limit  # a tool, a child or a person may take as long as they have
        if left > 0:
            return CheckAgain(left)
        limit = f"{self._limit:g} seconds (agents.silence_timeout_seconds)"
        return SilentTooLong(f"the agent said nothing for {limit}{self._unclosed}")

    def _own(self, record: Session) -> list[tuple[str, float]]:
        """The open calls of tools that are not ours: only the agent knows their time."""
        return [call for call in self._tools.values() if not is_ours(call[0], record)]

    @property
    def _unclosed(self) -> str:
        tools = ", ".join(sorted({tool for tool, _ in self._tools.values()}))
        return f"; it has the answer to its call of {tools}" if tools else ""

    def waits(
        self, now: float, wall: float, record: Session, *, served: bool, model: Wait
    ) -> Iterator[Wait]:
        """The waits for the agent's own activity, as far as it is known.

        Args:
            now: Monotonic second.
            wall: Wall second of the same moment.
            record: Of the session.
            served: Whether we work on a request of the agent, so that its calls are not answered.
            model: The entry where no tool is at work.
        """
        calls = list(self._tools.values()) if served else self._own(record)
        spoke = wall - now + self._spoke
        for tool, since in calls:
            yield Wait(kind="tool", what=f"its own tool {tool}", since=since, last_event_at=spoke)
        if not calls:
            yield msgspec.structs.replace(model, until=spoke + self._limit, last_event_at=spoke)


def is_ours(tool: str, record: Session) -> bool:
    """Whether a tool, by the agent's name for it, is one that we provide."""
    if _OURS.fullmatch(tool) or tool in _BASE:
        return True
    return any(
        tool in {provided.name, f"{record.caller_id}_{provided.name}"}
        for provided in record.caller_tools
    )
