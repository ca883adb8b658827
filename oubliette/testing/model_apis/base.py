"""Base of the APIs of models: one reader of a request and one writer of an answer.

An answer is written as server-sent events or in one piece.
"""

from __future__ import annotations

import abc
import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from oubliette.testing.model_script import (
    Break,
    ModelRequest,
    ModelToolCall,
    Pause,
    Refuse,
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


def event(data: Json, name: str | None = None) -> str:
    """Return one server-sent event."""
    return f"{f'event: {name}' + chr(10) if name else ''}data: {json.dumps(data)}\n\n"
