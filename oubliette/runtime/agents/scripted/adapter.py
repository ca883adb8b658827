"""Scripted agent: no model; its protocol is JSON lines of our own.

In: `prompt`, `interrupt`, `permission`. Out: one object per line, each with `turn`, whose `type` is
the kind of the event. Any other line becomes a `system` event.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, cast, get_args

import msgspec

from oubliette.errors import ConfigError
from oubliette.runtime.agents.base import AgentCommand, AgentEvent, Availability, EventKind
from oubliette.runtime.agents.checked import is_count, is_dollars, is_turn, message_of
from oubliette.runtime.agents.environment import base_environment
from oubliette.runtime.agents.executor import StreamExecution
from oubliette.runtime.agents.line_framing import Line, LineFramer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.base import AgentSession
    from oubliette.runtime.agents.line_framing import OutputGap
    from oubliette.runtime.containers.base import Inside, Mount

_KINDS: Final = frozenset(get_args(EventKind)) - {"system"}
_PARTS: Final = ("input_tokens", "output_tokens")
_STATUSES: Final = frozenset({"completed", "interrupted", "failed"})
_NEEDED: Final[dict[str, dict[str, type]]] = {
    "delta": {"text": str},
    "message": {"text": str},
    "tool_call": {"call_id": str, "tool": str, "arguments": dict},
    "tool_result": {"call_id": str, "tool": str, "is_error": bool},
    "permission_request": {"request_id": str, "text": str},
    "error": {"message": str},
    "completion": {"final_text": str, "status": str},
}
"""Fields that readers of an event rely on; a line without them is not that event."""

_HEAD: Final = re.compile(
    rb'\{\s*"type"\s*:\s*"(?P<kind>\w+)"\s*,\s*"turn"\s*:\s*(?P<turn>\d{1,18})\b'
)
_encoder: Final = msgspec.json.Encoder()


class ScriptedAdapter:
    """`AgentAdapter` of the scripted agent. Each line has its turn, so there is no state."""

    handshake = 0
    ready = True
    failed = None

    def __init__(self) -> None:
        self._cutter = LineFramer()
        self.steps = 0

    def feed(self, data: bytes, offset: int) -> list[AgentEvent]:
        """One event per non-empty line. Each message counts as a step."""
        found: list[AgentEvent] = []
        for line in self._cutter.feed(data, offset):
            for event in _events(line):
                found.append(event)
                self.steps += event.type == "message"
                if event.type in {"turn_started", "completion"}:
                    self.steps = 0
        return found

    def writes(self) -> list[bytes]:
        """Return nothing: the protocol has no handshake."""
        return []

    def prompt(self, turn: int, text: str) -> bytes:
        return _line({"type": "prompt", "turn": turn, "text": text})

    def interrupt(self, turn: int) -> bytes | None:
        return _line({"type": "interrupt", "turn": turn})

    def permission(
        self, request_id: str, decision: Literal["allow", "deny"], reason: str = ""
    ) -> bytes:
        return _line(
            {
                "type": "permission",
                "request_id": request_id,
                "decision": decision,
                "reason": reason,
            }
        )

    def state(self) -> dict[str, Any]:
        """Return None: there is no state."""
        return {}


class ScriptedRuntime(StreamExecution):
    """`AgentRuntime` of the scripted agent, which is part of the zipapp."""

    @property
    def name(self) -> str:
        return "scripted"

    @property
    def session_files(self) -> tuple[str, ...]:
        """The files of `remember` and `recall`."""
        return ("state.json", self.conversation_file)

    @property
    def conversation_file(self) -> str:
        """File with what was known after each turn that has changed it."""
        return "turns.json"

    def forked_files(self, content: bytes | None, turn: int) -> dict[str, bytes]:
        """Return what was known after a turn; nothing where that cannot be read."""
        try:
            turns = msgspec.json.decode(content or b"{}", type=dict[int, dict[str, str]])
        except msgspec.DecodeError:
            return {}
        before = max((each for each in turns if each <= turn), default=None)
        if before is None:
            return {}
        return {
            "state.json": _encoder.encode(turns[before]),
            self.conversation_file: _encoder.encode({"0": turns[before]}),
        }

    @property
    def starts_mcp(self) -> bool:
        """Whether it starts our MCP server unprompted: no, only for its script."""
        return False

    async def initialize(self, config: Mapping[str, Any]) -> None:
        """Do nothing: there is nothing to configure."""
        if config:
            raise ConfigError(f"agents.scripted.{min(config)}: the scripted agent has no settings")

    async def is_available(self) -> Availability:
        """Return that it is available: it only needs the container."""
        return Availability(ok=True)

    def command(self, session: AgentSession, inside: Inside) -> AgentCommand:
        return AgentCommand(
            argv=inside.program("scripted-agent"),
            env=base_environment(session, inside),
            cwd=inside.path(session.cwd),
        )

    def adapter(
        self, session: AgentSession, inside: Inside, state: Mapping[str, Any] | None = None
    ) -> ScriptedAdapter:
        """Return an adapter; the arguments are not needed."""
        del session, inside, state
        return ScriptedAdapter()

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Return none: it is part of the zipapp."""
        return ()

    async def close(self) -> None:
        """Do nothing: this object holds no resources."""


