"""Scope of an ACP agent's permission request, as narrow as the displayed text."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from oubliette.runtime.agents.checked import word
from oubliette.runtime.agents.handshake_adapter import Json, object_of

_COMMAND: Final = {"command", "cmd"}
_COMMENTS: Final = {"description", "summary", "explanation"}
"""Arguments beside a command that describe it for readers, and vary each time."""
_HEAD: Final = 100  # characters of a tool's name, and of a kind
_DETAIL: Final = 250  # characters of arguments that are shown as they are


def asks_for(tool: str, call: Json, arguments: Json) -> str:
    """The scope of a decision for the session: this tool with exactly these arguments.

    If the agent sends only a title, the same title does not prove the same request: each gets a
    scope of its own.

    Args:
        tool: the name that the agent gave the tool, or the call's title.
        call: the request's `toolCall`.
        arguments: arguments from earlier messages about the call.
    """
    head = f"{_line(tool)[:_HEAD] or 'a tool'}: {_line(word(call.get('kind')))[:_HEAD] or 'other'}"
    subject: Any = object_of(call.get("rawInput")) or arguments
    if _COMMAND & subject.keys():
        subject = {name: value for name, value in subject.items() if name not in _COMMENTS}
    subject = subject or call.get("locations") or call.get("content")
    if not subject:
        return f"{head}, this call alone ({_line(word(call.get('toolCallId')))[:_HEAD]})"
    exact = msgspec.json.encode(subject, order="sorted")
    shown = exact.decode()
    if len(shown) > _DETAIL or _line(shown) != shown:
        shown = f"{_line(shown)[:_DETAIL]}… #{hashlib.sha256(exact).hexdigest()[:16]}"
    return f"{head}: {shown}"


def _line(text: str) -> str:
    """The text on one line, without terminal control characters."""
    kept = "".join(each if each.isprintable() else " " for each in text)
    return " ".join(kept.split())
