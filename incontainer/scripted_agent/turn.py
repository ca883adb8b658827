"""One turn of the scripted agent: executes the directives of a script."""

from __future__ import annotations

import json
import os
import sys
import time

from ..io.json_values import as_array, as_object, as_text
from .mcp_client import McpError
from .shell import Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .interrupt import InterruptSignal
    from .mcp_client import McpClient, Pending

    Json = dict[str, Any]
    Emit = Callable[[str, Json], None]


class Invocation:
    """One tool call as it is written: `call TOOL JSON`."""

    __slots__ = ("arguments", "tool")

    def __init__(self, tool: str, arguments: Json) -> None:
        self.tool = tool
        self.arguments = arguments


class TurnFailed(Exception):
    """The turn ends with this error."""


class Agent:
    """State and output shared by all turns of an agent."""

    def __init__(
        self, mcp: McpClient, moment: InterruptSignal, environ: Mapping[str, str], state_file: str
    ) -> None:
        self.mcp = mcp
        self.moment = moment
        self.environ = environ
        self.state_file = state_file
        self._turns_file = os.path.join(os.path.dirname(state_file), "turns.json")
        self.decisions: dict[str, str | None] = {}  # open permission requests; None: undecided
        self.requests = 0
        self.closed = False  # no more decisions can arrive

    def decide(self, request_id: str, decision: str) -> None:
        """Store the decision on a permission request; unknown ones are ignored."""
        with self.moment.condition:
            if request_id in self.decisions:
                self.decisions[request_id] = decision
                self.moment.condition.notify_all()

    def load_state(self) -> Json:
        return _load(self.state_file)

    def save_state(self, state: Json, turn: int) -> None:
        """Store the state, and as that after a turn, from which a fork may begin."""
        turns = {**_load(self._turns_file), str(turn): state}
        _save(self._turns_file, turns)
        _save(self.state_file, state)


