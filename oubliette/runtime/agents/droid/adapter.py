"""Adapter of Factory Droid's `stream-jsonrpc`: one object per line.

Plain objects: the types of `droid_sdk` belong to a later protocol than the program's, and its
client owns its stream. A prompt carries a message id of ours with its turn number, and the end of a
turn names that id.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from oubliette.runtime.agents.checked import count, turn_number, word
from oubliette.runtime.agents.handshake_adapter import (
    Event,
    HandshakeAdapter,
    Json,
    ToolCall,
    line_of,
    object_of,
    short_fields,
    system,
)
from oubliette.runtime.agents.prices import cost_fields

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.handshake_adapter import Opening
    from oubliette.runtime.agents.line_framing import Line

_API: Final = "1.0.0"
_PROTOCOL: Final = "1.206.0"
_INITIALIZE: Final = "initialize"
_LOAD: Final = "load"
_SETTINGS: Final = "settings"
_PROMPT: Final = "prompt-"
_PERMISSION: Final = "droid.request_permission"
_OURS: Final = 0x6F75626C
"""First 32 bits of message ids of prompts; the last 48 are the turn's number.

Those between are random: Droid drops a message with an id of its past conversation.
"""

_CHATTER: Final = frozenset(
    {
        "assistant_text_complete",
        "droid_working_state_changed",
        "permission_resolved",
        "session_title_updated",
        "session_token_usage_changed",
        "settings_updated",
        "tool_execution_phase_changed",
    }
)
"""Notifications whose content is in other events."""

_LEVELS: Final = {"off": "high", "high": "high", "medium": "medium", "low": "low", "ask": "off"}
"""Our autonomy → Droid's; it has none for full autonomy after a resume."""


