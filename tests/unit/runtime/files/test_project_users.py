"""Which user ids projects get, where the server is root of all or of part of the machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import ConfigError
from oubliette.runtime.files import project_users
from oubliette.runtime.files.project_users import check, new_uid

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MACHINE = "0 0 4294967295"
ROOTLESS = "0 1000 1\n1 100000 65536"
SMALL = "0 100000 65536"
LONE = "0 1000 1"


@pytest.fixture
def mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A server of root's in a namespace with this map."""

    def set_map(text: str) -> None:
        (tmp_path / "uid_map").write_text(text)
        monkeypatch.setattr(project_users, "_MAP", tmp_path / "uid_map")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return set_map


@pytest.mark.parametrize(
    ("there", "first", "end"),
    [
        (MACHINE, 200_000, 1 << 31),
        (SMALL, 10_000, 60_000),
        (ROOTLESS, 10_000, 60_000),
        ("0 5 1\n30000 7 100", 30_000, 30_100),
    ],
)
def test_a_project_gets_a_user_that_the_namespace_of_the_server_has(
    mapped: Callable[[str], None], there: str, first: int, end: int
) -> None:
    mapped(there)
    assert all(first <= new_uid() < end for _ in range(100))


def test_a_configured_user_is_taken_and_one_that_is_not_there_is_named(
    mapped: Callable[[str], None],
) -> None:
    mapped(SMALL)
    assert new_uid(1000) == 1000
    with pytest.raises(ConfigError, match=r"containers\.uid: there is no user id 70000"):
        new_uid(70_000)


def test_a_server_whose_namespace_has_root_alone_is_refused_with_the_remedy(
    mapped: Callable[[str], None], tmp_path: Path
) -> None:
    mapped(LONE)
    with pytest.raises(ConfigError, match="has no user ids for agents") as refused:
        check(tmp_path, None)
    assert "as an ordinary user" in (refused.value.hint or "")


def test_a_server_that_may_give_files_to_none_is_refused_with_the_remedy(
    mapped: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    mapped(MACHINE)
    monkeypatch.setattr(os, "fchown", refuse)
    with pytest.raises(ConfigError, match="cannot be given to the users .*not permitted") as error:
        check(tmp_path, None)
    assert "another home" in (error.value.hint or "")


def test_an_ordinary_user_is_the_user_of_all_its_projects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    check(tmp_path, None)
    assert new_uid() == new_uid(77) == 1234
