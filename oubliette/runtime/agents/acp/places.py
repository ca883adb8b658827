"""Mounts of an ACP agent, and files in its HOME."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, Final

from oubliette.errors import ConfigError
from oubliette.runtime.agents.base import AgentFile
from oubliette.runtime.agents.environment import secret
from oubliette.runtime.containers.base import Mount
from oubliette.user_paths import expanded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oubliette.runtime.agents.base import AgentSession
    from oubliette.runtime.containers.base import Inside

_OURS: Final = ("/workspace", "/home/agent", "/mcp", "/opt/oubliette", "/proc", "/sys", "/dev")
"""Paths inside that an agent's mount must not cover."""
_FILE: Final = "file:"


def mounts_of(entries: Sequence[str], section: str) -> tuple[Mount, ...]:
    """Return read-only mounts for `SOURCE` and `SOURCE:TARGET`; by default at the same path.

    Raises:
        ConfigError: names the entry and what is wrong with it.
    """
    mounts: list[Mount] = []
    for entry in entries:
        place = f"{section}.mounts: {entry}"
        named, _, target = entry.partition(":")
        source = expanded(named, place)
        target = target or str(source)
        if not source.is_absolute():
            raise ConfigError(
                f"{place}: {named} is no absolute path", hint="SOURCE or SOURCE:TARGET"
            )
        if not source.exists():
            raise ConfigError(f"{place}: there is no {source}")
        if not target.startswith("/") or posixpath.normpath(target) != target or target == "/":
            raise ConfigError(f"{place}: {target} is no plain absolute path in the container")
        covered = [each for each in _OURS if (target + "/").startswith(each + "/")]
        if covered or any((each + "/").startswith(target + "/") for each in _OURS):
            raise ConfigError(
                f"{place}: {target} is a place of Oubliette's or of the system",
                hint="another one, such as /opt/NAME",
            )
        mounts.append(Mount(source.resolve(), target, read_only=True))
    return tuple(mounts)


def check_files(entries: Sequence[str], section: str) -> None:
    """Check `PATH=file:/SOURCE` and `PATH=TEXT` entries, without reading a source.

    Raises:
        ConfigError: an entry is invalid; names it.
    """
    for entry in entries:
        path, equals, value = entry.partition("=")
        if not equals or not path or path.startswith("/") or "\0" in entry:
            raise ConfigError(
                f"{section}.files: each entry is PATH=file:/SOURCE or PATH=TEXT; PATH is in HOME"
            )
        if not _is_plain(path):
            raise ConfigError(f"{section}.files: {path} is no plain path in HOME")
        if value.startswith(("env:", "credential:")):
            raise ConfigError(
                f"{section}.files: {path}: files in HOME are on the disk, no place for a secret",
                hint="give it by env, which is in memory, or by a credential with as_file",
            )


def check_session_files(paths: Sequence[str], section: str) -> None:
    """Check paths in HOME.

    Raises:
        ConfigError: one is invalid; names it.
    """
    for path in paths:
        if not path or path.startswith("/") or "\0" in path or not _is_plain(path):
            raise ConfigError(
                f"{section}.session_files: {path} is no plain path in HOME",
                hint="a file or a folder, such as .claude/projects",
            )


def _is_plain(path: str) -> bool:
    return posixpath.normpath(path) == path and path.split("/", maxsplit=1)[0] not in {".", ".."}


def files_of(entries: Sequence[str], section: str, session: AgentSession) -> tuple[AgentFile, ...]:
    """The current files of `entries`.

    Raises:
        ConfigError: a source cannot be read; names it.
    """
    found: list[AgentFile] = []
    for entry in entries:
        path, _, value = entry.partition("=")
        if value.startswith(_FILE):
            value = secret(value, f"{section}.files: {path}", session.credentials)
        found.append(AgentFile(path=path, content=value.encode() + b"\n"))
    return tuple(found)


def placed(word: str, mounts: Sequence[Mount], inside: Inside) -> str:
    """Return `word` of a command line, with a target replaced by its source if unmounted."""
    if not inside.places:
        return word
    for mount in mounts:
        if word == mount.target or word.startswith(mount.target + "/"):
            return os.fspath(mount.source) + word[len(mount.target) :]
    return word
