"""Runner of an agent in Python: reads prompts, runs the function, writes events.

The protocol is that of the scripted agent: JSON lines on stdin and stdout.
`docs/agents.md` has what the function can do.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import sys
import traceback
from collections import deque

from .. import wire
from ..io.json_values import as_object, as_text
from .function import Unimportable, load, unpack
from .history import Exchange, History
from .tool_client import ToolClient
from .turn import PythonTurn, SessionOfTurns, described

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

EOF_SECONDS = 5.0  # that running and queued turns may take once stdin has ended
CODE = "code"  # folder of the shipped files, beside their archive
HISTORY = "history.jsonl"

# Only the client may have these: the function does not need them.
CLIENT_ONLY = ("OUBLIETTE_API_KEY", "OUBLIETTE_PAIRING_SECRET")


class EventOutput:
    """Output of events, one JSON object per line."""

    def __init__(self, stdout: int) -> None:
        self._stdout = stdout

    def send(self, kind: str, turn: int, fields: Json) -> None:
        """Write one event; a value that JSON cannot hold is written as its `repr`."""
        view = memoryview(_line_of({"type": kind, "turn": turn, **fields}))
        try:
            while view:
                view = view[os.write(self._stdout, view) :]
        except OSError:
            os._exit(0)  # the reader has closed stdout


def _line_of(event: Json) -> bytes:
    """An event as a line of JSON, for any values of a function."""
    try:
        text = json.dumps(event, ensure_ascii=False, allow_nan=False, default=repr)
    except (TypeError, ValueError, RecursionError):  # keys, infinities, circles
        shown = {name: _shown(value) for name, value in event.items()}
        text = json.dumps(shown, ensure_ascii=False)  # half a surrogate pair is replaced below
    return text.encode("utf-8", "replace") + b"\n"


def _shown(value: object) -> object:
    if value is None or isinstance(value, (str, int)):
        return value
    text = repr(value)
    return {"repr": text} if isinstance(value, dict) else text


class PythonAgent:
    """Runs turns one after the other, while stdin is read."""

    def __init__(self, function: Any, session: SessionOfTurns, output: EventOutput) -> None:
        self._function = function
        self._session = session
        self._output = output
        self._queue: deque[tuple[int, str]] = deque()
        self._queued = asyncio.Event()
        self._turn: PythonTurn | None = None
        self._answering: asyncio.Future[None] | None = None
        self._ending = False

    async def run(self) -> None:
        """Serve until stdin ends, or SIGTERM arrives."""
        loop = asyncio.get_running_loop()
        stdin = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stdin), os.fdopen(0, "rb", buffering=0)
        )
        loop.add_signal_handler(signal.SIGTERM, self._terminate, transport)
        worker = asyncio.ensure_future(self._work())
        lines = wire.LineReader()
        while data := await stdin.read(1 << 16):
            for line in lines.feed(data):
                self._line(line)
        self._ending = True
        self._queued.set()
        for decision in () if self._turn is None else self._turn.decisions.values():
            if not decision.done():
                decision.set_result(False)
        done, _ = await asyncio.wait({worker}, timeout=EOF_SECONDS)
        if not done:
            self._drop()
            await asyncio.wait({worker}, timeout=EOF_SECONDS)
        await self._session.tools.close()
        for error in (task.exception() for task in done):
            if error is not None:
                raise error

    def _terminate(self, transport: asyncio.BaseTransport) -> None:
        self._drop()
        transport.close()  # the reading ends as if stdin had

    def _drop(self) -> None:
        self._queue.clear()
        self._cancel()

    def _cancel(self) -> None:
        if self._turn is not None and self._answering is not None:
            self._turn.cancelled = True
            self._answering.cancel()

    # Input

    def _line(self, line: bytes | wire.OversizeLine) -> None:
        if isinstance(line, wire.OversizeLine):
            self._complain(str(line))
            return
        if not line.strip():
            return
        try:
            message = as_object(json.loads(line.decode())) or {}
        except (ValueError, RecursionError):
            message = {}
        kind: object = message.get("type")
        number: object = message.get("turn")
        if kind == "prompt" and isinstance(number, int):
            self._queue.append((number, as_text(message.get("text"))))
            self._queued.set()
        elif kind == "interrupt":
            self._interrupt(number)
        elif kind == "permission":
            allowed = message.get("decision") == "allow"
            self._decide(as_text(message.get("request_id")), allowed=allowed)
        else:
            self._complain(f"unreadable line: {line[:200]!r}")

    def _complain(self, problem: str) -> None:
        number = 0 if self._turn is None else self._turn.number
        self._output.send("error", number, {"message": problem})

    def _interrupt(self, number: object) -> None:
        waiting = [entry for entry in self._queue if entry[0] == number]
        for entry in waiting:  # it never starts, but each turn has its completion
            self._queue.remove(entry)
            self._output.send("completion", entry[0], {"final_text": "", "status": "interrupted"})
        if self._turn is not None and number in (None, self._turn.number):
            self._cancel()

    def _decide(self, request_id: str, *, allowed: bool) -> None:
        decision = None if self._turn is None else self._turn.decisions.get(request_id)
        if decision is not None and not decision.done():
            decision.set_result(allowed)

    # Turns

    async def _work(self) -> None:
        while True:
            while not self._queue:
                if self._ending:
                    return
                self._queued.clear()
                await self._queued.wait()
            number, prompt = self._queue.popleft()
            await self._one_turn(number, prompt)

    async def _one_turn(self, number: int, prompt: str) -> None:
        def emit(kind: str, fields: Json) -> None:
            self._output.send(kind, number, fields)

        turn = self._turn = PythonTurn(prompt, number, self._session, emit)
        emit("turn_started", {})
        answering = self._answering = asyncio.ensure_future(self._answer(turn))
        await asyncio.wait({answering})
        self._turn = self._answering = None
        status = "interrupted" if turn.cancelled else "completed"
        error = None if answering.cancelled() else answering.exception()
        if error is None and answering.cancelled() and not turn.cancelled:
            error = RuntimeError("the function was cancelled from within")
        if error is not None and not turn.cancelled:
            status = "failed"
            traceback.print_exception(type(error), error, error.__traceback__)
            emit("error", {"message": described(error)})
        turn.finish_message()
        self._session.history.add(Exchange(prompt, "\n\n".join(turn.texts), status))
        emit("completion", {"final_text": turn.final_text, "status": status})

    async def _answer(self, turn: PythonTurn) -> None:
        answer = self._function(turn)
        if not hasattr(answer, "__aiter__"):
            whole = await answer
            turn.say("" if whole is None else whole)
            return
        try:
            async for piece in answer:
                turn.say(piece)
        finally:
            await answer.aclose()


async def _serve(settings: Json, function: Any, environ: dict[str, str], stdout: int) -> None:
    folder = os.path.dirname(settings["archive"])
    output = EventOutput(stdout)
    version = platform.python_version()
    output.send("ready", 0, {"agent": settings["name"], "version": version})
    tools = ToolClient(settings["client"], environ)
    history = History(os.path.join(folder, HISTORY))
    await PythonAgent(function, SessionOfTurns(environ, tools, history), output).run()


def main(arguments: list[str]) -> int:
    """Run the agent that one argument describes, a JSON object; returns the exit code."""
    settings: Json = json.loads(arguments[0])
    environ = dict(os.environ)
    for name in CLIENT_ONLY:
        os.environ.pop(name, None)
    stdout = os.dup(1)
    os.dup2(2, 1)  # a misplaced print must not end up between the events
    sys.stdout = sys.stderr  # which is not held back until a buffer is full
    code = os.path.join(os.path.dirname(settings["archive"]), CODE)
    try:
        unpack(settings["archive"], code)
        sys.path += settings["packages"]  # after those of the image
        function = load(code, settings["module"], settings["file"], settings["function"])
    except Unimportable as error:
        traceback.print_exc()
        print(f"the agent {settings['name']} cannot be run: {error}", file=sys.stderr)
        return 1
    asyncio.run(_serve(settings, function, environ, stdout))
    return 0
