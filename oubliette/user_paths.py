"""Paths as users write them, with `~`, relative, or none at all; and files of theirs.

A machine may have no answer to them: a service without HOME whose user has no passwd entry, a shell
in a folder that was removed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from oubliette.errors import ConfigError

if TYPE_CHECKING:
    from os import PathLike


def expanded(path: str | PathLike[str], what: str) -> Path:
    """Return the path with its `~` or `~name` replaced; `what` names it in errors.

    Raises:
        ConfigError: the home folder of that user is not known, or the text is no path.
    """
    if "\0" in str(path):
        raise ConfigError(f"{what}: it contains a zero byte, which no path may")
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{what}: the home folder that ~ stands for in {path} is not known",
            hint="give an absolute path, or set HOME if it is your own",
        ) from error


def absolute(path: str | PathLike[str], what: str) -> Path:
    """The path as an absolute one, links not followed.

    Raises:
        ConfigError: as `expanded` and `working_folder`.
    """
    found = expanded(path, what)
    return found if found.is_absolute() else working_folder() / found


def working_folder() -> Path:
    """The folder that this process is in.

    Raises:
        ConfigError: it was removed, or may not be entered any more.
    """
    try:
        return Path.cwd()
    except OSError as error:
        raise ConfigError(
            f"the working directory cannot be used any more: {error.strerror}",
            hint="cd to another folder",
        ) from error


def replace_file(path: Path, text: str) -> None:
    """Write a file that only the user may read; a reader of it sees the old one or the new.

    Where it is a link, the file that it leads to is replaced. Missing folders are made.
    """
    import tempfile

    place = Path(os.path.realpath(path))
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, new = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            if place.exists() and place.stat().st_uid != os.geteuid():
                os.fchown(fd, place.stat().st_uid, place.stat().st_gid)
            os.fsync(fd)
        os.replace(new, place)  # noqa: PTH105 - a name as tempfile gives it
    except BaseException:
        Path(new).unlink(missing_ok=True)
        raise
