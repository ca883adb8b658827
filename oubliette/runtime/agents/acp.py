"""The Agent Client Protocol, version 1: JSON-RPC 2.0, one object per line (reference: agents.md 4).

Plain objects, not the types of the `agent-client-protocol` package: they refuse what a later
release of an agent adds, their connection owns its streams, and an adapter must know the place of
each line. Ids of our requests say what they are (`initialize`, `session`, `prompt-7`), so an answer
can be understood by an adapter that did not send the request.

Output is replayed by the turn: `ack_offset` moves when the agent is ready and when a turn has
ended. What an adapter knows in between (open tool calls, half a message, options of a permission
request) comes back when the turn's output is read again; events that are in the log already are
recognised by their place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from oubliette import __version__
from oubliette.runtime.agents.lines import Cutter, Line, Missing
from oubliette.runtime.agents.port import AgentEvent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.port import EventKind

Json = dict[str, Any]
Event = tuple["EventKind", Json]

FRAMES: Final = 3
"""Frames before the first prompt: `initialize`, the session, and one more where an agent has lost
the conversation that it was to go on with (empty where it has not). Always as many, so that the
numbers of all later frames are known without having been there."""

PROTOCOL: Final = 1
METHOD_NOT_FOUND: Final = -32601
_INITIALIZE: Final = "initialize"
_SESSION: Final = "session"
_ANEW: Final = "session-anew"
_PROMPT: Final = "prompt-"
_STOPPED: Final = {
    "max_tokens": "the model's answer was cut at its limit of tokens",
    "max_turn_requests": "the agent reached its limit of requests in one turn",
    "refusal": "the agent refuses to go on",
}

_encoder: Final = msgspec.json.Encoder()


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What a session is opened with."""

    cwd: str
    mcp_servers: tuple[Json, ...] = ()
    """As `session/new` takes them."""
    autonomy: str = "off"
    agent_session_id: str | None = None
    """The conversation to go on with."""


