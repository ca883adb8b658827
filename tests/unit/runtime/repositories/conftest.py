from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from oubliette.config.schema import RepositoriesConfig
from oubliette.records import Project, ProjectRepository
from oubliette.runtime.repositories.access import Repositories
from tests.git_hosts import GitHost, checkout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PROJECT = "proj_" + "1" * 26
DEFAULT = "11111111-1111-4111-8111-111111111111"


class Bench:
    """The repositories of one home, with one project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    def access(self, **settings: Any) -> Repositories:
        given = {"protocols": ("http", "https"), **settings}
        return Repositories(self.folder, RepositoriesConfig(**given))

    async def clone(
        self, record: ProjectRepository, seconds: float = 60.0, **settings: Any
    ) -> Project:
        """Clone as the server does."""
        access = self.access(**settings)
        access.begin(PROJECT)
        source = await access.source(record)
        done = await access.of(PROJECT, record).clone(
            source, seconds=seconds, report=self.said.append
        )
        access.ended(PROJECT)
        return Project(
            id=PROJECT, name="shop", created_at=0.0, default_workspace_id=DEFAULT, uid=-1,
            repository=done,
        )  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path / "repositories")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkout(tmp_path / "source", {"shop.py": "price = 1\n", "docs/a.md": "a\n"})


@pytest.fixture
def host(tmp_path: Path, source: Path) -> Iterator[GitHost]:
    (tmp_path / "host").mkdir()
    with GitHost(tmp_path / "host") as started:
        started.add("shop", source)
        yield started
