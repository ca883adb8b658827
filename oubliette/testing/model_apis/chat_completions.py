"""Chat completions, OpenAI's older API."""

from __future__ import annotations

import json
from typing import Any, cast

from oubliette.testing.model_apis.base import Api, Json, event
from oubliette.testing.model_apis.request_text import objects, text_of
from oubliette.testing.model_script import ModelRequest, ModelToolCall, Refuse, Said


class ChatCompletions(Api):
    """API `/v1/chat/completions` (OpenAI)."""

    path = "/v1/chat/completions"

    @staticmethod
    def read(body: Json) -> ModelRequest:
        """Parse messages with roles; results are messages of the role `tool`."""
        said: list[Said] = []
        for message in objects(body.get("messages")):
            match message.get("role"):
                case "user":
                    said.append(Said("user", text_of(message.get("content"))))
                case "assistant":
                    said.append(Said("assistant", text_of(message.get("content"))))
                case "tool":
                    call = str(message.get("tool_call_id"))
                    said.append(Said("result", text_of(message.get("content")), call))
                case _:
                    pass
        tools = tuple(
            str(cast("Json", tool["function"]).get("name"))
            for tool in objects(body.get("tools"))
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
        return event(self._head("chat.completion.chunk", choices=[choice]))

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
        return [event(self.error(refusal.status, refusal.message))]

    def end(self, *, calls: bool) -> list[str]:
        """Return the reason, the usage, and the end mark."""
        return [
            self._chunk({}, "tool_calls" if calls else "stop"),
            event(self._head("chat.completion.chunk", choices=[], usage=self._usage())),
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
