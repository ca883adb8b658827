"""Cache of the standard library's bytecode, in containers whose image has none.

Official images of Python ship none, and the image is read-only in a container: each program of ours
would compile what it imports, two thirds of its start. The interpreter writes it, and validates it,
in a folder of the program's own user in the container's `/tmp`.

For programs that run beside agents with the same rights: a process that can write there is their
user already. Never for the guest or a bridge, which an agent must not get to run anything.
"""

from __future__ import annotations

import os
import stat
import sys

ZIPAPP = "/opt/oubliette/oubliette.pyz"  # its path in a container, and only there
FOLDER = "/tmp/.oubliette-bytecode"  # noqa: S108 -- the container's; looked at before it is used
SAMPLE = "enum"  # all of our programs import it


def keep(zipapp: str) -> None:
    """Make the interpreter cache bytecode from now on, where that helps and is safe.

    Args:
        zipapp: path that the program was started from; only a container's own zipapp enables it.

    """
    if zipapp == ZIPAPP and sys.pycache_prefix is None and not is_there():
        folder = own_folder(FOLDER)
        if folder is not None:
            sys.pycache_prefix = folder
            sys.dont_write_bytecode = False  # images of Python often set it, for small layers


def is_there() -> bool:
    """Whether the image has bytecode beside its standard library."""
    library = os.path.dirname(os.__file__)
    name = f"{SAMPLE}.{sys.implementation.cache_tag}.pyc"
    return os.path.exists(os.path.join(library, "__pycache__", name))


def own_folder(path: str) -> str | None:
    """Return a folder named after our user that only it may write; None if there is none."""
    user = os.geteuid()
    folder = f"{path}-{user}"
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass  # usually ours, of an earlier start
    except OSError:
        return None
    try:
        found = os.lstat(folder)
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
    return folder if private and found.st_uid == user else None
