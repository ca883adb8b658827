"""Answers of the scripted model: the newest message with a script decides, line by line.

The server keeps no state between requests. The progress of a script is read from the conversation
itself: every tool call carries its position in its id (`call_<place>_…`), and its result has the
same id. So agents may resume, retry and be restarted at any time.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

LATE: Final = re.compile(r"call_(\d+)_")
SEARCHED: Final = re.compile(r"(?:call_)?search_(\d+)_")
REMINDER: Final = "<system-reminder>"
SEARCH: Final = "ToolSearch"
"""Droid lists tools of MCP servers by name only; they can be called after a call of this one."""
TITLE: Final = "Scripted"
LONGEST: Final = 3600.0  # seconds of one `sleep`


class Said(msgspec.Struct, frozen=True):
    """One entry of a conversation."""

    kind: str
    """user, assistant or result."""
    text: str
    call_id: str = ""


class ModelRequest(msgspec.Struct, frozen=True):
    """Request of any API."""

    said: tuple[Said, ...]
    tools: tuple[str, ...]
    stream: bool
    model: str


class Say(msgspec.Struct, frozen=True):
    """Text, in pieces with a pause before each."""

    pieces: tuple[str, ...]
    pause: float = 0.0
    """Seconds."""


class ModelToolCall(msgspec.Struct, frozen=True):
    """One tool call."""

    id: str
    name: str
    arguments: dict[str, Any]


class Refuse(msgspec.Struct, frozen=True):
    """HTTP error instead of an answer, or an error in the stream after the first events."""

    status: int
    message: str

    @property
    def retryable(self) -> bool:
        """Whether clients should retry."""
        return self.status in {408, 409, 429} or self.status >= 500


class Pause(msgspec.Struct, frozen=True):
    """No output for some seconds."""

    seconds: float


class TokenUsage(msgspec.Struct, frozen=True):
    """Usage in tokens that the answer reports."""

    read: int
    written: int


class Break(msgspec.Struct, frozen=True):
    """`hang`: no more output; `cut`: the connection breaks."""

    how: str


Step = Say | ModelToolCall | Refuse | Pause | TokenUsage | Break


class _Line(msgspec.Struct, frozen=True):
    verb: str
    rest: str
    joined: bool = False
    """The next call belongs to the same answer (`parallel`)."""


_VERBS: Final = frozenset(
    "say call slow sleep error fail usage tools history hang cut".split()  # noqa: SIM905
)


def answer(asked: ModelRequest, again: int = 0) -> list[Step]:
    """Return the next steps of the model.

    Args:
        asked: the parsed request.
        again: number of identical earlier requests, for `fail`.

    Raises:
        ValueError: a directive needs a number and has none.
    """
    if not asked.tools:
        return [Say((TITLE,))]
    place = _script_at(asked.said)
    if place is None:
        return [Say(("There is no message.",))]
    lines = _parse(asked.said[place].text)
    after = asked.said[place + 1 :]
    results = _results(after)
    start = max(results, default=-1) + 1
    searched = [int(match[1]) for said in after if (match := SEARCHED.match(said.call_id))]
    start = max([start, *searched])
    steps: list[Step] = []
    for number, line in enumerate(lines[start:], start):
        match line.verb:
            case "call":
                name, _, arguments = line.rest.partition(" ")
                if name not in asked.tools and SEARCH in asked.tools and number not in searched:
                    search = f"search_{number}_{len(asked.said)}"
                    return [*steps, ModelToolCall(search, SEARCH, {"query": f"select:{name}"})]
                steps.append(
                    ModelToolCall(f"call_{number}_{len(asked.said)}", name, _arguments(arguments))
                )
                if not line.joined:
                    return steps
            case "slow":
                words = tuple(f"word{count} " for count in range(int(line.rest or 10)))
                steps.append(Say(words, pause=0.25))
            case "sleep":
                steps.append(Pause(min(float(line.rest), LONGEST)))
            case "usage":
                read, _, written = line.rest.partition(" ")
                steps.append(TokenUsage(int(read), int(written or 0)))
            case "error":
                return [*steps, _refusal(line.rest)]
            case "fail":
                times, _, rest = line.rest.partition(" ")
                if again < int(times):
                    return [*steps, _refusal(rest)]
            case "tools":
                steps.append(_say(json.dumps(sorted(asked.tools))))
            case "history":
                steps.append(_say(json.dumps(_scripts_before(asked, place))))
            case "hang" | "cut":
                return [*steps, Break(line.verb)]
            case _:
                steps.append(_say(line.rest))
    return [*steps, *_closing(steps, results)]


def _closing(steps: list[Step], results: dict[int, str]) -> list[Step]:
    """Return the text for a script that ends without one: the last result, or `done`."""
    if not all(isinstance(step, Pause | TokenUsage) for step in steps):
        return []
    return [_say(f"tool said: {results[max(results)]}" if results else "done")]


def _results(after: Sequence[Any]) -> dict[int, str]:
    """Return the texts of the tools' results by the number of the line that called the tool."""
    return {
        int(match[1]): said.text
        for said in after
        if said.kind == "result" and (match := LATE.match(said.call_id))
    }


def _refusal(rest: str) -> Refuse:
    status, _, message = rest.partition(" ")
    code = int(status or 500)
    if not 400 <= code <= 599:
        raise ValueError(f"{code} is no status of an error")
    return Refuse(code, message or "scripted failure")


def _scripts_before(asked: ModelRequest, place: int) -> list[str]:
    users = [said.text for said in asked.said[:place] if said.kind == "user"]
    return [text for text in users if _is_script(text)]


def _is_script(text: str) -> bool:
    return bool(text.strip()) and not text.lstrip().startswith(REMINDER)


def _script_at(said: tuple[Said, ...]) -> int | None:
    """Return the position of the user's newest message; agents append reminders of their own."""
    for place in range(len(said) - 1, -1, -1):
        if said[place].kind == "user" and _is_script(said[place].text):
            return place
    return None


def _parse(text: str) -> list[_Line]:
    lines: list[_Line] = []
    parallel = False
    for raw in text.strip().strip('"').splitlines():
        verb, _, rest = raw.strip().partition(" ")
        verb = verb.lower()
        if not verb:
            continue
        if verb in {"parallel", "end"} and not rest:
            if verb == "end" and lines:
                last = lines[-1]
                lines[-1] = _Line(last.verb, last.rest)
            parallel = verb == "parallel"
        elif verb in _VERBS:
            lines.append(_Line(verb, rest, joined=parallel and verb == "call"))
        else:
            lines.append(_Line("say", raw.strip()))
    return lines


def _arguments(text: str) -> dict[str, Any]:
    try:
        found: Any = json.loads(text or "{}")
    except ValueError:
        return {"malformed": text}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {"value": found}


def _say(text: str) -> Say:
    """Return the text in two pieces, so that a reader sees deltas."""
    half = (len(text) + 1) // 2
    return Say(tuple(piece for piece in (text[:half], text[half:]) if piece))
