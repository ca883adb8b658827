"""Texts in a request's body, which the APIs wrap in strings, parts or blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from oubliette.testing.model_apis.base import Json


def instructions(body: Json) -> str:
    """Return the text of a request besides the conversation, reminders included."""
    texts = [all_text(body.get("system")), all_text(body.get("instructions"))]
    for message in (*objects(body.get("messages")), *objects(body.get("input"))):
        text = all_text(message.get("content"))
        if message.get("role") in {"system", "developer"} or "<system-reminder>" in text:
            texts.append(text)
    return "\n".join(text for text in texts if text)


def all_text(content: object) -> str:
    """Return all texts of a message."""
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text") or "") for part in objects(content))


def text_of(content: object) -> str:
    """Return the text of a message, in any wrapping."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts: list[str] = []
    for part in cast("list[Any]", content):
        if isinstance(part, dict):
            found: Any = cast("Json", part).get("text")
            if isinstance(found, str) and not found.lstrip().startswith("<system-reminder>"):
                texts.append(found)
    return "\n".join(texts)


def objects(value: object) -> list[Json]:
    """Return the objects of a list; empty for anything else."""
    if not isinstance(value, list):
        return []
    return [cast("Json", item) for item in cast("list[Any]", value) if isinstance(item, dict)]
