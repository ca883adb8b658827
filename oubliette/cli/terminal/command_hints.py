"""Hints of errors in the words of the command line: servers write them for callers of tools."""

from __future__ import annotations

import re
from typing import Final

COMMANDS: Final = {
    "container_start": "oubliette call container_start",
    "file_list": "oubliette call file_list",
    "permission_response": "oubliette permit",
    "port_close": "oubliette port --close",
    "project_create with repository": "oubliette project create --repo",
    "project_delete": "oubliette project delete",
    "project_get": "oubliette call project_get",
    "project_list": "oubliette project list",
    "project_update with allow_push=true": "oubliette project update PROJECT --allow-push",
    "repository_fetch": "oubliette project fetch",
    "session_diff": "oubliette diff",
    "session_end": "oubliette session end",
    "session_events": "oubliette session logs",
    "session_export": "oubliette export",
    "session_interrupt": "oubliette session interrupt",
    "session_list": "oubliette session list",
    "session_merge": "oubliette merge",
    "session_message": "oubliette session message",
    "token_list": "oubliette token list",
    "workspace_list": "oubliette workspace list",
}
"""Tool in a hint → the command that does the same."""
_NAMED: Final = re.compile(
    rf"(?<!oubliette call )\b({'|'.join(sorted(COMMANDS, key=len, reverse=True))})\b"
)


def in_commands(hint: str | None) -> str | None:
    """A hint with commands in the place of tools."""
    return None if hint is None else _NAMED.sub(lambda found: COMMANDS[found[1]], hint)
