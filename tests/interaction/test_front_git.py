"""Requests of git's clients at the front: how many of one principal are served and noted."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.clock import SystemClock
from oubliette.errors import LimitExceeded, NotFound
from oubliette.kit.fair_loop import working_for
from oubliette.mcp_front.git_http.fetches import AT_ONCE, Fetches
from oubliette.tools.auth.rate_limits import RateLimits
from oubliette.tools.home_streams import StreamEnd
from tests.interaction.frontkit import World, world

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

REFS = "/git/shop/info/refs?service=git-upload-pack"
BURST = 3


class Views:
    """Repositories that are looked for until `gate` opens, and then are not there."""

    seconds = 10.0

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.looked: list[str] = []
        """For whom each one was looked for."""
        self.came = asyncio.Condition()
        self.noted: list[str] = []

    async def find(self, _context: Any, project: str) -> tuple[str, str | None]:
        return project, None

    async def folder(self, _project_id: str) -> Path:
        async with self.came:
            self.looked.append(working_for.get())
            self.came.notify_all()
        await self.gate.wait()
        raise NotFound("there is none")

    async def note(self, _context: Any, _project: Any, outcome: str, _seconds: float) -> None:
        self.noted.append(outcome)


@contextlib.asynccontextmanager
async def served(**options: Any) -> AsyncIterator[tuple[World, Views, Fetches]]:
    views = Views()
    fetches = Fetches(views, None)
    async with asyncio.timeout(30), world(**options) as w:
        w.front.serve_git(fetches)
        yield w, views, fetches


async def get(w: World, key: str, path: str = REFS) -> int:
    """Return the status of the answer."""
    host, port = w.front.url.split("/")[2].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n\r\n"
        writer.write(head.encode())
        return int((await reader.readline()).split()[1])
    finally:
        writer.close()


@pytest.mark.parametrize("path", [REFS, "/git/shop/nothing", "/git/shop/git-receive-pack"])
async def test_no_flood_of_fetches_fills_the_audit_log_faster_than_the_rate_of_calls(path):
    rates = RateLimits(0.001, BURST, SystemClock())
    async with served(rates=rates) as (w, views, _):
        views.gate.set()
        key = w.key()
        statuses = [await get(w, key, path) for _ in range(4 * BURST)]
        assert statuses[BURST:] == [429] * 3 * BURST
        assert len(views.noted) == BURST


async def test_the_requests_of_a_principal_count_together_whichever_node_they_came_by():
    async with served() as (w, views, fetches):
        key = w.key()
        asked = [asyncio.ensure_future(get(w, key)) for _ in range(AT_ONCE - 1)]
        wanted = {
            "project_id": "shop",
            "request": {
                "project_id": "shop",
                "advertise": True,
                "protocol": "",
                "compressed": False,
            },
        }
        of_alice = msgspec.msgpack.encode(wanted | {"principal": "alice"})
        passed_on = asyncio.ensure_future(fetches.serve(of_alice, StreamEnd()))
        async with views.came:
            await views.came.wait_for(lambda: len(views.looked) == AT_ONCE)
        assert set(views.looked) == {"alice"}
        with pytest.raises(LimitExceeded):
            await fetches.serve(of_alice, StreamEnd())
        assert await get(w, key) == 429
        of_bob = msgspec.msgpack.encode(wanted | {"principal": "bob"})
        bobs = asyncio.ensure_future(fetches.serve(of_bob, StreamEnd()))
        async with views.came:
            await views.came.wait_for(lambda: views.looked[-1] == "bob")
        views.gate.set()
        assert await asyncio.gather(*asked) == [404] * (AT_ONCE - 1)
        for each in (passed_on, bobs):
            with pytest.raises(NotFound):
                await each
        assert await get(w, key) == 404
