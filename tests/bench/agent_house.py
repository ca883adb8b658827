"""A server on an engine for benchmarks, with a caller that waits for its agents' words."""

from __future__ import annotations

import contextlib
import json
import time
from typing import TYPE_CHECKING, Any

from oubliette.runtime.containers.docker.client import Engine
from oubliette.testing.host_image import ensure_image
from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller
from tests.system.real_agents import PROGRAMS, program_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.testing.model_server import ModelServer

LONGEST = 150.0  # seconds until an agent says something


class AgentHouse:
    """One project, whose container runs."""

    def __init__(self, caller: HttpCaller, project: str) -> None:
        self.caller = caller
        self.project = project
        self.first_event = 0.0
        self.first_word = 0.0

    async def spawn(self, agent: str, prompt: str = "say hi") -> str:
        """A new session, until its agent's first turn is over; its id.

        `first_event` and `first_word` say when its agent was first heard of, and when it had said
        something (`time.perf_counter`).
        """
        place = len(self.caller.events)
        spawned = await self.caller.call(
            "session_spawn", project_id=self.project, prompt=prompt, agent=agent,
            context=self.caller.context, new_session=True,
        )  # fmt: skip
        session = spawned["session_id"]
        seen = place
        while not _of_agent(event := await self._next(seen, session)):
            seen = self.caller.events.index(event, seen) + 1
        self.first_event = time.perf_counter()
        await self.caller.event("message", after=place, session_id=session, timeout=LONGEST)
        self.first_word = time.perf_counter()
        await self.caller.event("completion", after=place, session_id=session, timeout=LONGEST)
        return session

    async def _next(self, after: int, session: str) -> dict[str, Any]:
        return await self.caller.event(after=after, session_id=session, timeout=LONGEST)

    async def child(self, agent: str) -> float:
        """Milliseconds in which a child is started, answers and its parent has the result."""
        place = len(self.caller.events)
        session = await self.spawn(agent, 'repeat 1 call session_message {"message": "say hi"}')
        said = [
            event["text"]
            for event in self.caller.events[place:]
            if event.get("session_id") == session and event["type"] == "message"
        ]
        await self.end(session)
        return json.loads(said[0])["elapsed_ms"][0]

    async def turn(self, session: str) -> None:
        """Another turn of it, to its end."""
        place = len(self.caller.events)
        await self.caller.call("session_message", session_id=session, message="say hi")
        await self.caller.event("completion", after=place, session_id=session, timeout=LONGEST)

    async def end(self, session: str) -> None:
        await self.caller.call("session_end", session_id=session)


def _of_agent(event: dict[str, Any]) -> bool:
    """Whether the agent itself is the source: not a status of ours, nor a stage of its start."""
    return event["type"] != "status" and event.get("kind") != "stage"


@contextlib.asynccontextmanager
async def agent_house(engine: str, model: ModelServer) -> AsyncIterator[AgentHouse]:
    settings: dict[str, Any] = {
        "containers.runtime": engine,
        "sessions.max_live_per_project": 500,
        "callers.calls_per_second": 10_000,
        "callers.calls_burst": 10_000,
        "agents.start_timeout_seconds": LONGEST,
    }
    if engine != "process":
        settings |= {"containers.image": ensure_image(engine), "containers.network": "host"}
    for program in PROGRAMS:
        settings |= program_settings(program, model)
    async with ServerProcess(settings=settings) as server:
        await server.start()
        try:
            caller = HttpCaller(server.url, server.token("admin"), caller_id="bench")
            async with caller:
                await caller.listen()
                made = await caller.call("project_create", name="bench", init_git=False)
                await caller.call("container_start", project_id=made["id"])
                yield AgentHouse(caller, made["id"])
        finally:
            await server.kill()
            if engine != "process":
                remove_containers(engine, server.instance())


def remove_containers(engine: str, instance: str) -> None:
    api = Engine(engine).connect()  # type: ignore[arg-type]
    try:
        labels = {"label": [f"dev.oubliette.instance={instance}"]}
        for container in api.containers(all=True, filters=labels):
            api.remove_container(container["Id"], force=True, v=True)
    finally:
        api.close()
