"""Read-only bundle of every container of the process runtime: the zipapp and its wrappers.

A copy named by its content, so that neither a new release nor a rebuilt checkout changes what a
running container sees, and so that every agent's user may read it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from oubliette.runtime.containers import host_paths

if TYPE_CHECKING:
    from collections.abc import Generator


class Kit(msgspec.Struct, frozen=True):
    """Location of the copy on this machine."""

    zipapp: Path
    wrappers: Path
    """Folder with `oubliette-client` and `oubliette-relay`, to be put on PATH."""


def _wrapper(python: str, zipapp: str, command: str) -> str:
    return f'#!/bin/sh\nexec {shlex.quote(python)} -S {shlex.quote(zipapp)} {command} "$@"\n'


def install(base: Path, zipapp: Path, *, python: str, inside: str | None) -> Kit:
    """Copy `zipapp` to `base/kit-<hash>` with wrappers that call it as `inside`.

    Without `inside` (nothing is mounted) the wrappers call the copy at its own path. The caller
    must have written a container's record to `base` before: see `remove_unused`.
    """
    content = zipapp.read_bytes()
    digest = hashlib.sha256(b"\0".join((content, python.encode(), (inside or "").encode())))
    folder = base / f"kit-{digest.hexdigest()[:12]}"
    kit = Kit(folder / "oubliette.pyz", folder / "bin")
    with _locked(base, fcntl.LOCK_SH):
        _install(base, kit, content, python=python, inside=inside)
    return kit


def remove_unused(base: Path) -> None:
    """Remove the copies in `base` if it has no container that could use one.

    Servers of the same user share the folder. One that is about to start a container has written
    its record already, or makes its copy after this.
    """
    try:
        with _locked(base, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if not any(base.glob("*.json")):
                for folder in base.glob("kit-*"):
                    host_paths.clear_away(folder)
    except OSError:
        return  # another server uses it, or the folder was removed


@contextlib.contextmanager
def in_use(base: Path) -> Generator[None]:
    """Keep `base` locked for the time of the `with` block: systemd-tmpfiles leaves it alone then.

    Servers of one user have it locked together.
    """
    with _locked(base, fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def _locked(base: Path, how: int) -> Generator[None]:
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, how)
        yield
    finally:
        os.close(fd)


def _install(base: Path, kit: Kit, content: bytes, *, python: str, inside: str | None) -> None:
    folder = kit.zipapp.parent
    if folder.is_dir():
        return
    temporary = base / host_paths.half_made(folder.name)
    try:
        (temporary / "bin").mkdir(parents=True)
        _write(temporary / "oubliette.pyz", content, 0o644)
        for name, command in (("oubliette-client", "client"), ("oubliette-relay", "relay")):
            text = _wrapper(python, inside or str(kit.zipapp), command)
            _write(temporary / "bin" / name, text.encode(), 0o755)
        for made in (temporary, temporary / "bin"):
            made.chmod(0o755)
        try:
            temporary.rename(folder)
        except OSError:
            # Another server of this user was first with the same content.
            if not folder.is_dir():
                raise
    finally:
        if temporary.exists():
            shutil.rmtree(temporary)


def _write(path: Path, content: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)  # independent of the umask
        file.write(content)
