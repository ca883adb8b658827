"""Folders of projects and workspaces: views of the record, laid out as in seed 003.

    projects/<project-id>/{metadata.json, config.json, workspaces/<uuid>/}
    homes/<project-id>/<session-id>/          HOME of one session, outside the workspace

An agent owns what is below its project's folder and may plant links there, so nothing here
follows one: folders are opened with O_NOFOLLOW, step by step, relative to a descriptor.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import subprocess
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.errors import RuntimeFailure

if TYPE_CHECKING:
    from collections.abc import Container, Generator, Mapping

    from oubliette.records import Project

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folders:
    """The folders of one home. All methods block; call them in a worker thread."""

    def __init__(self, home: Path) -> None:
        # Without links: containers refuse those on the way to what they mount.
        self.home = home = home.resolve()
        self.projects = home / "projects"
        self.homes = home / "homes"
        self.logs = home / "logs"
        self.spools = home / "spool"

    def prepare(self) -> None:
        """Make the top folders, 0700."""
        for folder in (self.home, self.projects, self.homes, self.logs, self.spools):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def project(self, project_id: str) -> Path:
        """The folder of a project, mounted at /workspace."""
        return self.projects / project_id

    def workspace(self, project_id: str, workspace_id: str) -> Path:
        """The folder of a workspace."""
        return self.projects / project_id / "workspaces" / workspace_id

    def session_homes(self, project_id: str) -> Path:
        """The folder with the HOMEs of a project's sessions, mounted at /home/agent."""
        return self.homes / project_id

    def session_home(self, project_id: str, session_id: str) -> Path:
        """HOME of one session."""
        return self.homes / project_id / session_id

    def stderr_log(self, session_id: str) -> Path:
        """Where an agent's stderr is kept."""
        return self.logs / f"{session_id}.stderr.log"

    def spool(self, container_id: str) -> Path:
        """Where the host of a container keeps output that no server has read yet."""
        return self.spools / container_id

    def clear_spools(self, known: Container[str]) -> None:
        """Remove what containers have left whose ids are not `known`: nobody reads it any more."""
        fd = os.open(self.spools, _FOLDER)
        try:
            for name in os.listdir(fd):  # noqa: PTH208 -- of a descriptor
                if name not in known:
                    _remove(fd, name)
        finally:
            os.close(fd)

    def create_project(self, project: Project) -> None:
        """Make the folders of a project and write the views of its record.

        Raises:
            RuntimeFailure: the file system refused, or something else stands there.
        """
        with self._walk(project.id, create=True, uid=project.uid) as folder:
            _write_view(folder, "metadata.json", _metadata(project))
            _write_view(folder, "config.json", {"mcpServers": project.mcp_servers})
            _child(folder, "workspaces", create=True, uid=project.uid, keep=False)
        (self.homes / project.id).mkdir(mode=0o711, exist_ok=True)

    def create_workspace(self, project: Project, workspace_id: str) -> None:
        """Make the folder of a workspace, owned by the project's uid, with `.rlm-context/`."""
        with (
            self._walk(project.id, create=False, uid=project.uid) as folder,
            _opened(folder, "workspaces", create=True, uid=project.uid) as workspaces,
            _opened(workspaces, workspace_id, create=True, uid=project.uid) as workspace,
        ):
            _child(workspace, ".rlm-context", create=True, uid=project.uid, keep=False)

    def create_session_home(
        self,
        project: Project,
        session_id: str,
        files: Mapping[str, tuple[bytes, int]] | None = None,
    ) -> None:
        """Make HOME of a session, 0700 and owned by the project's uid, with `files` in it.

        `files`: relative path → content and mode.
        """
        self.homes.mkdir(mode=0o700, exist_ok=True)
        base = self.homes / project.id
        base.mkdir(mode=0o711, exist_ok=True)
        home = base / session_id
        home.mkdir(mode=0o700, exist_ok=True)
        _own(home, project.uid)
        for path, (content, mode) in (files or {}).items():
            self._write_home_file(home, path, content, mode, project.uid)

    @staticmethod
    def _write_home_file(home: Path, path: str, content: bytes, mode: int, uid: int) -> None:
        *parents, name = PurePosixPath(path).parts
        fd = os.open(home, _FOLDER)
        try:
            for parent in parents:
                inner = _child(fd, parent, create=True, uid=uid)
                os.close(fd)
                fd = inner
            _write_file(fd, name, content, mode, uid)
        finally:
            os.close(fd)

    def init_git(self, project: Project, workspace_id: str, remote_url: str | None) -> None:
        """Make a new workspace a git repository; without git, do nothing.

        No agent has been there, so nothing in the folder can make git do anything else.

        Raises:
            RuntimeFailure: git refused.
        """
        git = shutil.which("git")
        if git is None:
            return
        commands = [[git, "init", "--quiet"]]
        if remote_url is not None:
            commands.append([git, "remote", "add", "--", "origin", remote_url])
        folder = self.workspace(project.id, workspace_id)
        for argv in commands:
            done = subprocess.run(
                argv,
                cwd=folder,
                env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=30,
                check=False,
            )
            if done.returncode != 0:
                text = done.stderr.decode(errors="replace").strip()
                raise RuntimeFailure(f"git {argv[1]}: {text}")
        for top, _, files, fd in os.fwalk(folder / ".git"):
            del top
            _own(fd, project.uid)
            for name in files:
                _own_entry(fd, name, project.uid)

    def remove_workspace(self, project_id: str, workspace_id: str) -> None:
        """Remove a workspace and all in it; links are removed, not followed."""
        with self._walk(project_id, create=False, uid=-1) as folder:
            fd = _child(folder, "workspaces", create=False, uid=-1)
            try:
                _remove(fd, workspace_id)
            finally:
                os.close(fd)

    def remove_project(self, project_id: str) -> None:
        """Remove the folders of a project and of its sessions' HOMEs."""
        for top in (self.projects, self.homes):
            fd = os.open(top, _FOLDER)
            try:
                _remove(fd, project_id)
            finally:
                os.close(fd)

    def remove_session(self, project_id: str, session_id: str) -> None:
        """Remove what is kept of a session beside the log: its HOME, its agent's stderr."""
        self.stderr_log(session_id).unlink(missing_ok=True)
        try:
            fd = os.open(self.homes / project_id, _FOLDER)
        except FileNotFoundError:
            return
        try:
            _remove(fd, session_id)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _walk(self, project_id: str, *, create: bool, uid: int) -> Generator[int]:
        top = os.open(self.projects, _FOLDER)
        try:
            fd = _child(top, project_id, create=create, uid=uid)
        finally:
            os.close(top)
        try:
            yield fd
        finally:
            os.close(fd)


