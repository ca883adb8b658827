"""Adapter of the Agent Client Protocol, version 1: JSON-RPC 2.0, one object per line.

Plain objects, not the types of the `agent-client-protocol` package: they refuse fields that a later
release of an agent adds, their connection owns its streams, and an adapter must have the position
of each line. Ids of our requests show their purpose (`initialize`, `session`, `prompt-7`), so an
answer can be interpreted by an adapter that did not send the request.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from oubliette.runtime.agents.acp.handshake import AcpHandshake, reason_of, request
from oubliette.runtime.agents.checked import count, dollars, is_count, is_dollars, turn_number, word
from oubliette.runtime.agents.handshake_adapter import (
    Event,
    Json,
    Opening,
    ToolCall,
    encoder,
    line_of,
    object_of,
    short_fields,
    system,
)
from oubliette.runtime.agents.prices import cost_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.line_framing import Line
    from oubliette.runtime.agents.prices import Costs

METHOD_NOT_FOUND: Final = -32601
INVALID_REQUEST: Final = -32600
SILENCE: Final = 0.2  # seconds
_PROMPT: Final = "prompt-"
_STOPPED: Final = {
    "max_tokens": "the model's answer was cut at its limit of tokens",
    "max_turn_requests": "the agent reached its limit of requests in one turn",
    "refusal": "the agent refuses to go on",
}


class AcpAdapter(AcpHandshake):
    """`AgentAdapter` of every ACP agent.

    Agents send updates of a turn behind its response, some milliseconds later. So the turn ends
    with a silence after the response, and what comes still later is no part of the next one.
    """

    def __init__(self, opening: Opening, state: Mapping[str, Any] | None = None) -> None:
        state = state or {}
        self._response: tuple[int, Json, bool] | None = None
        """The response that the turn ends with: its number, and whether it was interrupted."""
        self._over: set[str] = set()
        """Ids of the last message and of the calls of the turn before."""
        super().__init__(opening, state)
        self._logged = self._done
        """The last turn whose end is in the log; its output may be read again."""
        self._knows_prompts = "prompted" in state
        self._prompted = state.get("prompted")

    def _begin_turn(self) -> None:
        super()._begin_turn()
        self._cost_now: float = self._cost
        self._costs: Costs = "unknown"
        """Source of the turn's cost, once the agent has reported one."""

    def _turn_over(self, number: int) -> None:
        ids: list[object] = [self._chunks_of, *self._calls]
        self._over = {each for each in ids if isinstance(each, str)}
        super()._turn_over(number)

    @property
    def _between_turns(self) -> bool:
        return self._knows_prompts and self._prompted is None

    def _started(self) -> list[Event]:
        return [] if self._between_turns else super()._started()

    def _understand(self, message: Json) -> list[Event] | None:
        method = message.get("method")
        if isinstance(method, str):
            params = object_of(message.get("params"))
            if "id" in message:
                return self._asked(method, message["id"], params)
            if method == "session/update" and isinstance(params.get("update"), dict):
                return self._updated(cast("Json", params["update"]))
            return [system(method, params)]
        answered = message.get("id")
        if isinstance(answered, str) and ("result" in message or "error" in message):
            return self._answered(answered, message)
        return None

    def _answered(self, answered: str, fields: Json) -> list[Event] | None:
        number = turn_number(answered.removeprefix(_PROMPT))
        if answered.startswith(_PROMPT) and number is not None:
            return self._responded(number, fields)
        return self._opened_by(answered, fields, object_of(fields.get("result")))

    # ------------------------------------------------------------------ a turn

    def _updated(self, update: Json) -> list[Event]:
        kind = update.get("sessionUpdate")
        if self.resuming:
            return []  # `session/load` replays the past
        known = update.get("messageId", update.get("toolCallId"))
        late = self._between_turns or (isinstance(known, str) and known in self._over)
        if late and kind != "usage_update":
            return [system(kind, _plain(update))]
        match kind:
            case "agent_message_chunk":
                content = object_of(update.get("content"))
                text = content.get("text")
                if content.get("type") != "text" or not isinstance(text, str):
                    return [*self._started(), system(kind, _plain(update))]
                message = update.get("messageId")
                self._answering &= self._chunks_of in (None, message)
                events = self._answers()
                if message != self._chunks_of:
                    events += self._message()
                    self._chunks_of = message
                self._chunks.append(text)
                return [*events, ("delta", {"turn": self._turn, "text": text})]
            case "tool_call" | "tool_call_update":
                return self._tool(update)
            case "usage_update":
                amount = object_of(update.get("cost")).get("amount")
                if is_dollars(amount):
                    self._cost_now = dollars(amount)
                    self._costs = self._opening.costs
                return []
            case "agent_thought_chunk" | "plan":
                return [*self._answers(), system(kind, _plain(update))]
            case _:
                return [system(kind, _plain(update))]

    def _tool(self, update: Json) -> list[Event]:
        call_id = update.get("toolCallId")
        if not isinstance(call_id, str):
            return [system("tool_call", _plain(update))]
        call = self._calls.get(call_id)
        events = (self._started() if call else self._answers()) + self._message()
        if call is None:
            call = self._calls[call_id] = ToolCall(str(update.get("title") or "tool"))
        _update(call, update)
        if call.ended:
            return events or [system("tool_call_update", _plain(update))]
        if call.status in {"in_progress", "completed", "failed"}:
            events += self._call_events(call_id, call)
        if call.status in {"completed", "failed"}:
            events.append(self._call_ended(call_id, call, is_error=call.status == "failed"))
        return events

    def _dropped(self, line: Line) -> list[Event]:
        fields = short_fields(line)
        named, method = fields.get("id"), fields.get("method")
        if isinstance(method, str):
            if named is not None:
                error = {"code": INVALID_REQUEST, "message": line.excess}
                self._say(line_of({"jsonrpc": "2.0", "id": named, "error": error}))
            return []
        if not isinstance(named, str):
            return []
        return self._answered(named, {"error": {"message": line.excess}}) or []

    def _responded(self, number: int, fields: Json) -> list[Event]:
        if number <= self._logged:
            prompted = self._prompted
            self._turn_over(number)
            self._prompted = prompted
            return []
        events = self._silence()
        self._response = (number, fields, self._interrupted == number)
        self._prompted = number
        return events

    @property
    def pause(self) -> float:
        """Seconds of silence after which the turn is over; 0: there was no response."""
        return 0.0 if self._response is None else SILENCE

    def _silence(self) -> list[Event]:
        if self._response is None:
            return []
        (number, fields, interrupted), self._response = self._response, None
        result = object_of(fields.get("result"))
        events = self._started() + self._message()
        reason = word(result.get("stopReason"))
        events += self._calls_over()
        events += self._usage(number, object_of(result.get("usage")))
        text, status = self._last_text, "completed"
        if reason == "cancelled" or interrupted:
            status = "interrupted"
        elif "error" in fields or reason in _STOPPED:
            message = _STOPPED.get(reason) or reason_of(fields.get("error"))
            status, text = "failed", text if reason in _STOPPED else message
            events.append(("error", {"turn": number, "message": message}))
        events.append(("completion", {"turn": number, "final_text": text, "status": status}))
        self._cost = self._cost_now
        self._turn_over(number)
        return events

    def _usage(self, number: int, usage: Json) -> list[Event]:
        cost = max(0.0, self._cost_now - self._cost)
        counts = {
            "tokens": usage.get("totalTokens"),
            "input_tokens": usage.get("inputTokens"),
            "output_tokens": usage.get("outputTokens"),
        }
        known = {name: count(value) for name, value in counts.items() if is_count(value)}
        if not cost and not any(known.values()):
            return []
        paid = cost_fields(cost, self._costs)
        return [("usage", {"turn": number, **paid, "tokens": 0, **known})]

    # ------------------------------------------------------------------ requests of the agent

    def _asked(self, method: str, asked: Any, params: Json) -> list[Event]:
        if method != "session/request_permission":
            error = {"code": METHOD_NOT_FOUND, "message": f"Method not found: {method}"}
            self._say(line_of({"jsonrpc": "2.0", "id": asked, "error": error}))
            return [("system", {**params, "type": method})]
        call = object_of(params.get("toolCall"))
        options = params.get("options")
        # Everything an adapter needs to answer, even one that has not read the request.
        request: Json = {
            "id": asked,
            "allow": _option(options, "allow"),
            "deny": _option(options, "reject"),
        }
        request_id = encoder.encode(request).decode()
        self._permissions[request_id] = request
        title = str(call.get("title") or "")
        named = known.tool if (known := self._calls.get(str(call.get("toolCallId")))) else title
        payload = {
            "turn": self._turn,
            "request_id": request_id,
            "text": title or "the agent asks for permission",
            "asks_for": asks_for(named, call, known.arguments if known is not None else {}),
            "tool_call": call,
        }
        if self._opening.autonomy == "off":
            self._say(self.permission(request_id, "allow"))
            return [*self._started(), ("system", {**payload, "kind": "permission", "given": True})]
        return [*self._started(), ("permission_request", payload)]

    # ------------------------------------------------------------------ input

    def prompt(self, turn: int, text: str) -> bytes:
        self._prompted, self._knows_prompts = turn, True
        params = {"sessionId": self._session, "prompt": [{"type": "text", "text": text}]}
        return request(f"{_PROMPT}{turn}", "session/prompt", params)

    def interrupt(self, turn: int) -> bytes | None:
        """Cancel the turn, and deny its open requests (the protocol requires both)."""
        self._interrupted = turn
        params = {"sessionId": self._session}
        cancel = line_of({"jsonrpc": "2.0", "method": "session/cancel", "params": params})
        asked = [request["id"] for request in self._permissions.values()]
        self._permissions.clear()
        return cancel + b"".join(_outcome(each, {"outcome": "cancelled"}) for each in asked)

    def permission(
        self, request_id: str, decision: Literal["allow", "deny"], reason: str = ""
    ) -> bytes:
        """Choose the agent's option that fits best, preferring this once to permanently."""
        del reason  # the protocol has no field for it
        self._permissions.pop(request_id, None)
        try:
            request = object_of(msgspec.json.decode(request_id))
        except msgspec.DecodeError:
            request = {}
        chosen = request.get(decision)
        if chosen is None:
            return _outcome(request.get("id", request_id), {"outcome": "cancelled"})
        return _outcome(request["id"], {"outcome": "selected", "optionId": chosen})


