"""A snapshot that is restored into an empty folder gives the tree, byte for byte."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from oubliette.runtime.snapshots.git_program import GitProgram
from oubliette.runtime.snapshots.workspace_job import WorkspaceJobs
from tests import selection
from tests.unit.runtime.snapshots.conftest import Shadow
from tests.unit.runtime.snapshots.test_names import NAMES

pytestmark = pytest.mark.timeout(600)

LEAVES = st.one_of(
    st.tuples(
        st.just("file"), st.sampled_from([0o644, 0o755, 0o600, 0o400]), st.binary(max_size=50)
    ),
    st.tuples(
        st.just("link"),
        st.just(0),
        st.binary(min_size=1, max_size=20).filter(lambda target: 0 not in target),
    ),
)
TREES = st.recursive(
    st.dictionaries(NAMES, LEAVES, max_size=4),
    lambda below: st.dictionaries(NAMES, st.one_of(LEAVES, below), max_size=4),
    max_leaves=12,
)


def write(folder: bytes, tree: dict[bytes, Any]) -> None:
    for name, entry in tree.items():
        path = os.path.join(folder, name)
        if isinstance(entry, dict):
            os.mkdir(path)
            write(path, entry)
        elif entry[0] == "link":
            os.symlink(entry[2], path)
        else:
            with open(path, "wb") as file:
                file.write(entry[2])
            os.chmod(path, entry[1])


@settings(
    max_examples=selection.examples(15), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(TREES, TREES)
@example({b"x": ("file", 0o644, b"")}, {b"x": {}})
@example({b"x": {}}, {b"x": ("file", 0o644, b"")})
def test_a_restored_snapshot_is_the_tree(one: dict[bytes, Any], other: dict[bytes, Any]) -> None:
    git = GitProgram.find()
    if git is None:
        pytest.skip("needs git")
    base = Path(tempfile.mkdtemp())
    try:

        async def round_trip(jobs: WorkspaceJobs) -> None:
            shadow = Shadow(base, git, jobs)
            marked = shadow.workspace / "always"
            trees = []
            for number, tree in enumerate((one, other), start=1):
                shutil.rmtree(shadow.workspace)
                shadow.workspace.mkdir()
                write(os.fsencode(shadow.workspace), tree)
                marked.write_text(str(number))
                trees.append(shadow.tree())
                await shadow.turn(number)
            await shadow.restore(1)  # over the other
            assert shadow.tree() == trees[0]
            shutil.rmtree(shadow.workspace)
            shadow.workspace.mkdir()
            await shadow.restore(2)
            assert shadow.tree() == trees[1]

        async def with_jobs() -> None:
            async with contextlib.aclosing(WorkspaceJobs()) as jobs:
                await round_trip(jobs)

        asyncio.run(with_jobs())
    finally:
        shutil.rmtree(base)