class ScriptTurn:
    """The directives, one method each; what a method returns becomes the assistant's message."""

    def __init__(self, agent: Agent, number: int, emit: Emit) -> None:
        self._agent = agent
        self._number = number
        self._emit = emit
        self._calls = 0

    def say(self, text: str) -> str:
        """`say TEXT`."""
        return text

    def tools(self) -> str:
        """`tools`."""
        return _text(self._mcp(self._agent.mcp.tools))

    def call(self, invocation: Invocation) -> str:
        """`call TOOL JSON`."""
        return _text(self._calls_at_once([invocation])[0])

    def parallel(self, invocations: list[Invocation]) -> str:
        """`parallel` … `end`."""
        return _text(self._calls_at_once(invocations))

    def repeat(self, count: int, invocation: Invocation) -> str:
        """`repeat N call TOOL JSON`: for measuring, so no events for the single calls."""
        errors = 0
        times: list[float] = []
        self._mcp(self._agent.mcp.start)
        for _ in range(count):
            started = time.perf_counter()
            outcome = _outcome(invocation.tool, self._start(invocation), started)
            times.append(outcome["elapsed_ms"])
            errors += outcome["is_error"]
        return _text({"count": count, "errors": errors, "elapsed_ms": times})

    def await_tool(self, tool: str, seconds: float) -> str:
        """`await-tool TOOL SECONDS`."""
        return _text(self._mcp(lambda: self._agent.mcp.await_tool(tool, seconds)))

    def sleep(self, seconds: float) -> str:
        """`sleep SECONDS`."""
        self._agent.moment.wait(lambda: False, seconds)
        return "slept"

    def emit(self, count: int, size: int) -> str:
        """`emit N [BYTES]`."""
        for index in range(count):
            self._agent.moment.check()
            self._emit("delta", {"text": f"{index} ".ljust(size, ".")[:size]})
        return f"emitted {count}"

    def stderr(self, size: int) -> str:
        """`stderr N`."""
        left = size
        while left > 0:
            self._agent.moment.check()
            left -= os.write(2, b"e" * min(left - 1, 4095) + b"\n")
        return f"wrote {size} bytes to stderr"

    def execute(self, line: str) -> str:
        """`exec COMMAND`."""
        try:
            command = Command(line, self._agent.environ, self._agent.moment)
        except OSError as error:
            raise TurnFailed(f"exec: {error}") from None
        command.finish()
        out, err = command.output()
        result: Json = {"exit_code": command.exit_code, "stdout": out, "stderr": err}
        if command.truncated:
            result["truncated"] = True
        return _text(result)

    def remember(self, key: str, value: str) -> str:
        """`remember KEY VALUE`."""
        self._agent.save_state({**self._agent.load_state(), key: value}, self._number)
        return f"remembered {key}"

    def recall(self, key: str) -> str:
        """`recall KEY`; no message for an unknown key."""
        return as_text(self._agent.load_state().get(key))

    def ask(self, text: str) -> str:
        """`ask TEXT`; the answer may take as long as the server allows."""
        agent = self._agent
        agent.requests += 1
        request_id = f"ask-{os.getpid()}-{agent.requests}"
        with agent.moment.condition:
            agent.decisions[request_id] = "deny" if agent.closed else None
        try:
            self._emit("permission_request", {"request_id": request_id, "text": text})
            agent.moment.wait(lambda: agent.decisions[request_id] is not None)
            return agent.decisions[request_id] or ""
        finally:
            del agent.decisions[request_id]

    def usage(self, cost_usd: float, tokens: int) -> str:
        """`usage USD TOKENS`."""
        self._emit("usage", {"cost_usd": cost_usd, "tokens": tokens})
        return f"usage {cost_usd:g} {tokens}"

    def fail(self, text: str) -> str:
        """`fail TEXT`."""
        raise TurnFailed(text)

    def crash(self, code: int) -> str:
        """`crash CODE`."""
        sys.stderr.flush()
        os._exit(code)

    def _mcp(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except McpError as error:
            raise TurnFailed(f"oubliette-client: {error}") from None

    def _start(self, invocation: Invocation) -> Pending | McpError:
        try:
            return self._agent.mcp.start_call(invocation.tool, invocation.arguments)
        except McpError as error:
            return error

    def _calls_at_once(self, invocations: list[Invocation]) -> list[Json]:
        self._mcp(self._agent.mcp.start)
        running: dict[int, tuple[str, Invocation, Pending | McpError, float]] = {}
        outcomes: dict[int, Json] = {}
        try:
            for place, invocation in enumerate(invocations):
                self._calls += 1
                call_id = f"call-{self._number}-{self._calls}"
                shown = {"tool": invocation.tool, "arguments": invocation.arguments}
                self._emit("tool_call", {"call_id": call_id, **shown})
                started = time.perf_counter()
                running[place] = call_id, invocation, self._start(invocation), started
            while running:
                self._agent.moment.wait(lambda: any(_settled(run[2]) for run in running.values()))
                for place in [place for place, run in running.items() if _settled(run[2])]:
                    call_id, invocation, pending, started = running[place]
                    outcome = outcomes[place] = _outcome(invocation.tool, pending, started)
                    del running[place]
                    self._tool_result(call_id, outcome)
        finally:
            for _id, _invocation, pending, _started in running.values():
                if not isinstance(pending, McpError):
                    pending.cancel()
        return [outcomes[place] for place in range(len(invocations))]

    def _tool_result(self, call_id: str, outcome: Json) -> None:
        structured = outcome["structured"]
        shown = {
            "tool": outcome["tool"],
            "is_error": outcome["is_error"],
            "result": outcome["text"] if structured is None else structured,
        }
        self._emit("tool_result", {"call_id": call_id, **shown})


def _load(path: str) -> Json:
    try:
        with open(path, encoding="utf-8") as file:
            return as_object(json.load(file)) or {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise TurnFailed(f"cannot read {path}: {error}") from None


def _save(path: str, content: Json) -> None:
    """Replace a file atomically, so that a crash leaves the old or the new one."""
    beside = f"{path}.{os.getpid()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(os.open(beside, flags, 0o600), "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(beside, path)
    except OSError as error:
        raise TurnFailed(f"cannot write {path}: {error}") from None


def _settled(pending: Pending | McpError) -> bool:
    return isinstance(pending, McpError) or pending.answered()


def _outcome(tool: str, pending: Pending | McpError, started: float) -> Json:
    text, structured, is_error = "", None, True
    ended = started
    try:
        if isinstance(pending, McpError):
            raise pending
        pending.wait()
        ended = pending.answered_at()
        result = pending.result()
    except McpError as error:
        text = str(error)
    else:
        blocks = [as_object(block) or {} for block in as_array(result.get("content")) or []]
        text = "\n".join(as_text(block.get("text")) for block in blocks if "text" in block)
        structured = result.get("structuredContent")
        is_error = result.get("isError") is True
    return {
        "tool": tool,
        "is_error": is_error,
        "text": text,
        "structured": structured,
        "elapsed_ms": round((ended - started) * 1000, 3),
    }


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
