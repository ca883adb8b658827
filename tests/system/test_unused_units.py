"""What nothing uses any more gives its actors back, and comes back when it is used."""

from __future__ import annotations

from typing import Any

import pytest

import oubliette
from tests.faults.here import until
from tests.system.python_api import settings, short_home

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

QUICK = settings() | {"containers.idle_stop_seconds": 0.2}


async def test_a_container_that_has_stopped_leaves_no_actors_behind():
    """Unless a session lives in it; a deleted workspace leaves none at once."""
    with short_home() as home:
        async with oubliette.open(home, config=QUICK) as ob:
            made = await ob.call(
                "project_create", name="here", init_git=False, workspace_isolation=True
            )
            project = made["id"]

            def units() -> set[str]:
                below = f"projects/{project}/"
                return {name.removeprefix(below).split("/")[0] for name in ob.system.names
                        if name.startswith(below)}  # fmt: skip

            async def spawned(**more: Any) -> dict[str, Any]:
                return await ob.call(
                    "session_spawn", project_id=project, prompt="say hello", **more
                )

            kept = await spawned(create_workspace=True)
            ended = [await spawned(create_workspace=True) for _ in range(2)]
            assert len(units()) == 3
            for each in ended:
                await ob.call("session_end", session_id=each["session_id"])
            await ob.call("workspace_delete", workspace_id=ended[0]["workspace_id"],
                          project_id=project)  # fmt: skip
            assert len(units()) == 2
            left = f"base:{kept['workspace_id']}"
            await until(lambda: units() == {left})
            answer = await ob.call("container_exec", project_id=project, command="echo again",
                                   workspace_id=ended[1]["workspace_id"])  # fmt: skip
            assert answer["stdout"] == "again\n"
            await until(lambda: units() == {left})
