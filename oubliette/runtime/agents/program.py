"""An agent's program: where it is on this side, and where its containers see it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.errors import ConfigError
from oubliette.runtime.agents.port import Availability
from oubliette.runtime.containers.port import Mount

if TYPE_CHECKING:
    from oubliette.runtime.containers.port import Inside

FOLDER: Final = "/opt/oubliette/agents"


class Program:
    """One executable file, mounted read-only.

    Args:
        name: how it is called, in the container and on PATH.
        package: what installs it, for the remedy.
        section: its section in the configuration.
    """

    def __init__(self, name: str, *, package: str, section: str) -> None:
        self.name = name
        self.target: Final = f"{FOLDER}/{name}"
        self._package = package
        self._section = section
        self._configured: str | None = None

    def configure(self, path: str | None) -> None:
        """Take `path` instead of what is on PATH.

        Raises:
            ConfigError: there is no such program.
        """
        self._configured = path
        if path is not None and self.found is None:
            raise ConfigError(
                f"{self._section}.path: {path} is no program",
                hint=f"leave it out to use {self.name} on PATH",
            )

    @property
    def found(self) -> Path | None:
        """The file on this side."""
        path = self._configured or shutil.which(self.name)
        if path is None:
            return None
        real = Path(path).expanduser().resolve()
        return real if real.is_file() and os.access(real, os.X_OK) else None

    @property
    def availability(self) -> Availability:
        """Whether it is there; what to do if not."""
        if self.found is not None:
            return Availability(ok=True)
        return Availability(
            ok=False,
            reason=f"{self.name} is not on PATH, and {self._section}.path is not set",
            remedy=f"npm install -g {self._package}, or set path in [{self._section}]",
        )

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """What brings it into a container."""
        found = self.found
        return () if found is None else (Mount(found, self.target, read_only=True),)

    def inside(self, inside: Inside) -> str:
        """What to call in a container; by its name where an image has to bring it."""
        found = self.found
        if found is None:
            return self.name
        # Where nothing can be mounted, programs are where they are.
        return str(found) if inside.places else self.target
