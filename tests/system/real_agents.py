"""Real agents for tests: the programs, their settings, a server with them over a scripted model."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.containers.docker.client import Engine
from oubliette.testing.model_server import ModelServer
from oubliette.testing.server import ServerProcess
from tests import requirements
from tests.images import ensure_image
from tests.system.conftest import ROOMY
from tests.system.site import Site

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PROGRAMS = ("opencode", "droid")
SLOW = 150.0  # seconds that a cold agent may take in a container on a busy machine
KEY = "a-secret-key"


@dataclass(frozen=True)
class Agent:
    """How a test says to an agent what it wants."""

    name: str
    prefix: str = ""
    """What its tools begin with that come from our MCP server."""
    program: str = "scripted-agent"
    """A word of its command line in a container; without one it is where the tests found it."""
    requires: str | None = None
    wait: str = "slow 1000"
    """A prompt that says something and takes very long."""
    remember: tuple[str, str] = ("say the colour is blue", "history")
    """A prompt to keep something, and one to recall it."""


AGENTS = [
    Agent(
        "scripted", wait="emit 1\nsleep 1000", remember=("remember colour blue", "recall colour")
    ),
    Agent("opencode", "oubliette_", "/opt/oubliette/agents/opencode", "opencode"),
    Agent("opencode-acp", "oubliette_", "/opt/oubliette/agents/opencode", "opencode"),
    Agent("droid", "oubliette___", "/opt/oubliette/agents/droid", "droid"),
]


def settings_for(engine: str, model: ModelServer) -> dict[str, Any]:
    """Settings of a server with all real agents on this engine."""
    settings: dict[str, Any] = {
        **ROOMY,
        "containers.runtime": engine,
        "agents.start_timeout_seconds": SLOW,
        "sessions.caller_tool_timeout_seconds": SLOW,
    }
    if engine != "process":
        # The scripted model listens on the machine's loopback.
        settings |= {"containers.image": ensure_image(engine), "containers.network": "host"}
    for name in PROGRAMS:
        settings |= program_settings(name, model, api_key="env:MODEL_KEY")
    return settings


def program_settings(name: str, model: ModelServer, **more: str) -> dict[str, Any]:
    """Settings of an agent's program over the scripted model; none where it is not installed."""
    if requirements.missing(name) is not None:
        return {}
    given = {
        "path": requirements.program(name),
        "model": "scripted",
        "base_url": model.url,
        **more,
    }
    return {f"{name}.{key}": value for key, value in given.items()}


@contextlib.asynccontextmanager
async def site_on(engine: str, zygote: Any, model: ModelServer, **more: Any) -> AsyncIterator[Site]:
    async with ServerProcess(
        zygote=zygote, settings={**settings_for(engine, model), **more}
    ) as server:
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MODEL_KEY", KEY)
                await server.start()
                site = Site(server)
                async with site.eyes:
                    await site.open()
                    yield site
                    await site.tidy()
        finally:
            await server.kill()
            if engine != "process":
                remove_containers(engine, server.instance())


def remove_containers(engine: str, instance: str) -> None:
    api = Engine("podman" if engine == "podman" else "docker").connect()
    try:
        labels = {"label": [f"dev.oubliette.instance={instance}"]}
        for container in api.containers(all=True, filters=labels):
            api.remove_container(container["Id"], force=True, v=True)
    finally:
        api.close()
