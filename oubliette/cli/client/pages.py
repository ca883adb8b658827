"""Listings of tools in pages, as one list."""

from __future__ import annotations

from typing import Any, Final

PAGE: Final = 1000
"""Entries of a page, the most that a tool gives: without a server each page opens the database."""


def pages(
    home: str | None, tool: str, name: str, arguments: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return all entries that the tool lists under `name`."""
    from oubliette.cli.client.tools import HomeServer
    from oubliette.config.loader import find_home

    server = HomeServer(find_home(home))
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = server.call(tool, {**arguments, "limit": PAGE, "cursor": cursor}, 60.0)
        found.extend(page[name])
        cursor = page["next_cursor"]
        if cursor is None:
            return found
