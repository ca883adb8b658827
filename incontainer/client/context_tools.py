"""Context tools, by which the agents of one workspace share data.

Files `.rlm-context/<session_id>_<descriptor>.json` in the workspace: children write their results,
their parent reads them all at once. A file appears whole or not at all: it is written under a
temporary name and renamed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat

from ..io.json_values import as_text
from .agent_tools import schema

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Json = dict[str, Any]

FOLDER = ".rlm-context"
MAX_FILE = 8 * 1024 * 1024  # bytes of one entry, as JSON
MAX_READ = 8 * 1024 * 1024  # bytes of all entries of one context_read together
MAX_LISTED = 10_000

_ENTRY = re.compile(r"(?P<session>[a-z]{1,16}_[0-9a-z]{26})_(?P<descriptor>.+)\.json")


class ContextFault(Exception):
    """A call cannot be done; the text is a sentence for the agent."""


class Context:
    """Context folder of one workspace, as one session sees it."""

    def __init__(self, workspace: str, session_id: str) -> None:
        self._workspace = workspace
        self._session_id = session_id
        self._calls: dict[str, Callable[[Json], Json]] = {
            "context_write": self._write,
            "context_list": self._list,
            "context_read": self._read,
        }

    def call(self, tool: str, arguments: Json) -> Json:
        """Carry out a tool.

        Raises:
            ContextFault: The arguments or the file system forbid it; the text gives the remedy.

        """
        taken = schema(tool)
        known = taken["properties"]
        for name in arguments:
            if name not in known:
                raise ContextFault(f"{name}: unknown parameter; {tool} takes: {', '.join(known)}")
        for name in taken["required"]:
            if name not in arguments:
                raise ContextFault(f"{name}: is required")
        try:
            return self._calls[tool](arguments)
        except OSError as error:
            raise ContextFault(f"{FOLDER}: {os.strerror(error.errno or errno.EIO)}") from error

    def _write(self, arguments: Json) -> Json:
        name = f"{self._session_id}_{_descriptor(arguments)}.json"
        try:
            data = json.dumps(arguments["data"], ensure_ascii=False, allow_nan=False)
            content = data.encode()
        except (ValueError, RecursionError) as error:
            raise ContextFault(f"data: cannot be written as JSON: {error}") from error
        if len(content) > MAX_FILE:
            raise ContextFault(f"data: takes {len(content)} bytes, at most {MAX_FILE} are taken")
        folder = self._open(create=True)
        if folder is None:
            raise ContextFault(f"{FOLDER} was removed while it was made; try again")
        temporary = f".{name}.{os.getpid()}.tmp"
        try:
            _remove(temporary, folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(temporary, flags, 0o644, dir_fd=folder), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            _remove(temporary, folder)
            raise
        finally:
            os.close(folder)
        return {"path": f"{FOLDER}/{name}", "bytes": len(content)}

    def _list(self, arguments: Json) -> Json:
        entries: list[Json] = []
        wanted = _session(arguments)
        folder = self._open(create=False)
        if folder is not None:
            try:
                for name, session_id, descriptor in self._names(folder, wanted):
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        entries.append(
                            {
                                "session_id": session_id,
                                "descriptor": descriptor,
                                "bytes": status.st_size,
                                "modified_at": status.st_mtime,
                            }
                        )
            finally:
                os.close(folder)
        return {"entries": entries[:MAX_LISTED], "more": len(entries) > MAX_LISTED}

    def _read(self, arguments: Json) -> Json:
        descriptor, wanted = _descriptor(arguments), _session(arguments)
        entries: list[Json] = []
        left = MAX_READ
        folder = self._open(create=False)
        if folder is not None:
            try:
                for name, session_id, found in self._names(folder, wanted):
                    if found != descriptor:
                        continue
                    content = _content(name, folder, left)
                    left -= len(content)
                    entries.append({"session_id": session_id, **_parsed(content)})
            finally:
                os.close(folder)
        if not entries:
            raise ContextFault(
                f"nobody has written {descriptor!r}; context_list shows what is there"
            )
        return {"descriptor": descriptor, "entries": entries}

    def _open(self, *, create: bool) -> int | None:
        """Return the folder as a descriptor, never through a link; None if it is missing."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        path = os.path.join(self._workspace, FOLDER)
        if create:
            try:
                os.mkdir(path, 0o755)
            except FileExistsError:
                pass
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            return None

    @staticmethod
    def _names(folder: int, session_id: str) -> list[tuple[str, str, str]]:
        """Return name, session and descriptor of each entry, in order."""
        found: list[tuple[str, str, str]] = []
        for name in sorted(os.listdir(folder)):
            match = _ENTRY.fullmatch(name)
            if match is not None and session_id in ("", match["session"]):
                found.append((name, match["session"], match["descriptor"]))
        return found


def _descriptor(arguments: Json) -> str:
    given: object = arguments["descriptor"]
    pattern = schema("context_write")["properties"]["descriptor"]["pattern"]
    if not isinstance(given, str) or not re.fullmatch(pattern, given):
        raise ContextFault(
            "descriptor: must be 1 to 64 letters, digits, dots, dashes or underscores, and begin "
            "with a letter or a digit"
        )
    return given


def _session(arguments: Json) -> str:
    given: object = arguments.get("session_id")
    if given is not None and not as_text(given):
        raise ContextFault("session_id: must be the id of an agent session")
    return as_text(given)


def _content(name: str, folder: int, most: int) -> bytes:
    """Return a file's content; files of other types are refused without blocking."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ContextFault(f"{name} is no ordinary file")
        if status.st_size > most:
            raise ContextFault(
                f"the entries take more than {MAX_READ} bytes together; give session_id to read one"
            )
        return file.read(most)


def _parsed(content: bytes) -> Json:
    """Return the parsed data; as text if it is not JSON."""
    try:
        return {"data": json.loads(content)}
    except (ValueError, RecursionError):
        return {"data": content.decode("utf-8", "replace"), "invalid": True}


def _remove(name: str, folder: int) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
