"""Three APIs of models: chat completions, responses, messages.

Each is one reader of a request and one writer of an answer, as server-sent events or in one piece.
"""

from __future__ import annotations

import abc
import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, cast

from oubliette.testing.model_script import (
    Break,
    ModelRequest,
    ModelToolCall,
    Pause,
    Refuse,
    Said,
    Say,
    Step,
    TokenUsage,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Json = dict[str, Any]
CHARS_PER_TOKEN: Final = 4


class CutError(Exception):
    """The script requests that the connection breaks here."""


class Api(abc.ABC):
    """One API: its requests and its answers."""

    path: str

    def __init__(self, asked: ModelRequest, number: int, steps: list[Step]) -> None:
        self.asked = asked
        self.id = f"scripted_{number}"
        self.steps = steps
        said = next((step for step in reversed(steps) if isinstance(step, TokenUsage)), None)
        self._said = said
        self.tokens = sum(len(said.text) for said in asked.said) // CHARS_PER_TOKEN
        """Tokens read: about four characters each, or the script's number."""
        if said is not None:
            self.tokens = said.read
        self._pieces = 0

    @property
    def written(self) -> int:
        """Return the tokens of the answer: its pieces, or the script's number."""
        return self._pieces if self._said is None else self._said.written

    @staticmethod
    @abc.abstractmethod
    def read(body: Json) -> ModelRequest:
        """Parse a request."""

    @staticmethod
    @abc.abstractmethod
    def error(status: int, message: str) -> Json:
        """Return the body of an HTTP error."""

    @abc.abstractmethod
    def begin(self) -> list[str]:
        """Return events before the answer."""

    @abc.abstractmethod
    def text_begin(self) -> list[str]:
        """Return events before the first piece of a text."""

    @abc.abstractmethod
    def text(self, piece: str) -> list[str]:
        """Return events for one piece of a text."""

    @abc.abstractmethod
    def text_end(self, text: str) -> list[str]:
        """Return events after a text."""

    @abc.abstractmethod
    def call(self, call: ModelToolCall) -> list[str]:
        """Return events for a tool call."""

    @abc.abstractmethod
    def failure(self, refusal: Refuse) -> list[str]:
        """Return events that end an answer that has begun."""

    @abc.abstractmethod
    def end(self, *, calls: bool) -> list[str]:
        """Return events after the answer."""

    @abc.abstractmethod
    def whole(self, text: str, calls: list[ModelToolCall]) -> Json:
        """Return the answer in one piece."""

    async def stream(self) -> AsyncIterator[str]:
        """Iterate over the events of the answer.

        Raises:
            CutError: the script requests a broken connection.
        """
        for event in self.begin():
            yield event
        for step in self.steps:
            if isinstance(step, Say):
                for event in self.text_begin():
                    yield event
                for piece in step.pieces:
                    if step.pause:
                        await asyncio.sleep(step.pause)
                    self._pieces += 1
                    for event in self.text(piece):
                        yield event
                for event in self.text_end("".join(step.pieces)):
                    yield event
            elif isinstance(step, ModelToolCall):
                self._pieces += 1
                for event in self.call(step):
                    yield event
            elif isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Refuse):
                for event in self.failure(step):
                    yield event
                return
            elif isinstance(step, Break):
                if step.how == "cut":
                    raise CutError
                await asyncio.Event().wait()
        for event in self.end(calls=any(isinstance(step, ModelToolCall) for step in self.steps)):
            yield event


def _event(data: Json, name: str | None = None) -> str:
    return f"{f'event: {name}' + chr(10) if name else ''}data: {json.dumps(data)}\n\n"


def instructions(body: Json) -> str:
    """Return the text of a request besides the conversation, reminders included."""
    texts = [_whole(body.get("system")), _whole(body.get("instructions"))]
    for message in (*_list(body.get("messages")), *_list(body.get("input"))):
        text = _whole(message.get("content"))
        if message.get("role") in {"system", "developer"} or "<system-reminder>" in text:
            texts.append(text)
    return "\n".join(text for text in texts if text)