def _option(options: object, wanted: str) -> str | None:
    """The agent's option of this kind, `allow` or `reject`, preferring this once."""
    offered = cast("list[Any]", options) if isinstance(options, list) else []
    found: dict[str, str] = {}
    for option in map(object_of, offered):
        kind, named = str(option.get("kind")), option.get("optionId")
        if kind.startswith(wanted) and isinstance(named, str):
            found.setdefault(kind, named)
    return found.get(f"{wanted}_once") or next(iter(found.values()), None)


def _update(call: ToolCall, update: Json) -> None:
    """Store an update's fields. The first title names the tool: later ones describe the call."""
    if isinstance(update.get("rawInput"), dict):
        call.arguments = update["rawInput"]
    if isinstance(update.get("status"), str):
        call.status = update["status"]
    if isinstance(update.get("content"), list):
        call.content = update["content"]
    call.raw = update.get("rawOutput", call.raw)


def _outcome(asked: Any, outcome: Json) -> bytes:
    return line_of({"jsonrpc": "2.0", "id": asked, "result": {"outcome": outcome}})


def _plain(update: Json) -> Json:
    return {name: value for name, value in update.items() if name != "sessionUpdate"}


_COMMAND: Final = {"command", "cmd"}
_COMMENTS: Final = {"description", "summary", "explanation"}
"""Arguments beside a command that describe it for readers, and vary each time."""
_HEAD: Final = 100  # characters of a tool's name, and of a kind
_DETAIL: Final = 250  # characters of arguments that are shown as they are


