"""What a server has in flight while it is killed again and again, and what must come of it.

Each job is one session, or a project of its own: it asks until it is answered, over any number of
servers, and says what is wrong with what came of it.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final

from tests.callers import ToolFailed
from tests.consent import delete_with_all
from tests.faults.history import BROKEN, Lender, texts

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable

JOB_SECONDS: Final = 120.0
RUNS: Final = "runs.txt"


class Insistent(Lender):
    """A caller that asks again until it is answered, and answers what is asked until it is taken.

    Args:
        url: of the server.
        token: its key.
        chance: how long it thinks.
    """

    def __init__(self, url: str, token: str, chance: random.Random) -> None:
        super().__init__(url, token, tools={"approve": self._approve, "add": self._add})
        self.decide = lambda _: "allow"
        self.up = asyncio.Event()
        """Set while a server runs."""
        self._chance = chance
        self._undecided: dict[str, dict[str, Any]] = {}

    async def _approve(self, what: str) -> dict[str, Any]:
        """Approve, after a while."""
        await asyncio.sleep(self._chance.uniform(0.0, 1.0))
        return {"approved": what}

    @staticmethod
    def _add(a: int, b: int) -> dict[str, Any]:
        """Add."""
        return {"sum": a + b}

    async def _decide(self, event: dict[str, Any]) -> None:
        self._undecided[event["request_id"]] = event
        await asyncio.sleep(self._chance.uniform(0.0, 0.5))
        await self._permit(event)

    async def _permit(self, event: dict[str, Any]) -> None:
        try:
            await self.permit(event)
        except BROKEN:
            return
        except ToolFailed:
            pass  # the session has ended meanwhile
        self._undecided.pop(event["request_id"], None)

    async def come_back(self) -> None:
        """Listen on, on the server that runs now; decide what is not known to be decided."""
        await self.stop_listening()
        await self.listen(after=self.next)
        for event in list(self._undecided.values()):
            self._start(self._permit(event))
        self.up.set()

    async def insist(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool until a server has answered.

        Raises:
            ToolFailed: it was refused.
        """
        while True:
            await self.up.wait()
            try:
                return await self.call(tool, **arguments)
            except BROKEN:
                await asyncio.sleep(0.02)
            except ToolFailed as error:
                if "try again" not in str(error):
                    raise
                await asyncio.sleep(0.1)

    async def turn_over(self, session: str, since: int = -1) -> tuple[dict[str, Any], int]:
        """The last page of the session's log once no turn runs or waits; the index of its end."""
        while True:
            page = await self.insist(
                "session_events",
                session_id=session,
                since_index=since,
                wait_seconds=2.0,
                max_events=1000,
            )
            since = page["last_index"]
            if page["completed"] or page["failed"]:
                return page, since
            await asyncio.sleep(0.01)


