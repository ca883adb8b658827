"""The variables of Ray's processes, and the file of the token."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from oubliette.cluster.environment import TOKEN_FILE, check_token, ray_environment
from oubliette.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path


def test_the_head_makes_a_token_that_its_owner_alone_can_read(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    found = ray_environment(folder, head=True)
    token = folder / TOKEN_FILE
    assert found["RAY_AUTH_MODE"] == "token"
    assert found["RAY_AUTH_TOKEN_PATH"] == str(token)
    assert (token.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_second_start_keeps_the_token(tmp_path: Path) -> None:
    ray_environment(tmp_path, head=True)
    before = (tmp_path / TOKEN_FILE).read_text()
    ray_environment(tmp_path, head=True)
    assert (tmp_path / TOKEN_FILE).read_text() == before
    assert len(before) == 64


def test_the_head_alone_has_the_database(tmp_path: Path) -> None:
    assert "RAY_gcs_storage_path" in ray_environment(tmp_path, head=True)
    assert "RAY_gcs_storage_path" not in ray_environment(tmp_path, head=False)


def test_a_machine_without_the_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is missing .*copy it from the head"):
        ray_environment(tmp_path, head=False)


def test_a_token_that_others_may_read_is_refused(tmp_path: Path) -> None:
    token = tmp_path / TOKEN_FILE
    token.write_text("x")
    token.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        check_token(token)
