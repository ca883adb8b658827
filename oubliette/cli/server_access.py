"""Where a command's tool call goes: to the server of the home, or to its database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oubliette.cli.control_client import CALL_SECONDS, ControlClient
from oubliette.errors import HomeInUse, Unavailable
from oubliette.runtime.home import CONTROL_SOCKET

if TYPE_CHECKING:
    from pathlib import Path

OFFLINE_NAMES = (
    "token_",
    "project_list",
    "project_get",
    "session_list",
    "session_get",
    "session_events",
)


def call_tool(
    home: Path, tool: str, arguments: dict[str, Any], timeout: float = CALL_SECONDS
) -> dict[str, Any]:
    """Call a tool of the server that runs on `home`; without one, on its database if that will do.

    Raises:
        Unavailable: no server runs, and the tool needs one.
        HomeInUse: a server is starting or stopping.
        OublietteError: what the tool answered.
    """
    try:
        client = ControlClient(home)
    except Unavailable:
        if not tool.startswith(OFFLINE_NAMES):
            raise
    else:
        with client:
            return client.call(tool, _given(arguments), timeout)
    from oubliette.cli import logs
    from oubliette.cli.offline import call_offline

    logs.configure("warning", as_json=False)
    try:
        return call_offline(home, tool, _given(arguments))
    except HomeInUse:
        # It may have begun to listen between the two looks.
        if not (home / CONTROL_SOCKET).exists():
            raise
        with ControlClient(home) as client:
            return client.call(tool, _given(arguments), timeout)


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}
