"""Who may read what a server and its agents leave on the disk, looked at in a home that is used."""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING

import pytest

from tests.faults.here import Here

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

FOR_AGENTS = re.compile(r"projects/.+|r/[^/]+/kit-[^/]+(/.*)?")
"""What agents, who are other users where the server is root, read or pass: nobody else comes so far,
as a folder above is closed. They write only what is theirs."""
PASSED = re.compile(r"homes/[^/]+|r/[^/]+/[0-9a-f]{8}")
"""Folders on the way of agents: passed, and not listed."""
PASSED_WITHOUT_SANDBOX = re.compile(r"projects|homes|spool(/[^/]+)?|r(/[^/]+)?")
"""The same, where nothing is mounted."""


def entries(top: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below, links left out, by its path from there."""
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            found = os.lstat(path)
            if not stat.S_ISLNK(found.st_mode):
                yield os.path.relpath(path, top), found


def too_open(home: Path, *, sandboxed: bool) -> list[str]:
    """What others may do more with than they need."""
    found = []
    for path, status in entries(home):
        mode = stat.S_IMODE(status.st_mode)
        allowed = 0o700
        if FOR_AGENTS.fullmatch(path):
            allowed = 0o755
        elif PASSED.fullmatch(path) or (not sandboxed and PASSED_WITHOUT_SANDBOX.fullmatch(path)):
            allowed = 0o711
        if mode & ~allowed:
            found.append(f"{mode:o} {path}")
    return found


async def test_a_used_home_is_open_to_nobody_else(sandbox_server):
    server = sandbox_server
    await server.start()
    async with Here(server) as caller:
        session = await caller.spawn("remember colour blue\nsay begun\nask may I?\nsleep 600")
        await caller.event("permission_request", session_id=session)
        await caller.call("container_exec", project_id=caller.project_id, command="echo x >&2")
        state = next(server.home.glob(f"homes/*/{session}/state.json"))
        assert stat.S_IMODE(state.stat().st_mode) == 0o600
        assert too_open(server.home, sandboxed=server.sandboxed) == []
        assert await server.stop() == 0
    assert too_open(server.home, sandboxed=server.sandboxed) == []
