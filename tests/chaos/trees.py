"""Trees of sessions that span nodes: a root on each node, with agents in projects of the others.

One node counts such a tree, and the others have branches of it. It works while something fails; at
rest its limits must be exact, no place of it may be lost, and its end must end all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from typing import TYPE_CHECKING, Any, Final

import oubliette
from tests.chaos.site import NODES, TREE_AGENTS, TREE_AGENTS_AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from tests.chaos.balancer import Health
    from tests.chaos.site import Site

    Insist = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]

ASKED: Final = 5
"""Agents that a root asks for at once: more than there are places."""
REST_SECONDS: Final = 120.0
_WORKING: Final = "status IN ('created', 'running')"


def spawn(project_id: str, prompt: str) -> str:
    """The directive for a child there, whose key reaches all projects."""
    given = {
        "project_id": project_id,
        "prompt": prompt,
        "new_session": True,
        "api_key_scope": "write",
        "api_key_project": "*",
    }
    return f"call oubliette_session_spawn {json.dumps(given)}"


class Tree:
    """One tree.

    Args:
        ob: A connection of the program that has its root.
        query: The database of the nodes.
        insist: Makes a request until it is answered.
        name: Of the tree, unlike that of any other.
        projects: Of the root, and of the agents below it, on other nodes.
    """

    def __init__(
        self,
        ob: oubliette.Oubliette,
        query: Callable[..., list[Any]],
        insist: Insist,
        name: str,
        projects: tuple[str, Sequence[str]],
    ) -> None:
        self.root = ""
        self.name = name
        self._ob = ob
        self._query = query
        self._insist = insist
        self._home, self._others = projects
        self._messages = itertools.count(1)

    async def plant(self) -> list[str]:
        """Start the root and as many children as there are places; what is wrong.

        Each child starts one more agent while something fails, on the next of the other nodes.
        """
        projects = [*self._others, self._home]
        children = [
            f"sleep 6\n{spawn(projects[(number + 1) % len(projects)], 'sleep 6')}\nsleep 20"
            for number in range(len(projects))
        ]
        request = {
            "project_id": self._home,
            "prompt": self._starts(children),
            "new_session": True,
            "api_key_scope": "write",
            "api_key_project": "*",
            "idempotency_key": self.name,
        }
        made = await self._insist(lambda: self._ob.call("session_spawn", **request))
        self.root = made["session_id"]
        return await self._filled(-1, TREE_AGENTS_AT_ONCE - 1)

    async def look(self) -> list[str]:
        """Look at it after something has failed, and end it; what is wrong."""
        wrong = await self._rest()
        for _ in range(2):
            # Those of the first time leave their places by their ends.
            for session in await self._rows("id", f"AND depth > 0 AND {_WORKING}"):
                await self._end(session, tree=False)
            (agents,) = await self._rows("count(*)")
            wrong += await self._fill(min(TREE_AGENTS_AT_ONCE - 1, TREE_AGENTS - agents))
        return wrong + await self.end()

    async def end(self) -> list[str]:
        """End all of it by its root; what lives on."""
        ended = await self._end(self.root, tree=True)
        live = await self._rows("id", "AND live = 1")
        if live or ended["living_descendants"]:
            return [f"tree {self.name} of {self.root}: {live} live after its end: {ended}"]
        return []

    async def _end(self, session: str, *, tree: bool) -> Any:
        return await self._insist(
            lambda: self._ob.call("session_end", session_id=session, tree=tree)
        )

    async def ends(self) -> dict[str, int]:
        """Session of it → the last index of its log."""
        rows = await asyncio.to_thread(
            self._query,
            "SELECT session_id, max(idx) FROM events JOIN sessions ON session_id = sessions.id"
            " WHERE exploration_id = (SELECT exploration_id FROM sessions WHERE id = %s)"
            " GROUP BY session_id",
            self.root,
        )
        return dict(rows)

    async def _rows(self, what: str, which: str = "") -> list[Any]:
        rows = await asyncio.to_thread(
            self._query,
            f"SELECT {what} FROM sessions WHERE exploration_id ="  # noqa: S608 - no input
            f" (SELECT exploration_id FROM sessions WHERE id = %s) {which}",
            self.root,
        )
        return [value for (value,) in rows]

    async def _rest(self) -> list[str]:
        """Wait until none of its agents works."""
        ends = time.monotonic() + REST_SECONDS
        while working := await self._rows("id", f"AND {_WORKING}"):
            if time.monotonic() > ends:
                return [f"tree {self.name} of {self.root}: {working} do not come to rest"]
            await asyncio.sleep(0.3)  # of all its sessions on all nodes there is no notice
        return []

    async def _fill(self, places: int) -> list[str]:
        """Have the root start agents, resumed if it has failed; what is wrong with their number."""
        seen = await self._insist(lambda: self._ob.call("session_get", session_id=self.root))
        request = {
            "session_id": self.root,
            "message": self._starts(["sleep 300"]),
            "api_key_scope": "write",
            "api_key_project": "*",
            "idempotency_key": f"{self.name}m{next(self._messages)}",
        }
        await self._insist(lambda: self._ob.call("session_message", **request))
        return await self._filled(seen["last_index"], places)

    def _starts(self, prompts: Sequence[str]) -> str:
        """Script of a root that starts agents on the other nodes, all at once."""
        calls = [
            spawn(self._others[number % len(self._others)], prompts[number % len(prompts)])
            for number in range(ASKED)
        ]
        return "\n".join(["parallel", *calls, "end"])

    async def _filled(self, after: int, places: int) -> list[str]:
        """Wait for the end of the root's turn; what is wrong with what it could start."""
        seen: dict[str, Any] = {"last_index": after, "completed": False, "failed": False}
        while not (seen["completed"] or seen["failed"]):
            since = seen["last_index"]
            seen = await self._insist(
                lambda at=since: self._ob.call(
                    "session_events", session_id=self.root, since_index=at, wait_seconds=20
                )
            )
        where = f"tree {self.name} of {self.root}"
        if not seen["completed"]:
            return [f"{where}: the turn of its root failed: {seen['final_response']}"]
        outcomes = json.loads(seen["final_response"])
        refused = [each["text"] for each in outcomes if each["is_error"]]
        wrong = [
            f"{where}: refused: {each}" for each in refused if "limit of this tree" not in each
        ]
        if ASKED - len(refused) != places:
            started = f"{ASKED - len(refused)} agents were started for {places} places"
            wrong.append(f"{where}: {started}: {refused}")
        return wrong


