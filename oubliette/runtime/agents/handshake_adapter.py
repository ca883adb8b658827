"""Base of adapters for protocols with a handshake.

Output is replayed by the turn: `ack_offset` moves when the agent is ready and when a turn has
ended. An adapter's state in between (open tool calls, half a message, options of a permission
request) is restored when the turn's output is read again; events in the log are recognised by their
position.
"""

from __future__ import annotations

import abc
import re
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette.runtime.agents.base import AgentEvent, ForkPoint
from oubliette.runtime.agents.checked import message_of
from oubliette.runtime.agents.line_framing import Line, LineFramer, OutputGap
from oubliette.runtime.agents.prices import Costs, Prices

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.base import EventKind

Json = dict[str, Any]
Event = tuple["EventKind", Json]

FRAMES: Final = 6
"""Frames before the first prompt: a greeting, the session, two more if an agent resumes its
conversation by another method or not at all, one for its model and one for its mode (empty if not
needed). The number is fixed for one process, so that the numbers of all later frames are known to a
new server."""

encoder: Final = msgspec.json.Encoder()
_SHORT: Final = rb'\s*"\w{1,40}"\s*:\s*(?:"[\w./:$-]{1,100}"|0|[1-9]\d{0,17})\s*'
_FIRST: Final = re.compile(rb"\s*\{((?:" + _SHORT + rb",)*)")
_LAST: Final = re.compile(rb"((?:," + _SHORT + rb")+)\}\s*$")
"""Short fields of a message, before and behind its large part: agents differ in the order."""


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters for the opening of a session."""

    cwd: str
    mcp_servers: tuple[Json, ...] = ()
    """In the format of the agent's protocol."""
    autonomy: str = "off"
    agent_session_id: str | None = None
    """Conversation to resume."""
    fork_of: ForkPoint | None = None
    """Conversation to fork, if there is none to resume."""
    forks: bool = True
    """Whether `session/fork` of an ACP agent that has it may be used."""
    model: str | None = None
    """One of the agent's models; None: the agent's default."""
    mode: str | None = None
    """As `model`."""
    prices: Prices | None = None
    """Prices of the model, if its agent does not have them."""
    costs: Costs = "agent"
    """Source of the costs that an agent with prices reports."""
    obeys: str = ""
    """Remaining control of a repository over the agent; "" if none is known."""
    meta: Json = {}
    """`_meta` of the requests that open a session, for ACP agents."""


