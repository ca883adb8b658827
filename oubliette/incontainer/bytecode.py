"""Bytecode of the standard library, kept in a container whose image has none.

Official images of Python are rid of it, and what a container has of its image is read-only: each
program of ours would compile what it imports, two thirds of its start. The interpreter keeps it,
and looks whether it still fits, in a folder of the program's own user in the container's `/tmp`.

For programs that run beside agents and as they do: whoever may write there is their user already.
Never for the host or a bridge, which an agent must not get to run anything.
"""

from __future__ import annotations

import os
import stat
import sys

ZIPAPP = "/opt/oubliette/oubliette.pyz"  # where it lies in a container, and nowhere else
FOLDER = "/tmp/.oubliette-bytecode"  # noqa: S108 -- the container's; looked at before it is used
SAMPLE = "enum"  # all of our programs import it


def keep(zipapp: str) -> None:
    """Have the interpreter keep bytecode from now on, where that helps and is safe.

    Args:
        zipapp: what the program was started from; only in a container it is ours to do.

    """
    if zipapp == ZIPAPP and sys.pycache_prefix is None and not is_there():
        folder = own_folder(FOLDER)
        if folder is not None:
            sys.pycache_prefix = folder
            sys.dont_write_bytecode = False  # images of Python often set it, for their layers' sake


def is_there() -> bool:
    """Whether the image has bytecode beside its standard library."""
    library = os.path.dirname(os.__file__)
    name = f"{SAMPLE}.{sys.implementation.cache_tag}.pyc"
    return os.path.exists(os.path.join(library, "__pycache__", name))


def own_folder(path: str) -> str | None:
    """A folder that nobody but our own user may write, named after it; None if there is none."""
    user = os.geteuid()
    folder = f"{path}-{user}"
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass  # most often ours, of an earlier start
    except OSError:
        return None
    try:
        found = os.lstat(folder)
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
    return folder if private and found.st_uid == user else None