def _whole(content: object) -> str:
    """Return all texts of a message."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text") or "") for part in _list(content))


def _text(content: object) -> str:
    """Return the text of a message, in any wrapping."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts: list[str] = []
    for part in cast("list[Any]", content):
        if isinstance(part, dict):
            found: Any = cast("Json", part).get("text")
            if isinstance(found, str) and not found.lstrip().startswith("<system-reminder>"):
                texts.append(found)
    return "\n".join(texts)


def _list(value: object) -> list[Json]:
    """Return the objects of a list; empty for anything else."""
    if not isinstance(value, list):
        return []
    return [cast("Json", item) for item in cast("list[Any]", value) if isinstance(item, dict)]


class ChatCompletions(Api):
    """API `/v1/chat/completions` (OpenAI)."""

    path = "/v1/chat/completions"

    @staticmethod
    def read(body: Json) -> ModelRequest:
        """Parse messages with roles; results are messages of the role `tool`."""
        said: list[Said] = []
        for message in _list(body.get("messages")):
            match message.get("role"):
                case "user":
                    said.append(Said("user", _text(message.get("content"))))
                case "assistant":
                    said.append(Said("assistant", _text(message.get("content"))))
                case "tool":
                    call = str(message.get("tool_call_id"))
                    said.append(Said("result", _text(message.get("content")), call))
                case _:
                    pass
        tools = tuple(
            str(cast("Json", tool["function"]).get("name"))
            for tool in _list(body.get("tools"))
            if isinstance(tool.get("function"), dict)
        )
        return ModelRequest(tuple(said), tools, bool(body.get("stream")), str(body.get("model")))

    @staticmethod
    def error(status: int, message: str) -> Json:
        """Return OpenAI's error; agents retry on `server_error`."""
        kind = "server_error" if status >= 500 else "invalid_request_error"
        return {"error": {"message": message, "type": kind, "code": None, "param": None}}

    def _chunk(self, delta: Json, finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event(self._head("chat.completion.chunk", choices=[choice]))

    def _head(self, kind: str, **more: Any) -> Json:
        return {"id": self.id, "object": kind, "created": 0, "model": self.asked.model, **more}

    def _usage(self) -> Json:
        total = self.tokens + self.written
        return {
            "prompt_tokens": self.tokens,
            "completion_tokens": self.written,
            "total_tokens": total,
        }

    def begin(self) -> list[str]:
        """Return the role."""
        self._calls = 0
        return [self._chunk({"role": "assistant", "content": ""})]

    def text_begin(self) -> list[str]:
        """Return nothing."""
        return []

    def text(self, piece: str) -> list[str]:
        """Return a delta."""
        return [self._chunk({"content": piece})]

    def text_end(self, text: str) -> list[str]:
        """Return nothing."""
        del text
        return []

    def call(self, call: ModelToolCall) -> list[str]:
        """Return the name first, then the arguments."""
        head = {"name": call.name, "arguments": ""}
        place = self._calls
        self._calls += 1
        first = {"index": place, "id": call.id, "type": "function", "function": head}
        arguments = {"index": place, "function": {"arguments": json.dumps(call.arguments)}}
        return [self._chunk({"tool_calls": [first]}), self._chunk({"tool_calls": [arguments]})]

    def failure(self, refusal: Refuse) -> list[str]:
        """Return the body of an error as a chunk."""
        return [_event(self.error(refusal.status, refusal.message))]

    def end(self, *, calls: bool) -> list[str]:
        """Return the reason, the usage, and the end mark."""
        return [
            self._chunk({}, "tool_calls" if calls else "stop"),
            _event(self._head("chat.completion.chunk", choices=[], usage=self._usage())),
            "data: [DONE]\n\n",
        ]

    def whole(self, text: str, calls: list[ModelToolCall]) -> Json:
        """Return one choice."""
        message: Json = {"role": "assistant", "content": text or None}
        if calls:
            message["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
                }
                for call in calls
            ]
        reason = "tool_calls" if calls else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return self._head("chat.completion", choices=[choice], usage=self._usage())