def asks_for(tool: str, call: Json, arguments: Json) -> str:
    """The scope of a decision for the session: this tool with exactly these arguments.

    If the agent sends only a title, the same title does not prove the same request: each gets a
    scope of its own.

    Args:
        tool: the name that the agent gave the tool, or the call's title.
        call: the request's `toolCall`.
        arguments: arguments from earlier messages about the call.
    """
    head = f"{_line(tool)[:_HEAD] or 'a tool'}: {_line(word(call.get('kind')))[:_HEAD] or 'other'}"
    subject: Any = object_of(call.get("rawInput")) or arguments
    if _COMMAND & subject.keys():
        subject = {name: value for name, value in subject.items() if name not in _COMMENTS}
    subject = subject or call.get("locations") or call.get("content")
    if not subject:
        return f"{head}, this call alone ({_line(word(call.get('toolCallId')))[:_HEAD]})"
    exact = msgspec.json.encode(subject, order="sorted")
    shown = exact.decode()
    if len(shown) > _DETAIL or _line(shown) != shown:
        shown = f"{_line(shown)[:_DETAIL]}… #{hashlib.sha256(exact).hexdigest()[:16]}"
    return f"{head}: {shown}"


def _line(text: str) -> str:
    """The text on one line, without terminal control characters."""
    kept = "".join(each if each.isprintable() else " " for each in text)
    return " ".join(kept.split())
