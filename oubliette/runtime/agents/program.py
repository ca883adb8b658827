"""An agent's program: where it is on this side, and where its containers see it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.errors import ConfigError, RuntimeFailure
from oubliette.runtime.agents.base import Availability
from oubliette.runtime.containers import host_paths
from oubliette.runtime.containers.base import Mount

if TYPE_CHECKING:
    from oubliette.runtime.containers.base import Inside

FOLDER: Final = "/opt/oubliette/agents"
OF_IMAGE: Final = "image"
"""As a configured path: the container's image has it."""


class ProgramMissing(RuntimeFailure):
    """A container has no program of that name: nothing was mounted, and its image has none."""

    code = "agent_program_missing"


def missing(agent: str, said: str) -> ProgramMissing:
    """The error for an agent whose program was not found in a container; `said` names it."""
    return ProgramMissing(
        f"the agent {agent} cannot be started in its container: {said}",
        hint="either an image that has it (a container type of its own, image_rebuild), or a"
        " program of this machine that is mounted: path in the agent's section of oubliette.toml;"
        " a mounted one needs the libraries that it is linked with in the image",
    )


class ProgramOutOfReach(RuntimeFailure):
    """The user that agents run as may not go where the program is."""

    code = "agent_program_out_of_reach"


def out_of_reach(program: Path, uid: int) -> str | None:
    """Why user `uid`, who is in no group of ours, cannot start a program; None: they can."""
    closed = host_paths.closed_folders(program.parent, uid)
    if closed:
        return f"may not pass {closed[0]}"
    return None if program.stat().st_mode & 0o001 else "may not run it"


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
        """Take `path` instead of what is on PATH; `image`: what the container's image has.

        Raises:
            ConfigError: there is no such program.
        """
        self._configured = path
        if path not in {None, OF_IMAGE} and self.found is None:
            raise ConfigError(
                f"{self._section}.path: {path} is no program",
                hint=f"leave it out to use {self.name} on PATH, or say {OF_IMAGE!r} where the"
                " container's image has it",
            )

    @property
    def found(self) -> Path | None:
        """The file on this side."""
        if self._configured == OF_IMAGE:
            return None
        path = self._configured or shutil.which(self.name)
        if path is None:
            return None
        real = Path(path).expanduser().resolve()
        return real if real.is_file() and os.access(real, os.X_OK) else None

    @property
    def availability(self) -> Availability:
        """Whether it is there; what to do if not. Of an image that is known at the start only."""
        if self.found is not None or self._configured == OF_IMAGE:
            return Availability(ok=True)
        return Availability(
            ok=False,
            reason=f"{self.name} is not on PATH, and {self._section}.path is not set",
            remedy=f"npm install -g {self._package}, or set path in [{self._section}]; to"
            f" {OF_IMAGE!r} where the container's image has it",
        )

    @property
    def mounts(self) -> tuple[Mount, ...]:
        """What brings it into a container."""
        found = self.found
        return () if found is None else (Mount(found, self.target, read_only=True),)

    def inside(self, inside: Inside) -> str:
        """What to call in a container; by its name where an image has to bring it.

        Raises:
            ProgramOutOfReach: nothing is mounted, and who runs it there may not go to it.
        """
        found = self.found
        if found is None:
            return self.name
        if not inside.places:
            return self.target
        # Where nothing can be mounted, programs are where they are.
        if inside.stranger is not None:
            self._check_reach(found, inside.stranger)
        return str(found)

    def _check_reach(self, found: Path, uid: int) -> None:
        why = out_of_reach(found, uid)
        if why is None:
            return
        raise ProgramOutOfReach(
            f"the agent's program {found} cannot be started: without a sandbox agents of a server"
            f" that root runs are another user ({uid}), who {why}",
            hint=f"install it where every user may go, such as with npm install -g {self._package},"
            f" and set path in [{self._section}]; or install bubblewrap and set process.sandbox ="
            ' "bubblewrap"; or run the server as an ordinary user',
        )