class Responses(Api):
    """API `/v1/responses` (OpenAI)."""

    path = "/v1/responses"

    @staticmethod
    def read(body: Json) -> ModelRequest:
        """Parse items; calls and their results are items of their own."""
        said: list[Said] = []
        given = body.get("input")
        if isinstance(given, str):
            said.append(Said("user", given))
        for item in _list(given):
            kind = item.get("type", "message")
            if kind == "function_call_output":
                call = str(item.get("call_id"))
                said.append(Said("result", _text(item.get("output")), call))
            elif kind == "message" and item.get("role") in {"user", "assistant"}:
                said.append(Said(str(item["role"]), _text(item.get("content"))))
        tools = tuple(str(tool["name"]) for tool in _list(body.get("tools")) if "name" in tool)
        return ModelRequest(tuple(said), tools, bool(body.get("stream")), str(body.get("model")))

    @staticmethod
    def error(status: int, message: str) -> Json:
        """Return an error like chat completions."""
        return ChatCompletions.error(status, message)

    def _say(self, kind: str, **fields: Any) -> str:
        self._number += 1
        return _event({"type": kind, "sequence_number": self._number, **fields}, kind)

    def _response(self, status: str) -> Json:
        return {
            "id": self.id,
            "object": "response",
            "created_at": 0,
            "status": status,
            "model": self.asked.model,
            "output": self._output,
            "parallel_tool_calls": True,
            "usage": {
                "input_tokens": self.tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": self.written,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": self.tokens + self.written,
            },
        }

    def begin(self) -> list[str]:
        """Return that the response was created and goes on."""
        self._number = -1
        self._output: list[Json] = []
        return [
            self._say("response.created", response=self._response("in_progress")),
            self._say("response.in_progress", response=self._response("in_progress")),
        ]

    def _message(self, text: str | None) -> Json:
        parts: list[Json] = (
            [] if text is None else [{"type": "output_text", "text": text, "annotations": []}]
        )
        status = "in_progress" if text is None else "completed"
        item = f"msg_{self.id}_{len(self._output)}"
        return {
            "id": item,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": parts,
        }

    def _place(self) -> Json:
        item = f"msg_{self.id}_{len(self._output)}"
        return {"item_id": item, "output_index": len(self._output), "content_index": 0}

    def text_begin(self) -> list[str]:
        """Return an item with one empty part."""
        part: Json = {"type": "output_text", "text": "", "annotations": []}
        place = len(self._output)
        return [
            self._say("response.output_item.added", output_index=place, item=self._message(None)),
            self._say("response.content_part.added", **self._place(), part=part),
        ]

    def text(self, piece: str) -> list[str]:
        """Return a delta."""
        return [self._say("response.output_text.delta", **self._place(), delta=piece, logprobs=[])]

    def text_end(self, text: str) -> list[str]:
        """Return that text, part and item are done."""
        part: Json = {"type": "output_text", "text": text, "annotations": []}
        place, item = len(self._output), self._message(text)
        events = [
            self._say("response.output_text.done", **self._place(), text=text, logprobs=[]),
            self._say("response.content_part.done", **self._place(), part=part),
            self._say("response.output_item.done", output_index=place, item=item),
        ]
        self._output.append(item)
        return events

    def _call(self, call: ModelToolCall, arguments: str, status: str) -> Json:
        return {
            "id": f"fc_{call.id}",
            "type": "function_call",
            "status": status,
            "call_id": call.id,
            "name": call.name,
            "arguments": arguments,
        }

    def call(self, call: ModelToolCall) -> list[str]:
        """Return an item followed by its arguments."""
        place, arguments = len(self._output), json.dumps(call.arguments)
        where = {"item_id": f"fc_{call.id}", "output_index": place}
        done = self._call(call, arguments, "completed")
        events = [
            self._say(
                "response.output_item.added",
                output_index=place,
                item=self._call(call, "", "in_progress"),
            ),
            self._say("response.function_call_arguments.delta", **where, delta=arguments),
            self._say("response.function_call_arguments.done", **where, arguments=arguments),
            self._say("response.output_item.done", output_index=place, item=done),
        ]
        self._output.append(done)
        return events

    def failure(self, refusal: Refuse) -> list[str]:
        """Return that the response has failed."""
        code = "server_error" if refusal.status >= 500 else "invalid_prompt"
        error = {"code": code, "message": refusal.message}
        return [self._say("response.failed", response={**self._response("failed"), "error": error})]

    def end(self, *, calls: bool) -> list[str]:
        """Return the complete response."""
        del calls
        return [self._say("response.completed", response=self._response("completed"))]

    def whole(self, text: str, calls: list[ModelToolCall]) -> Json:
        """Return the content of a stream's last event."""
        self.begin()
        if text:
            self.text_end(text)
        for call in calls:
            self.call(call)
        return self._response("completed")


