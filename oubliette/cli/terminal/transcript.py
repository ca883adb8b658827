"""Transcript of sessions: what was asked, what the agents did and answered, out of their events.

A whole message stands once: the deltas that came before it, and the end of the turn that has it
again, add nothing. Stages, waits and repeated requests are no lines: they are what a session does
at the moment (`doing`).
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from oubliette.api.events.turn_result import plain_result
from oubliette.api.events.usage import NOTHING_USED, usage_from
from oubliette.cli.terminal.choices import AT_REST
from oubliette.cli.terminal.output import clean
from oubliette.cli.terminal.waiting import span
from oubliette.contract.events import (
    CallerToolProgress,
    CallerToolSettled,
    Completion,
    Delta,
    ErrorEvent,
    LargeEvent,
    MapProgress,
    Message,
    PermissionRequest,
    PermissionSettled,
    Status,
    SystemEvent,
    ToolCall,
    ToolResult,
    UnknownEvent,
    WorkspaceSnapshot,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.contract.events import Event

Kind = Literal["prompt", "message", "call", "result", "error", "question", "note", "end"]

WIDTH: Final = 160
"""Characters of a line that is made of a call or a result."""
LINES: Final = 4
"""Lines of a result that are shown."""
_BEGINS: Final = "starts its agent"
_WORKS: Final = "works"
_STAGES: Final = {
    "image": "fetches the image of its container",
    "create": "creates its container",
    "start": "starts its container",
    "relay": "waits for its container to answer",
    "memory": "waits for memory in its container",
}
_ENDS: Final = {"completed": "done", "failed": "failed", "interrupted": "interrupted"}


class Passage(NamedTuple):
    """One or several lines of a transcript, without control characters."""

    kind: Kind
    text: str
    session_id: str
    level: int
    """Number of ancestors of its session that the transcript shows."""


class _Session:
    """A session in the transcript: its place in the tree, and its turn."""

    def __init__(self, level: int = 0) -> None:
        self.level = level
        self.doing = _BEGINS
        self.streamed = ""
        """Text of which the whole message has not come."""
        self.began: float | None = None
        self.usage = NOTHING_USED
        self.last = ""
        """The last message or error of the turn."""

    def begins(self, at: float) -> None:
        self.doing = _BEGINS
        self.began, self.usage, self.last, self.streamed = at, NOTHING_USED, "", ""


class Transcript:
    """The transcript of one session or of several, one event after the other."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}
        self._latest = _Session()
        self.since = time.monotonic()
        """Time since which the session does what it does, of the monotonic clock."""

    @property
    def streamed(self) -> str:
        """Text that the agent has begun with, of the session that did something last."""
        return self._latest.streamed

    @property
    def doing(self) -> str:
        """Activity of that session at the moment; empty between turns."""
        return self._latest.doing

    def passages(self, event: Event) -> list[Passage]:
        """Return what an event adds to the transcript. Agents choose its text."""
        before = self.doing
        session = self._sessions.get(event.session_id)
        if session is None:
            session = self._sessions[event.session_id] = _Session(self._level(event))
        self._latest = session
        parts = list(_parts(session, event))
        if self.doing != before:
            self.since = time.monotonic()
        return [
            Passage(kind, clean(text), event.session_id, session.level)
            for kind, text in parts
            if text
        ]

    def _level(self, event: Event) -> int:
        """Return the level of a session that has not been seen: below its parent, if that was."""
        if isinstance(event, Status) and event.parent_session_id is not None:
            parent = self._sessions.get(event.parent_session_id)
            return 0 if parent is None else parent.level + 1
        return 0


def _parts(session: _Session, event: Event) -> Iterator[tuple[Kind, str]]:
    """Note what an event changes, and return what there is to show."""
    match event:
        case Delta(text=text):
            session.streamed += text
        case Message(text=text):
            session.streamed, session.last = "", text.strip()
            yield "message", session.last
        case ToolCall(tool=tool, arguments=arguments):
            session.doing = f"calls {tool}"
            yield "call", _line(f"▸ {tool} {_arguments(arguments)}")
        case ToolResult(result=result, is_error=is_error):
            session.doing = _WORKS
            yield "result", _result(result, is_error=is_error)
        case ErrorEvent(message=message):
            session.last = message.strip()
            yield "error", f"error: {session.last}"
        case Status():
            yield from _status(session, event)
        case Completion():
            yield from _end(session, event)
        case PermissionRequest() | PermissionSettled():
            yield from _permission(session, event)
        case SystemEvent():
            yield from _system(session, event)
        case _:
            yield from _other(session, event)


def _status(session: _Session, event: Status) -> Iterator[tuple[Kind, str]]:
    if event.status == "running":
        session.begins(event.ts)
        yield "prompt", "\n".join(f"> {line}" for line in (event.message or "").splitlines())
    elif event.status in AT_REST:
        session.doing = ""
        status = event.status.replace("_", " ")
        yield "note", _line(f"The session is {status}{_because(event.reason)}.")


