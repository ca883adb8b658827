"""Processes are named so that a reused pid is never taken for them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import msgspec
import pytest

from oubliette.runtime.containers.base import LABEL_CONTAINER, LABEL_INSTANCE
from oubliette.runtime.containers.process import adoption, procfs

pytestmark = pytest.mark.anyio


@pytest.fixture
def sleeper():
    child = subprocess.Popen(["sleep", "1000", "--", "--label"][:2])
    try:
        yield child
    finally:
        child.kill()
        child.wait()


async def test_a_process_that_ended_is_seen_as_ended_before_and_after_it_is_reaped(sleeper) -> None:
    process = procfs.identify(sleeper.pid)
    assert process is not None
    assert procfs.is_alive(process)
    waiting = asyncio.create_task(procfs.ended(process))
    await asyncio.sleep(0)
    assert not waiting.done()
    sleeper.kill()
    async with asyncio.timeout(5):
        await waiting
        await procfs.ended(process)
        sleeper.wait()
        await procfs.ended(process)
    assert not procfs.is_alive(process)
    assert not procfs.send_signal(process, signal.SIGTERM)


@pytest.mark.parametrize("change", [{"start_time": 1}, {"boot": "another-boot"}])
async def test_another_process_with_the_same_pid_is_neither_waited_for_nor_killed(
    sleeper, change: dict
) -> None:
    """A pid is given to another process sooner or later; the start time tells them apart."""
    real = procfs.identify(sleeper.pid)
    assert real is not None
    stale = msgspec.structs.replace(real, **change)
    assert not procfs.is_alive(stale)
    assert not procfs.send_signal(stale, signal.SIGKILL)
    async with asyncio.timeout(5):
        await procfs.ended(stale)
    assert sleeper.poll() is None


async def test_a_name_with_parentheses_and_newlines_does_not_confuse(tmp_path) -> None:
    odd = tmp_path / "a) Z (b\n1 2"
    odd.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(odd), "1000"])
    try:
        process = procfs.identify(child.pid)
        assert process is not None
        assert process.start_time > 0
        assert procfs.parent_and_session(child.pid) == (os.getpid(), os.getsid(0))
        assert child.pid in procfs.children(os.getpid())
    finally:
        child.kill()
        child.wait()
    assert procfs.identify(child.pid) is None


async def test_process_without_a_process_has_no_properties() -> None:
    gone = 2**22 - 1
    assert procfs.identify(gone) is None
    assert procfs.status(gone) is None
    assert procfs.command_line(gone) == []
    assert procfs.environment(gone) == {}
    assert procfs.parent_and_session(gone) is None


async def test_own_properties_are_what_they_are() -> None:
    status = procfs.status(os.getpid())
    assert status is not None
    assert status.uid == os.getuid()
    assert status.ns_pids[-1] == os.getpid() or len(status.ns_pids) > 1
    assert procfs.command_line(os.getpid())[0]
    assert os.getpid() in procfs.pids()


@pytest.mark.parametrize(
    ("arguments", "labels"),
    [
        ([], {}),
        (["--label"], {}),
        (["x", "--label", "a=b", "--label", "c=d=e"], {"a": "b", "c": "d=e"}),
        (["--label", "a=1", "--label", "a=2"], {"a": "2"}),
        (["--label", "plain"], {"plain": ""}),
    ],
)
async def test_labels_are_read_from_a_command_line(arguments: list, labels: dict) -> None:
    assert procfs.labels_of(arguments) == labels


async def test_a_wait_that_is_given_up_leaves_no_reader_behind(sleeper) -> None:
    process = procfs.identify(sleeper.pid)
    assert process is not None
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        waiting = asyncio.create_task(procfs.ended(process))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("backwards", [False, True])
def test_what_a_host_has_just_forked_is_not_taken_for_the_host(
    monkeypatch, backwards: bool
) -> None:
    """It shows the host's command line until it runs its own program; pids go round."""
    instance, container = f"inst_{os.getpid()}", "ctr_fork"
    arguments = [
        "--label",
        f"{LABEL_INSTANCE}={instance}",
        "--label",
        f"{LABEL_CONTAINER}={container}",
    ]
    forks = "import os, sys; os.fork() and print('forked', flush=True); sys.stdin.read()"
    host = subprocess.Popen(
        [sys.executable, "-c", forks, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert host.stdout is not None
        assert host.stdout.readline() == b"forked\n"
        forked = procfs.children(host.pid)
        assert len(forked) == 1
        pids = sorted([host.pid, *forked], reverse=backwards)
        monkeypatch.setattr(procfs, "pids", lambda: pids)
        found = adoption.find_living(instance, sandboxed=False)
        assert {name: living.process.pid for name, living in found.items()} == {container: host.pid}
    finally:
        host.communicate()
