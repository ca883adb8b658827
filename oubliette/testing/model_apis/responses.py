"""Responses, OpenAI's newer API."""

from __future__ import annotations

import json
from typing import Any

from oubliette.testing.model_apis.base import Api, Json, event
from oubliette.testing.model_apis.chat_completions import ChatCompletions
from oubliette.testing.model_apis.request_text import objects, text_of
from oubliette.testing.model_script import ModelRequest, ModelToolCall, Refuse, Said


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
        for item in objects(given):
            kind = item.get("type", "message")
            if kind == "function_call_output":
                call = str(item.get("call_id"))
                said.append(Said("result", text_of(item.get("output")), call))
            elif kind == "message" and item.get("role") in {"user", "assistant"}:
                said.append(Said(str(item["role"]), text_of(item.get("content"))))
        tools = tuple(str(tool["name"]) for tool in objects(body.get("tools")) if "name" in tool)
        return ModelRequest(tuple(said), tools, bool(body.get("stream")), str(body.get("model")))

    @staticmethod
    def error(status: int, message: str) -> Json:
        """Return an error like chat completions."""
        return ChatCompletions.error(status, message)

    def _say(self, kind: str, **fields: Any) -> str:
        self._number += 1
        return event({"type": kind, "sequence_number": self._number, **fields}, kind)

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
