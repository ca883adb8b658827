"""Repositories of projects, as programs name and see them."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.contract.project import BranchInfo
from oubliette.errors import InvalidParameter
from oubliette.user_paths import absolute

if TYPE_CHECKING:
    from oubliette.api.context import ClientContext

CLONE_SECONDS: Final = 7200.0
"""Time for an answer; the server's `repositories.clone_seconds` ends earlier."""
MAX_BRANCHES: Final = 1000
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*:|[\w.-]+@[\w.-]+:")


class FetchedBranches(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that a fetch has brought."""

    updated: tuple[str, ...] = ()
    """Branches that are new or have another commit."""
    removed: tuple[str, ...] = ()


def repository_parameter(
    repository: str | os.PathLike[str] | None,
    branch: str | None,
    depth: int | None,
    *,
    submodules: bool,
    dirty: bool,
    lfs: bool = False,
    push: bool = False,
) -> dict[str, Any] | None:
    """Return the parameter `repository` of `project_create`; None: there is none.

    Raises:
        InvalidParameter: there are options of a repository, and no repository.
    """
    if repository is None:
        if branch is not None or depth is not None or submodules or lfs or dirty or push:
            raise InvalidParameter(
                "repository: branch, depth, submodules, lfs, dirty and allow_push need one",
                field="repository",
            )
        return None
    given: dict[str, Any] = {"branch": branch, "depth": depth, "submodules": submodules}
    given["dirty"] = dirty
    given["lfs"] = lfs or None
    given["push"] = push or None
    if isinstance(repository, str) and _URL.match(repository):
        given["url"] = repository
    else:
        given["path"] = os.path.abspath(absolute(os.fspath(repository), "repository"))  # noqa: PTH100 - no links
    return {name: value for name, value in given.items() if value is not None}


async def fetch(shared: ClientContext, project_id: str) -> FetchedBranches:
    """Fetch what is new in a project's repository."""
    answer = await shared.call(
        "repository_fetch", {"project_id": project_id}, timeout=CLONE_SECONDS
    )
    return msgspec.convert(answer, FetchedBranches, strict=False)


async def branches(
    shared: ClientContext, project_id: str, name_contains: str | None
) -> list[BranchInfo]:
    """Return the branches of a project's repository, those with the newest commits first."""
    answer = await shared.call(
        "repository_branches",
        {"project_id": project_id, "name_contains": name_contains, "limit": MAX_BRANCHES},
    )
    return [msgspec.convert(each, BranchInfo, strict=False) for each in answer["branches"]]
