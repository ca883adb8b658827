"""Agent of one Python function, which the runner `python-agent` of the zipapp runs in a container.

Its files travel as an archive in the session's HOME, which every runtime has, rather than as a
mount: a container that runs already gets them too, and an engine may be on another machine. The
protocol of the runner is that of the scripted agent.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.errors import ConfigError
from oubliette.runtime.agents.base import AgentCommand, AgentFile, Availability
from oubliette.runtime.agents.environment import base_environment
from oubliette.runtime.agents.executor import StreamExecution
from oubliette.runtime.agents.program import ProgramOutOfReach
from oubliette.runtime.agents.scripted.adapter import ScriptedAdapter
from oubliette.runtime.containers import host_paths
from oubliette.runtime.containers.base import Mount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents.base import AgentSession
    from oubliette.runtime.containers.base import Inside

FOLDER: Final = ".oubliette-agent"
"""In HOME: the archive, the files unpacked from it, the history."""
ARCHIVE: Final = f"{FOLDER}/agent.zip"


PACKAGES: Final = "/opt/oubliette/agents/packages"
"""Parent of the mounted folders of packages, each named by its path on this machine."""


class ShippedFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function with the files that it needs in a container."""

    name: str
    """Name of the agent."""
    archive: bytes
    """Zip of the files."""
    module: str
    """Module to import, `__main__` for a script."""
    file: str
    """Path of the module in the archive."""
    function: str
    """Qualified name of the function in the module."""
    packages: tuple[Path, ...] = ()
    """Folders of packages on this machine that it uses besides those of the image."""


class FunctionRuntime(StreamExecution):
    """`AgentRuntime` of a function.

    Args:
        shipped: The function and its files.
    """

    def __init__(self, shipped: ShippedFunction) -> None:
        self._shipped = shipped

    @property
    def name(self) -> str:
        """Name that the program gave."""
        return self._shipped.name

    @property
    def starts_mcp(self) -> bool:
        """Whether it starts our MCP server unprompted: no, when its function uses a tool."""
        return False

    async def initialize(self, config: Mapping[str, Any]) -> None:
        """Refuse settings: a function has none, its program does."""
        if config:
            raise ConfigError(
                f"package_agents.{self.name}.{min(config)}: an agent that is a function has no"
                " settings",
                hint="read them from the function's own files or from the workspace",
            )

    async def is_available(self) -> Availability:
        """Return that it is available: a container has Python, its files come with it."""
        return Availability(ok=True)

    def command(self, session: AgentSession, inside: Inside) -> AgentCommand:
        """The command of the runner, with the packages of the image's interpreter.

        Raises:
            ProgramOutOfReach: the agent's user may not read the packages of its program.
        """
        shipped = self._shipped
        # Without mounts, the folders are used where they are.
        packages = [str(m.source) if inside.places else m.target for m in self.mounts]
        if inside.places and inside.stranger is not None:
            for mount in self.mounts:
                _check_reach(mount.source, inside.stranger)
        settings = {
            "name": shipped.name,
            "archive": f"{inside.path(session.home)}/{ARCHIVE}",
            "module": shipped.module,
            "file": shipped.file,
            "function": shipped.function,
            "packages": packages,
            "client": inside.program("client"),
        }
        described = msgspec.json.encode(settings).decode()
        env = base_environment(session, inside)
        if session.model is not None:
            env["OUBLIETTE_AGENT_MODEL"] = session.model
        return AgentCommand(
            # `-s`: what an agent left in HOME is not among its packages
            argv=(inside.python, "-s", inside.zipapp, "python-agent", described),
            env=env,
            cwd=inside.path(session.cwd),
            files=(AgentFile(path=ARCHIVE, content=shipped.archive),),
        )

    def adapter(
        self, session: AgentSession, inside: Inside, state: Mapping[str, Any] | None = None
    ) -> ScriptedAdapter:
        """Return an adapter; the arguments are not needed."""
        del session, inside, state
        return ScriptedAdapter()

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """Return those of the packages of its program; its files are written into HOME."""
        return tuple(
            Mount(folder, f"{PACKAGES}/{_digest(folder)}", read_only=True)
            for folder in self._shipped.packages
        )

    async def close(self) -> None:
        """Do nothing: this object holds no resources."""


def _check_reach(packages: Path, uid: int) -> None:
    closed = host_paths.closed_folders(packages, uid)
    if closed:
        raise ProgramOutOfReach(
            f"the packages of the agent's program in {packages} cannot be used: without a sandbox"
            f" agents of a program that root runs are another user ({uid}), who may not pass"
            f" {closed[0]}",
            hint="make the virtual environment where every user may go; or install bubblewrap and"
            ' set process.sandbox = "bubblewrap"; or run the program as an ordinary user',
        )


def _digest(folder: Path) -> str:
    return hashlib.sha256(str(folder).encode()).hexdigest()[:12]
