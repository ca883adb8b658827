"""Registry of a server's agents: ours, those of installed packages, those of its program.

A package adds an agent by an entry point of the group `oubliette.agents` that makes an
`AgentRuntime` when called without arguments, or is an agent that is a function. A program that
embeds the server passes its agents.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, cast, runtime_checkable

import msgspec
import structlog

from oubliette.errors import ConfigError, did_you_mean
from oubliette.ids import shown
from oubliette.runtime.agents.acp.runtime import AcpRuntime
from oubliette.runtime.agents.base import AgentRuntime, Availability
from oubliette.runtime.agents.droid.runtime import DroidRuntime
from oubliette.runtime.agents.opencode.program import OpencodeAcpRuntime
from oubliette.runtime.agents.opencode.runtime import OpencodeRuntime
from oubliette.runtime.agents.scripted.adapter import ScriptedRuntime
from oubliette.runtime.extensions import (
    REMEDY,
    check_table,
    described,
    extensions,
    lacking,
    refused_settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from collections.abc import Set as AbstractSet

    from oubliette.config.schema import Config
    from oubliette.runtime.containers.base import Mount
    from oubliette.runtime.extensions import Extension

log = structlog.get_logger("oubliette.agents")

GROUP: Final = "oubliette.agents"
_TAKEN: Final = {"auto", "scripted", "opencode", "opencode-acp", "droid", "acp"}


class Installed(msgspec.Struct, frozen=True):
    """Agents of a server."""

    agents: dict[str, Any]
    """Name → `AgentRuntime`, the one for `auto` first."""
    missing: dict[str, Any]
    """Name → `Availability` of those that cannot be used here."""


@runtime_checkable
class MakesAgent(Protocol):
    """Something that stands for an agent: a function with `@oubliette.agent`."""

    def agent_runtime(self) -> AgentRuntime: ...


async def installed(config: Config, passed: Iterable[object] = ()) -> Installed:
    """Set up every agent with its section of the configuration, for a server.

    Args:
        config: The configuration.
        passed: Agents of the program that runs the server, `AgentRuntime` or `MakesAgent`.

    Raises:
        ConfigError: as `survey`; or the default agent (`agents.default`, `serve --agent`) is
            unavailable.
    """
    found = await survey(config, passed)
    error = without_default(config, found)
    if error is not None:
        raise error
    return found


def without_default(config: Config, found: Installed) -> ConfigError | None:
    """The error if the default agent is not among the available ones."""
    name = config.agents.default
    if name == "auto" or name in found.agents:
        return None
    status: Availability | None = found.missing.get(name)
    if status is not None:
        return ConfigError(
            f"agents.default: the agent {name} cannot be used here: {status.reason}",
            hint=status.remedy,
        )
    known = sorted({*found.agents, *found.missing})
    return ConfigError(
        f"agents.default: there is no agent {shown(name)}",
        hint=f"{did_you_mean(name, known)}there are: auto, {', '.join(known)}",
    )


async def survey(config: Config, passed: Iterable[object] = ()) -> Installed:
    """Set up every agent with its section of the configuration, regardless of the default.

    Raises:
        ConfigError: a section is invalid, or an agent that the program passed. An invalid agent of
            a package does not prevent the start: that agent is missing.
    """
    ours: list[tuple[AgentRuntime, Any, bool]] = [
        (OpencodeRuntime(), config.opencode, config.opencode.model is not None),
        (OpencodeAcpRuntime(), config.opencode, config.opencode.model is not None),
        (DroidRuntime(), config.droid, config.droid.model is not None),
        (AcpRuntime(), config.acp, bool(config.acp.command)),
        *_named(config),
        (ScriptedRuntime(), None, False),
    ]
    ours.sort(key=lambda entry: not entry[2])
    ours.sort(key=lambda entry: entry[0].name != "scripted" and not entry[2])
    agents: dict[str, AgentRuntime] = {}
    missing: dict[str, Availability] = {}
    for runtime, settings, _ in ours:
        await runtime.initialize({} if settings is None else msgspec.to_builtins(settings))
        status = await runtime.is_available()
        if status.ok:
            agents[runtime.name] = runtime
        else:
            missing[runtime.name] = status
    own = await _passed(config, passed, agents.keys() | missing.keys())
    # The agents of the program come first: `auto` selects what it passed.
    agents = {name: one for name, (one, status) in own.items() if status.ok} | agents
    missing |= {name: status for name, (_, status) in own.items() if not status.ok}
    _check_places(agents)
    others = {await _add(each, config, agents, missing) for each in extensions(GROUP)}
    for name in config.package_agents:
        check_table("package_agents", name, "an agent", others | own.keys())
    return Installed(agents, missing)


async def _passed(
    config: Config, passed: Iterable[object], taken: AbstractSet[str]
) -> dict[str, tuple[AgentRuntime, Availability]]:
    """Set up the agents that the program passed.

    Raises:
        ConfigError: one is no agent, its name is taken, or it does not accept its table.
    """
    found: dict[str, tuple[AgentRuntime, Availability]] = {}
    for place, each in enumerate(passed):
        try:
            runtime = await asyncio.to_thread(_runtime_of, each)  # it may read files
            name = _checked(runtime, taken | found.keys())
        except ConfigError as error:
            raise ConfigError(
                f"agents[{place}]: {shown(repr(each))}: {error.message}",
                hint=error.hint or "pass a function with @oubliette.agent, or an AgentRuntime",
            ) from error
        await _initialize(runtime, config.package_agents.get(name))
        found[name] = runtime, await runtime.is_available()
    return found


def _runtime_of(agent: object) -> AgentRuntime:
    if isinstance(agent, MakesAgent):
        return agent.agent_runtime()
    return cast("AgentRuntime", agent)


def _named(config: Config) -> Iterator[tuple[AgentRuntime, Any, bool]]:
    """Iterate over the agents of `[acp_agents.NAME]`.

    Raises:
        ConfigError: one has the name of another agent.
    """
    for name, part in config.acp_agents.items():
        section = f"acp_agents.{name}"
        if name in _TAKEN:
            raise ConfigError(
                f"{section}: there is an agent called {name} already", hint="give it another name"
            )
        yield AcpRuntime(name, section=section), part, bool(part.command)


def _check_places(agents: Mapping[str, AgentRuntime]) -> None:
    """Check that no two agents mount different files at the same path: containers have them all.

    Raises:
        ConfigError: two agents conflict.
    """
    there: dict[str, tuple[str, Mount]] = {}
    for name, runtime in agents.items():
        for mount in runtime.mounts:
            other, before = there.setdefault(mount.target, (name, mount))
            if before.source != mount.source:
                raise ConfigError(
                    f"the agents {other} and {name} both want {mount.target} in their containers:"
                    f" {before.source} and {mount.source}",
                    hint="mount one of them somewhere else: SOURCE:TARGET",
                )


async def _add(
    extension: Extension,
    config: Config,
    agents: dict[str, AgentRuntime],
    missing: dict[str, Availability],
) -> str:
    """Add one agent of another package and return its name; an invalid one is missing.

    Raises:
        ConfigError: it does not accept the settings of its table.
    """
    name = extension.name
    try:
        loaded = extension.load()
        runtime = _runtime_of(loaded if isinstance(loaded, MakesAgent) else loaded())
        name = _checked(runtime, agents.keys() | missing.keys())
        await _initialize(runtime, config.package_agents.get(name))
        status = await runtime.is_available()
    except _SettingsRefused as error:
        raise ConfigError(error.message, hint=error.hint) from error
    except Exception as error:
        reason = described(error)
        log.warning("agent not loaded", agent=name, package=extension.package, reason=reason)
        if name not in agents and name not in missing:
            missing[name] = Availability(ok=False, reason=extension.unusable(error), remedy=REMEDY)
        return name
    if status.ok:
        agents[name] = runtime
    else:
        missing[name] = status
    return name


class _SettingsRefused(ConfigError):
    """An agent of a package refused its table."""


async def _initialize(runtime: AgentRuntime, settings: Mapping[str, Any] | None) -> None:
    """Initialize an agent of a package with a copy of its table, empty if there is none.

    Raises:
        _SettingsRefused: it does not accept them.
    """
    if settings is None:
        await runtime.initialize({})
        return
    section = f"package_agents.{runtime.name}"
    try:
        await runtime.initialize(dict(settings))
    except (ConfigError, msgspec.ValidationError) as error:
        refused = refused_settings(section, error)
        raise _SettingsRefused(refused.message, hint=refused.hint) from error


def _checked(runtime: AgentRuntime, taken: AbstractSet[str]) -> str:
    """The name of a runtime that has all required attributes.

    Raises:
        ConfigError: it lacks something, or its name is taken.
    """
    without = lacking(runtime, AgentRuntime)
    if without:
        raise ConfigError(f"it has no {without}")
    name = str(runtime.name)
    if not name.isprintable() or not name.strip():
        raise ConfigError(f"its name is {name!r}")
    if name in taken:
        raise ConfigError(f"there is an agent called {name} already", hint="give it another name")
    return name
