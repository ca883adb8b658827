"""FileCalls, the tools for the files of one workspace, with contents of any size."""

from __future__ import annotations

import base64
import contextlib
import os
import uuid
from typing import TYPE_CHECKING, Any, Final

import anyio

from oubliette.api.files.records import FileInfo
from oubliette.errors import Conflict, InvalidParameter, OublietteError, ProtocolViolation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from oubliette.api.connection import CallsTools

PAGE: Final = 1000  # names
PIECE: Final = 512 * 1024  # bytes of one call that writes
ATTEMPTS: Final = 3  # of reading a file that changes meanwhile
SECONDS: Final = 300.0  # of one call, which may start the container


class FileCalls:
    """Calls of the tools for files.

    Args:
        tools: Makes the calls.
        project_id: Project of the workspace.
        workspace_id: The workspace; None: the default one.
    """

    def __init__(self, tools: CallsTools, project_id: str, workspace_id: str | None) -> None:
        self._tools = tools
        self._where = {"project_id": project_id, "workspace_id": workspace_id}

    async def call(self, tool: str, path: str, **more: Any) -> dict[str, Any]:
        """Call a tool for a path."""
        arguments = {**self._where, **_path(path), **more}
        given = {name: value for name, value in arguments.items() if value is not None}
        return await self._tools.call(tool, given, timeout=SECONDS)

    async def listing(self, path: str) -> tuple[FileInfo, list[FileInfo]]:
        """Return a file or folder, and the names in it."""
        found: list[FileInfo] = []
        cursor: str | None = None
        while True:
            page = await self.call("file_list", path, limit=PAGE, cursor=cursor)
            found += [_info(each) for each in page["entries"]]
            cursor = page["next_cursor"]
            if cursor is None:
                own = {name: page[name] for name in ("kind", "size", "modified_at")}
                return _info({"name": path.rstrip("/").rpartition("/")[2] or ".", **own}), found

    async def fetch(
        self,
        path: str,
        begin: Callable[[], Awaitable[object]],
        take: Callable[[bytes], Awaitable[object]],
    ) -> bool:
        """Read a file in ranges; one that changes meanwhile is read again.

        Args:
            path: Path of the file.
            begin: Called before the first range, also when reading begins again.
            take: Called with each range.

        Returns:
            Whether it may be run.

        Raises:
            Conflict: the file changes all the time.
        """
        for _ in range(ATTEMPTS):
            await begin()
            executable = await self._fetch_once(path, take)
            if executable is not None:
                return executable
        raise Conflict(
            f"{path} changed each time while it was read", hint="read it when its writer is done"
        )

    async def _fetch_once(
        self, path: str, take: Callable[[bytes], Awaitable[object]]
    ) -> bool | None:
        version: str | None = None
        at: int | None = 0
        executable = False
        while at is not None:
            page = await self.call("file_read", path, offset=at, encoding="base64")
            if version not in {None, page["version"]}:
                return None
            version, executable = page["version"], page["executable"]
            await take(base64.b64decode(page["content"]))
            at = page["next_offset"]
        return executable

    async def send(
        self,
        path: str,
        read: Callable[[int], Awaitable[bytes]],
        *,
        executable: bool | None = None,
        expected_version: str | None = None,
    ) -> str:
        """Write a file, which takes its place when all of it has arrived.

        Args:
            path: Path of the file.
            read: Returns the next bytes, as many as asked for unless the content ends.
            executable: Whether it may be run; None: as before.
            expected_version: Version that it must still have; `absent`: it must not exist.

        Returns:
            The new version.
        """
        options = {"executable": executable, "expected_version": expected_version}
        piece, following = await read(PIECE), await read(PIECE)
        if not following:
            saved = await self.call("file_write", path, data=_base64(piece), **options)
            return str(saved["version"])
        upload = uuid.uuid4().hex
        offset = 0
        try:
            while True:
                saved = await self.call(
                    "file_write",
                    path,
                    data=_base64(piece),
                    upload=upload,
                    offset=offset,
                    final=not following,
                    **options,
                )
                if not following:
                    return str(saved["version"])
                offset += len(piece)
                piece, following = following, await read(PIECE)
        except BaseException:
            await self._give_up(path, upload)
            raise

    async def _give_up(self, path: str, upload: str) -> None:
        """Remove the pieces of an upload that failed or was cancelled, as far as possible."""
        folder, slash, _ = path.rpartition("/")
        part = f"{folder}{slash}.oubliette-{upload}.part"
        with anyio.move_on_after(10.0, shield=True), contextlib.suppress(OublietteError):
            await self.call("file_delete", part)


def _path(path: str) -> dict[str, str]:
    try:
        path.encode()
    except UnicodeEncodeError:
        try:
            return {"path_base64": _base64(os.fsencode(path))}
        except UnicodeEncodeError:
            raise InvalidParameter("path: cannot be the name of a file", field="path") from None
    return {"path": path}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _info(given: Mapping[str, Any]) -> FileInfo:
    exact = given.get("name_base64")
    name = given["name"] if exact is None else os.fsdecode(base64.b64decode(exact))
    # A name becomes a part of paths on this machine
    if not name or "/" in name or "\0" in name or name == "..":
        raise ProtocolViolation("the server sent the name of a file that cannot be one")
    return FileInfo(
        name=name,
        kind=str(given["kind"]),
        size=given["size"] or 0,
        modified_at=given["modified_at"],
        executable=given.get("executable") is True,
        target=given.get("target"),
    )
