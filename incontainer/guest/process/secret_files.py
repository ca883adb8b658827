"""In-memory files for one process, written as its user before exec and removed after its exit.

Some agents and tools read a secret only from a file. It never touches a disk: if `/dev/shm` is
not an in-memory file system, the file is not written and the process is not started.
"""

from __future__ import annotations

import binascii
import os
import re

from .. import request_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = "/dev/shm"  # noqa: S108 -- checked to be in memory; what is made below is private
LARGEST = 1 << 20  # bytes of one file
MOST = 64


def read(request: dict[str, Any], proc: str) -> tuple[dict[str, str], list[tuple[str, bytes]]]:
    """Return the variables with paths, and paths with content, of a request's `secret_files`.

    Raises:
        VerbError: The field is invalid, or there is no in-memory file system.

    """
    asked: list[Any] = request.get("secret_files") or []
    if type(asked) is not list or len(asked) > MOST:
        raise request_fields.invalid("secret_files", f"a list of at most {MOST} is needed")
    env: dict[str, str] = {}
    files: list[tuple[str, bytes]] = []
    for each in asked:
        if type(each) is not dict:
            raise request_fields.invalid("secret_files", "objects are needed")
        item: dict[str, Any] = each  # pyright: ignore[reportUnknownVariableType]
        name = request_fields.word(item, "name")
        if not re.match(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\Z", name):
            raise request_fields.invalid("secret_files", "a name is not fit for a file")
        try:
            data = _decoded(request_fields.text(item, "data"))
        except (binascii.Error, ValueError):
            raise request_fields.invalid("secret_files", "data is not base64") from None
        if len(data) > LARGEST:
            raise request_fields.invalid("secret_files", f"one is larger than {LARGEST} bytes")
        path = f"{_folder(proc)}/{name}"
        env[request_fields.word(item, "variable")] = path
        files.append((path, data))
    if files and not in_memory():
        raise request_fields.invalid("secret_files", f"{FOLDER} is no file system in memory here")
    return env, files


def _folder(proc: str) -> str:
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", proc)
    return f"{FOLDER}/oubliette-{safe}"


def in_memory() -> bool:
    """Whether `FOLDER` is a tmpfs."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            found = [line.split()[2] for line in mounts if line.split()[1] == FOLDER]
    except OSError:
        return False
    return found[-1:] == ["tmpfs"]


def write(files: list[tuple[str, bytes]]) -> None:
    """Write the files; called in the child, as its user.

    Raises:
        OSError: The folder exists already, or the file system is full.

    """
    if files:
        os.mkdir(os.path.dirname(files[0][0]), 0o700)
    for path, data in files:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)


def _decoded(text: str) -> bytes:
    import base64

    return base64.b64decode(text, validate=True)


def remove(files: list[tuple[str, bytes]], uid: int | None, gid: int | None) -> None:
    """Remove the files of a process that has ended, as its user: the guest may lack the right."""
    if not files:
        return
    import shutil  # it imports archive modules: 20 ms where there is no bytecode

    folder = os.path.dirname(files[0][0])
    if uid is None:
        shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        pid = os.fork()
    except OSError:
        return  # no process can be forked; the files are removed with the container
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(uid if gid is None else gid)
            os.setuid(uid)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os._exit(0)
