"""One turn of an agent in Python, as its function sees it."""

from __future__ import annotations

import asyncio
import os

from .tool_client import ToolRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from .history import History
    from .tool_client import ToolClient

    Json = dict[str, Any]
    Emit = Callable[[str, Json], None]


class SessionOfTurns:
    """Facts of a session, its tools and its history, which all turns of a process share."""

    def __init__(self, environ: Mapping[str, str], tools: ToolClient, history: History) -> None:
        self.tools = tools
        self.history = history
        self.session_id = environ.get("OUBLIETTE_SESSION_ID", "")
        self.project_id = environ.get("OUBLIETTE_PROJECT_ID", "")
        self.workspace = environ.get("OUBLIETTE_WORKSPACE") or os.getcwd()
        self.model = environ.get("OUBLIETTE_AGENT_MODEL") or None


class OwnStep:
    """A tool of the agent's own, while it runs: `result` is what the log gets at its end."""

    def __init__(self, turn: PythonTurn, tool: str, arguments: Json) -> None:
        self._turn = turn
        self._tool = tool
        self._arguments = arguments
        self._call_id = ""
        self.result: object = None

    def __enter__(self) -> OwnStep:  # noqa: PYI034 -- typing.Self came with 3.11
        self._call_id = self._turn.begin_call(self._tool, self._arguments)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        result = self.result if error is None else described(error)
        self._turn.end_call(self._call_id, self._tool, result, is_error=error is not None)


class PythonTurn:
    """One prompt, and all that its function can do until the answer is finished."""

    def __init__(self, prompt: str, number: int, session: SessionOfTurns, emit: Emit) -> None:
        self.prompt = prompt
        self.number = number
        self.session_id = session.session_id
        self.project_id = session.project_id
        self.workspace = session.workspace
        self.model = session.model
        self.history = tuple(session.history.exchanges)
        self.cancelled = False
        self.decisions: dict[str, asyncio.Future[bool]] = {}
        self.final_text = ""
        self.texts: list[str] = []
        self._pieces: list[str] = []  # since the last message
        self._tools = session.tools
        self._emit = emit
        self._calls = 0

    # For the function

    async def tools(self) -> list[Json]:
        """The tools that the session has now: name, description, inputSchema."""
        return await self._tools.tools()

    async def call(self, tool: str, arguments: Json | None = None) -> Any:
        """Call a tool of the session and return its result.

        Raises:
            ToolRefused: The tool failed; the message is the tool's.

        """
        given = arguments or {}
        call_id = self.begin_call(tool, given)
        try:
            result, is_error = await self._tools.call(tool, given)
        except BaseException as error:
            self.end_call(call_id, tool, described(error), is_error=True)
            raise
        self.end_call(call_id, tool, result, is_error=is_error)
        if is_error:
            raise ToolRefused(result)
        return result

    def tool(self, name: str, arguments: Json | None = None) -> OwnStep:
        """A context manager that logs a tool of the agent's own as a call and its result."""
        return OwnStep(self, name, arguments or {})

    async def ask(self, text: str) -> bool:
        """Ask for a permission; return whether it was given."""
        self._calls += 1
        request_id = f"ask-{os.getpid()}-{self.number}-{self._calls}"
        decision = self.decisions[request_id] = asyncio.get_running_loop().create_future()
        try:
            self._emit("permission_request", {"request_id": request_id, "text": text})
            return await decision
        finally:
            del self.decisions[request_id]

    def usage(
        self, *, cost_usd: float | None = None, input_tokens: int = 0, output_tokens: int = 0
    ) -> None:
        """Report what a call of a model has used; a cost of None is unknown."""
        fields: Json = {} if cost_usd is None else {"cost_usd": cost_usd}
        fields |= {"tokens": input_tokens + output_tokens}
        self._emit(
            "usage", {**fields, "input_tokens": input_tokens, "output_tokens": output_tokens}
        )

    # For the runner

    def say(self, piece: object) -> None:
        """Add a piece to the answer.

        Raises:
            TypeError: It is no text.

        """
        if not isinstance(piece, str):
            raise TypeError(f"an agent yields pieces of its answer as str, not {_kind(piece)}")
        if piece:
            self._pieces.append(piece)
            self._emit("delta", {"text": piece})

    def finish_message(self) -> None:
        """Log the pieces since the last message as one."""
        if self._pieces:
            self.final_text = "".join(self._pieces)
            self.texts.append(self.final_text)
            self._pieces.clear()
            self._emit("message", {"text": self.final_text})

    def begin_call(self, tool: str, arguments: Json) -> str:
        """Log the start of a call; the answer so far is a message of its own."""
        self.finish_message()
        self._calls += 1
        call_id = f"call-{self.number}-{self._calls}"
        self._emit("tool_call", {"call_id": call_id, "tool": tool, "arguments": arguments})
        return call_id

    def end_call(self, call_id: str, tool: str, result: object, *, is_error: bool) -> None:
        fields: Json = {"tool": tool, "is_error": is_error, "result": result}
        self._emit("tool_result", {"call_id": call_id, **fields})


def described(error: BaseException) -> str:
    """An error of a function as text: its message, with its class unless it is a tool's."""
    if isinstance(error, ToolRefused):
        return str(error)
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _kind(value: object) -> str:
    return type(value).__name__
