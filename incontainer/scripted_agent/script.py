"""Parser of the scripted agent's language."""

from __future__ import annotations

import json
import math

from ..io.json_values import as_object
from .turn import Invocation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .turn import ScriptTurn

    Json = dict[str, Any]
    Action = Callable[[ScriptTurn], str]  # runs a directive, returns the assistant's message

MAX_COUNT = 10_000_000
MAX_BYTES = 8 << 20  # of one delta; a line of the protocol holds 16 MiB
DEFAULT_DELTA_BYTES = 32


class ScriptError(ValueError):
    """A line starts with a directive but is malformed; the text names the line."""


def parse(text: str) -> list[Action]:
    """Parse a prompt.

    Raises:
        ScriptError: A directive is malformed; nothing of the prompt should run then.

    """
    actions: list[Action] = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        try:
            if line.strip() == "parallel":
                actions.append(_parallel(lines))
            elif line.strip():
                actions.append(_directive(line.strip()))
        except ValueError as error:
            raise ScriptError(f"line {number}: {error}: {line.strip()[:200]}") from None
    return actions


def _directive(line: str) -> Action:
    word, _, rest = line.partition(" ")
    rest = rest.strip()
    if line in ("tools", "end"):
        if line == "end":
            raise ValueError("end without parallel")
        return lambda turn: turn.tools()
    build = DIRECTIVES.get(word)
    if build is None:
        return lambda turn: turn.say(line)
    return build(rest)


def _parallel(lines: Any) -> Action:
    invocations: list[Invocation] = []
    for _number, raw in lines:
        line = raw.strip()
        if line == "end":
            return lambda turn: turn.parallel(invocations)
        word, _, rest = line.partition(" ")
        if word == "call":
            invocations.append(_invocation(rest.strip()))
        elif line:
            raise ValueError(f"only call lines may stand between parallel and end, not {line[:80]}")
    raise ValueError("parallel without end")


def _invocation(rest: str) -> Invocation:
    tool, _, text = rest.partition(" ")
    if not tool:
        raise ValueError("call needs the name of a tool")
    try:
        arguments = as_object(json.loads(text) if text.strip() else {})
        json.dumps(arguments, allow_nan=False)  # 1e400 is JSON, and a float that is none
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the arguments are not JSON ({error})") from None
    if arguments is None:
        raise ValueError("the arguments are not a JSON object")
    return Invocation(tool, arguments)


def _words(rest: str, count: int, what: str) -> list[str]:
    words = rest.split(None, count - 1)
    if len(words) != count:
        raise ValueError(f"expected {what}")
    return words


def _number(word: str, what: str) -> float:
    try:
        number = float(word)
    except ValueError:
        number = -1.0
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{what} must be a number from 0 up")
    return number


def _count(word: str, what: str, most: int = MAX_COUNT) -> int:
    if not (word.isascii() and word.isdigit()) or len(word) > 12 or int(word) > most:
        raise ValueError(f"{what} must be a whole number from 0 to {most}")
    return int(word)


def _say(rest: str) -> Action:
    return lambda turn: turn.say(rest)


def _call(rest: str) -> Action:
    invocation = _invocation(rest)
    return lambda turn: turn.call(invocation)


def _repeat(rest: str) -> Action:
    word, call, invoked = _words(rest, 3, "repeat N call TOOL JSON")
    if call != "call":
        raise ValueError("expected repeat N call TOOL JSON")
    count, invocation = _count(word, "N"), _invocation(invoked)
    return lambda turn: turn.repeat(count, invocation)


def _await_tool(rest: str) -> Action:
    tool, word = _words(rest, 2, "await-tool TOOL SECONDS")
    seconds = _number(word, "SECONDS")
    return lambda turn: turn.await_tool(tool, seconds)


def _sleep(rest: str) -> Action:
    seconds = _number(rest, "SECONDS")
    return lambda turn: turn.sleep(seconds)


def _emit(rest: str) -> Action:
    words = rest.split()
    if len(words) not in (1, 2):
        raise ValueError("expected emit N [BYTES]")
    count = _count(words[0], "N")
    size = _count(words[1], "BYTES", MAX_BYTES) if len(words) == 2 else DEFAULT_DELTA_BYTES
    return lambda turn: turn.emit(count, size)


def _stderr(rest: str) -> Action:
    size = _count(rest, "N", MAX_COUNT * 100)
    return lambda turn: turn.stderr(size)


def _exec(rest: str) -> Action:
    if not rest:
        raise ValueError("expected exec COMMAND")
    return lambda turn: turn.execute(rest)


def _remember(rest: str) -> Action:
    key, value = _words(rest, 2, "remember KEY VALUE")
    return lambda turn: turn.remember(key, value)


def _recall(rest: str) -> Action:
    (key,) = _words(rest, 1, "recall KEY")
    return lambda turn: turn.recall(key.strip())


def _ask(rest: str) -> Action:
    if not rest:
        raise ValueError("expected ask TEXT")
    return lambda turn: turn.ask(rest)


def _usage(rest: str) -> Action:
    cost, tokens = _words(rest, 2, "usage USD TOKENS")
    usd, count = _number(cost, "USD"), _count(tokens, "TOKENS", 10**12)
    return lambda turn: turn.usage(usd, count)


def _fail(rest: str) -> Action:
    return lambda turn: turn.fail(rest or "failed as asked")


def _crash(rest: str) -> Action:
    code = _count(rest or "1", "CODE", 255)
    return lambda turn: turn.crash(code)


DIRECTIVES: dict[str, Callable[[str], Action]] = {
    "say": _say,
    "call": _call,
    "repeat": _repeat,
    "await-tool": _await_tool,
    "sleep": _sleep,
    "emit": _emit,
    "stderr": _stderr,
    "exec": _exec,
    "remember": _remember,
    "recall": _recall,
    "ask": _ask,
    "usage": _usage,
    "fail": _fail,
    "crash": _crash,
}
