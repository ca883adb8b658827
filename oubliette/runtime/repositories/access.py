"""Repositories, the access of one server to other repositories, as its configuration allows it."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Final

from oubliette.errors import Unavailable
from oubliette.runtime.repositories.addresses import check_url
from oubliette.runtime.repositories.base_commits import note_base
from oubliette.runtime.repositories.credentials import credential_for, key_file_for
from oubliette.runtime.repositories.lfs_content import LfsContent
from oubliette.runtime.repositories.project_repository import CLONING, BareRepository
from oubliette.runtime.repositories.remote_git import RemoteAccess, RemoteGit
from oubliette.runtime.repositories.workspace_clone import NEW, WorkspaceClone, branch_of
from oubliette.runtime.snapshots.git_program import GitProgram

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.config.schema import RepositoriesConfig
    from oubliette.records import Project, ProjectRepository

GITCONFIG: Final = "gitconfig"
_GITCONFIG_TEXT: Final = """\
# Of the server, for repositories of others on this machine: they are only read.
[safe]
\tdirectory = *
[core]
\thooksPath = /dev/null
\tfsmonitor = false
"""
BARE: Final = "repository.git"


class Repositories:
    """The repositories of one home's projects."""

    def __init__(self, folder: Path, settings: RepositoriesConfig) -> None:
        self.folder = folder
        self.settings = settings

    def git(self) -> GitProgram:
        """The program.

        Raises:
            Unavailable: it is not installed.
        """
        git = GitProgram.find()
        if git is None:
            raise Unavailable(
                "repository: git is not installed on the server's machine",
                hint="install git there, or create the project without a repository",
            )
        return git

    def of(self, project_id: str, record: ProjectRepository) -> BareRepository:
        """The repository of a project, which may not have been cloned yet."""
        return BareRepository(self.folder / project_id / BARE, self.git(), record)

    async def source(self, record: ProjectRepository, *, submodules: bool = False) -> RemoteGit:
        """Return git for the repository that a project is cloned from, or for its submodules.

        Raises:
            ConfigError: the credential for its host cannot be read.
            InvalidParameter: its protocol is not allowed any more.
        """
        return await asyncio.to_thread(self._source, record, submodules=submodules)

    def _source(self, record: ProjectRepository, *, submodules: bool) -> RemoteGit:
        settings, git = self.settings, self.git()
        if record.path is not None and not submodules:
            gitconfig = self.folder / GITCONFIG
            gitconfig.write_text(_GITCONFIG_TEXT)
            access = RemoteAccess(
                address=record.path,
                protocols=frozenset({"file"}),
                gitconfig=gitconfig,
                max_bytes=settings.max_bytes,
            )
        elif record.url is None:  # submodules of a checkout, which have URLs of their own
            access = RemoteAccess(
                address=record.path or "",
                protocols=frozenset(settings.protocols),
                as_user=settings.user_credentials,
                max_bytes=settings.max_bytes,
            )
        else:
            url = check_url(record.url, settings.protocols)
            access = RemoteAccess(
                address=url,
                protocols=frozenset(settings.protocols),
                credential=credential_for(settings.credentials, url),
                key_file=key_file_for(settings.credentials, url),
                as_user=settings.user_credentials,
                max_bytes=settings.max_bytes,
            )
        return RemoteGit(git, access)

    async def lfs_content(self, project_id: str, record: ProjectRepository) -> LfsContent:
        """The contents of the files of a project's repository that Git LFS keeps.

        Raises:
            ConfigError: the credential for its host cannot be read.
            InvalidParameter: its protocol is not allowed any more.
        """
        remote, bare = await self.source(record), self.of(project_id, record)
        return LfsContent(bare.folder, self.git(), remote, self.settings.credentials)

    async def new_workspace(
        self, project: Project, workspace_id: str, branch: str | None = None
    ) -> WorkspaceClone:
        """A clone for a workspace, which is still to be made.

        Args:
            project: Its project, which has been cloned.
            workspace_id: Its id, after which its own branch is named.
            branch: Branch of the other repository at which it begins; None: the project's.

        Raises:
            BranchNotFound: there is no such branch.
            NotFound: the project's repository is not on this machine.
        """
        assert project.repository is not None, "the caller looks"
        source = self.of(project.id, project.repository)
        start = await source.start_of(branch)
        default = workspace_id == project.default_workspace_id
        dirty = await source.dirty() if branch in {None, project.repository.branch} else None
        await note_base(self.git(), source.folder, workspace_id, start)
        return WorkspaceClone(
            source,
            self.git(),
            branch=branch_of(workspace_id, default=default),
            start=start,
            origin=project.repository.url,
            dirty=dirty,
            max_bytes=self.settings.max_bytes,
        )

    def begin(self, project_id: str) -> None:
        """Make the folder that shows, after a crash, that a clone was under way. Blocks."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._mark(project_id).mkdir(mode=0o700, parents=True, exist_ok=True)

    def ended(self, project_id: str) -> None:
        """Remove the folder of a clone that has ended in any way. Blocks."""
        shutil.rmtree(self._mark(project_id), ignore_errors=True)

    def unfinished(self) -> list[str]:
        """The projects whose clone was begun and not ended. Blocks."""
        return sorted(path.parent.name for path in self.folder.glob(f"*/{CLONING}"))

    def clear_unfinished(self, project_id: str) -> None:
        """Remove the workspaces of a project that an earlier server was making. Blocks."""
        for path in (self.folder / project_id).glob(f".*{NEW}"):
            shutil.rmtree(path, ignore_errors=True)

    def _mark(self, project_id: str) -> Path:
        return self.folder / project_id / CLONING
