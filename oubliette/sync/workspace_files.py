"""WorkspaceFiles, the files of a workspace; its calls block."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from oubliette.api.files import workspace_files as twins
    from oubliette.api.files.records import CopiedFiles, FileInfo
    from oubliette.api.files.transfers import OnFile
    from oubliette.sync.portal_thread import PortalThread


class WorkspaceFiles:
    """The files of a workspace. Made by `Session.workspace` and `Project.workspace`.

    Paths are relative to the workspace. Each call starts the container if it does not run. Links
    are followed as long as they stay in the workspace.
    """

    def __init__(self, thread: PortalThread, twin: twins.WorkspaceFiles) -> None:
        self._thread = thread
        self._twin = twin
        self.id = twin.id
        """Id of the workspace; None: the project's default one."""

    def __repr__(self) -> str:
        return repr(self._twin)

    def read(self, path: str) -> bytes:
        """Return the content of a file, of one moment.

        Args:
            path: Path of the file.

        Raises:
            NotFound: there is no such file.
            InvalidParameter: it is a folder, a pipe or a device, or outside the workspace.
            Conflict: it changes all the time.
        """
        return self._thread.call(lambda: self._twin.read(path))

    def write(
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
        return self._thread.call(
            lambda: self._twin.write(
                path, content, executable=executable, expected_version=expected_version
            )
        )

    def list(self, path: str = "") -> list[FileInfo]:
        """Return the names in a folder, in the order of their bytes; none for a file.

        Args:
            path: Path of the folder.
        """
        return self._thread.call(lambda: self._twin.list(path))

    def kind(self, path: str) -> str:
        """Return what a path is: `file`, `folder` or `special`.

        Args:
            path: The path; a link counts as what it leads to.

        Raises:
            NotFound: there is nothing.
        """
        return self._thread.call(lambda: self._twin.kind(path))

    def make_folder(self, path: str) -> None:
        """Make a folder, and those above it, unless it is there.

        Args:
            path: Path of the folder.
        """
        self._thread.call(lambda: self._twin.make_folder(path))

    def delete(self, path: str, *, recursive: bool = False) -> int:
        """Delete a file, a folder, or a link itself; return the number of what was deleted.

        Args:
            path: Its path.
            recursive: Whether a folder that is not empty is deleted, too.

        Raises:
            Conflict: the folder is not empty.
        """
        return self._thread.call(lambda: self._twin.delete(path, recursive=recursive))

    def upload(
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
        return self._thread.call(lambda: self._twin.upload(source, path, on_file=on_file))

    def download(
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
        return self._thread.call(lambda: self._twin.download(path, target, on_file=on_file))
