"""Tools whose calls may be sent twice: what a lost answer leaves open does no harm.

The tables are those of the server's tools, which a client does not import.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

READS: Final = frozenset(
    {
        "config_limits",
        "event_list",
        "event_read",
        "file_list",
        "file_read",
        "permission_list",
        "port_list",
        "project_get",
        "project_list",
        "project_options",
        "repository_branches",
        "session_compare",
        "session_diff",
        "session_events",
        "session_export",
        "session_get",
        "session_list",
        "session_log",
        "token_list",
        "tree_get",
        "tree_list",
        "usage_report",
        "workspace_list",
    }
)
"""Tools that change nothing."""
ANSWERS: Final = frozenset({"caller_tool_response", "permission_response"})
"""Tools that answer a request by its id: a second equal answer is accepted, and has no effect."""
LISTENS: Final = frozenset({"caller_listen"})
"""Tools that read on from a cursor."""
KEYED: Final = frozenset(
    {"project_create", "session_fork", "session_map", "session_message", "session_spawn"}
)
"""Tools with an `idempotency_key`: the same key returns the answer of the first request."""

_KEY: Final = "idempotency_key"
_ALWAYS: Final = READS | ANSWERS | LISTENS


def with_key(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments to send: those that are not None, with a key where the tool has one."""
    given = {name: value for name, value in arguments.items() if value is not None}
    if tool in KEYED:
        given.setdefault(_KEY, uuid.uuid4().hex)
    return given


def may_repeat(tool: str, arguments: Mapping[str, Any]) -> bool:
    """Return whether a call with these arguments may be sent again."""
    return tool in _ALWAYS or (tool in KEYED and _KEY in arguments)