def _end(session: _Session, event: Completion) -> Iterator[tuple[Kind, str]]:
    session.doing = ""
    text = (event.final_text or "").strip()
    if session.streamed and session.streamed.strip() not in {text, session.last}:
        yield "message", session.streamed.strip()  # the turn ended within a message
    session.streamed = ""
    if text and text != session.last:
        failed = event.status == "failed"
        yield ("error", f"error: {text}") if failed else ("message", text)
    parts = [_ENDS.get(event.status, event.status)]
    if session.began is not None:
        parts.append(span(event.ts - session.began))
    usage = session.usage
    if usage.input_tokens or usage.output_tokens:
        parts.append(f"{usage.input_tokens:,} + {usage.output_tokens:,} tokens")
    elif usage.tokens:
        parts.append(f"{usage.tokens:,} tokens")
    if usage.cost_usd is not None:
        parts.append(f"${usage.cost_usd:.2f}")
    yield "end", " · ".join(parts)


def _permission(
    session: _Session, event: PermissionRequest | PermissionSettled
) -> Iterator[tuple[Kind, str]]:
    if isinstance(event, PermissionRequest):
        session.doing = "waits for a permission"
        call = "" if event.tool_call is None else f"\n  {_line(_json(event.tool_call))}"
        yield "question", f"? The agent asks: {event.text or 'may it do this'}{call}"
        return
    session.doing = _WORKS
    decided = "allowed" if event.decision == "allow" else "denied"
    why = _because(event.reason) if event.by is None else f" by {event.by}"
    yield "note", _line(f"{decided}{why}")


def _system(session: _Session, event: SystemEvent) -> Iterator[tuple[Kind, str]]:
    data = event.data
    match event.kind:
        case "usage":
            session.usage += usage_from(data)
        case "turn_started":
            session.doing = _WORKS
        case "stage":
            stage = str(data.get("stage"))
            detail = data.get("detail")
            session.doing = _STAGES.get(stage, f"starts its agent: {stage}")
            session.doing += f", {detail}" if detail else ""
            for problem in (data.get("error"), data.get("remedy")):
                yield "note", _line(str(problem or ""))
        case "retry":
            attempt, reason = data.get("attempt"), _line(str(data.get("message") or ""))
            session.doing = f"asks the model again ({attempt}): {reason}"
            yield "note", f"asks the model again ({attempt}): {reason}"
        case _:
            told = data.get("message", data.get("reason"))
            yield "note", _line(told) if isinstance(told, str) else ""


def _other(session: _Session, event: Event) -> Iterator[tuple[Kind, str]]:
    match event:
        case MapProgress(total=total, done=done, failed=failed):
            session.doing = f"has {done} of {total} parts" + (f", {failed} failed" * bool(failed))
        case CallerToolProgress(message=message):
            session.doing = message
        case CallerToolSettled(tool=tool, error=error) if error is not None:
            yield "note", _line(f"{tool}: {error}")
        case WorkspaceSnapshot(moment="end", files=files) if files:
            plural = "file" if files == 1 else "files"
            lines = f", +{event.insertions} -{event.deletions}" if event.insertions else ""
            yield "note", f"{files} {plural} changed{lines}"
        case LargeEvent(type=kind, size=size):
            yield "note", f"{kind} of {size:,} bytes: -o json has where to read it"
        case UnknownEvent(type=kind, data=data):
            rest = {name: data[name] for name in data.keys() - _HEAD}
            yield "note", _line(f"{kind} {_json(rest)}")
        case _:
            pass


_HEAD: Final = frozenset({"type", "session_id", "index", "ts", "seq", "version", "turn"})


def _because(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def _arguments(arguments: dict[str, Any]) -> str:
    """Return the arguments of a call: the command of a shell, else all of them."""
    command = arguments.get("command")
    return command if isinstance(command, str) else _json(arguments) if arguments else ""


def _result(result: Any, *, is_error: bool) -> str:
    """Return the first lines of a result."""
    value = plain_result(result)
    lines = (value if isinstance(value, str) else _json(value)).strip().splitlines() or ["-"]
    shown = [cut(line, WIDTH) for line in lines[:LINES]]
    if len(lines) > LINES:
        shown.append(f"… {len(lines) - LINES} more lines")
    return "\n".join(f"{'✗' if is_error and not n else ' '} {line}" for n, line in enumerate(shown))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _line(text: str) -> str:
    return cut(" ".join(text.split()), WIDTH)


def cut(line: str, most: int) -> str:
    """Return a line, or so many characters of it, the last one "…"."""
    return line if len(line) <= most else line[: most - 1] + "…"
