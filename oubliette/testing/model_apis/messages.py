"""Messages, Anthropic's API."""

from __future__ import annotations

import json

from oubliette.testing.model_apis.base import Api, Json, event
from oubliette.testing.model_apis.request_text import objects, text_of
from oubliette.testing.model_script import ModelRequest, ModelToolCall, Refuse, Said


class Messages(Api):
    """API `/v1/messages` (Anthropic)."""

    path = "/v1/messages"

    @staticmethod
    def read(body: Json) -> ModelRequest:
        """Parse messages of blocks; results are blocks of a user's message."""
        said: list[Said] = []
        for message in objects(body.get("messages")):
            content = message.get("content")
            for block in objects(content):
                if block.get("type") == "tool_result":
                    call = str(block.get("tool_use_id"))
                    said.append(Said("result", text_of(block.get("content")), call))
            text = text_of(content)
            if message.get("role") == "assistant":
                said.append(Said("assistant", text))
            elif text:
                said.append(Said("user", text))
        tools = tuple(str(tool["name"]) for tool in objects(body.get("tools")) if "name" in tool)
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
            event({"type": "message_start", "message": self._message([], None)}, "message_start")
        ]

    def _start(self, block: Json) -> str:
        kind = "content_block_start"
        return event({"type": kind, "index": self._blocks, "content_block": block}, kind)

    def _delta(self, delta: Json) -> str:
        kind = "content_block_delta"
        return event({"type": kind, "index": self._blocks, "delta": delta}, kind)

    def _stop(self) -> str:
        kind = "content_block_stop"
        self._blocks += 1
        return event({"type": kind, "index": self._blocks - 1}, kind)

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
        return [event(self.error(refusal.status, refusal.message), "error")]

    def end(self, *, calls: bool) -> list[str]:
        """Return the reason and the usage."""
        reason = {"stop_reason": "tool_use" if calls else "end_turn", "stop_sequence": None}
        usage = {"input_tokens": self.tokens, "output_tokens": self.written}
        return [
            event({"type": "message_delta", "delta": reason, "usage": usage}, "message_delta"),
            event({"type": "message_stop"}, "message_stop"),
        ]

    def whole(self, text: str, calls: list[ModelToolCall]) -> Json:
        """Return all blocks."""
        content: list[Json] = [{"type": "text", "text": text}] if text else []
        content += [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
            for call in calls
        ]
        return self._message(content, "tool_use" if calls else "end_turn")
