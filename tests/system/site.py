"""A real server process with a project, callers of every kind, and eyes of its own.

What a test looks at, it looks at through a caller of another principal: whoever reads the events
of its own session counts as present, and that would change what is tested.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from tests.callers import Caller, HttpCaller, SdkCaller, ToolFailed

if TYPE_CHECKING:
    from oubliette.testing.server import ServerProcess

CALLERS: dict[str, tuple[type[SdkCaller] | type[HttpCaller], str]] = {
    "sdk-auto": (SdkCaller, "auto"),
    "sdk-legacy": (SdkCaller, "legacy"),
    "http-auto": (HttpCaller, "auto"),
    "http-legacy": (HttpCaller, "legacy"),
}
"""Kind of caller → class and mode: both clients in both generations of the protocol."""
KINDS = list(CALLERS)
TURN = 20.0  # seconds that a turn may take on a busy machine


class Agent:
    """One session, read through the eyes of the site."""

    def __init__(self, site: Site, session_id: str, caller: Caller | None) -> None:
        self.site = site
        self.session_id = session_id
        self.caller = caller
        self.log: list[dict[str, Any]] = []
        """What was read of its log so far, from its first event on."""
        self._turns = 0
        self._place = 0

    async def read(self, wait: float = 0.0) -> dict[str, Any]:
        """Read on in its log; waits for the next event."""
        page = await self.site.eyes.call(
            "session_events",
            session_id=self.session_id,
            since_index=self.log[-1]["index"] if self.log else -1,
            wait_seconds=wait,
            max_events=1000,
        )
        self.log += page["events"]
        return page

    async def event(
        self, kind: str, /, *, nth: int = 1, timeout: float = TURN, **fields: Any
    ) -> dict[str, Any]:
        """The nth event of its log of this type and with these fields.

        Raises:
            TimeoutError: it did not come in time.
        """
        async with asyncio.timeout(timeout):
            while True:
                found = [
                    event
                    for event in self.log
                    if event["type"] == kind
                    and all(event.get(name) == value for name, value in fields.items())
                ]
                if len(found) >= nth:
                    return found[nth - 1]
                page = await self.read(wait=timeout)
                if not page["events"] and page["status"] in {"completed", "failed", "timed_out"}:
                    raise AssertionError(f"{self.session_id} rests without {kind} {fields}: {page}")

    async def turn(self, timeout: float = TURN) -> list[str]:
        """What it said in its next turn, message by message."""
        self._turns += 1
        end = await self.event("completion", nth=self._turns, timeout=timeout)
        place, self._place = self._place, self.log.index(end) + 1
        return [e["text"] for e in self.log[place : self._place] if e["type"] == "message"]

    async def outcome(self, timeout: float = TURN) -> Any:
        """The last message of its next turn, which is JSON: the outcome of a call."""
        return json.loads((await self.turn(timeout))[-1])

    async def say(self, prompt: str, **more: Any) -> dict[str, Any]:
        """Send it another message."""
        assert self.caller is not None
        return await self.caller.call(
            "session_message", session_id=self.session_id, message=prompt, **more
        )

    async def ask(self, prompt: str, timeout: float = TURN, **more: Any) -> Any:
        """Send it another message; the JSON that it says last."""
        await self.say(prompt, **more)
        return await self.outcome(timeout)

    async def get(self) -> dict[str, Any]:
        """Its record."""
        return await self.site.eyes.call("session_get", session_id=self.session_id)

    async def end(self, **more: Any) -> dict[str, Any]:
        """End it."""
        return await self.site.eyes.call("session_end", session_id=self.session_id, **more)


class Site:
    """One server, one project in it, and whoever a test lets loose on them."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.eyes = HttpCaller(server.url, server.token("admin"), caller_id="eyes")
        self.project: dict[str, Any] = {}
        self.agents: list[Agent] = []
        self._names = 0

    async def open(self) -> None:
        """Make the project that tests share."""
        self.project = await self.eyes.call("project_create", name="shared", init_git=False)

    async def new_project(self, **more: Any) -> dict[str, Any]:
        """Another project."""
        self._names += 1
        arguments = {"name": f"project {self._names}", "init_git": False, **more}
        return await self.eyes.call("project_create", **arguments)

    def workspaces(self, project: dict[str, Any]) -> str:
        """The folder of the project's workspaces, as its agents see it: as it is, without a sandbox."""
        folder = self.server.home_of(project["id"]) / "projects" / project["id"] / "workspaces"
        return "/workspace/workspaces" if self.server.sandboxed else str(folder)

    def principal(self, scope: str = "write") -> str:
        """A key of somebody new."""
        return self.server.token(scope)

    def caller(
        self, kind: str, *, token: str | None = None, caller_id: str = "myapp", **more: Any
    ) -> Any:
        """A caller of this kind, somebody new unless a key is given; not connected yet."""
        cls, mode = CALLERS[kind]
        url = self.server.url
        return cls(url, token or self.principal(), mode=mode, caller_id=caller_id, **more)

    async def spawn(self, caller: Caller, prompt: str, **more: Any) -> Agent:
        """Start a new session for this caller, which lends it its tools."""
        more = {
            "project_id": self.project["id"],
            "context": caller.context,
            "new_session": True,
            **more,
        }
        spawned = await caller.call("session_spawn", prompt=prompt, **more)
        return self.agent(spawned["session_id"], caller)

    def agent(self, session_id: str, caller: Caller | None = None) -> Agent:
        """A session to look at, ended with the test."""
        agent = Agent(self, session_id, caller)
        self.agents.append(agent)
        return agent

    async def tidy(self) -> None:
        """End the sessions of the test that is over."""
        agents, self.agents = self.agents, []
        few = asyncio.Semaphore(16)

        async def end(agent: Agent) -> None:
            async with few:
                await agent.end(tree=True)

        ended = await asyncio.gather(*(end(agent) for agent in agents), return_exceptions=True)
        for answer in ended:
            if isinstance(answer, BaseException) and not isinstance(answer, ToolFailed):
                raise answer