class Jobs:
    """The jobs of one home, by kind."""

    def __init__(self, caller: Insistent, project: dict[str, Any], chance: random.Random) -> None:
        self.caller = caller
        self.project = project
        self.chance = chance
        self.sessions: dict[str, str] = {}
        """Key → id of every root session."""
        self.cut: set[str] = set()
        """Sessions that were ended while they may have been at work."""
        self.ended: set[str] = set()
        """Sessions whose end was answered."""
        self.deleted: set[str] = set()
        """Projects whose deletion was answered."""
        self.wrong: list[str] = []
        self.done: dict[str, int] = {}
        """Kind → how many jobs came to their end."""

    @property
    def kinds(self) -> dict[str, Callable[[str], Awaitable[None]]]:
        """Name → the job; it takes a key that no other job has."""
        return {
            "turns": self.turns,
            "calls": self.calls,
            "children": self.children,
            "map": self.map,
            "permissions": self.permissions,
            "end": self.end,
            "project": self.own_project,
        }

    async def run(self, kind: str, key: str) -> None:
        """Run one job; what is wrong with it is noted."""
        try:
            async with asyncio.timeout(JOB_SECONDS):
                await self.kinds[kind](key)
            self.done[kind] = self.done.get(kind, 0) + 1
        except TimeoutError:
            self.wrong.append(f"{key}: {self.sessions.get(key)} not over in {JOB_SECONDS:.0f} s")
        except (AssertionError, ToolFailed) as error:
            self.wrong.append(f"{key}: {self.sessions.get(key)} {error!r}"[:1500])

    # ------------------------------------------------------------ pieces

    async def _spawn(self, key: str, prompt: str, project: str | None = None) -> str:
        answer = await self.caller.insist(
            "session_spawn",
            project_id=project or self.project["id"],
            prompt=f"exec echo {key} >> {RUNS}\n{prompt}",
            new_session=True,
            context=self.caller.context,
            idempotency_key=key,
        )
        self.sessions[key] = answer["session_id"]
        return answer["session_id"]

    async def _said(self, session: str) -> list[str]:
        page, _ = await self.caller.turn_over(session)
        assert page["status"] == "idle", (page["status"], page["error"])
        events: list[dict[str, Any]] = []
        while True:
            last = events[-1]["index"] if events else -1
            page = await self.caller.insist("session_events", session_id=session, since_index=last)
            events += page["events"]
            if not page["more"]:
                return texts(events)

    async def _end(self, session: str, *, tree: bool = False) -> None:
        await self.caller.insist("session_end", session_id=session, tree=tree)
        self.ended.add(session)

    # ------------------------------------------------------------ kinds

    async def turns(self, key: str) -> None:
        """Two turns of scripted work, and what the agent remembers of the first."""
        session = await self._spawn(key, "remember colour green\nemit 20 30\nsleep 0.3\nsay one")
        assert (await self._said(session))[-1] == "one"
        await self.caller.insist(
            "session_message",
            session_id=session,
            message=f"exec echo {key}-2 >> {RUNS}\nrecall colour",
            idempotency_key=f"{key}-2",
        )
        said = await self._said(session)
        assert said[-1] == "green", said
        if self.chance.random() < 0.5:
            await self._end(session)

    async def calls(self, key: str) -> None:
        """A call that waits for its caller, and one that does not."""
        session = await self._spawn(
            key,
            f'call tester_approve {{"what": "{key}"}}\ncall tester_add {{"a": 1, "b": 2}}\nsay over',
        )
        said = await self._said(session)
        found = [json.loads(each)["structured"] for each in said[1:3]]
        assert found == [{"approved": key}, {"sum": 3}], said
        await self._end(session)

    async def children(self, key: str) -> None:
        """A child that is waited for, which has one of its own."""
        inner = json.dumps({"message": f"exec echo {key}-b >> {RUNS}\nsleep 0.2\nsay inner"})
        outer = json.dumps(
            {"message": f"exec echo {key}-a >> {RUNS}\ncall session_message {inner}\nsay outer"}
        )
        session = await self._spawn(key, f"call session_message {outer}\nsay over")
        said = await self._said(session)
        told = json.loads(said[1])["structured"] or {}
        assert (told.get("result"), said[-1]) == ("outer", "over"), said
        await self._end(session, tree=True)

    async def map(self, key: str) -> None:
        """A map over children."""
        parts = json.dumps(
            {"messages": [f"exec echo {key}-{n} >> {RUNS}\nsay part {n}" for n in range(3)]}
        )
        session = await self._spawn(key, f"call session_map {parts}\nsay over")
        said = await self._said(session)
        told = json.loads(said[1])["structured"] or {}
        results = [(each["status"], each["result"]) for each in told.get("results", ())]
        assert results == [("completed", f"part {n}") for n in range(3)], said
        await self._end(session, tree=True)

    async def permissions(self, key: str) -> None:
        """An agent that asks."""
        session = await self._spawn(key, f"ask {key}?\nsay over")
        said = await self._said(session)
        assert said[1:] == ["allow", "over"], said
        await self._end(session)

    async def end(self, key: str) -> None:
        """A session that is ended in the middle of its work, with a child in its own."""
        child = json.dumps({"message": "sleep 20"})
        session = await self._spawn(key, f"call session_message {child}")
        self.cut.add(session)
        await asyncio.sleep(self.chance.uniform(0.0, 1.0))
        await self._end(session, tree=True)

    async def own_project(self, key: str) -> None:
        """A project that is made, worked in and deleted."""
        project = await self.caller.insist(
            "project_create", name=key, init_git=False, idempotency_key=key
        )
        session = await self._spawn(
            key, "exec mkdir -p a/b/c && touch a/b/c/d\nsay over", project["id"]
        )
        assert (await self._said(session))[-1] == "over"
        await self._end(session)
        try:
            await delete_with_all(self.caller.insist, project["id"])
        except ToolFailed as error:
            if "there is no project" not in str(error) and "not found" not in str(error):
                raise  # else it was deleted, and the answer was lost
        self.deleted.add(project["id"])
