"""docs/architecture.md draws the actors of a running server: each of them, and nothing else."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.unit.test_architecture import drawn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.unit.test_architecture import Drawn

pytestmark = pytest.mark.anyio

SETTINGS = {
    "relay.accept_bare": True,  # each session has both kinds of link then
    "snapshots.mode": "on",
}
CALL = 'call myapp_add {"a": 1, "b": 2}'


def placed(
    actors: Mapping[str, tuple[str, str | None]], lines: list[Drawn]
) -> dict[str, Drawn | None]:
    """Each actor by its name, and the line that draws it; None where no line does."""
    found: dict[str, Drawn | None] = {}

    def place(name: str) -> Drawn | None:
        if name not in found:
            cls, parent = actors[name]
            above = None if parent is None else place(parent)
            label = name if parent is None else name.removeprefix(f"{parent}/")
            here = [line for line in lines if line.draws(cls, label)]
            beside = parent is None or above is not None
            found[name] = next((each for each in here if beside and each.above is above), None)
        return found[name]

    for name in actors:
        place(name)
    return found


async def test_the_page_draws_the_actors_of_a_running_server(site) -> None:
    answer = asyncio.Event()

    async def add(a: int, b: int) -> dict[str, int]:
        """Add, when the test says so."""
        await answer.wait()
        return {"sum": a + b}

    async with site.caller("http-auto", tools={"add": add}) as caller:
        await caller.listen()
        agent = await site.spawn(caller, CALL)
        await agent.event("caller_tool_request")
        actors = (await site.server.arm("actors"))["actors"]
        answer.set()
        assert (await agent.outcome())["structured"] == {"sum": 3}

    # Subscribers are actors of embedding programs, branches those of clusters: a server process
    # alone has none.
    lines = [line for line in drawn() if line.cls not in {"SubscriptionActor", "BranchActor"}]
    found = placed(actors, lines)
    assert [name for name, line in found.items() if line is None] == [], "not on the page"
    running = {id(line) for line in found.values()}
    assert [str(line) for line in lines if id(line) not in running] == [], "on the page alone"
