"""What a package has to say to add an agent: all of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import acp
import msgspec

from oubliette.errors import ConfigError
from oubliette.runtime.agents import AcpRuntime
from oubliette.runtime.containers import Mount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.runtime.agents import AgentSession
    from oubliette.runtime.agents.base import AgentCommand
    from oubliette.runtime.containers import Inside

PROGRAM, SITE = "/opt/parrot/program.py", "/opt/parrot/site"
MOUNTS = (
    Mount(Path(__file__).with_name("parrot_program.py"), PROGRAM, read_only=True),
    Mount(Path(acp.__file__).parents[1], SITE, read_only=True),
)


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of `[package_agents.NAME]`."""

    model: str | None = None
    patience: int = 3


class Parrot(AcpRuntime):
    """An agent that says what it is told to say, and calls what it is told to call."""

    def __init__(self, name: str = "parrot", *options: str) -> None:
        super().__init__(name, (PROGRAM, SITE, *options), MOUNTS, section=f"package_agents.{name}")
        self.settings = Settings()

    async def initialize(self, config: Mapping[str, Any]) -> None:
        """Of its table what is its own, and the rest for ACP."""
        self.settings = msgspec.convert(config, Settings, strict=False)
        if self.settings.patience > 9:
            raise ConfigError("package_agents.parrot.patience: nobody waits that long")
        await super().initialize({"model": self.settings.model})

    def command(self, session: AgentSession, inside: Inside) -> AgentCommand:
        """A Python program, for the interpreter of the container."""
        command = super().command(session, inside)
        return msgspec.structs.replace(command, argv=(inside.python, *command.argv))


def deaf() -> Parrot:
    """Does nothing with the MCP servers that it is given."""
    return Parrot("deaf", "--deaf")


def slow() -> Parrot:
    """Never gets ready."""
    return Parrot("slow", "--slow")


def tardy() -> Parrot:
    """Starts its MCP servers after it has said that its session is there."""
    return Parrot("tardy", "--tardy")


def lazy() -> Parrot:
    """Lists no tools before it is prompted."""
    return Parrot("lazy", "--lazy")


class Unfinished:
    """Not what the server needs."""

    name = "unfinished"


def explodes() -> object:
    """A package that is broken."""
    raise RuntimeError("the parrot is no more")
