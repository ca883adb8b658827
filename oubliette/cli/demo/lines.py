"""Output of the demo: a line for each event, and a reminder during long waits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Final

from oubliette import ErrorEvent, Message, Status, ToolCall, ToolResult
from oubliette.errors import DeadlineExceeded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from oubliette import Event

SILENCE: Final = 5.0  # seconds without a line until a reminder


class DemoOutput:
    """Output of the demo, with seconds since its start."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._said = asyncio.Event()
        self._last = ""
        self._waits: list[tuple[str, float]] = []

    def say(self, who: str, text: str) -> None:
        """Print a line about `who`."""
        self._last = f"{who} {text}"
        self._print(who, text)

    def _print(self, who: str, text: str) -> None:
        self._said.set()
        seconds = time.monotonic() - self._began
        sys.stdout.write(f"{seconds:6.2f} s  {who:<8} {text}\n")
        sys.stdout.flush()

    @contextlib.asynccontextmanager
    async def waiting(self, what: str, seconds: float) -> AsyncGenerator[None]:
        """Give the block `seconds`, and print reminders that the demo waits for `what`.

        Raises:
            DeadlineExceeded: the block took longer.
        """
        wait = (what, time.monotonic() + seconds)
        self._waits.append(wait)
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"the demo has waited {seconds:g} s for {what} in vain; last it saw: {self._last}"
            ) from error
        finally:
            self._waits.remove(wait)

    @contextlib.asynccontextmanager
    async def reminding(self) -> AsyncGenerator[None]:
        """Print a reminder every few seconds of silence, while the block runs."""
        reminder = asyncio.create_task(self._remind(), name="what the demo waits for")
        try:
            yield
        finally:
            reminder.cancel()
            await asyncio.gather(reminder, return_exceptions=True)

    async def _remind(self) -> None:
        while True:
            self._said.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENCE):
                    await self._said.wait()
                continue
            for what, until in self._waits[-1:]:
                left = max(0.0, until - time.monotonic())
                last = f"; last: {short(self._last)}" if self._last else ""
                self._print("demo", f"waits for {what}, at most {left:.0f} s more{last}")


class LogLines(logging.Handler):
    """Handler that prints what the API logs, such as that it connects again."""

    def __init__(self, lines: DemoOutput) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record as a line of the demo's."""
        self._lines.say("demo", short(record.getMessage()))


def described(event: Event) -> str:
    """Return an event as a line; empty for one that is not shown."""
    match event:
        case Message(text=text):
            return f"says: {short(text)}"
        case ToolCall(tool=tool, arguments=arguments):
            return f"calls {tool} {short(json.dumps(arguments))}"
        case ToolResult(result=result, is_error=is_error):
            return f"gets {'refused: ' if is_error else ''}{short(json.dumps(result))}"
        case Status(status=status):
            return f"is {status}"
        case ErrorEvent(message=message):
            return f"error: {short(message)}"
        case _:
            return ""


def short(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= 110 else text[:109] + "…"
