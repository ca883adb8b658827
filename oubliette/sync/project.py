"""Project, the place of workspaces and sessions; its calls block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oubliette.sync.session import Session
from oubliette.sync.spawner import Spawner
from oubliette.sync.tree import Tree
from oubliette.sync.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from oubliette.api import project as twins
    from oubliette.api.repositories import BranchInfo, FetchedBranches
    from oubliette.api.views import ProjectInfo, SessionInfo
    from oubliette.sync.portal_thread import PortalThread


class Project(Spawner):
    """A project. Made by `Oubliette.project` and `Oubliette.create_project`."""

    def __init__(self, thread: PortalThread, twin: twins.Project) -> None:
        super().__init__(thread, twin)
        self._project = twin
        self.info: ProjectInfo = twin.info
        """Its settings when it was opened."""

    @property
    def id(self) -> str:
        """Id of the project."""
        return self.info.id

    @property
    def name(self) -> str:
        """Name of the project."""
        return self.info.name

    def tree(
        self,
        *,
        max_agents: int | None = None,
        max_agents_at_once: int | None = None,
        max_depth: int | None = None,
        max_cost_usd: float | None = None,
        max_wall_seconds: float | None = None,
        max_turn_seconds: float | None = None,
        max_turn_steps: int | None = None,
    ) -> Tree:
        """Return a block whose sessions count together; limits only tighten those of the project.

        Args:
            max_agents: Agents, children included.
            max_agents_at_once: Agents that work at the same time.
            max_depth: Levels of children.
            max_cost_usd: Cost of all of them, as far as agents report it.
            max_wall_seconds: Age of the tree, from its first session.
            max_turn_seconds: Time limit of one turn.
            max_turn_steps: Steps of the model in one turn.
        """
        twin = self._thread.read(
            lambda: self._project.tree(
                max_agents=max_agents,
                max_agents_at_once=max_agents_at_once,
                max_depth=max_depth,
                max_cost_usd=max_cost_usd,
                max_wall_seconds=max_wall_seconds,
                max_turn_seconds=max_turn_seconds,
                max_turn_steps=max_turn_steps,
            )
        )
        return Tree(self._thread, twin)

    def sessions(self, *, status: str | None = None) -> list[SessionInfo]:
        """Return the sessions of the project, children included, oldest first."""
        return self._thread.call(lambda: self._project.sessions(status=status))

    def session(self, session_id: str) -> Session:
        """Return a session of the project, to go on with.

        Raises:
            NotFound: there is no such session.
        """
        twin = self._thread.call(lambda: self._project.session(session_id))
        return Session(self._thread, twin)

    def exec(
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
        return self._thread.call(
            lambda: self._project.exec(
                command, workspace_id=workspace_id, working_dir=working_dir, timeout=timeout
            )
        )

    @property
    def workspace(self) -> WorkspaceFiles:
        """The files of its default workspace."""
        return WorkspaceFiles(self._thread, self._project.workspace)

    def snapshot_container(self, *, name: str = "latest", workspace_id: str | None = None) -> str:
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
        return self._thread.call(
            lambda: self._project.snapshot_container(name=name, workspace_id=workspace_id)
        )

    def fetch(self) -> FetchedBranches:
        """Fetch what is new in the repository that the project was cloned from.

        Existing workspaces stay as they are; new ones begin at the new commits.

        Raises:
            Conflict: it was not cloned from one.
            RuntimeFailure: git failed; the sentence has the cause and a remedy.
        """
        return self._thread.call(self._project.fetch)

    def branches(self, *, name_contains: str | None = None) -> list[BranchInfo]:
        """Return the branches of that repository as fetched, newest commits first; at most 1000.

        Raises:
            Conflict: the project was not cloned from one.
        """
        return self._thread.call(lambda: self._project.branches(name_contains=name_contains))

    def update(self, *, allow_push: bool) -> None:
        """Give or withdraw the consent to push branches to where the project was cloned from.

        Args:
            allow_push: Whether pushes are allowed from now on.

        Raises:
            Conflict: it was not cloned from a repository.
        """
        self._thread.call(lambda: self._project.update(allow_push=allow_push))

    def delete(self, *, discard: str | None = None) -> None:
        """Delete the project with its workspaces and files.

        Args:
            discard: Consent to the loss of files of agents, as a refusal names it; where no
                snapshots are taken, none is needed.

        Raises:
            Conflict: it has live sessions, or files would be lost without consent.
        """
        self._thread.call(lambda: self._project.delete(discard=discard))
