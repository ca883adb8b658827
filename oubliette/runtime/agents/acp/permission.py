"""What an ACP agent asks a person for, in words that are as narrow as what it shows."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from oubliette.runtime.agents.checked import word
from oubliette.runtime.agents.handshake_adapter import Json, object_of

_COMMAND: Final = {"command", "cmd"}
_COMMENTS: Final = {"description", "summary", "explanation"}
"""Arguments beside a command that are for its reader, and are worded anew each time."""
_HEAD: Final = 100  # characters of a tool's name, and of a kind
_DETAIL: Final = 250  # characters of arguments that are shown as they are


def asks_for(tool: str, call: Json, arguments: Json) -> str:
    """What a decision for the session covers: this tool with these arguments, and nothing else.

    An agent that tells a title alone is not believed that the same title means the same: what it
    asks for is never the same as before.

    Args:
        tool: the name that the agent gave the tool, or the call's title.
        call: `toolCall` of the request.
        arguments: what the agent has said of the call before.
    """
    head = f"{_line(tool)[:_HEAD] or 'a tool'}: {_line(word(call.get('kind')))[:_HEAD] or 'other'}"
    told: Any = object_of(call.get("rawInput")) or arguments
    if _COMMAND & told.keys():
        told = {name: value for name, value in told.items() if name not in _COMMENTS}
    told = told or call.get("locations") or call.get("content")
    if not told:
        return f"{head}, this call alone ({_line(word(call.get('toolCallId')))[:_HEAD]})"
    exact = msgspec.json.encode(told, order="sorted")
    shown = exact.decode()
    if len(shown) > _DETAIL or _line(shown) != shown:
        shown = f"{_line(shown)[:_DETAIL]}… #{hashlib.sha256(exact).hexdigest()[:16]}"
    return f"{head}: {shown}"


def _line(text: str) -> str:
    """On one line, and without what drives a terminal."""
    kept = "".join(each if each.isprintable() else " " for each in text)
    return " ".join(kept.split())
