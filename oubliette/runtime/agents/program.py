"""Program of an agent: its path on this machine and in containers."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

from oubliette.errors import ConfigError, RuntimeFailure
from oubliette.runtime.agents.base import Availability
from oubliette.runtime.containers import host_paths
from oubliette.runtime.containers.base import Mount
from oubliette.user_paths import expanded

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.runtime.containers.base import Inside

FOLDER: Final = "/opt/oubliette/agents"
OF_IMAGE: Final = "image"
"""Value of a configured path: the container's image has it."""


class ProgramMissing(RuntimeFailure):
    """A container lacks the program: none was mounted, and its image has none."""

    code = "agent_program_missing"


def missing(agent: str, said: str) -> ProgramMissing:
    """Return the error for an agent whose program is missing in a container; `said` names it."""
    return ProgramMissing(
        f"the agent {agent} cannot be started in its container: {said}",
        hint="either an image that has it (a container type of its own, image_rebuild), or a"
        " program of this machine that is mounted: path in the agent's section of oubliette.toml;"
        " a mounted one needs the libraries that it is linked with in the image",
    )


class ProgramOutOfReach(RuntimeFailure):
    """The agents' user may not access the program."""

    code = "agent_program_out_of_reach"


def out_of_reach(program: Path, uid: int) -> str | None:
    """Return why user `uid`, in no group of ours, cannot start a program; None if it can."""
    closed = host_paths.closed_folders(program.parent, uid)
    if closed:
        return f"may not pass {closed[0]}"
    return None if program.stat().st_mode & 0o001 else "may not run it"


class Program:
    """One executable file, mounted read-only.

    Args:
        name: name of the file, in the container and on PATH.
        package: the package that installs it, for the remedy.
        section: its section in the configuration.
    """

    def __init__(self, name: str, *, package: str, section: str) -> None:
        self.name = name
        self.target: Final = f"{FOLDER}/{name}"
        self._package = package
        self._section = section
        self._configured: str | None = None

    def configure(self, path: str | None) -> None:
        """Use `path` instead of the program on PATH; `image`: the one in the container's image.

        Raises:
            ConfigError: the program is missing.
        """
        self._configured = path
        if path not in {None, OF_IMAGE} and self.found is None:
            raise ConfigError(
                f"{self._section}.path: {path} is no program",
                hint=f"leave it out to use {self.name} on PATH, or set it to {OF_IMAGE!r} if the"
                " container's image has the program",
            )

    @property
    def found(self) -> Path | None:
        if self._configured == OF_IMAGE:
            return None
        path = self._configured or shutil.which(self.name)
        if path is None:
            return None
        real = expanded(path, f"{self._section}.path").resolve()
        return real if real.is_file() and os.access(real, os.X_OK) else None

    @property
    def availability(self) -> Availability:
        """Whether it is there, with a remedy. An image's is only known at the start."""
        if self.found is not None or self._configured == OF_IMAGE:
            return Availability(ok=True)
        return Availability(
            ok=False,
            reason=f"{self.name} is not on PATH, and {self._section}.path is not set",
            remedy=f"npm install -g {self._package}, or set path in"
            f" [{self._section}] ({OF_IMAGE!r}: the container's image has the program)",
        )

    @property
    def mounts(self) -> tuple[Mount, ...]:
        found = self.found
        return () if found is None else (Mount(found, self.target, read_only=True),)

    def inside(self, inside: Inside) -> str:
        """Return the path to call in a container; its name if an image has to provide it.

        Raises:
            ProgramOutOfReach: nothing is mounted, and its user there may not access it.
        """
        found = self.found
        if found is None:
            return self.name
        if not inside.places:
            return self.target
        # Without mounts, programs are at their own paths.
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
