"""Calls of tools of the server of a home, with their progress, and listings in pages."""

from __future__ import annotations

from typing import Any, Final

from oubliette.cli.client.tool_server import CALL_SECONDS

PAGE: Final = 1000
"""Entries of a page, the most that a tool gives: without a server each page opens the database."""


def call(
    home: str | None,
    tool: str,
    arguments: dict[str, Any],
    seconds: float = CALL_SECONDS,
    progress: str = "",
) -> dict[str, Any]:
    """Call a tool of the server of the home; as for `ToolServer.call`.

    Args:
        home: As given on the command line.
        tool: Its name.
        arguments: JSON values; those that are None count as absent.
        seconds: Time for the answer, or for the next progress.
        progress: Name of the operation, whose progress is shown; empty: it reports none.
    """
    from oubliette.cli.client.tools import HomeServer
    from oubliette.config.loader import find_home

    server = HomeServer(find_home(home))
    if not progress:
        return server.call(tool, arguments, seconds)
    from oubliette.cli.terminal.progress import shown

    with shown(progress) as report:
        return server.call(tool, arguments, seconds, on_progress=report)


def pages(
    home: str | None, tool: str, name: str, arguments: dict[str, Any]
) -> list[dict[str, Any]]:
    """All entries that the tool lists under `name`."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = call(home, tool, {**arguments, "limit": PAGE, "cursor": cursor})
        found.extend(page[name])
        cursor = page["next_cursor"]
        if cursor is None:
            return found