class HandshakeAdapter(abc.ABC):
    """Adapter that splits output into events, frames the handshake, and tracks the turn."""

    def __init__(self, opening: Opening, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self.handshake: Final[int] = state.get("frames") or FRAMES
        self._opening = opening
        self._cutter = LineFramer()
        self._out: list[bytes] = []
        self._late: list[bytes] = []
        self._opened = 0
        self._session: str | None = state.get("agent_session_id") or opening.agent_session_id
        self._done = int(state.get("turn") or 0)
        self._cost: float = float(state.get("cost") or 0.0)
        self._prompted: int | None = None
        self._interrupted: int | None = None
        self._boundary: int | None = None
        self._read_to = (0, 0)
        """End of the last line read, and the number of its events."""
        self._kept: Json = {}
        self._begin_turn()
        self.ready = bool(state.get("ready"))
        self.failed: str | None = None
        if self.ready:
            for _ in range(self.handshake):
                self._open(b"")
        else:
            self._open(self._greeting())
        self._keep()

    @abc.abstractmethod
    def _greeting(self) -> bytes: ...

    @abc.abstractmethod
    def _understand(self, message: Json) -> list[Event] | None:
        """Return the events of a message; None for an unknown one."""

    # ------------------------------------------------------------------ output

    def feed(self, data: bytes, offset: int) -> list[AgentEvent]:
        """Return the events of the lines that `data` completes; a line has any number of them."""
        if self._boundary is None:
            self._boundary = offset
        events: list[AgentEvent] = []
        for line in self._cutter.feed(data, offset):
            self._read_to = (line.end, 0)
            events += self._placed(self._read(line))
        return events

    @property
    def pause(self) -> float:
        """Seconds of silence after which `silence` has more events; 0: it has none."""
        return 0.0

    def silence(self) -> list[AgentEvent]:
        """The events of a silence, placed behind those of the last line."""
        return self._placed(self._silence())

    def _silence(self) -> list[Event]:
        return []

    def _placed(self, found: list[Event]) -> list[AgentEvent]:
        """Return events of the last line with their places in the output."""
        assert self._boundary is not None
        start, (end, first) = self._boundary, self._read_to
        if self.ready and not self._begun and not self.pause:
            self._boundary = end
            self._keep()
        self._read_to = (end, first + len(found))
        last = first + len(found) - 1
        return [
            AgentEvent(
                type=kind,
                data=data,
                end_offset=end,
                ordinal=ordinal,
                ack_offset=self._boundary if ordinal == last else start,
            )
            for ordinal, (kind, data) in enumerate(found, first)
        ]

    def _read(self, line: Line | OutputGap) -> list[Event]:
        if isinstance(line, OutputGap):
            return [("system", {"missing": [line.start, line.end]})]
        if not line.whole:
            size = line.end - line.start - 1
            raw = {"raw": text_of(line.content), "truncated": True, "bytes": size}
            return [("system", raw), *self._dropped(line)]
        if not line.content.strip():
            return []
        fields = message_of(line.content)
        if fields is None:
            return [("system", {"raw": text_of(line.content)})]
        found = self._understand(fields)
        return [("system", fields)] if found is None else found

    def _dropped(self, line: Line) -> list[Event]:
        """Return what else follows from a line that was too long; `line` has its head."""
        del line
        return []

    def _warned(self) -> list[Event]:
        """The warnings for the user of the agent before its first turn."""
        obeys = self._opening.obeys
        if not obeys:
            return []
        return [("system", {"kind": "repository_obeyed", "reason": f"this agent obeys {obeys}"})]

    # ------------------------------------------------------------------ a turn

    @property
    def _turn(self) -> int:
        """Turn that output belongs to."""
        return self._prompted if self._prompted is not None else self._done + 1

    def _begin_turn(self) -> None:
        self._begun = False
        self.steps = 0
        self._answering = False
        self._chunks: list[str] = []
        self._chunks_of: object = None
        self._last_text = ""
        self._calls: dict[str, ToolCall] = {}
        self._permissions: dict[str, Json] = {}

    def _turn_over(self, number: int) -> None:
        self._done, self._prompted, self._interrupted = max(number, self._done), None, None
        self._begin_turn()

    def _started(self) -> list[Event]:
        if self._begun:
            return []
        self._begun = True
        return [("turn_started", {"turn": self._turn})]

    def _answers(self) -> list[Event]:
        """Count a step of the model: its first, and one after a tool's result or another message.

        For protocols that do not mark the beginning of a step.
        """
        if not self._answering:
            self.steps += 1
            self._answering, self._chunks_of = True, None
        return self._started()

    def _message(self) -> list[Event]:
        """The completed message, if there is one."""
        text = "".join(self._chunks)
        self._chunks = []
        if not text:
            return []
        self._last_text = text
        return [("message", {"turn": self._turn, "text": text})]

    def _call_events(self, call_id: str, call: ToolCall) -> list[Event]:
        if call.reported:
            return []
        call.reported = True
        payload = {"call_id": call_id, "tool": call.tool, "arguments": call.arguments}
        return [("tool_call", {"turn": self._turn, **payload})]

    def _call_ended(self, call_id: str, call: ToolCall, *, is_error: bool) -> Event:
        call.ended, self._answering = True, False
        payload = {
            "call_id": call_id,
            "tool": call.tool,
            "is_error": is_error,
            "result": call.result,
        }
        return ("tool_result", {"turn": self._turn, **payload})

    def _calls_over(self) -> list[Event]:
        """Return failed results for the calls left open at the turn's end."""
        events: list[Event] = []
        for call_id, call in self._calls.items():
            if not call.ended:
                call.raw = call.raw or "the turn ended before the tool did"
                events += self._call_events(call_id, call)
                events.append(self._call_ended(call_id, call, is_error=True))
        return events

    # ------------------------------------------------------------------ input

    def _open(self, frame: bytes) -> None:
        """Send one more frame of the handshake; other input follows the last one."""
        if self._opened < self.handshake:
            self._out.append(frame)
            self._opened += 1
        if self._opened == self.handshake:
            self._out += self._late
            self._late = []

    def _open_rest(self) -> None:
        """End the handshake, with empty frames for the unused ones."""
        while self._opened < self.handshake:
            self._open(b"")
        self.ready = True

    def _say(self, data: bytes) -> None:
        (self._out if self._opened == self.handshake else self._late).append(data)

    def writes(self) -> list[bytes]:
        """Return unprompted frames: first those of the handshake, then answers."""
        out, self._out = self._out, []
        return out

    # ------------------------------------------------------------------ state

    def _keep(self) -> None:
        self._kept = {
            "ready": self.ready,
            "agent_session_id": self._session,
            "turn": self._done,
            "cost": self._cost,
        }

    def state(self) -> dict[str, Any]:
        """The state at the last `ack_offset`."""
        return dict(self._kept)


class ToolCall:
    """Tool call, as far as its messages have arrived."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.arguments: Json = {}
        self.status = "pending"
        self.content: list[Any] = []
        self.raw: Any = None
        self.reported = False
        self.ended = False

    @property
    def result(self) -> Json:
        blocks = [object_of(object_of(item).get("content")) or object_of(item)
                  for item in self.content]  # fmt: skip
        if blocks:
            return {"content": blocks}
        text = self.raw if isinstance(self.raw, str) else encoder.encode(self.raw).decode()
        return {"content": [{"type": "text", "text": text}]}


def line_of(message: Json) -> bytes:
    return encoder.encode(message) + b"\n"


def system(kind: object, fields: Json) -> Event:
    """The event for a message without a meaning for us."""
    return ("system", {**fields, "type": kind if isinstance(kind, str) else "unknown"})


def object_of(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def short_fields(line: Line) -> Json:
    """The fields of a message that was too long, as far as they are short and stand at its ends."""
    first, last = _FIRST.match(line.content), _LAST.search(line.tail)
    known = (first[1] if first else b"") + (last[1][1:] if last else b"")
    return object_of(msgspec.json.decode(b"{" + known.strip(b", ") + b"}"))


def text_of(content: bytes) -> str:
    return content.decode("utf-8", "replace")