class DroidAdapter(HandshakeAdapter):
    """`AgentAdapter` of Droid."""

    def __init__(self, opening: Opening, state: Mapping[str, Any] | None = None) -> None:
        self._lost: str | None = None
        super().__init__(opening, state)

    def _greeting(self) -> bytes:
        known = self._opening.agent_session_id
        if known is None:
            return self._initialize()
        params = {"sessionId": known, "mcpServers": list(self._opening.mcp_servers)}
        return _request(_LOAD, "droid.load_session", params)

    def _initialize(self) -> bytes:
        params: Json = {
            "machineId": "oubliette",
            "cwd": self._opening.cwd,
            "mcpServers": list(self._opening.mcp_servers),
            "sessionOriginHint": "sdk",
            "tags": [],
        }
        if self._opening.model is not None:
            params["modelId"] = self._opening.model
        if self._opening.autonomy == "off":
            params["skipPermissionsUnsafe"] = True
        else:
            params["autonomyLevel"] = _LEVELS[self._opening.autonomy]
        return _request(_INITIALIZE, "droid.initialize_session", params)

    # ------------------------------------------------------------------ output

    def _understand(self, message: Json) -> list[Event] | None:
        kind = message.get("type")
        params = object_of(message.get("params"))
        if kind == "notification" and message.get("method") == "droid.session_notification":
            return self._noted(object_of(params.get("notification")))
        if kind == "request" and isinstance(message.get("id"), str):
            return self._asked(str(message.get("method")), message["id"], params)
        if kind == "response" and isinstance(message.get("id"), str):
            return self._answered(message["id"], message)
        return None

    def _dropped(self, line: Line) -> list[Event]:
        fields = short_fields(line)
        if fields.get("type") == "request" and isinstance(fields.get("id"), str):
            self._refuse(fields["id"], fields.get("method"))
        return []

    def _refuse(self, asked: str, method: object) -> None:
        if method == _PERMISSION:
            self._say(self.permission(asked, "deny"))
        else:
            # Only `ask_user` is known, and no person is connected to answer.
            self._say(_response(asked, {"cancelled": True, "answers": []}))

    def _answered(self, answered: str, message: Json) -> list[Event] | None:
        result = object_of(message.get("result"))
        error = message.get("error")
        reason = str(object_of(error).get("message") or error)
        if answered == _LOAD:
            if error is not None:
                self._lost = reason
                self._open(self._initialize())
                return [("system", {"kind": "not_resumed", "reason": reason})]
            level = {"autonomyLevel": _LEVELS[self._opening.autonomy]}
            self._open(_request(_SETTINGS, "droid.update_session_settings", level))
            return []
        if answered in {_INITIALIZE, _SETTINGS}:
            named = result.get("sessionId")
            if error is not None:
                self.failed = f"the agent opened no session: {reason}"
                return []
            if isinstance(named, str):
                self._session = named
            elif self._session is None or answered == _INITIALIZE:
                self.failed = "the agent opened a session without a name"
                return []
            self._open_rest()
            payload = {"turn": 0, "agent": "droid", "version": ""}
            resumed = answered == _SETTINGS
            return [("ready", {**payload, "agent_session_id": self._session, "resumed": resumed})]
        number = turn_number(answered.removeprefix(_PROMPT))
        if answered.startswith(_PROMPT) and number is not None:
            return [] if error is None else self._ended(number, reason, {}, error_sent=False)
        return [] if answered.startswith("interrupt-") else None

    def _noted(self, note: Json) -> list[Event] | None:
        kind = note.get("type")
        match kind:
            case "assistant_text_delta":
                text = note.get("textDelta")
                if not isinstance(text, str):
                    return None
                return [*self._started(), ("delta", {"turn": self._turn, "text": text})]
            case "create_message":
                return self._created(object_of(note.get("message")))
            case "tool_result":
                return self._result(note)
            case "agent_turn_completed":
                return self._completed(note)
            case "error":
                payload = {"turn": self._turn, "message": str(note.get("message") or "error")}
                self._error = payload["message"]
                return [*self._started(), ("error", payload)]
            case "tool_call":
                return []  # repeated, with all its input, in the message that it is part of
            case "llm_retry":
                payload = {"attempt": note.get("attempt"), "message": str(note.get("reason"))}
                return [*self._started(), system("retry", payload)]
            case "thinking_text_delta" | "tool_progress_update":
                return [*self._started(), system(kind, note)]
            case _:
                return [] if word(kind) in _CHATTER else [system(kind, note)]

    def _begin_turn(self) -> None:
        super()._begin_turn()
        self._error: object = None

    def _created(self, message: Json) -> list[Event]:
        if message.get("role") != "assistant" or message.get("visibility") == "llm_only":
            return []
        events = self._started()
        self.steps += 1
        content = message.get("content")
        blocks = cast("list[Any]", content) if isinstance(content, list) else []
        for block in map(object_of, blocks):
            if block.get("type") == "text" and isinstance(block.get("text"), str):
                self._chunks.append(block["text"])
            elif block.get("type") == "tool_use" and isinstance(block.get("id"), str):
                events += self._message()
                call = ToolCall(str(block.get("name")))
                call.arguments = object_of(block.get("input"))
                self._calls[block["id"]] = call
                events += self._call_events(block["id"], call)
        return events + self._message()

    def _result(self, note: Json) -> list[Event] | None:
        call_id = note.get("toolUseId")
        if not isinstance(call_id, str):
            return None
        call = self._calls.get(call_id)
        if call is None or call.ended:
            return []  # repeated at an interrupt
        content = note.get("content")
        if isinstance(content, list):
            call.content = cast("list[Any]", content)
        else:
            call.raw = content
        return [self._call_ended(call_id, call, is_error=note.get("isError") is True)]

    def _completed(self, note: Json) -> list[Event]:
        number = _turn_of(note.get("turnId")) or self._turn
        usage = object_of(note.get("tokenUsage"))
        reason = str(note.get("reason"))
        return self._ended(number, reason, usage, error_sent=self._error is not None)

    def _ended(self, number: int, reason: str, usage: Json, *, error_sent: bool) -> list[Event]:
        self._prompted = number
        events = [*self._started(), *self._message(), *self._calls_over()]
        read, written = count(usage.get("inputTokens")), count(usage.get("outputTokens"))
        if read or written:
            tokens = {
                "tokens": count(read, written),
                "input_tokens": read,
                "output_tokens": written,
            }
            cached = (count(usage.get("cacheReadTokens")), count(usage.get("cacheCreationTokens")))
            prices = self._opening.prices
            paid: Json = {}
            if prices is not None:
                paid = cost_fields(prices.cost(read, written, *cached), "prices")
            events.append(("usage", {"turn": number, **paid, **tokens}))
        text, status = self._last_text, "completed"
        if reason == "cancelled" or self._interrupted == number:
            status = "interrupted"
        elif reason != "completed":
            status, text = "failed", str(self._error or reason)
            if not error_sent:
                events.append(("error", {"turn": number, "message": reason}))
        events.append(("completion", {"turn": number, "final_text": text, "status": status}))
        self._turn_over(number)
        return events

    def _asked(self, method: str, asked: str, params: Json) -> list[Event]:
        if method != _PERMISSION:
            self._refuse(asked, method)
            return [*self._started(), system(method, params)]
        uses = params.get("toolUses")
        first = object_of(cast("list[Any]", uses)[0]) if isinstance(uses, list) and uses else {}
        use = object_of(first.get("toolUse"))
        self._permissions[asked] = params
        tool, told_by = str(use.get("name") or "a tool"), object_of(use.get("input"))
        about = told_by.get("command") or told_by.get("file_path") or first.get("confirmationType")
        level = object_of(first.get("details")).get("impactLevel")
        payload = {
            "turn": self._turn,
            "request_id": asked,
            "text": f"{tool}: {about or 'may I?'}",
            "asks_for": ": ".join(
                str(part) for part in (tool, first.get("confirmationType"), level) if part
            ),
            "tool_call": use,
        }
        if self._opening.autonomy == "off":
            self._say(self.permission(asked, "allow"))
            return [*self._started(), ("system", {**payload, "kind": "permission", "given": True})]
        return [*self._started(), ("permission_request", payload)]

    # ------------------------------------------------------------------ input

    def prompt(self, turn: int, text: str) -> bytes:
        self._prompted = turn
        chance = uuid.uuid4().int >> 48 & (1 << 48) - 1
        message_id = uuid.UUID(int=_OURS << 96 | chance << 48 | turn)
        params = {"text": text, "messageId": str(message_id)}
        return _request(f"{_PROMPT}{turn}", "droid.add_user_message", params)

    def interrupt(self, turn: int) -> bytes | None:
        """Interrupt the turn, and deny its open requests."""
        self._interrupted = turn
        denied = [self.permission(asked, "deny") for asked in list(self._permissions)]
        stop = _request(f"interrupt-{turn}", "droid.interrupt_session", {})
        return b"".join([*denied, stop])

    def permission(
        self, request_id: str, decision: Literal["allow", "deny"], reason: str = ""
    ) -> bytes:
        """Answer a request, for this once only."""
        del reason
        self._permissions.pop(request_id, None)
        chosen = "proceed_once" if decision == "allow" else "cancel"
        return _response(request_id, {"selectedOption": chosen})


def _turn_of(message_id: object) -> int | None:
    try:
        number = uuid.UUID(str(message_id)).int
    except ValueError:
        return None
    return number & (1 << 48) - 1 if number >> 96 == _OURS else None


def _frame(kind: str, fields: Json) -> bytes:
    versions = {"factoryApiVersion": _API, "factoryProtocolVersion": _PROTOCOL}
    return line_of({"jsonrpc": "2.0", "type": kind, **versions, **fields})


def _request(name: str, method: str, params: Json) -> bytes:
    return _frame("request", {"id": name, "method": method, "params": params})


def _response(asked: str, result: Json) -> bytes:
    return _frame("response", {"id": asked, "result": result})
