"""Project, the place of workspaces and sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from oubliette.api._generated.tree_calls import TreeCalls
from oubliette.api.files.workspace_files import WorkspaceFiles
from oubliette.api.repositories import CLONE_SECONDS, FetchedBranches
from oubliette.api.results.views import ProjectInfo, SessionInfo
from oubliette.api.session import Session
from oubliette.contract.project import BranchInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.api.context import ClientContext
    from oubliette.contract.project import Answers

PAGE = 500
MAX_BRANCHES = 1000
DELETE_SECONDS = 360.0  # in which the server stores all workspaces, where it takes snapshots
IMAGE_SECONDS = 1900.0  # for an image of a container; a little more than the server's default
EXEC_MARGIN = 30.0  # seconds beyond the time of a command


class Project(TreeCalls):
    """A project. Made by `Oubliette.project` and `Oubliette.create_project`."""

    def __init__(self, shared: ClientContext, answer: Mapping[str, Any]) -> None:
        self.info: ProjectInfo = msgspec.convert(answer, ProjectInfo, strict=False)
        """Its settings when it was opened, or updated last."""
        super().__init__(shared, self.info.id)

    def __repr__(self) -> str:
        return f"<Project {self.name} {self.id}>"

    @property
    def id(self) -> str:
        """Id of the project."""
        return self.info.id

    @property
    def name(self) -> str:
        """Name of the project."""
        return self.info.name

    async def sessions(self, *, status: str | None = None) -> list[SessionInfo]:
        """Return the sessions of the project, children included, oldest first."""
        found: list[SessionInfo] = []
        cursor: str | None = None
        while True:
            page = await self._shared.call(
                "session_list",
                {"project_id": self.id, "status": status, "limit": PAGE, "cursor": cursor},
            )
            found += [msgspec.convert(each, SessionInfo, strict=False) for each in page["sessions"]]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    async def session(self, session_id: str) -> Session:
        """Return a session of the project, to go on with.

        Raises:
            NotFound: there is no such session.
        """
        answer = await self._shared.call("session_get", {"session_id": session_id})
        return Session(self._shared, answer)

    async def exec(
        self,
        command: str | list[str],
        *,
        workspace_id: str | None = None,
        working_dir: str | None = None,
        timeout: float = 60.0,
    ) -> dict[str, Any]:
        """Run a command in the project's container, and wait for its end.

        Args:
            command: For `sh -c`; or a program with its arguments.
            workspace_id: Workspace, where workspaces are isolated.
            working_dir: Absolute path in the container; None: the workspace.
            timeout: Seconds after which it is killed.

        Returns:
            `exit_code`, `stdout`, `stderr`, `truncated`, `timed_out`.
        """
        return await self._shared.call(
            "container_exec",
            {
                "project_id": self.id,
                "command": command,
                "workspace_id": workspace_id,
                "working_dir": working_dir,
                "timeout_seconds": timeout,
            },
            timeout=timeout + EXEC_MARGIN,
        )

    async def snapshot_container(
        self, *, name: str = "latest", workspace_id: str | None = None
    ) -> str:
        """Make an image of the project's running container, with which its next ones begin.

        It has what was installed, and neither workspaces nor HOME.

        Args:
            name: Tag of the image: lower-case letters, digits, `.`, `_`, `-`.
            workspace_id: Workspace, where workspaces are isolated.

        Returns:
            Name of the image at the engine.

        Raises:
            Unavailable: the container runtime makes no images of containers.
            Conflict: the file systems of the project's containers are read-only.
            NotFound: no container of it runs.
        """
        arguments = {"project_id": self.id, "name": name, "workspace_id": workspace_id}
        answer = await self._shared.call("container_snapshot", arguments, timeout=IMAGE_SECONDS)
        return str(answer["image"])

    @property
    def workspace(self) -> WorkspaceFiles:
        """The files of its default workspace."""
        return WorkspaceFiles(self._shared, self.id)

    async def fetch(self) -> FetchedBranches:
        """Fetch what is new in the repository that the project was cloned from.

        Existing workspaces stay as they are; new ones begin at the new commits.

        Raises:
            Conflict: it was not cloned from one.
            RuntimeFailure: git failed; the sentence has the cause and a remedy.
        """
        arguments = {"project_id": self.id}
        answer = await self._shared.call("repository_fetch", arguments, timeout=CLONE_SECONDS)
        return msgspec.convert(answer, FetchedBranches, strict=False)

    async def branches(self, *, name_contains: str | None = None) -> list[BranchInfo]:
        """Return the branches of that repository as fetched, newest commits first; at most 1000.

        Raises:
            Conflict: the project was not cloned from one.
        """
        arguments = {"project_id": self.id, "name_contains": name_contains, "limit": MAX_BRANCHES}
        answer = await self._shared.call("repository_branches", arguments)
        return msgspec.convert(answer["branches"], list[BranchInfo], strict=False)

    async def update(
        self, *, allow_push: bool | None = None, answers: Answers | None = None
    ) -> None:
        """Change settings of the project; those that are None stay as they are.

        Args:
            allow_push: Whether branches may be pushed to where it was cloned from.
            answers: Keys that answer permission requests of its sessions: `owner` are those of the
                principal of the tree's root, `team` also all that may write in the project.

        Raises:
            Conflict: it was not cloned from a repository.
        """
        arguments = {"project_id": self.id, "allow_push": allow_push, "answers": answers}
        answer = await self._shared.call("project_update", arguments)
        self.info = msgspec.convert(answer, ProjectInfo, strict=False)

    async def delete(self, *, discard: str | None = None) -> None:
        """Delete the project with its workspaces and files.

        Args:
            discard: Consent to the loss of files of agents, as a refusal names it; where no
                snapshots are taken, none is needed.

        Raises:
            Conflict: it has live sessions, or files would be lost without consent.
        """
        arguments = {"project_id": self.id, "discard": discard}
        await self._shared.call("project_delete", arguments, timeout=DELETE_SECONDS)
