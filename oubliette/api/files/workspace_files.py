"""WorkspaceFiles, the files of a workspace, while agents work on them or not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from oubliette.api.files.file_calls import FileCalls
from oubliette.api.files.transfers import Copying

if TYPE_CHECKING:
    import os

    from oubliette.api.connection import CallsTools
    from oubliette.api.files.records import CopiedFiles, FileInfo
    from oubliette.api.files.transfers import OnFile


class WorkspaceFiles:
    """The files of a workspace. Made by `Session.workspace` and `Project.workspace`.

    Paths are relative to the workspace. Each call starts the container if it does not run. Links
    are followed as long as they stay in the workspace.
    """

    def __init__(self, tools: CallsTools, project_id: str, workspace_id: str | None = None) -> None:
        self._calls = FileCalls(tools, project_id, workspace_id)
        self.id: str | None = workspace_id
        """Id of the workspace; None: the project's default one."""

    def __repr__(self) -> str:
        return f"<WorkspaceFiles {self.id or 'default'}>"

    async def read(self, path: str) -> bytes:
        """Return the content of a file, of one moment.

        Args:
            path: Path of the file.

        Raises:
            NotFound: there is no such file.
            InvalidParameter: it is a folder, a pipe or a device, or outside the workspace.
            Conflict: it changes all the time.
        """
        content = bytearray()

        async def begin() -> None:
            content.clear()

        async def take(data: bytes) -> None:
            content.extend(data)

        await self._calls.fetch(path, begin, take)
        return bytes(content)

    async def write(
        self,
        path: str,
        content: bytes | str,
        *,
        executable: bool | None = None,
        expected_version: str | None = None,
    ) -> str:
        """Write a file, replacing it at once; missing folders are made.

        Args:
            path: Path of the file.
            content: Its content; text is written as UTF-8.
            executable: Whether it may be run; None: as before.
            expected_version: Version that it must still have; `absent`: it must not exist.

        Returns:
            Its new version.

        Raises:
            Conflict: it has another version.
            AlreadyExists: it exists.
        """
        data = memoryview(content.encode() if isinstance(content, str) else content)
        at = 0

        async def read(length: int) -> bytes:
            nonlocal at
            piece = bytes(data[at : at + length])
            at += len(piece)
            return piece

        return await self._calls.send(
            path, read, executable=executable, expected_version=expected_version
        )

    async def list(self, path: str = "") -> list[FileInfo]:
        """Return the names in a folder, in the order of their bytes; none for a file.

        Args:
            path: Path of the folder.
        """
        return (await self._calls.listing(path))[1]

    async def kind(self, path: str) -> str:
        """Return what a path is: `file`, `folder` or `special`.

        Args:
            path: The path; a link counts as what it leads to.

        Raises:
            NotFound: there is nothing.
        """
        return str((await self._calls.call("file_list", path, limit=1))["kind"])

    async def make_folder(self, path: str) -> None:
        """Make a folder, and those above it, unless it is there.

        Args:
            path: Path of the folder.
        """
        await self._calls.call("file_write", path, folder=True)

    async def delete(self, path: str, *, recursive: bool = False) -> int:
        """Delete a file, a folder, or a link itself; return the number of what was deleted.

        Args:
            path: Its path.
            recursive: Whether a folder that is not empty is deleted, too.

        Raises:
            Conflict: the folder is not empty.
        """
        answer = await self._calls.call("file_delete", path, recursive=recursive or None)
        return int(answer["deleted"])

    async def upload(
        self,
        source: str | os.PathLike[str],
        path: str,
        *,
        on_file: OnFile | None = None,
    ) -> CopiedFiles:
        """Copy a file or a folder of this machine into the workspace.

        Args:
            source: File or folder of this machine; links in a folder are skipped.
            path: Path that it gets; of a folder, files there that it has not are kept.
            on_file: Called with the path and the bytes of each file that was copied.

        Returns:
            How much was copied, and what was skipped.
        """
        copying = Copying(self._calls, on_file)
        await copying.upload(Path(source), path)
        return copying.result

    async def download(
        self,
        path: str,
        target: str | os.PathLike[str],
        *,
        on_file: OnFile | None = None,
    ) -> CopiedFiles:
        """Copy a file or a folder of the workspace to this machine.

        Args:
            path: File or folder of the workspace; links in a folder are skipped.
            target: Path that it gets; of a folder, files there that it has not are kept.
            on_file: Called with the path and the bytes of each file that was copied.

        Returns:
            How much was copied, and what was skipped.

        Raises:
            Conflict: a folder is where a file is to be, or the other way round.
        """
        copying = Copying(self._calls, on_file)
        await copying.download(path, Path(target))
        return copying.result
