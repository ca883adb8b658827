"""Permission requests as the agents' adapters emit them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oubliette.actors.session.permissions import Permissions, TreePlace
from oubliette.api.events import PermissionRequest, decode_event
from oubliette.runtime.agents.acp.adapter import asks_for

if TYPE_CHECKING:
    from collections.abc import Iterable

WORKSPACE = "/workspace"


def event(**data: Any) -> PermissionRequest:
    """The event that the session makes of an adapter's."""
    place = TreePlace("me", "shop", ["gogol_1"])
    append, *_ = Permissions("gogol_1", 60.0).asked(
        {"turn": 1, "request_id": "theirs", **data},
        "out:1",
        turn=1,
        place=place,
        remembered={},
        free=False,
        event_index=3,
        now=100.0,
    )
    found = decode_event({"type": append.type, "session_id": "gogol_1", **append.data})
    assert isinstance(found, PermissionRequest)
    return found


def scripted(text: str) -> PermissionRequest:
    return event(text=text)


def opencode(permission: str, patterns: Iterable[str] = (), **metadata: Any) -> PermissionRequest:
    listed = list(patterns)
    properties = {
        "id": "per_1",
        "sessionID": "ses_1",
        "permission": permission,
        "patterns": listed,
        "metadata": metadata,
        "always": ["*"],
        "tool": {"messageID": "msg_1", "callID": "call_1"},
    }
    return event(text=permission, asks_for=f"{permission}: *", tool_call=properties)


def droid(name: str, **arguments: Any) -> PermissionRequest:
    use = {"type": "tool_use", "id": "call_1", "name": name, "input": arguments}
    return event(text=f"{name}: may I?", asks_for=f"{name}: exec: low", tool_call=use)


def acp(kind: str | None, title: str = "Do it", **more: Any) -> PermissionRequest:
    call = {"toolCallId": "call_1", "title": title, **more}
    if kind is not None:
        call["kind"] = kind
    return event(text=title, asks_for=asks_for(title, call, {}), tool_call=call)
