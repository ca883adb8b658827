"""Container runtime of a server: chosen, compared with the one before, and remembered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from oubliette.runtime.containers import remembered
from oubliette.runtime.containers.selection import choose

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.config.schema import Config
    from oubliette.runtime.containers.base import ContainerRuntime
    from oubliette.runtime.containers.runtime_spec import RuntimeSpec

log = structlog.get_logger("oubliette.server")


async def open_runtime(
    config: Config, base: Path, zipapp: Path, home: Path, passed: RuntimeSpec | None
) -> ContainerRuntime:
    """Return the container runtime of a server, which the caller closes.

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
            remembered.check(home, runtime.name, config, why)
        await asyncio.to_thread(remembered.remember, home, runtime.name, config)
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
