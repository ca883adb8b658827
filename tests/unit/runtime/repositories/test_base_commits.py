"""A copy of a workspace is compared with the commit that the workspace itself was made of."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.repositories.base_commits import BASES, inherit_base
from oubliette.runtime.snapshots.git_program import GitProgram
from tests.git_hosts import checkout, commit, git

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("git") is None, reason="needs git"),
]


async def test_a_copy_has_the_base_of_its_source_or_none(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "source")
    old = git(folder, "rev-parse", "HEAD").strip()
    new = commit(folder, {"later": "x"})
    program = GitProgram.find()
    assert program is not None

    def noted(workspace: str) -> str:
        return git(folder, "for-each-ref", "--format=%(objectname)", f"{BASES}/{workspace}").strip()

    git(folder, "update-ref", f"{BASES}/source", old)
    git(folder, "update-ref", f"{BASES}/copy", new)
    await inherit_base(program, folder / ".git", "source", "copy")
    assert noted("copy") == old
    await inherit_base(program, folder / ".git", "unknown", "copy")
    assert noted("copy") == ""
    await inherit_base(program, folder / ".git", "unknown", "copy")
