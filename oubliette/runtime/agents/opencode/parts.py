"""Conversion of OpenCode's messages and their parts into events.

A message is sent in full whenever any of it changes, and so is each of its parts; both are sent
again after the stream of events had broken. So everything here is done once per part, and only its
new content becomes events.
"""

from __future__ import annotations

import abc
from typing import Final

from oubliette.runtime.agents.checked import count, dollars, word
from oubliette.runtime.agents.handshake_adapter import (
    Event,
    HandshakeAdapter,
    Json,
    ToolCall,
    object_of,
    system,
)
from oubliette.runtime.agents.prices import cost_fields

STAMP: Final = "oub"
_DIGITS: Final = 11
_STAMP_AT: Final = len("msg_") + 12
_MINUTIAE: Final = frozenset({"step-start", "snapshot", "patch"})
"""Parts whose content is in other events."""
_CUT_SHORT: Final = "the model's answer was cut at its limit of tokens"


def stamp_of(turn: int) -> str:
    """The end of a prompt's message id, by which its messages name it as their parent."""
    return f"{STAMP}{turn:0{_DIGITS}}"


def turn_of(message_id: object) -> int | None:
    """Return the turn whose prompt has that id; None if it is not one of ours."""
    text = str(message_id)[_STAMP_AT:]
    number = text.removeprefix(STAMP)
    ours = number != text and len(number) == _DIGITS and number.isascii() and number.isdecimal()
    return int(number) if ours else None