class Trees:
    """The trees of a run: one with its root on each node, where that has a project; anew each round."""

    def __init__(self, site: Site, insist: Insist) -> None:
        self._site = site
        self._insist = insist
        self._ob: oubliette.Oubliette
        self._trees: list[Tree] = []
        self._round = 0
        self._stack = contextlib.AsyncExitStack()

    async def open(self, health: Health, key: str) -> None:
        """Connect the program that has the roots."""
        at = await health.balancer(lambda: NODES)
        self._ob = await self._stack.enter_async_context(
            oubliette.connect(at.url, key, caller_id="trees", on_exit="keep")
        )

    async def aclose(self) -> None:
        """Disconnect it."""
        await self._stack.aclose()

    async def plant(self, projects: Mapping[str, str]) -> list[str]:
        """Start trees in these projects, whose homes are given; what is wrong."""
        self._round += 1
        self._trees = []
        for node in sorted(set(projects.values())):
            home = next(project for project, at in projects.items() if at == node)
            others = {at: project for project, at in projects.items() if at != node}
            if others:
                name = f"round{self._round}-{node}"
                given = (home, list(others.values()))
                self._trees.append(Tree(self._ob, self._site.query, self._insist, name, given))
        return await self._each(Tree.plant)

    async def look(self) -> list[str]:
        """Look at all of them, and end them; what is wrong."""
        return await self._each(Tree.look)

    async def _each(self, work: Callable[[Tree], Awaitable[list[str]]]) -> list[str]:
        async def done(tree: Tree) -> list[str]:
            try:
                return await work(tree)
            except oubliette.OublietteError as error:
                return [f"tree {tree.name} of {tree.root}: {error!r}"]

        found = await asyncio.gather(*map(done, self._trees))
        return [line for lines in found for line in lines]

    async def ends(self) -> dict[str, int]:
        """Session of any of them → the last index of its log."""
        found: dict[str, int] = {}
        for each in self._trees:
            found.update(await each.ends())
        return found