class AcpAdapter:
    """`AgentAdapter` of every agent that speaks ACP."""

    handshake = FRAMES

    def __init__(self, opening: Opening, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self._opening = opening
        self._cutter = Cutter()
        self._out: list[bytes] = []
        self._late: list[bytes] = []
        self._opened = 0
        self._agent: Json = {}
        self._resuming = False
        self._session: str | None = state.get("agent_session_id") or opening.agent_session_id
        self._done = int(state.get("turn") or 0)
        self._cost = float(state.get("cost") or 0.0)
        self._prompted: int | None = None
        self._interrupted: int | None = None
        self._boundary: int | None = None
        self._kept: Json = {}
        self._begin_turn()
        self.ready = bool(state.get("ready"))
        self.failed: str | None = None
        if self.ready:
            for _ in range(FRAMES):
                self._open(b"")
        else:
            self._open(_request(_INITIALIZE, "initialize", _capabilities()))
        self._keep()

    # ------------------------------------------------------------------ output

    def feed(self, data: bytes, offset: int) -> list[AgentEvent]:
        """The events of the lines that `data` completes; some lines have several, some none."""
        if self._boundary is None:
            self._boundary = offset
        events: list[AgentEvent] = []
        for line in self._cutter.feed(data, offset):
            start = self._boundary
            found = self._read(line)
            if self.ready and not self._begun:
                self._boundary = line.end
                self._keep()
            last = len(found) - 1
            events += [
                AgentEvent(
                    type=kind,
                    data=data_,
                    end_offset=line.end,
                    ordinal=ordinal,
                    ack_offset=self._boundary if ordinal == last else start,
                )
                for ordinal, (kind, data_) in enumerate(found)
            ]
        return events

    def _read(self, line: Line | Missing) -> list[Event]:
        if isinstance(line, Missing):
            return [("system", {"missing": [line.start, line.end]})]
        if not line.whole:
            size = line.end - line.start - 1
            return [("system", {"raw": _text(line.content), "truncated": True, "bytes": size})]
        if not line.content.strip():
            return []
        try:
            message: Any = msgspec.json.decode(line.content)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            message = None
        if not isinstance(message, dict):
            return [("system", {"raw": _text(line.content)})]
        fields = cast("Json", message)
        method = fields.get("method")
        if isinstance(method, str):
            params = _object(fields.get("params"))
            if "id" in fields:
                return self._asked(method, fields["id"], params)
            if method == "session/update" and isinstance(params.get("update"), dict):
                return self._updated(cast("Json", params["update"]))
            return [("system", {**params, "type": method})]
        answered = fields.get("id")
        if isinstance(answered, str) and ("result" in fields or "error" in fields):
            found = self._answered(answered, fields)
            if found is not None:
                return found
        return [("system", fields)]

    def _answered(self, answered: str, fields: Json) -> list[Event] | None:
        failed = "error" in fields
        result = _object(fields.get("result"))
        if answered == _INITIALIZE:
            if failed:
                self.failed = f"the agent refused to begin: {_message(fields['error'])}"
            else:
                self._agent = result
                self._open_session()
            return []
        if answered in {_SESSION, _ANEW}:
            return self._session_opened(answered, fields, result)
        number = answered.removeprefix(_PROMPT)
        if number != answered and number.isdecimal():
            return self._ended(int(number), fields, result)
        return None

    # ------------------------------------------------------------------ handshake

    def _open_session(self) -> None:
        can = _object(self._agent.get("agentCapabilities"))
        known = self._opening.agent_session_id
        params: Json = {"cwd": self._opening.cwd, "mcpServers": list(self._opening.mcp_servers)}
        method = "session/new"
        if known is not None:
            if "resume" in _object(can.get("sessionCapabilities")):
                method = "session/resume"
            elif can.get("loadSession") is True:
                method = "session/load"
        self._resuming = method != "session/new"
        if self._resuming:
            params["sessionId"] = known
        self._open(_request(_SESSION, method, params))

    def _session_opened(self, answered: str, fields: Json, result: Json) -> list[Event]:
        lost: list[Event] = []
        if "error" in fields:
            reason = _message(fields["error"])
            if answered == _ANEW or not self._resuming:
                self.failed = f"the agent opened no session: {reason}"
                return []
            self._resuming = False
            params = {"cwd": self._opening.cwd, "mcpServers": list(self._opening.mcp_servers)}
            self._open(_request(_ANEW, "session/new", params))
            return [("system", {"kind": "not_resumed", "reason": reason})]
        self._open(b"")
        named = result.get("sessionId")
        resumed = self._resuming and answered == _SESSION
        if isinstance(named, str):
            self._session = named
        elif not resumed:
            self.failed = "the agent opened a session without a name"
            return []
        if self._opening.agent_session_id is not None and not resumed and answered == _SESSION:
            lost = [("system", {"kind": "not_resumed", "reason": "the agent cannot do that"})]
        self.ready = True
        self._resuming = False
        about = _object(self._agent.get("agentInfo"))
        told = {
            "turn": 0,
            "agent": str(about.get("title") or about.get("name") or "acp"),
            "version": str(about.get("version") or ""),
            "agent_session_id": self._session,
            "resumed": resumed,
        }
        return [*lost, ("ready", told)]

    def _open(self, frame: bytes) -> None:
        """One more frame of the handshake; what else was to be said comes after the last."""
        if self._opened < FRAMES:
            self._out.append(frame)
            self._opened += 1
        if self._opened == FRAMES:
            self._out += self._late
            self._late = []

    def _say(self, data: bytes) -> None:
        (self._out if self._opened == FRAMES else self._late).append(data)

    # ------------------------------------------------------------------ a turn

    @property
    def _turn(self) -> int:
        """The turn that output belongs to."""
        return self._prompted if self._prompted is not None else self._done + 1

    def _begin_turn(self) -> None:
        self._begun = False
        self._chunks: list[str] = []
        self._chunks_of: object = None
        self._last_text = ""
        self._calls: dict[str, _Call] = {}
        self._permissions: dict[str, Json] = {}
        self._cost_now = self._cost

    def _started(self) -> list[Event]:
        if self._begun:
            return []
        self._begun = True
        return [("turn_started", {"turn": self._turn})]

    def _updated(self, update: Json) -> list[Event]:
        kind = update.get("sessionUpdate")
        if self._resuming:
            return []  # `session/load` tells the past again
        match kind:
            case "agent_message_chunk":
                content = _object(update.get("content"))
                text = content.get("text")
                if content.get("type") != "text" or not isinstance(text, str):
                    return [*self._started(), _system(kind, update)]
                events = self._started()
                if update.get("messageId") != self._chunks_of:
                    events += self._message()
                    self._chunks_of = update.get("messageId")
                self._chunks.append(text)
                return [*events, ("delta", {"turn": self._turn, "text": text})]
            case "tool_call" | "tool_call_update":
                return self._tool(update)
            case "usage_update":
                amount = _object(update.get("cost")).get("amount")
                if isinstance(amount, int | float):
                    self._cost_now = float(amount)
                return []
            case "agent_thought_chunk" | "plan":
                return [*self._started(), _system(kind, update)]
            case _:
                return [_system(kind, update)]

    def _message(self) -> list[Event]:
        """The message that has become whole, if there is one."""
        text = "".join(self._chunks)
        self._chunks = []
        if not text:
            return []
        self._last_text = text
        return [("message", {"turn": self._turn, "text": text})]

    def _tool(self, update: Json) -> list[Event]:
        call_id = update.get("toolCallId")
        if not isinstance(call_id, str):
            return [_system("tool_call", update)]
        events = self._started() + self._message()
        call = self._calls.get(call_id)
        if call is None:
            call = self._calls[call_id] = _Call(str(update.get("title") or "tool"))
        call.update(update)
        if call.ended:
            return events or [_system("tool_call_update", update)]
        if call.status in {"in_progress", "completed", "failed"}:
            events += self._call_told(call_id, call)
        if call.status in {"completed", "failed"}:
            events.append(self._call_ended(call_id, call, is_error=call.status == "failed"))
        return events

    def _call_told(self, call_id: str, call: _Call) -> list[Event]:
        if call.told:
            return []
        call.told = True
        told = {"call_id": call_id, "tool": call.tool, "arguments": call.arguments}
        return [("tool_call", {"turn": self._turn, **told})]

    def _call_ended(self, call_id: str, call: _Call, *, is_error: bool) -> Event:
        call.ended = True
        told = {"call_id": call_id, "tool": call.tool, "is_error": is_error, "result": call.result}
        return ("tool_result", {"turn": self._turn, **told})

    def _ended(self, number: int, fields: Json, result: Json) -> list[Event]:
        self._prompted = number
        events = self._started() + self._message()
        reason = result.get("stopReason")
        cancelled = reason == "cancelled" or self._interrupted == number
        for call_id, call in self._calls.items():
            if not call.ended:
                call.raw = call.raw or "the turn ended before the tool did"
                events += self._call_told(call_id, call)
                events.append(self._call_ended(call_id, call, is_error=True))
        events += self._usage(number, _object(result.get("usage")))
        text, status = self._last_text, "completed"
        if cancelled:
            status = "interrupted"
        elif "error" in fields or reason in _STOPPED:
            told = _STOPPED.get(str(reason)) or _message(fields.get("error"))
            status, text = "failed", text if reason in _STOPPED else told
            events.append(("error", {"turn": number, "message": told}))
        events.append(("completion", {"turn": number, "final_text": text, "status": status}))
        self._done, self._prompted, self._interrupted = max(number, self._done), None, None
        self._cost = self._cost_now
        self._begin_turn()
        return events

    def _usage(self, number: int, usage: Json) -> list[Event]:
        cost = max(0.0, self._cost_now - self._cost)
        counts = {
            "tokens": usage.get("totalTokens"),
            "input_tokens": usage.get("inputTokens"),
            "output_tokens": usage.get("outputTokens"),
        }
        known = {name: value for name, value in counts.items() if isinstance(value, int)}
        if not cost and not any(known.values()):
            return []
        return [("usage", {"turn": number, "cost_usd": cost, "tokens": 0, **known})]

    # ------------------------------------------------------------------ what the agent asks

    def _asked(self, method: str, asked: Any, params: Json) -> list[Event]:
        if method != "session/request_permission":
            error = {"code": METHOD_NOT_FOUND, "message": f"Method not found: {method}"}
            self._say(_line({"jsonrpc": "2.0", "id": asked, "error": error}))
            return [("system", {**params, "type": method})]
        request_id = _encoder.encode(asked).decode()
        call = _object(params.get("toolCall"))
        options = params.get("options")
        request: Json = {"id": asked, "options": options if isinstance(options, list) else []}
        self._permissions[request_id] = request
        told = {
            "turn": self._turn,
            "request_id": request_id,
            "text": str(call.get("title") or "the agent asks for permission"),
            "tool_call": call,
        }
        if self._opening.autonomy == "off":
            self._say(self.permission(request_id, "allow"))
            return [*self._started(), ("system", {**told, "kind": "permission", "given": True})]
        return [*self._started(), ("permission_request", told)]

    # ------------------------------------------------------------------ input

    def writes(self) -> list[bytes]:
        """Frames that nobody asked for: first those of the handshake, then answers."""
        out, self._out = self._out, []
        return out

    def prompt(self, turn: int, text: str) -> bytes:
        """Begin a turn."""
        self._prompted = turn
        params = {"sessionId": self._session, "prompt": [{"type": "text", "text": text}]}
        return _request(f"{_PROMPT}{turn}", "session/prompt", params)

    def interrupt(self, turn: int) -> bytes | None:
        """Cancel it, and with it what it asks for (the protocol wants both)."""
        self._interrupted = turn
        params = {"sessionId": self._session}
        cancel = _line({"jsonrpc": "2.0", "method": "session/cancel", "params": params})
        asked = [request["id"] for request in self._permissions.values()]
        self._permissions.clear()
        return cancel + b"".join(_outcome(each, {"outcome": "cancelled"}) for each in asked)

    def permission(
        self, request_id: str, decision: Literal["allow", "deny"], reason: str = ""
    ) -> bytes:
        """Choose the agent's option that fits best: for this once rather than for good."""
        del reason  # the protocol has no place for it
        request = self._permissions.pop(request_id, None)
        if request is None:
            return _outcome(request_id, {"outcome": "cancelled"})
        wanted = "allow" if decision == "allow" else "reject"
        options = [
            option
            for option in map(_object, request["options"])
            if str(option.get("kind", "")).startswith(wanted)
        ]
        options.sort(key=lambda option: option.get("kind") != f"{wanted}_once")
        if not options:
            return _outcome(request["id"], {"outcome": "cancelled"})
        chosen = {"outcome": "selected", "optionId": options[0].get("optionId")}
        return _outcome(request["id"], chosen)

    # ------------------------------------------------------------------ state

    def _keep(self) -> None:
        self._kept = {
            "ready": self.ready,
            "agent_session_id": self._session,
            "turn": self._done,
            "cost": self._cost,
        }

    def state(self) -> dict[str, Any]:
        """What it knew at the last `ack_offset`."""
        return dict(self._kept)


class _Call:
    """A tool call, as far as it was told."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        """The first title: later ones describe the call (reference: agents.md 4)."""
        self.arguments: Json = {}
        self.status = "pending"
        self.content: list[Any] = []
        self.raw: Any = None
        self.told = False
        self.ended = False

    def update(self, update: Json) -> None:
        if isinstance(update.get("rawInput"), dict):
            self.arguments = update["rawInput"]
        if isinstance(update.get("status"), str):
            self.status = update["status"]
        if isinstance(update.get("content"), list):
            self.content = update["content"]
        self.raw = update.get("rawOutput", self.raw)

    @property
    def result(self) -> Json:
        """In the shape of an MCP result."""
        blocks = [_object(_object(item).get("content")) or _object(item) for item in self.content]
        if blocks:
            return {"content": blocks}
        text = self.raw if isinstance(self.raw, str) else _encoder.encode(self.raw).decode()
        return {"content": [{"type": "text", "text": text}]}


def _capabilities() -> Json:
    return {
        "protocolVersion": PROTOCOL,
        "clientCapabilities": {
            "fs": {"readTextFile": False, "writeTextFile": False},
            "terminal": False,
        },
        "clientInfo": {"name": "oubliette", "version": __version__},
    }


def _request(name: str, method: str, params: Json) -> bytes:
    return _line({"jsonrpc": "2.0", "id": name, "method": method, "params": params})


def _outcome(asked: Any, outcome: Json) -> bytes:
    return _line({"jsonrpc": "2.0", "id": asked, "result": {"outcome": outcome}})


def _line(message: Json) -> bytes:
    return _encoder.encode(message) + b"\n"


def _system(kind: object, update: Json) -> Event:
    data = {name: value for name, value in update.items() if name != "sessionUpdate"}
    return ("system", {**data, "type": str(kind)})


def _message(error: object) -> str:
    fields = _object(error)
    return str(fields.get("message") or error)


def _object(value: object) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
