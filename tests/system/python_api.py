"""The doors of the Python API that one suite of tests goes through."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oubliette

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.system.site import Site

DOORS = ("embedded", "connected")
"""In this process, and over MCP to a server."""


def settings() -> dict[str, Any]:
    """Settings of an embedded system in which only the sandbox and the scripted agent are used."""
    return {
        "agents.default": "scripted",
        "containers.runtime": "process",
        "process.sandbox": "bubblewrap" if shutil.which("bwrap") else "best-effort",
        "sessions.max_live_per_project": 500,
    }


@contextlib.contextmanager
def short_home() -> Any:
    """A home whose path leaves room for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    try:
        yield folder / "home"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def opened(door: str, site: Site, **options: Any) -> AsyncIterator[oubliette.Oubliette]:
    """An `Oubliette` through a door."""
    if door == "connected":
        async with oubliette.connect(site.server.url, site.principal(), **options) as ob:
            yield ob
        return
    with short_home() as home:
        os.environ.pop("OUBLIETTE_HOME", None)
        async with oubliette.open(home, config=settings(), **options) as ob:
            yield ob
