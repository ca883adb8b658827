"""Oubliette, the system as a program without an event loop sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self, Unpack

from oubliette.api.tools.objects import listed_tools
from oubliette.sync.caller import Caller
from oubliette.sync.portal_thread import PortalThread
from oubliette.sync.project import Project
from oubliette.sync.session import Session

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

    from oubliette.api import client as twins
    from oubliette.api.callers.caller_loops import OnPermission
    from oubliette.api.project import ProjectOptions
    from oubliette.api.views import ProjectInfo


class Oubliette:
    """Projects and sessions of one system. Made by `open` and `connect`; a context manager.

    It has an event loop in a thread of its own, for the time of its block; any thread of the
    process may use it. When the block ends, the sessions that were started in it are ended, or
    kept, according to `on_exit`; calls that other threads make are cancelled.
    """

    def __init__(self, twin: twins.Oubliette) -> None:
        """Prepare; nothing is opened before the block begins."""
        self._twin = twin
        self._thread = PortalThread()

    @property
    def caller_id(self) -> str:
        """Id under which this program provides the tools of its sessions."""
        return self._twin.caller_id

    # ------------------------------------------------------------------ the block

    def __enter__(self) -> Self:
        """Open it, as `start` does."""
        return self.start()

    def start(self) -> Self:
        """Open it without a block, and return it; close it yourself then.

        Raises:
            HomeInUse: another process uses the home.
            ConfigError: the home or the configuration is unusable.
            Conflict: it was opened before.
        """
        self._thread.start()
        try:
            self._thread.call(self._twin.start)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """End what was started, unless it is kept, and close; a second time does nothing."""
        self._thread.stop(self._twin.aclose)

    # ------------------------------------------------------------------ projects

    def project(self, name: str, **options: Unpack[ProjectOptions]) -> Project:
        """Return the project of this name; create it if there is none.

        Args:
            name: Its name, or its id.
            options: Those of `create_project`, if it is created.
        """
        twin = self._thread.call(lambda: self._twin.project(name, **options))
        return Project(self._thread, twin)

    def create_project(  # noqa: PLR0913 - one parameter per option
        self,
        name: str,
        *,
        description: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        autonomy: str | None = None,
        container_type: str | None = None,
        remote_url: str | None = None,
        repository: str | os.PathLike[str] | None = None,
        branch: str | None = None,
        depth: int | None = None,
        submodules: bool = False,
        lfs: bool = False,
        dirty: bool = False,
        allow_push: bool = False,
        init_git: bool | None = None,
        workspace_isolation: bool | None = None,
        limits: Mapping[str, Any] | None = None,
        mcp_servers: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Project:
        """Create a project with a default workspace.

        Args:
            name: Unique among existing projects.
            description: Purpose, for people.
            agent: Name of its agent; None: the configured one.
            model: Model of its agents.
            autonomy: Actions without a permission: ask, low, medium, high, off.
            container_type: Type of its container.
            remote_url: URL of its repository, set as git's origin; nothing is fetched.
            repository: URL of a repository to clone, or path of a checkout on the server's machine;
                the call ends when it has been cloned. None: the project begins empty.
            branch: Branch of the repository at which workspaces begin; None: its HEAD.
            depth: Number of commits to fetch; None: all.
            submodules: Whether workspaces have its submodules too.
            lfs: Whether workspaces have the content of files that Git LFS keeps, or pointers to it.
            dirty: Whether uncommitted changes of a checkout come too.
            allow_push: Whether branches may be pushed to the repository.
            init_git: Whether the default workspace is a git repository; True unless given.
            workspace_isolation: Whether each workspace has a container of its own.
            limits: Limits of each tree of sessions, by name (docs/tools.md).
            mcp_servers: Further MCP servers for its agents, by name.
            idempotency_key: Name of this request: a repeated one returns the same project.

        Raises:
            AlreadyExists: there is a project of this name.
            InvalidParameter: an option is invalid; its name is in `field`.
        """
        twin = self._thread.call(
            lambda: self._twin.create_project(
                name, description=description, agent=agent, model=model, autonomy=autonomy,
                container_type=container_type, remote_url=remote_url, repository=repository,
                branch=branch, depth=depth, submodules=submodules, lfs=lfs, dirty=dirty,
                allow_push=allow_push, init_git=init_git, workspace_isolation=workspace_isolation,
                limits=limits, mcp_servers=mcp_servers, idempotency_key=idempotency_key,
            )
        )  # fmt: skip
        return Project(self._thread, twin)

    def projects(self) -> list[ProjectInfo]:
        """Return all projects, oldest first."""
        return self._thread.call(self._twin.projects)

    # ------------------------------------------------------------------ sessions and callers

    def session(
        self,
        session_id: str,
        *,
        tools: Iterable[object] | None = None,
        on_permission: OnPermission | None = None,
    ) -> Session:
        """Return an existing session, such as one of an earlier run of this program.

        Args:
            session_id: Its id.
            tools: Tools that answer its calls from now on, those that are open included; they have
                to be the ones that it was started with.
            on_permission: Policy for its permissions from now on.

        Raises:
            NotFound: there is no such session.
        """
        given = None if tools is None else listed_tools(tools)
        twin = self._thread.call(
            lambda: self._twin.session(session_id, tools=given, on_permission=on_permission)
        )
        return Session(self._thread, twin)

    def caller(
        self,
        caller_id: str,
        tools: Iterable[object],
        *,
        on_permission: OnPermission | None = None,
        once: str | Path | None = None,
    ) -> Caller:
        """Return a caller: tools under a name of its own, for any number of sessions.

        Args:
            caller_id: Its id; a program that opens it again later gets the requests that are open.
            tools: Its tools.
            on_permission: Policy for what agents ask permission for.
            once: SQLite file of answers: a request that is delivered again is answered from there.
        """
        given = listed_tools(tools)
        twin = self._thread.read(
            lambda: self._twin.caller(caller_id, given, on_permission=on_permission, once=once)
        )
        return Caller(self._thread, twin)

    # ------------------------------------------------------------------ underneath

    def call(self, tool: str, *, timeout: float | None = None, **arguments: Any) -> dict[str, Any]:
        """Call any of Oubliette's tools (docs/tools.md), and return its result as JSON values.

        Args:
            tool: Its name.
            timeout: Seconds; 60 unless given.
            arguments: Its arguments; those that are None count as absent.

        Raises:
            OublietteError: the tool failed.
        """
        return self._thread.call(lambda: self._twin.call(tool, timeout=timeout, **arguments))
