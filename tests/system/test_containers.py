"""The tools for containers, over a real server: `container_start stop exec logs`."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.runtime.containers.process import procfs
from tests.callers import ToolFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.system.site import Site

pytestmark = pytest.mark.anyio


@pytest.fixture
async def project(site: Site) -> AsyncIterator[str]:
    made = await site.eyes.call("project_create", name="containers")
    yield str(made["id"])
    await site.eyes.call("container_stop", project_id=made["id"], force=True)
    await site.eyes.call("project_delete", project_id=made["id"])


async def test_a_container_is_started_once_shown_and_stopped(site: Site, project: str) -> None:
    started = await site.eyes.call("container_start", project_id=project)
    assert started["state"] == "running"
    assert {"create", "start"} <= {stage["name"] for stage in started["stages"]}
    again = await site.eyes.call("container_start", project_id=project)
    assert again["container_id"] == started["container_id"]
    assert isinstance((await site.eyes.call("container_logs", project_id=project))["logs"], str)
    stopped = await site.eyes.call("container_stop", project_id=project)
    assert (stopped["state"], stopped["container_id"]) == ("stopped", started["container_id"])
    with pytest.raises(ToolFailed, match="container_start"):
        await site.eyes.call("container_logs", project_id=project)


async def test_a_command_tells_output_errors_and_exit_code_apart(site: Site, project: str) -> None:
    done = await site.eyes.call(
        "container_exec", project_id=project, command="echo out; echo err >&2; pwd >&2; exit 7"
    )
    assert (done["exit_code"], done["stdout"]) == (7, "out\n")
    assert done["stderr"].startswith("err\n")
    assert "/workspaces/" in done["stderr"]
    assert not done["truncated"]
    assert not done["timed_out"]
    plain = await site.eyes.call(
        "container_exec", project_id=project, command=["printf", "%s", "$HOME; exit"]
    )
    assert plain["stdout"] == "$HOME; exit"


async def test_a_folder_is_named_as_documented_wherever_it_is(site: Site, project: str) -> None:
    """Without a sandbox /workspace is nowhere: what we are given is translated, and we say where."""
    done = await site.eyes.call(
        "container_exec",
        project_id=project,
        working_dir="/workspace",
        command='pwd; cd "$OUBLIETTE_WORKSPACE" && pwd && cd .. && pwd && cd .. && pwd',
    )
    project_folder, workspace, above, again = done["stdout"].split()
    assert project_folder == again
    assert above == f"{project_folder}/workspaces"
    assert workspace.startswith(f"{above}/")
    if site.server.sandboxed:
        assert project_folder == "/workspace"


async def test_a_command_that_does_not_end_is_killed_with_its_children(
    site: Site, project: str
) -> None:
    mark = f"1000.{time.monotonic_ns() % 10**9}"
    done = await site.eyes.call(
        "container_exec",
        project_id=project,
        command=f"echo begun; sleep {mark} & sleep {mark}",
        timeout_seconds=0.5,
    )
    assert done["timed_out"]
    assert done["exit_code"] != 0
    assert done["stdout"] == "begun\n"
    left = await site.eyes.call(
        "container_exec",
        project_id=project,
        command=f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep {mark[:-1]}[{mark[-1]}]'",
    )
    assert left["stdout"].strip() == "0"


@pytest.mark.whole  # ten seconds of a deadline
async def test_a_command_in_a_container_that_hangs_ends_at_its_deadline(
    site: Site, project: str
) -> None:
    """The deadline is the host's, and a host that is stopped holds none: so the server has one."""
    await site.eyes.call("container_start", project_id=project)
    (host,) = site.server.containers().values()
    mark = f"1000.{time.monotonic_ns() % 10**9}"
    where = (await run(site, project, "mkfifo -m 666 begun && pwd"))["stdout"].strip()
    begun = site.server.home / "projects" / project / where[where.index("workspaces/") :] / "begun"
    async with asyncio.TaskGroup() as tasks:
        words = f"echo begun >begun; sleep {mark}"
        before = tasks.create_task(refused(site, project, command=words, timeout_seconds=2.0))
        assert await asyncio.to_thread(begun.read_text) == "begun\n"
        procfs.send_signal(host, signal.SIGSTOP)
        try:
            began = time.monotonic()
            while_stopped = await refused(
                site, project, command=f"sleep {mark}", timeout_seconds=0.5
            )
            assert time.monotonic() - began < 25
            said = (while_stopped, await before)
        finally:
            procfs.send_signal(host, signal.SIGCONT)
    for text in said:
        assert "it is paused, or it hangs" in text
        assert "container_stop" in text
    search = (
        f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c '{mark[:-1]}[{mark[-1]}]'"
    )
    assert (await run(site, project, search))["stdout"].strip() == "0"


async def run(site: Site, project: str, command: str) -> dict[str, Any]:
    """What the command said."""
    return await site.eyes.call("container_exec", project_id=project, command=command)


async def refused(site: Site, project: str, **command: Any) -> str:
    """What the call of a command that fails is answered."""
    with pytest.raises(ToolFailed) as caught:
        await site.eyes.call("container_exec", project_id=project, **command)
    return str(caught.value)


async def test_what_is_too_much_is_cut_and_said(site: Site, project: str) -> None:
    done = await site.eyes.call(
        "container_exec",
        project_id=project,
        command="echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last",
    )
    assert done["truncated"]
    assert done["stdout"].startswith("first\n")
    assert done["stdout"].endswith("last\n")
    assert "bytes left out" in done["stdout"]
    assert len(done["stdout"]) < 400_000


async def test_a_missing_program_and_a_missing_folder_are_named(site: Site, project: str) -> None:
    with pytest.raises(ToolFailed, match="no-such-program"):
        await site.eyes.call("container_exec", project_id=project, command=["no-such-program"])
    with pytest.raises(ToolFailed, match="nowhere"):
        await site.eyes.call(
            "container_exec", project_id=project, command="true", working_dir="/nowhere"
        )


async def test_a_container_in_use_is_not_stopped_without_force(site: Site, project: str) -> None:
    spawned = await site.eyes.call("session_spawn", project_id=project, prompt="say here")
    await site.eyes.call("container_start", project_id=project)
    with pytest.raises(ToolFailed, match="force"):
        await site.eyes.call("container_stop", project_id=project)
    await site.eyes.call("session_end", session_id=spawned["session_id"])
