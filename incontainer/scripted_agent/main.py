"""Scripted agent: no model, each line of a prompt is a directive.

An ordinary agent program: it reads prompts and interrupts as JSON lines on stdin, writes events as
JSON lines on stdout, and calls its tools over MCP through `oubliette-client`.
`docs/scripted-agent.md` has the language and the protocol.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
from collections import deque

from .. import wire
from ..io.json_values import as_object, as_text
from .interrupt import Interrupted, InterruptSignal
from .mcp_client import LEGACY_VERSION, McpClient
from .script import ScriptError, parse
from .turn import Agent, ScriptTurn, TurnFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

VERSION = "0.1.0"
EOF_SECONDS = 5.0  # that running and queued turns may take once stdin has ended

# Only the client may have these: a command of the script does not need them.
CLIENT_ONLY = ("OUBLIETTE_API_KEY", "OUBLIETTE_PAIRING_SECRET")


class ScriptedAgent:
    """Reads stdin on the main thread and runs the turns on another, one after the other."""

    def __init__(self, agent: Agent, stdout: int) -> None:
        self._agent = agent
        self._moment = agent.moment
        self._stdout = stdout
        self._write_lock = threading.Lock()
        self._queue: deque[tuple[int, str]] = deque()
        self._current: int | None = None
        self._ending = False

    def run(self) -> None:
        worker = threading.Thread(target=self._work, daemon=True)
        try:
            worker.start()
        except RuntimeError as error:
            raise SystemExit(
                f"no more thread can be started in this container: {error}; "
                "its limit of processes or of memory is reached"
            ) from error
        self._send("ready", 0, {"agent": "scripted", "version": VERSION})
        terminated = _terminations()
        ready = select.poll()  # unlike epoll, it takes a file for stdin as well
        ready.register(0, select.POLLIN)
        ready.register(terminated, select.POLLIN)
        reader = wire.LineReader()
        while True:
            if any(fd == terminated for fd, _events in ready.poll()):
                self._drop()
                break
            data = os.read(0, 1 << 16)
            for line in reader.feed(data):
                self._line(line)
            if not data:
                break
        self._end(worker)

    def _end(self, worker: threading.Thread) -> None:
        with self._moment.condition:
            self._ending = self._agent.closed = True
            for request_id in self._agent.decisions:
                self._agent.decisions[request_id] = "deny"
            self._moment.condition.notify_all()
        worker.join(EOF_SECONDS)
        if worker.is_alive():
            self._drop()
            worker.join(EOF_SECONDS)
        self._agent.mcp.close()

    def _drop(self) -> None:
        with self._moment.condition:
            self._queue.clear()
            self._moment.interrupt()

    # Input

    def _line(self, line: bytes | wire.OversizeLine) -> None:
        if isinstance(line, wire.OversizeLine):
            self._send("error", self._current or 0, {"message": str(line)})
            return
        if not line.strip():
            return
        try:
            message = as_object(json.loads(line.decode()))
        except (ValueError, RecursionError):
            message = None
        kind: object = None if message is None else message.get("type")
        if message is not None and kind == "prompt":
            self._prompt(message)
        elif message is not None and kind == "interrupt":
            self._interrupt(message.get("turn"))
        elif message is not None and kind == "permission":
            decision = "allow" if message.get("decision") == "allow" else "deny"
            self._agent.decide(as_text(message.get("request_id")), decision)
        else:
            self._send("error", self._current or 0, {"message": f"unreadable line: {line[:200]!r}"})

    def _prompt(self, message: Json) -> None:
        turn: object = message.get("turn")
        number = turn if isinstance(turn, int) else 0
        with self._moment.condition:
            self._queue.append((number, as_text(message.get("text"))))
            self._moment.condition.notify_all()

    def _interrupt(self, turn: object) -> None:
        with self._moment.condition:
            waiting = [entry for entry in self._queue if entry[0] == turn]
            for entry in waiting:
                self._queue.remove(entry)
            if self._current is not None and turn in (None, self._current) and not waiting:
                self._moment.interrupt()
        for number, _text in waiting:  # it never starts, but each turn has its completion
            self._send("completion", number, {"final_text": "", "status": "interrupted"})

    # Turns

    def _work(self) -> None:
        while True:
            with self._moment.condition:
                self._moment.condition.wait_for(lambda: self._queue or self._ending)
                if not self._queue:
                    return
                self._current, text = self._queue.popleft()
                self._moment.reset()
                number = self._current
            self._turn(number, text)
            with self._moment.condition:
                self._current = None

    def _turn(self, number: int, text: str) -> None:
        self._send("turn_started", number, {})
        final, status = "", "completed"
        turn = ScriptTurn(
            self._agent, number, lambda kind, fields: self._send(kind, number, fields)
        )
        try:
            for action in parse(text):
                self._moment.check()
                final = action(turn)
                self._send("message", number, {"text": final})
        except Interrupted:
            status = "interrupted"
        except (ScriptError, TurnFailed) as error:
            status = "failed"
            self._send("error", number, {"message": str(error)})
        except Exception as error:
            status = "failed"
            self._send("error", number, {"message": f"the agent itself failed: {error!r}"})
        self._send("completion", number, {"final_text": final, "status": status})

    # Output

    def _send(self, kind: str, turn: int, fields: Json) -> None:
        message = {"type": kind, "turn": turn, **fields}
        view = memoryview(json.dumps(message).encode() + b"\n")
        with self._write_lock:
            try:
                while view:
                    view = view[os.write(self._stdout, view) :]
            except OSError:
                os._exit(0)  # the reader has closed stdout


def _terminations() -> int:
    """A descriptor that becomes readable with SIGTERM.

    A handler that raises would not do: the signal may come just before the main thread blocks.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    return reader


def client_argv() -> list[str]:
    """The command that starts `oubliette-client` from this program's zipapp or checkout."""
    home = os.path.abspath(__file__)
    for _ in range(3):  # above the top package: the zipapp, or its counterpart in a checkout
        home = os.path.dirname(home)
    if os.path.isfile(home):
        # -I: modules of an agent's workspace or PYTHONPATH must not be imported
        return [sys.executable, "-I", "-S", home, "client"]
    code = f"import sys; sys.path.insert(0, {home!r}); from incontainer.client.main import main; "
    return [sys.executable, "-c", code + "sys.exit(main(sys.argv[1:]))"]


def main(_arguments: list[str] | None = None) -> int:
    """Run the scripted agent; returns the exit code."""
    environ = dict(os.environ)
    for name in CLIENT_ONLY:
        os.environ.pop(name, None)
    stdout = os.dup(1)
    os.dup2(2, 1)  # a misplaced print must not end up between the events
    moment = InterruptSignal()
    version = environ.get("OUBLIETTE_AGENT_MCP_VERSION", LEGACY_VERSION)
    mcp = McpClient(client_argv(), environ, moment, version)
    home = environ.get("OUBLIETTE_AGENT_HOME") or os.path.expanduser("~")
    agent = Agent(mcp, moment, dict(os.environ), os.path.join(home, "state.json"))
    ScriptedAgent(agent, stdout).run()
    return 0