@contextlib.contextmanager
def _opened(parent: int, name: str, *, create: bool, uid: int) -> Generator[int]:
    fd = _child(parent, name, create=create, uid=uid)
    try:
        yield fd
    finally:
        os.close(fd)


def _child(parent: int, name: str, *, create: bool, uid: int, keep: bool = True) -> int:
    """Open (or make) the folder `name` in `parent`; never through a link."""
    try:
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=parent)
        fd = os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        raise RuntimeFailure(
            f"the folder {name!r} cannot be used: {error.strerror}",
            hint="something that is no folder may stand in its place; remove it",
        ) from error
    if create:
        _own(fd, uid)
    if not keep:
        os.close(fd)
    return fd


def _own(target: int | Path, uid: int) -> None:
    if uid >= 0 and os.geteuid() == 0:
        os.chown(target, uid, uid)


def _own_entry(folder: int, name: str, uid: int) -> None:
    if uid >= 0 and os.geteuid() == 0:
        os.chown(name, uid, uid, dir_fd=folder, follow_symlinks=False)


def _remove(parent: int, name: str) -> None:
    try:
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        shutil.rmtree(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)


def _metadata(project: Project) -> dict[str, object]:
    return {
        "id": project.id,
        "name": project.name,
        "description": project.description,
        "created_at": project.created_at,
        "default_workspace_id": project.default_workspace_id,
        "workspace_isolation": project.workspace_isolation,
        "remote_url": project.remote_url,
    }


def _write_view(folder: int, name: str, value: object) -> None:
    data = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    _write_file(folder, name, data, 0o644, -1)


def _write_file(folder: int, name: str, data: bytes, mode: int, uid: int) -> None:
    """Replace `name` at once: a reader sees the old file or the new one."""
    temporary = f".{name}.{os.getpid()}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=folder)
    fd = os.open(
        temporary,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        mode,
        dir_fd=folder,
    )
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        _own(file.fileno(), uid)
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