class PartsAdapter(HandshakeAdapter):
    """Interpretation of messages and their parts; subclasses provide the transport."""

    @abc.abstractmethod
    def _goes_on(self) -> None:
        """Note that the turn has begun something new."""

    def _begin_turn(self) -> None:
        super()._begin_turn()
        self._roles: dict[str, str] = {}
        """Messages of this turn: user, assistant, summary (of a compaction), child (subagent)."""
        self._current: Json = {}
        """The assistant's newest message."""
        self._tools: dict[str, _Call] = {}
        self._error: str | None = None
        self._aborted = False
        self._emitted: dict[str, str] = {}
        """Text already emitted as deltas, by part."""
        self._messages: dict[str, str] = {}
        """Text already emitted as a message before its part had ended."""
        self._thoughts: set[str] = set()
        self._parts_over: set[str] = set()

    # ------------------------------------------------------------------ messages

    def _message_updated(self, info: Json) -> list[Event]:
        message_id, role = str(info.get("id")), info.get("role")
        if self._session is None and turn_of(message_id) is not None:
            self._session = str(info.get("sessionID"))  # its announcement was lost
        ours = info.get("sessionID") == self._session
        if role == "user" and ours:
            return [] if "summary" in info else self._prompt_heard(message_id)
        if role == "user":
            self._roles[message_id] = "user"  # a subagent's task
            return []
        if not ours:
            self._roles[message_id] = "child"
            return []
        number = turn_of(info.get("parentID"))
        events = self._end_lost(number)
        if self._begun and number not in {None, self._turn}:
            return events  # left over from another turn
        if not self._begun and (number is None or number <= self._done):
            return events
        if number is not None:
            self._prompted = number
        events += self._started()
        self._roles[message_id] = "summary" if info.get("summary") is True else "assistant"
        if message_id != self._current.get("id"):
            self._error = None  # it recovered
            self.steps += 1
            self._goes_on()
        self._current = info
        if "error" in info:
            self._note_error(info["error"])
        return events

    def _prompt_heard(self, message_id: str) -> list[Event]:
        number = turn_of(message_id)
        if number is None:
            if self._begun:
                self._roles[message_id] = "user"  # OpenCode's own, at a compaction
            return []
        events = self._end_lost(number)
        self._prompted = number
        self._roles[message_id] = "user"
        return [*events, *self._started()]

    def _end_lost(self, number: int | None) -> list[Event]:
        """The end of the running turn if a later one has begun: its own was lost."""
        if number is None or not self._begun or number <= self._turn:
            return []
        return self._ended(self._turn)

    def _note_error(self, error: object) -> None:
        fields = object_of(error)
        if fields.get("name") == "MessageAbortedError":
            self._aborted = True
        else:
            self._error = error_text(error)

    # ------------------------------------------------------------------ parts

    def _delta(self, properties: Json) -> list[Event] | None:
        part_id, text = str(properties.get("partID")), properties.get("delta")
        role = self._roles.get(str(properties.get("messageID")))
        if role is None or not isinstance(text, str):
            return None
        if role != "assistant" or properties.get("field") != "text" or part_id in self._thoughts:
            return []  # emitted as a whole at its end
        self._emitted[part_id] = self._emitted.get(part_id, "") + text
        return [("delta", {"turn": self._turn, "text": text})]

    def _part_updated(self, part: Json) -> list[Event] | None:
        part_id, kind = str(part.get("id")), part.get("type")
        role = self._roles.get(str(part.get("messageID")))
        if role is None:
            return None
        if role == "user" or word(kind) in _MINUTIAE or part_id in self._parts_over:
            return []
        if kind == "step-finish":
            self._parts_over.add(part_id)
            return self._used(part)
        if kind == "tool" and role == "assistant":
            return self._tool(part_id, part)
        ended = _ended(part)
        if ended:
            self._parts_over.add(part_id)
        if kind == "text" and role == "assistant":
            return self._text(part_id, str(part.get("text") or ""), ended=ended)
        if kind == "reasoning":
            self._thoughts.add(part_id)
        return [system(kind, {**part, "turn": self._turn, "of": role})] if ended else []

    def _text(self, part_id: str, text: str, *, ended: bool) -> list[Event]:
        """Emit new text up to this point. Missing deltas are made up for."""
        emitted = self._emitted.get(part_id, "")
        events: list[Event] = []
        if len(text) > len(emitted) and text.startswith(emitted):
            self._emitted[part_id] = text
            events.append(("delta", {"turn": self._turn, "text": text[len(emitted) :]}))
        if ended:
            self._emitted.pop(part_id, None)
            before = self._messages.pop(part_id, "")
            self._chunks = [text[len(before) :]]
            events += self._message()
        return events

    def _texts_so_far(self) -> list[Event]:
        """Emit the text before a tool call; its part ends only with the model's answer."""
        events: list[Event] = []
        for part_id, text in self._emitted.items():
            self._chunks = [text[len(self._messages.get(part_id, "")) :]]
            self._messages[part_id] = text
            events += self._message()
        return events

    def _tool(self, part_id: str, part: Json) -> list[Event]:
        state = object_of(part.get("state"))
        call = self._tools.get(part_id)
        if call is None:
            call = _Call(str(part.get("tool")), str(part.get("callID")))
            self._tools[part_id] = self._calls[call.id] = call
        if isinstance(state.get("input"), dict):
            call.arguments = state["input"]
        status = state.get("status")
        if status == "pending" or call.ended:
            return []
        events = [] if call.reported else [*self._texts_so_far(), *self._call_events(call.id, call)]
        if status == "completed":
            call.raw = state.get("output")
        elif status == "error":
            call.raw = state.get("error")
        else:
            return events  # running, and repeated as its output grows
        self._parts_over.add(part_id)
        return [*events, self._call_ended(call.id, call, is_error=status == "error")]

    def _used(self, part: Json) -> list[Event]:
        """Add the usage of one step of the model, a subagent's too: all of it is paid for."""
        tokens = object_of(part.get("tokens"))
        cached = object_of(tokens.get("cache"))
        read = count(tokens.get("input"), cached.get("read"), cached.get("write"))
        written = count(tokens.get("output"), tokens.get("reasoning"))
        cost = dollars(part.get("cost"))
        if not (read or written or cost):
            return []
        used = {"tokens": count(read, written), "input_tokens": read, "output_tokens": written}
        paid = cost_fields(cost, self._opening.costs)
        return [("usage", {"turn": self._turn, **paid, **used})]

    # ------------------------------------------------------------------ the end

    @property
    def _settled(self) -> bool:
        """Whether the assistant's newest message is finished, so that idle means the end."""
        completed = "completed" in object_of(self._current.get("time"))
        return completed and self._current.get("finish") != "tool-calls"

    def _ended(self, number: int) -> list[Event]:
        self._prompted = number
        events = [*self._started(), *self._calls_over()]
        text, status, error = self._last_text, "completed", self._error
        finish = self._current.get("finish")
        if self._aborted or self._interrupted == number:
            status, error = "interrupted", None
        elif error is None and finish is None:
            status = "interrupted"  # an abort before or between attempts leaves no other trace
        elif error is None and finish == "length":
            status, error = "failed", _CUT_SHORT
        if error is not None:
            text = text if error == _CUT_SHORT else error
            status = "failed"
            events.append(("error", {"turn": number, "message": error}))
        events.append(("completion", {"turn": number, "final_text": text, "status": status}))
        self._turn_over(number)
        return events


class _Call(ToolCall):
    """A tool call; parts have ids of their own, which no two calls share."""

    def __init__(self, tool: str, call_id: str) -> None:
        super().__init__(tool)
        self.id = call_id


def error_text(error: object) -> str:
    """Return the text of an OpenCode error: `{name, data: {message}}`, or any other value."""
    fields = object_of(error)
    message = object_of(fields.get("data")).get("message") or fields.get("message")
    return str(message or fields.get("name") or error)


def _ended(part: Json) -> bool:
    """Whether a part is whole: those with a beginning have an end, tools a status."""
    if part.get("type") == "tool":
        return word(object_of(part.get("state")).get("status")) in {"completed", "error"}
    if word(part.get("type")) in {"text", "reasoning"}:
        return "end" in object_of(part.get("time"))
    return True