class Messages(Api):
    """API `/v1/messages` (Anthropic)."""

    path = "/v1/messages"

    @staticmethod
    def read(body: Json) -> ModelRequest:
        """Parse messages of blocks; results are blocks of a user's message."""
        said: list[Said] = []
        for message in _list(body.get("messages")):
            content = message.get("content")
            for block in _list(content):
                if block.get("type") == "tool_result":
                    call = str(block.get("tool_use_id"))
                    said.append(Said("result", _text(block.get("content")), call))
            text = _text(content)
            if message.get("role") == "assistant":
                said.append(Said("assistant", text))
            elif text:
                said.append(Said("user", text))
        tools = tuple(str(tool["name"]) for tool in _list(body.get("tools")) if "name" in tool)
        return ModelRequest(tuple(said), tools, bool(body.get("stream")), str(body.get("model")))

    @staticmethod
    def error(status: int, message: str) -> Json:
        """Return Anthropic's error."""
        kinds = {429: "rate_limit_error", 529: "overloaded_error", 401: "authentication_error"}
        kind = kinds.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": message}}

    def _message(self, content: list[Json], reason: str | None) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.asked.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {"input_tokens": self.tokens, "output_tokens": self.written},
        }

    def begin(self) -> list[str]:
        """Return an empty message."""
        self._blocks = 0
        return [
            _event({"type": "message_start", "message": self._message([], None)}, "message_start")
        ]

    def _start(self, block: Json) -> str:
        kind = "content_block_start"
        return _event({"type": kind, "index": self._blocks, "content_block": block}, kind)

    def _delta(self, delta: Json) -> str:
        kind = "content_block_delta"
        return _event({"type": kind, "index": self._blocks, "delta": delta}, kind)

    def _stop(self) -> str:
        kind = "content_block_stop"
        self._blocks += 1
        return _event({"type": kind, "index": self._blocks - 1}, kind)

    def text_begin(self) -> list[str]:
        """Return the start of a block."""
        return [self._start({"type": "text", "text": ""})]

    def text(self, piece: str) -> list[str]:
        """Return a delta."""
        return [self._delta({"type": "text_delta", "text": piece})]

    def text_end(self, text: str) -> list[str]:
        """Return the end of a block."""
        del text
        return [self._stop()]

    def call(self, call: ModelToolCall) -> list[str]:
        """Return a block whose input is sent as JSON."""
        block: Json = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call.arguments)}
        return [self._start(block), self._delta(delta), self._stop()]

    def failure(self, refusal: Refuse) -> list[str]:
        """Return the event `error`."""
        return [_event(self.error(refusal.status, refusal.message), "error")]

    def end(self, *, calls: bool) -> list[str]:
        """Return the reason and the usage."""
        reason = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
        usage = {"input_tokens": self.tokens, "output_tokens": self.written}
        return [
            _event({"type": "message_delta", "delta": reason, "usage": usage}, "message_delta"),
            _event({"type": "message_stop"}, "message_stop"),
        ]

    def whole(self, text: str, calls: list[ModelToolCall]) -> Json:
        """Return all blocks."""
        content: list[Json] = [{"type": "text", "text": text}] if text else []
        content += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
            for call in calls
        ]
        return self._message(content, "tool_use" if calls else "end_turn")


APIS: Final[tuple[type[Api], ...]] = (ChatCompletions, Responses, Messages)
