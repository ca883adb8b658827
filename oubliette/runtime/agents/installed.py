"""The agents of a server: ours, and those of installed packages.

A package adds an agent by an entry point of the group `oubliette.agents` that makes an
`AgentRuntime` when called without arguments.
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from oubliette.errors import ConfigError
from oubliette.runtime.agents.acp_runtime import AcpRuntime
from oubliette.runtime.agents.droid_runtime import DroidRuntime
from oubliette.runtime.agents.opencode import OpencodeAcpRuntime
from oubliette.runtime.agents.opencode_runtime import OpencodeRuntime
from oubliette.runtime.agents.scripted import ScriptedRuntime

if TYPE_CHECKING:
    from oubliette.config import Config
    from oubliette.runtime.agents.port import AgentRuntime, Availability

GROUP: Final = "oubliette.agents"


class Installed(msgspec.Struct, frozen=True):
    """What there is."""

    agents: dict[str, Any]
    """Name → `AgentRuntime`, the one that `auto` means first."""
    missing: dict[str, Any]
    """Name → `Availability` of those that cannot be used here."""


async def installed(config: Config) -> Installed:
    """Set up every agent with its part of the configuration.

    Raises:
        ConfigError: a part of the configuration, or a package's agent, cannot be used.
    """
    ours: list[tuple[AgentRuntime, Any, bool]] = [
        (OpencodeRuntime(), config.opencode, config.opencode.model is not None),
        (OpencodeAcpRuntime(), config.opencode, config.opencode.model is not None),
        (DroidRuntime(), config.droid, config.droid.model is not None),
        (AcpRuntime(), config.acp, bool(config.acp.command)),
        (ScriptedRuntime(), None, False),
    ]
    ours.sort(key=lambda entry: not entry[2])
    ours.sort(key=lambda entry: entry[0].name != "scripted" and not entry[2])
    theirs: list[tuple[AgentRuntime, Any, bool]] = [
        (_load(point), None, False) for point in importlib.metadata.entry_points(group=GROUP)
    ]
    agents: dict[str, AgentRuntime] = {}
    missing: dict[str, Availability] = {}
    for runtime, settings, _ in [*ours, *theirs]:
        if runtime.name in agents or runtime.name in missing:
            raise ConfigError(f"two installed packages have an agent called {runtime.name}")
        await runtime.initialize({} if settings is None else msgspec.to_builtins(settings))
        status = await runtime.is_available()
        if status.ok:
            agents[runtime.name] = runtime
        else:
            missing[runtime.name] = status
    return Installed(agents, missing)


def _load(point: importlib.metadata.EntryPoint) -> AgentRuntime:
    try:
        return cast("AgentRuntime", point.load()())
    except Exception as error:
        raise ConfigError(
            f"the agent {point.name} of {point.value} cannot be loaded: {error}"
        ) from error
