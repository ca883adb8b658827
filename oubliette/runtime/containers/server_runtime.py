"""Container runtime of a server: chosen, compared with the last one of the home, remembered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog

from oubliette.errors import ConfigError
from oubliette.runtime.containers import registry
from oubliette.runtime.containers.host_paths import write_private
from oubliette.runtime.containers.selection import choose

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.config.schema import Config
    from oubliette.runtime.containers.base import ContainerRuntime
    from oubliette.runtime.containers.runtime_spec import RuntimeSpec

FILE: Final = "runtime"
"""In the home: the name of the isolation, one of `walls`."""


def walls() -> dict[str, int]:
    """Return isolation of agents → its strength; engines are equal."""
    specs = registry.known()
    return {name: strength for spec in specs for name, strength in spec.walls.items()}


def wall(runtime: str, config: Config) -> str:
    """The isolation of a runtime's agents."""
    return registry.find(runtime).isolation_of(config)


def check(home: Path, runtime: str, config: Config, why: str) -> None:
    """Check that `auto` did not choose a weaker isolation than the home had.

    A runtime that the configuration names is accepted in any case.

    Raises:
        ConfigError: the isolation is weaker; the message names the last one and the remedy.
    """
    if config.containers.runtime != registry.AUTO:
        return
    before, now = recall(home), wall(runtime, config)
    if before is None or walls()[now] >= walls()[before]:
        return
    raise ConfigError(
        f"containers.runtime = auto would run agents in {now} from now on, which keeps them in less"
        f" than {before}, which this home had: {why}",
        hint=f"see that {before} can be used (oubliette doctor); if it is meant, set"
        f" --runtime {runtime} (containers.runtime)",
    )


def recall(home: Path) -> str | None:
    """Return the isolation of the last start; None: there was none, or it is unknown."""
    try:
        found = (home / FILE).read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return None
    return found if found in walls() else None


def remember(home: Path, runtime: str, config: Config) -> None:
    """Store the isolation for the next start."""
    now = wall(runtime, config)
    if recall(home) != now:
        write_private(home / FILE, f"{now}\n".encode())


log = structlog.get_logger("oubliette.server")


async def open_runtime(
    config: Config, base: Path, zipapp: Path, home: Path, passed: RuntimeSpec | None
) -> ContainerRuntime:
    """The container runtime of a server, which the caller closes.

    Args:
        config: Of the server.
        base: Folder for the folders of relay sockets.
        zipapp: The programs that run inside containers.
        home: The server's home; it remembers the choice.
        passed: Runtime of the program that runs the server; None: as configured.

    Raises:
        ConfigError: none can be used, or it is weaker than the one before; has the remedy.
    """
    runtime, why = await choose(config, base, zipapp, home, passed)
    try:
        if passed is None:
            check(home, runtime.name, config, why)
        await asyncio.to_thread(remember, home, runtime.name, config)
    except BaseException:
        await runtime.aclose()
        raise
    log.info("container runtime chosen", runtime=runtime.name, why=why)
    if runtime.capabilities.isolation == "none":
        log.warning(
            "NO ISOLATION: agents run as plain child processes of this user",
            setting="process.sandbox = best-effort",
        )
    return runtime
