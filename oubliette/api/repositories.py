"""Repositories of projects, as programs name and see them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from oubliette.contract.project import RepositorySource
from oubliette.errors import InvalidParameter
from oubliette.user_paths import absolute

CLONE_SECONDS: Final = 7200.0
"""Time for an answer; the server's `repositories.clone_seconds` ends earlier."""
_OF_A_REPOSITORY: Final = {
    name: "allow_push" if name == "push" else name
    for name in RepositorySource.__struct_fields__
    if name not in {"url", "path"}
}
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*:|[\w.-]+@[\w.-]+:")


class FetchedBranches(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that a fetch has brought."""

    updated: tuple[str, ...] = ()
    """Branches that are new or have another commit."""
    removed: tuple[str, ...] = ()


def project_parameters(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `project_create`, with the options of a repository in one of them.

    Raises:
        InvalidParameter: there are options of a repository, and no repository.
    """
    given: dict[str, Any] = {
        name: dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
        for name, value in options.items()
    }
    repository = given.pop("repository")
    source = {name: given.pop(option) for name, option in _OF_A_REPOSITORY.items()}
    source = {name: each for name, each in source.items() if each is not None and each is not False}
    if repository is None:
        if source:
            raise InvalidParameter(
                "repository: branch, depth, submodules, lfs, dirty and allow_push need one",
                field="repository",
            )
        return given
    if isinstance(repository, str) and _URL.match(repository):
        source["url"] = repository
    else:
        source["path"] = os.path.abspath(absolute(os.fspath(repository), "repository"))  # noqa: PTH100 - no links
    return {**given, "repository": source}
