"""Base tools as `agent_tools.json` lists them, beside this module in the zipapp.

The server's table of them (`oubliette/contract/agent_tools.py`) writes the file.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]

FILE = "agent_tools.json"
BASE = "base"  # the server carries them out
CONTEXT = "context"  # the client does, in the workspace

_listed: dict[str, list[Json]] = {}


def entries(kind: str) -> list[Json]:
    """Return the tools of a kind as `tools/list` shows them; the file is read once."""
    if not _listed:
        # By the loader, which reads from the zipapp: importlib.resources takes 20 ms to import.
        loader: Any = __spec__.loader  # type: ignore[name-defined]
        path = os.path.join(os.path.dirname(__file__), FILE)
        _listed.update(json.loads(loader.get_data(path)))
    return _listed[kind]


def schema(tool: str) -> Json:
    return next(
        entry["inputSchema"]
        for kind in (BASE, CONTEXT)
        for entry in entries(kind)
        if entry["name"] == tool
    )
