"""Sessions that have come and gone leave nothing in the server's memory.

Counted are objects, not bytes: see `python -m tests.bench.soak` for those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oubliette.testing.server import ServerProcess
from tests.bench.soak import PROMPTS, SETTINGS, Load, grown
from tests.callers import HttpCaller

if TYPE_CHECKING:
    from oubliette.testing.fork_server import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.whole, pytest.mark.timeout(120)]

OURS = (
    "oubliette.",
    "_asyncio.",
    "asyncio.",
    "uvicorn.",
    "anyio.",
    "_contextvars.",
    "builtins.frame",
    "builtins.traceback",
)
"""Classes that are counted begin with one of these; others are caches of libraries, and data."""
RECENT = "oubliette.records.Event"
"""The newest are kept in memory for a caller that listens: up to a thousand."""
PROJECTS = 8
"""So many that half of their sessions are more than what the last project's have when they end late.

On a machine with much else to do each of those had three contexts and two events of asyncio.
"""
SESSIONS = len(PROMPTS)  # one of each kind in each project


async def test_what_has_come_and_gone_is_not_kept(zygote: Zygote) -> None:
    """Projects, sessions of every kind, their callers: of no class one more for every second."""
    async with ServerProcess(zygote=zygote, settings=SETTINGS) as server:
        await server.start()
        load = Load(server, callers=((HttpCaller, "auto"),))
        async with load.operator:
            for number in range(2):  # whatever is made once is made now
                await load.project(number, SESSIONS)
            before = await server.census()
            for number in range(PROJECTS):
                await load.project(2 + number, SESSIONS)
            after = await server.census()
    assert load.sessions == (2 + PROJECTS) * SESSIONS
    more = grown(before["alive"], after["alive"], PROJECTS * SESSIONS // 2)
    assert {name: n for name, n in more.items() if name.startswith(OURS) and name != RECENT} == {}
