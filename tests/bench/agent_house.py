"""A server on an engine for benchmarks, with a caller that waits for its agents' words."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from oubliette.runtime.containers.engine import Engine
from oubliette.testing.callers import HttpCaller
from oubliette.testing.host_image import ensure_image
from oubliette.testing.server import ServerProcess
from tests import requirements

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from oubliette.testing.model_server import ModelServer

LONGEST = 150.0  # seconds until an agent says something


class AgentHouse:
    """One project, whose container runs."""

    def __init__(self, caller: HttpCaller, project: str) -> None:
        self.caller = caller
        self.project = project

    async def spawn(self, agent: str) -> str:
        """A new session, until its agent has said its first word; its id."""
        place = len(self.caller.events)
        spawned = await self.caller.call(
            "session_spawn", project_id=self.project, prompt="say hi", agent=agent,
            context=self.caller.context, new_session=True,
        )  # fmt: skip
        session = spawned["session_id"]
        await self.caller.event("message", after=place, session_id=session, timeout=LONGEST)
        await self.caller.event("completion", after=place, session_id=session, timeout=LONGEST)
        return session

    async def turn(self, session: str) -> None:
        """Another turn of it, to its end."""
        place = len(self.caller.events)
        await self.caller.call("session_message", session_id=session, message="say hi")
        await self.caller.event("completion", after=place, session_id=session, timeout=LONGEST)

    async def end(self, session: str) -> None:
        await self.caller.call("session_end", session_id=session)


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
    for program in ("opencode", "droid"):
        if requirements.missing(program) is None:
            settings |= {
                f"{program}.path": requirements.program(program),
                f"{program}.model": "scripted",
                f"{program}.base_url": model.url,
            }
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
