"""Tools are prepared and run without the libraries that only some programs have."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, sys
from oubliette.api.tools import Call, mcp, tool_table

def add(a: int, b: int = 1) -> int:
    return a + b

table = tool_table([add])
mcp("http://127.0.0.1:1/mcp")
assert asyncio.run(table["add"].run({"a": 1}, Call())) == 2
heavy = {"mcp", "pydantic", "httpx2", "starlette", "pykka", "sqlite3", "docker", "rich"}
print(*sorted(heavy & sys.modules.keys()))
"""


def test_no_heavy_library_is_imported():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")
