"""Four sessions at work, and some more that come and go: what a server is killed under.

Each prompt begins with `exec echo TAG >> runs.txt`, so that a prompt that ran twice shows.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, Self

from tests.callers import ToolFailed
from tests.faults.history import (
    BROKEN,
    Lender,
    check_log,
    check_nothing_left,
    check_stopped,
    check_told,
    deltas,
    texts,
)

if TYPE_CHECKING:
    from oubliette.testing.server import ServerProcess

BURST = 40  # deltas of the streaming session in one go


class Crashed(Exception):
    """The server is gone; what was asked is not known to have happened."""


class Load:
    """A caller, its projects and its sessions, kept over any number of servers."""

    def __init__(self, server: ServerProcess, *, seconds: float = 1.0) -> None:
        self.server = server
        self.seconds = seconds
        """How long the agents stay at work, about."""
        self.rounds = round(20 * seconds)
        self.caller: Lender
        self.back = asyncio.Event()
        """`approve` answers once this is set."""
        self.wanted: dict[str, tuple[str, str]] = {}
        """Key → project and prompt of each session that was asked for."""
        self.sessions: dict[str, str] = {}
        """Key → session id, where it was acknowledged."""
        self.projects: dict[str, dict[str, Any]] = {}
        self._late = 0

    async def approve(self, what: str) -> dict[str, Any]:
        """Answer when the caller has come back."""
        await self.back.wait()
        return {"approved": what}

    @staticmethod
    def add(a: int, b: int) -> dict[str, Any]:
        """Add."""
        return {"sum": a + b}

    async def __aenter__(self) -> Self:
        token = self.server.token("write")
        self.caller = Lender(
            self.server.url, token, tools={"approve": self.approve, "add": self.add}
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.caller.__aexit__()

    async def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool.

        Raises:
            Crashed: the server went away meanwhile.
        """
        for pause in (0.05, 0.2, 1.0, 0.0):
            try:
                return await self.caller.call(tool, **arguments)
            except BROKEN as error:
                raise Crashed(repr(error)) from error
            except ToolFailed as error:
                if "try again" not in str(error) or not pause:
                    raise
                await asyncio.sleep(pause)  # a part is being restarted: what a client is told to do
        raise AssertionError

    async def project(self, name: str) -> None:
        """Make a project, or find it again."""
        self.projects[name] = await self.ask(
            "project_create", name=name, init_git=False, idempotency_key=name
        )

    async def spawn(self, key: str, prompt: str, project: str = "one") -> str:
        """Spawn a session; asked again with the same key it is the same session."""
        if key in self.sessions:
            return self.sessions[key]
        self.wanted[key] = (project, prompt)
        answer = await self.ask(
            "session_spawn",
            project_id=self.projects[project]["id"],
            prompt=f"exec echo {key} >> runs.txt\n{prompt}",
            new_session=True,
            context=self.caller.context,
            idempotency_key=key,
        )
        self.sessions[key] = answer["session_id"]
        return answer["session_id"]

    # ------------------------------------------------------------ before

    async def begin(self) -> None:
        """Set the four sessions to work: idle, waiting for a caller, for a child, streaming."""
        idle = await self.spawn("idle", "remember colour green")
        try:
            await self.caller.turns_done(idle)
        except BROKEN as error:
            raise Crashed from error
        await self.spawn("waiting", 'call tester_approve {"what": "a refund"}')
        child = json.dumps(
            {"message": f"exec echo child >> runs.txt\nsleep {self.seconds}\nsay the child's word"}
        )
        await self.spawn("parent", f"call session_message {child}")
        await self.spawn("streaming", f"emit {BURST} 30\nsleep 0.05\n" * self.rounds)
        await self.project("two")

    async def go_on(self, most: int = 8) -> None:
        """Spawn more sessions, each doing a bit of everything, until the server is gone."""
        small = json.dumps({"message": "say small"})
        with contextlib.suppress(Crashed):
            while self._late < most:
                self._late += 1
                session = await self.spawn(
                    f"late{self._late}",
                    'call tester_add {"a": 1, "b": 2}\n'
                    + (f"call session_message {small}\n" if self._late == 1 else "")
                    + "say late",
                    "two",
                )
                try:
                    await self.caller.turns_done(session)
                except BROKEN as error:
                    raise Crashed from error

    # ------------------------------------------------------------ after

    async def come_back(self) -> None:
        """Listen on from where the last server broke off, ask again for what was not answered."""
        await self.caller.stop_listening()
        await self.project("one")
        try:
            await self.caller.listen(after=self.caller.next)
        except BROKEN as error:
            raise Crashed from error
        for key, (project, prompt) in list(self.wanted.items()):
            await self.project(project)
            await self.spawn(key, prompt, project)
        await self.begin()

    async def finish(self) -> None:
        """Everything ends as if nothing had happened; then nothing is left over."""
        self.back.set()
        caller = self.caller
        for key in ("idle", "waiting", "parent", "streaming"):
            assert key in self.sessions, f"{key} was never spawned"
        pages = {key: await caller.turns_done(sid) for key, sid in self.sessions.items()}
        states = {key: (page["status"], page["error"]) for key, page in pages.items()}
        assert states == dict.fromkeys(pages, ("idle", None))
        await self.ask("session_message", session_id=self.sessions["idle"], message="recall colour")
        recalled = await caller.turns_done(self.sessions["idle"])
        assert recalled["final_response"] == "green"
        logs = await self.logs()
        last = max(events[-1]["seq"] for events in logs.values())
        if last not in {event["seq"] for event in caller.told}:
            await caller.event(seq=last)  # it is on its way
        for events in logs.values():
            check_log(events)
        check_told(caller, {sid: events for sid, events in logs.items() if sid in await self.own()})
        assert caller.refused <= caller.tried
        self.check_results(logs)
        self.check_runs()
        check_nothing_left(self.server)
        assert await self.server.stop() == 0
        check_stopped(self.server)

    async def own(self) -> set[str]:
        """Every session of the caller, children included."""
        rows = self.server.query("SELECT id FROM sessions")
        return {row[0] for row in rows}

    async def logs(self) -> dict[str, list[dict[str, Any]]]:
        """The log of every session."""
        return {sid: await self.caller.log(sid) for sid in sorted(await self.own())}

    def check_results(self, logs: dict[str, list[dict[str, Any]]]) -> None:
        """Each agent said what it would have said without a crash."""
        said = {key: texts(logs[sid]) for key, sid in self.sessions.items()}
        waited = json.loads(said["waiting"][-1])
        assert waited["structured"] == {"approved": "a refund"}, waited
        parent = json.loads(said["parent"][-1])
        told = parent["structured"] or {}
        assert (told.get("result"), told.get("spawned")) == ("the child's word", True), parent
        assert deltas(logs[self.sessions["streaming"]]) == list(range(BURST)) * self.rounds
        for key, words in said.items():
            if key.startswith("late"):
                assert json.loads(words[1])["structured"] == {"sum": 3}, words
                assert words[-1] == "late"

    def check_runs(self) -> None:
        """No prompt ran twice, and none was lost."""
        runs: list[str] = []
        for project in self.projects.values():
            folder = self.server.home / "projects" / project["id"] / "workspaces"
            file = folder / project["default_workspace_id"] / "runs.txt"
            if file.exists():
                runs += file.read_text().split()
        assert sorted(runs) == sorted([*self.sessions, "child"])


async def crash(
    server: ServerProcess, load: Load, *, after: float | None = None, within: float = 15.0
) -> None:
    """Put the server under load until it dies by itself, or is killed `after` some seconds."""

    async def work() -> None:
        with contextlib.suppress(Crashed, ToolFailed):
            await load.come_back()
            await load.go_on()

    working = asyncio.ensure_future(work())
    try:
        if after is not None:
            await asyncio.wait({working}, timeout=after)
            await server.kill()
            return
        assert await server.ended(within) == -9
    except TimeoutError:
        told = [(e["session_id"][-6:], e["type"], e["index"]) for e in load.caller.told[-20:]]
        raise AssertionError(
            f"it was not killed; the load is at {working!r}, told {told}\n{server.log()[-3000:]}"
        ) from None
    finally:
        working.cancel()
        results = await asyncio.gather(working, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