def _line(message: dict[str, Any]) -> bytes:
    return _encoder.encode(message) + b"\n"


def _events(line: Line | OutputGap) -> list[AgentEvent]:
    found: list[tuple[EventKind, dict[str, Any]]]
    if not isinstance(line, Line):
        found = [("system", {"missing": [line.start, line.end]})]
    elif not line.whole:
        found = _dropped(line)
    elif line.content.strip():
        found = [_read(line.content)]
    else:
        found = []
    last = len(found) - 1
    return [
        AgentEvent(
            type=kind,
            data=data,
            end_offset=line.end,
            ordinal=ordinal,
            ack_offset=line.end if ordinal == last else line.start,
        )
        for ordinal, (kind, data) in enumerate(found)
    ]


def _dropped(line: Line) -> list[tuple[EventKind, dict[str, Any]]]:
    """Return the events of a line that is too long; one that ended a turn ends it as failed."""
    size = line.end - line.start - 1
    raw = {"raw": _text(line.content), "truncated": True, "bytes": size}
    found: list[tuple[EventKind, dict[str, Any]]] = [("system", raw)]
    if head := _HEAD.match(line.content):
        kind, turn = head["kind"].decode(), int(head["turn"])
        if kind in _KINDS and is_turn(turn):
            found.append(("error", {"turn": turn, "message": line.excess}))
            if kind == "completion":
                ended = {"turn": turn, "final_text": "", "status": "failed"}
                found.append(("completion", ended))
    return found


def _read(content: bytes) -> tuple[EventKind, dict[str, Any]]:
    fields = message_of(content)
    if fields is None:
        return "system", {"raw": _text(content)}
    kind = fields.get("type")
    if not isinstance(kind, str) or kind not in _KINDS or not _is_complete(kind, fields):
        return "system", fields
    # Only this side measures; an agent reports.
    left_out = {"type", "measured"} if kind == "usage" else {"type"}
    data = {name: value for name, value in fields.items() if name not in left_out}
    return cast("EventKind", kind), data


def _is_complete(kind: str, fields: dict[str, Any]) -> bool:
    if kind != "ready" and not is_turn(fields.get("turn")):
        return False
    if kind == "usage":
        counts = ("tokens", *(name for name in _PARTS if name in fields))
        paid = fields.get("cost_usd", 0)
        return is_dollars(paid) and all(is_count(fields.get(n)) for n in counts)
    for name, expected in _NEEDED.get(kind, {}).items():
        if not isinstance(fields.get(name), expected):
            return False
    return kind != "completion" or fields["status"] in _STATUSES


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
