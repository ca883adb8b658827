"""Commands in containers of real engines: what they write, how they end, that they are gone."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from oubliette.runtime.containers.docker.client import Engine
from oubliette.testing.server import ServerProcess
from tests.callers import HttpCaller, ToolFailed
from tests.images import ensure_image

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Any

    from oubliette.testing.fork_server import Zygote

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

FLAVOURS = [pytest.param(each, marks=pytest.mark.requires(each)) for each in ("docker", "podman")]


class Shell:
    """One project's container, in which commands are run."""

    def __init__(self, admin: HttpCaller, project: str, api: Any, label: str) -> None:
        self.admin = admin
        self.project = project
        self._api = api
        self._label = label

    @contextlib.contextmanager
    def paused(self, *, go_on: bool = True) -> Iterator[None]:
        """The container, as `docker pause` leaves it."""
        (container,) = self._api.containers(filters={"label": [self._label]})
        self._api.pause(container["Id"])
        try:
            yield
        finally:
            if go_on:
                self._api.unpause(container["Id"])

    async def run(self, command: str | list[str], **more: Any) -> dict[str, Any]:
        return await self.admin.call(
            "container_exec", project_id=self.project, command=command, **more
        )

    async def running(self, mark: str) -> int:
        """How many processes in the container have this word on their command line."""
        words = f"{mark[:-1]}[{mark[-1]}]"  # does not find the search itself
        done = await self.run(
            f"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c -- '{words}'"
        )
        return int(done["stdout"])


@pytest.fixture(scope="module", params=FLAVOURS)
async def shell(
    request: pytest.FixtureRequest, zygote: Zygote, anyio_backend: str
) -> AsyncIterator[Shell]:
    flavour = request.param
    settings = {
        "containers.runtime": flavour,
        "containers.image": ensure_image(flavour),
        "containers.network": "none",
    }
    async with ServerProcess(zygote=zygote, settings=settings) as server:
        await server.start()
        api = Engine(flavour).connect()
        label = f"dev.oubliette.instance={server.instance()}"
        try:
            async with HttpCaller(server.url, server.token("admin"), caller_id="admin") as admin:
                made = await admin.call("project_create", name="shell", init_git=False)
                yield Shell(admin, str(made["id"]), api, label)
        finally:
            await server.kill()
            for container in api.containers(all=True, filters={"label": [label]}):
                with contextlib.suppress(Exception):
                    api.remove_container(container["Id"], force=True, v=True)
            api.close()


async def test_output_errors_and_the_exit_code_are_told_apart(shell: Shell) -> None:
    done = await shell.run("echo out; echo err >&2; exit 7")
    assert (done["exit_code"], done["stdout"], done["stderr"]) == (7, "out\n", "err\n")
    assert not done["truncated"]
    assert not done["timed_out"]
    killed = await shell.run("kill -TERM $$")
    assert killed["exit_code"] == 128 + 15
    exact = await shell.run(["printf", "%s|", "a b", "$HOME", "*"])
    assert exact["stdout"] == "a b|$HOME|*|"


async def test_both_streams_are_whole_when_much_is_written_on_both(shell: Shell) -> None:
    done = await shell.run(
        "i=0; while [ $i -lt 2000 ]; do echo out$i; echo err$i >&2; i=$((i+1)); done"
    )
    assert done["stdout"].split() == [f"out{i}" for i in range(2000)]
    assert done["stderr"].split() == [f"err{i}" for i in range(2000)]


async def test_at_the_deadline_everything_is_gone_that_the_command_has_started(
    shell: Shell,
) -> None:
    """Children, those of a session of their own, and a daemon that nobody waits for."""
    mark = f"1000.{time.monotonic_ns() % 10**9:09d}"
    done = await shell.run(
        f"echo begun; sleep {mark} & setsid sleep {mark} &"
        f" (setsid sh -c 'sleep {mark} & exec sleep {mark}' </dev/null >/dev/null 2>&1 &);"
        f" trap '' TERM; sleep {mark}; sleep {mark}",
        timeout_seconds=2.0,
    )
    assert done["timed_out"]
    assert done["exit_code"] != 0
    assert done["stdout"] == "begun\n"
    assert await shell.running(mark) == 0


@pytest.mark.whole  # ten seconds of a deadline
async def test_a_command_in_a_paused_container_ends_at_its_deadline(shell: Shell) -> None:
    mark = f"1000.{time.monotonic_ns() % 10**9:09d}"
    await shell.run("true")
    began = time.monotonic()
    with shell.paused(), pytest.raises(ToolFailed, match="it is paused, or it hangs"):
        await shell.run(f"sleep {mark}", timeout_seconds=1.0)
    assert time.monotonic() - began < 25
    assert await shell.running(mark) == 0


@pytest.mark.whole  # ten seconds of a deadline
async def test_a_paused_container_is_stopped_by_force(shell: Shell) -> None:
    await shell.run("true")
    with shell.paused(), pytest.raises(ToolFailed, match="it is paused, or it hangs"):
        await shell.run("true", timeout_seconds=0.5)
    with shell.paused(go_on=False):
        await shell.admin.call("container_stop", project_id=shell.project, force=True)
    assert (await shell.run("echo back"))["stdout"] == "back\n"


async def test_a_command_that_ends_leaves_what_it_put_aside_only_until_the_container_ends(
    shell: Shell,
) -> None:
    """As in a shell: what a command leaves running on purpose is not its own any more."""
    mark = f"1000.{time.monotonic_ns() % 10**9:09d}"
    done = await shell.run(f"setsid sleep {mark} </dev/null >/dev/null 2>&1 & echo left")
    assert (done["exit_code"], done["stdout"], done["timed_out"]) == (0, "left\n", False)
    await shell.admin.call("container_stop", project_id=shell.project, force=True)
    assert await shell.running(mark) == 0


async def test_what_is_too_much_is_cut_in_the_middle_and_said(shell: Shell) -> None:
    done = await shell.run("echo first; head -c 3000000 /dev/zero | tr '\\0' x; echo; echo last")
    assert done["truncated"]
    assert done["stdout"].startswith("first\n")
    assert done["stdout"].endswith("last\n")
    assert "bytes left out" in done["stdout"]
    assert len(done["stdout"]) < 400_000


async def test_a_flood_is_ended_at_its_deadline_too(shell: Shell) -> None:
    mark = f"flood{time.monotonic_ns()}"
    done = await shell.run(["yes", mark], timeout_seconds=2.0)
    assert done["timed_out"]
    assert done["truncated"]
    assert await shell.running(mark) == 0


async def test_what_cannot_be_run_is_named(shell: Shell) -> None:
    with pytest.raises(ToolFailed, match="no-such-program"):
        await shell.run(["no-such-program"])
    with pytest.raises(ToolFailed, match="/nowhere"):
        await shell.run("true", working_dir="/nowhere")
