"""Projects of a system: to find, list and create them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from oubliette.api.project import PAGE, Project
from oubliette.api.repositories import CLONE_SECONDS, project_parameters
from oubliette.api.results.views import ProjectInfo
from oubliette.contract.overview import TreeInfo, TreeState, UsageReport
from oubliette.errors import AlreadyExists, Conflict

if TYPE_CHECKING:
    from oubliette.api.context import ClientContext
    from oubliette.contract.overview import UsageBy


class Projects:
    """Base of `Oubliette`."""

    def __init__(self) -> None:
        self._shared: ClientContext | None = None

    @property
    def _parts(self) -> ClientContext:
        if self._shared is None:
            raise Conflict(
                "this Oubliette is not open",
                hint="async with oubliette.open() as ob: ... (or await ob.start())",
            )
        return self._shared

    async def projects(self) -> list[ProjectInfo]:
        """Return all projects, oldest first."""
        return [
            msgspec.convert(each, ProjectInfo, strict=False) for each in await self._listed(None)
        ]

    async def usage_report(
        self,
        by: UsageBy = "project",
        *,
        since: float | None = None,
        project_id: str | None = None,
        limit: int = 100,
    ) -> UsageReport:
        """Return the sums of what agents have used, the highest costs first, or the newest day.

        Args:
            by: What each sum is about.
            since: Only from then on, in seconds since 1970; its hour counts as a whole.
            project_id: Only of this project.
            limit: Maximum number of sums.
        """
        wanted = {"by": by, "since": since, "project_id": project_id, "limit": limit}
        report = await self._parts.call("usage_report", wanted)
        return msgspec.convert(report, UsageReport, strict=False)

    async def trees(self, project_id: str | None = None) -> list[TreeInfo]:
        """Return the trees in which sessions live, the newest first; of many the newest 200.

        Args:
            project_id: Only those with live sessions of this project.
        """
        page = await self._parts.call("tree_list", {"project_id": project_id, "limit": 200})
        return msgspec.convert(page["trees"], list[TreeInfo], strict=False)

    async def tree_state(self, session_id: str) -> TreeState:
        """Return the tree of a session: all its sessions, what each waits for, and the limits.

        Args:
            session_id: Any session of the tree.

        Raises:
            NotFound: there is no such session.
        """
        wanted = {"session_id": session_id, "limit": PAGE}
        state = await self._parts.call("tree_get", wanted)
        rows, cursor = [*state["rows"]], state["next_cursor"]
        while cursor is not None:
            page = await self._parts.call("tree_get", {**wanted, "cursor": cursor})
            rows += page["rows"]
            cursor = page["next_cursor"]
        found = {**state, "rows": rows, "next_cursor": None}
        return msgspec.convert(found, TreeState, strict=False)

    async def _find(self, name: str) -> dict[str, Any] | None:
        listed = await self._listed(name)
        for each in listed:
            if each["name"] == name:
                return each
        if name.startswith("proj_"):
            return await self._parts.call("project_get", {"project_id": name})
        return None

    async def _listed(self, name: str | None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = await self._parts.call(
                "project_list", {"name_contains": name, "limit": PAGE, "cursor": cursor}
            )
            found += page["projects"]
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    async def _project(self, name: str, options: dict[str, Any]) -> Project:
        """Return the project of this name; create it if there is none.

        Args:
            name: Its name, or its id.
            options: Of the project.
        """
        found = await self._find(name)
        if found is None:
            try:
                return await self._create_project(name, options)
            except AlreadyExists:  # by another program, a moment ago
                found = await self._find(name)
                if found is None:
                    raise
        return Project(self._parts, found)

    async def _create_project(self, name: str, options: dict[str, Any]) -> Project:
        """Create a project with a default workspace.

        Args:
            name: Unique among existing projects.
            options: Of the project.

        Raises:
            AlreadyExists: there is a project of this name.
            InvalidParameter: an option is invalid; its name is in `field`.
        """
        arguments = {"name": name, **project_parameters(options)}
        timeout = CLONE_SECONDS if "repository" in arguments else None
        answer = await self._parts.call("project_create", arguments, timeout=timeout)
        return Project(self._parts, answer)
