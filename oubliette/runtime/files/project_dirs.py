"""Folders of projects and workspaces: views of the records, in a layout for people.

    projects/<project-id>/{metadata.json, config.json, opencode.json, .factory/, workspaces/<uuid>/}
    homes/<project-id>/<session-id>/          HOME of one session, outside the workspace
    roots/<project-id>/<workspace-id>/        /workspace of a workspace in a container of its own
    snapshots/<project-id>/<workspace-id>.git its snapshots, which no container sees
    repositories/<project-id>/                what the project was cloned from, nor this

An agent owns the files below its project's folder and may plant links there, so nothing here
follows one (`safe_files`). None of it is read back: the record is in the database, and agents'
configuration in `agent_configs`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from oubliette.errors import ConfigError, RuntimeFailure
from oubliette.runtime.agents.config_views import views
from oubliette.runtime.files import git_identity, new_workspaces, safe_files
from oubliette.runtime.files.agent_configs import FILE, AgentConfigs

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Generator, Mapping
    from pathlib import Path

    from oubliette.records import Project

log = structlog.get_logger(__name__)

CONTEXT: Final = ".rlm-context"
"""Data that agents of one workspace share, in the workspace; and a link to it above."""
_NOT_IN_GIT: Final = b"# of Oubliette\n/.factory/\n/.rlm-context/\n"


class Folders:
    """Folders of one home. All methods block; call them in a worker thread."""

    def __init__(self, home: Path) -> None:
        # Without links: containers refuse those on the way to what they mount.
        self.home = home = home.resolve()
        self.projects = home / "projects"
        self.homes = home / "homes"
        self.roots = home / "roots"
        self.snapshots = home / "snapshots"
        self.repositories = home / "repositories"
        self.logs = home / "logs"
        self.spools = home / "spool"
        self.configs = AgentConfigs(home)

    def prepare(self) -> None:
        """Make the top folders, 0700."""
        for folder in (
            self.home,
            self.projects,
            self.homes,
            self.roots,
            self.snapshots,
            self.repositories,
            self.logs,
            self.spools,
        ):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.configs.prepare()

    def project(self, project_id: str) -> Path:
        """The folder of a project, mounted at /workspace."""
        return self.projects / project_id

    def workspace(self, project_id: str, workspace_id: str) -> Path:
        return self.projects / project_id / "workspaces" / workspace_id

    def workspace_root(self, project_id: str, workspace_id: str) -> Path:
        """The folder mounted at /workspace if a workspace has a container of its own.

        It holds the workspace's mount point and a link to its `.rlm-context`. It is mounted
        read-only, and the link is followed inside: a replacement of `.rlm-context` by an agent
        leads nowhere outside.
        """
        return self.roots / project_id / workspace_id

    def snapshots_of(self, project_id: str, workspace_id: str) -> Path:
        return self.snapshots / project_id / f"{workspace_id}.git"

    def session_home(self, project_id: str, session_id: str) -> Path:
        return self.homes / project_id / session_id

    def session_homes(self, project_id: str) -> Path:
        """The folder with the HOMEs of a project's sessions, mounted at /home/agent."""
        return self.homes / project_id

    def stderr_log(self, session_id: str) -> Path:
        return self.logs / f"{session_id}.stderr.log"

    def spool(self, container_id: str) -> Path:
        """The folder where the guest of a container keeps unread output."""
        return self.spools / container_id

    def clear_spools(self, known: Container[str]) -> None:
        """Remove the spools of containers whose ids are not `known`: they have no reader."""
        with safe_files.opened(self.spools) as fd:
            for name in os.listdir(fd):  # noqa: PTH208 -- of a descriptor
                if name not in known:
                    safe_files.remove(fd, name)

    def remove_spool(self, container_id: str) -> None:
        with contextlib.suppress(FileNotFoundError), safe_files.opened(self.spools) as fd:
            safe_files.remove(fd, container_id)

    def create_project(self, project: Project) -> None:
        """Make the folders of a project and write the views of its record.

        Raises:
            RuntimeFailure: the file system refused, or another file has the name.
        """
        try:
            with safe_files.naming(self.configs.projects / project.id):
                generated = views(self.configs.add_project(project))
        except ConfigError as error:  # its sessions fail with this reason; the project does not
            log.warning("a project's config.json cannot be used", reason=str(error))
            generated = {}
        with self._walk(project.id, create=True, uid=project.uid) as folder:
            safe_files.write(folder, "metadata.json", _metadata(project), 0o644)
            for path, content in generated.items():
                try:
                    safe_files.write_below(folder, path, content, 0o644)
                except RuntimeFailure as error:
                    if path == FILE:  # which is mounted
                        raise
                    log.warning(  # no session reads it
                        "a view of the configuration is not written",
                        project_id=project.id,
                        file=path,
                        reason=error.message,
                        remedy=error.hint,
                    )
            safe_files.make(folder, "workspaces", project.uid)
            target = _context_of(project.default_workspace_id)
            safe_files.link(folder, CONTEXT, target, project.uid)
        homes = self.session_homes(project.id)
        with safe_files.naming(homes), safe_files.opened(self.homes) as top:
            safe_files.make(top, homes.name, -1, 0o711)

    def create_workspace(self, project: Project, workspace_id: str) -> None:
        """Make the folder of a workspace, owned by the project's uid, with `.rlm-context/`.

        A new one gets its view of the configuration ("workspaces/<uuid>/.factory/"). Files in an
        existing one may be the repository's, and are left alone.
        """
        with (
            self._walk(project.id, create=False, uid=project.uid) as folder,
            safe_files.inner(folder, "workspaces", create=True, uid=project.uid) as workspaces,
        ):
            new = not safe_files.exists(workspaces, workspace_id)
            try:
                with safe_files.naming(self.configs.projects / project.id):
                    config = self.configs.add_workspace(project, workspace_id)
            except ConfigError as error:
                log.warning("a workspace's config.json cannot be used", reason=str(error))
                config = None
            with safe_files.inner(
                workspaces, workspace_id, create=True, uid=project.uid
            ) as workspace:
                safe_files.make(workspace, CONTEXT, project.uid)
                if new and config is not None:
                    for path, content in views(config).items():
                        if path.startswith(".factory/"):
                            safe_files.write_below(workspace, path, content, 0o644, project.uid)
        if project.workspace_isolation:
            with (
                safe_files.naming(self.roots / project.id),
                safe_files.opened(self.roots) as roots,
                safe_files.inner(roots, project.id, create=True) as base,
                safe_files.inner(base, workspace_id, create=True, uid=project.uid) as root,
                safe_files.inner(root, "workspaces", create=True, uid=project.uid) as places,
            ):
                safe_files.make(places, workspace_id, project.uid)
                safe_files.link(root, CONTEXT, _context_of(workspace_id), project.uid)

    def problem(self, project: Project, workspaces: Collection[str]) -> str | None:
        """Return why folders of a project cannot be used, by looking alone.

        None: they can, or are missing and can be made.
        """
        folders = ["workspaces", *(f"workspaces/{each}/{CONTEXT}" for each in workspaces)]
        places = [(self.homes, ""), (self.configs.projects, "")]
        if project.workspace_isolation:
            places += [(self.roots, f"/{each}/workspaces/{each}") for each in workspaces]
        try:
            with safe_files.opened(self.projects) as top:
                for path in folders:
                    safe_files.check(top, f"{project.id}/{path}", folder=True)
                for path in ("metadata.json", FILE):
                    safe_files.check(top, f"{project.id}/{path}", folder=False)
            for place, path in places:
                with safe_files.naming(place / project.id), safe_files.opened(place) as top:
                    safe_files.check(top, f"{project.id}{path}", folder=True)
        except RuntimeFailure as error:
            return error.message
        except OSError as error:
            return str(error)
        return None

    def is_workspace(self, project_id: str, workspace_id: str) -> bool:
        """Whether the folder of a workspace is there and can be entered."""
        try:
            with (
                self._walk(project_id, create=False, uid=-1) as folder,
                safe_files.inner(folder, "workspaces", create=False) as workspaces,
                safe_files.inner(workspaces, workspace_id, create=False),
            ):
                return True
        except (RuntimeFailure, OSError):
            return False

    def has_workspace(self, project_id: str, workspace_id: str) -> bool:
        try:
            with (
                self._walk(project_id, create=False, uid=-1) as folder,
                safe_files.inner(folder, "workspaces", create=False) as workspaces,
            ):
                return safe_files.exists(workspaces, workspace_id)
        except RuntimeFailure:
            return False  # not even the folder above

    def place_workspace(self, project: Project, workspace_id: str, made: Path) -> bool:
        """Move a workspace that was made elsewhere to its place, owned by the project's uid.

        Returns:
            Whether it was moved; false: there is one already, and the new one was left.

        Raises:
            RuntimeFailure: the file system refused.
        """
        new_workspaces.give(made, project)
        with (
            self._walk(project.id, create=False, uid=project.uid) as folder,
            safe_files.inner(folder, "workspaces", create=True, uid=project.uid) as workspaces,
        ):
            if safe_files.exists(workspaces, workspace_id):
                return False
            try:
                os.rename(made, workspace_id, dst_dir_fd=workspaces)
            except OSError as error:
                raise RuntimeFailure(
                    f"the workspace cannot be moved to its place: {error.strerror}",
                    hint="projects and repositories of a home have to be on one file system",
                ) from error
        return True

    def create_session_home(
        self,
        project: Project,
        session_id: str,
        files: Mapping[str, tuple[bytes, int]] | None = None,
        gitconfig: bytes | None = None,
    ) -> None:
        """Make HOME of a session, 0700 and owned by the project's uid, with `files` in it.

        `files`: relative path → content and mode. They replace those of an earlier process.
        `gitconfig` is git's configuration there, unless the agent has one of its own.

        Raises:
            RuntimeFailure: the agent has replaced one of them.
        """
        self.homes.mkdir(mode=0o700, exist_ok=True)
        with (
            safe_files.opened(self.homes) as homes,
            safe_files.inner(homes, project.id, create=True, mode=0o711) as base,
            safe_files.inner(base, session_id, create=True, uid=project.uid, mode=0o700) as home,
        ):
            for path, (content, mode) in (files or {}).items():
                safe_files.write_below(home, path, content, mode, project.uid)
            if gitconfig is not None and not safe_files.exists(home, git_identity.FILE):
                safe_files.write(home, git_identity.FILE, gitconfig, 0o600, project.uid)

    def init_git(self, project: Project, workspace_id: str, remote_url: str | None) -> None:
        """Make a new workspace a git repository; without git, do nothing.

        No agent has had access yet, so nothing in the folder can make git run anything else.

        Raises:
            RuntimeFailure: git refused.
        """
        git = shutil.which("git")
        if git is None:
            return
        folder = self.workspace(project.id, workspace_id)
        commands = [[git, "init", "--quiet"]]
        if remote_url is not None:
            # By its path: git does not discover a repository in a folder owned by the agents.
            commands.append(
                [git, f"--git-dir={folder / '.git'}", "remote", "add", "--", "origin", remote_url]
            )
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
                raise RuntimeFailure(f"git {'init' if 'init' in argv else 'remote add'}: {text}")
        with safe_files.opened(folder) as fd:
            safe_files.write_below(fd, ".git/info/exclude", _NOT_IN_GIT, 0o644)
        for top, _, files, fd in os.fwalk(folder / ".git"):
            del top
            safe_files.own(fd, project.uid)
            for name in files:
                safe_files.own_entry(fd, name, project.uid)

    def remove_workspace(self, project_id: str, workspace_id: str) -> None:
        """Remove a workspace and its content; links are removed, not followed."""
        self.configs.remove_workspace(project_id, workspace_id)
        if self.has_workspace(project_id, workspace_id):
            with (
                self._walk(project_id, create=False, uid=-1) as folder,
                safe_files.inner(folder, "workspaces", create=False) as workspaces,
            ):
                safe_files.remove(workspaces, workspace_id)
        with (
            contextlib.suppress(FileNotFoundError),
            safe_files.opened(self.roots / project_id) as roots,
        ):
            safe_files.remove(roots, workspace_id)

    def remove_project(self, project_id: str) -> None:
        """Remove the folders of a project, its sessions' HOMEs, its snapshots and repository.

        Raises:
            RuntimeFailure: the file system refused; what could be removed is gone.
        """
        self.configs.remove_project(project_id)
        refused: RuntimeFailure | None = None
        for top in (self.projects, self.homes, self.roots, self.snapshots, self.repositories):
            try:
                with contextlib.suppress(FileNotFoundError), safe_files.opened(top) as folder:
                    safe_files.remove(folder, project_id)
            except RuntimeFailure as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def remove_session(self, project_id: str, session_id: str) -> None:
        """Remove a session's files beside the log: HOME with its snapshots, its agent's stderr."""
        self.stderr_log(session_id).unlink(missing_ok=True)
        with (
            contextlib.suppress(FileNotFoundError),
            safe_files.opened(self.snapshots / project_id) as snapshots,
        ):
            safe_files.remove(snapshots, f"{session_id}.home.git")
        with (
            contextlib.suppress(FileNotFoundError),
            safe_files.opened(self.homes / project_id) as homes,
        ):
            safe_files.remove(homes, session_id)

    @contextlib.contextmanager
    def _walk(self, project_id: str, *, create: bool, uid: int) -> Generator[int]:
        with (
            safe_files.opened(self.projects) as top,
            safe_files.inner(top, project_id, create=create, uid=uid) as folder,
        ):
            yield folder


def _context_of(workspace_id: str) -> str:
    """The path of `.rlm-context` of a workspace, relative to /workspace."""
    return f"workspaces/{workspace_id}/{CONTEXT}"


def _metadata(project: Project) -> bytes:
    value = {
        "id": project.id,
        "name": project.name,
        "description": project.description,
        "created_at": project.created_at,
        "default_workspace_id": project.default_workspace_id,
        "workspace_isolation": project.workspace_isolation,
        "remote_url": project.remote_url,
    }
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
