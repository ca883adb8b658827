"""Every container runtime: how processes start, fail, are killed and end."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from oubliette.runtime.guest import CommandFailed, Exit, ProcessLimits
from tests.conformance.engines import SECONDS, Bench, Running

pytestmark = pytest.mark.anyio

FAMILY = """
import os, subprocess, sys, time
mark = sys.argv[1]
for _ in range(2):
    subprocess.Popen(["sleep", mark])
ready, tell = os.pipe()
if os.fork() == 0:
    os.setpgid(0, 0)
    subprocess.Popen(["sleep", mark])
    os.write(tell, b"x")
    time.sleep(1000)
os.read(ready, 1)
print("started", flush=True)
time.sleep(1000)
"""
"""A process with children, one of them in a process group of its own."""

COUNT = """
import os, sys
mark = sys.argv[1].encode()
found = 0
for pid in os.listdir("/proc"):
    if pid.isdigit() and int(pid) != os.getpid():
        try:
            line = open(f"/proc/{pid}/cmdline", "rb").read()
        except OSError:
            continue
        found += mark in line
print(found)
"""


def mark() -> str:
    return f"1000.{secrets.randbelow(10**9):09}"


async def living(running: Running, marked: str) -> int:
    """How many processes with this in their command line live in the container."""
    return int((await running.python(COUNT, marked)).text) - 0


async def start_family(running: Running, **fields) -> tuple[str, str]:
    marked = mark()
    process = running.process(running.info.inside.python, "-I", "-c", FAMILY, marked, **fields)
    async with asyncio.timeout(SECONDS):
        await running.link.start(process)
        async with await running.link.attach(process.proc) as stream:
            async for item in stream:
                if getattr(item, "data", b"") == b"started\n":
                    return process.proc, marked
    raise AssertionError("the family ended before it was started")


@pytest.mark.parametrize("code", [0, 1, 7, 255])
async def test_exit_codes_are_told_as_they_are(bench: Bench, code: int) -> None:
    running = await bench.start()
    assert (await running.run("sh", "-c", f"exit {code}")).exit == Exit(code=code)


async def test_death_by_a_signal_is_told_apart_from_an_exit_code(bench: Bench) -> None:
    running = await bench.start()
    result = await running.run("sh", "-c", "kill -TERM $$")
    assert result.exit == Exit(signal=15)
    assert result.exit.status == 143


async def test_a_missing_program_is_named(bench: Bench) -> None:
    running = await bench.start()
    with pytest.raises(CommandFailed, match="no-such-program-here") as caught:
        await running.run("no-such-program-here")
    assert caught.value.kind == "not_found"


async def test_a_missing_folder_is_named(bench: Bench) -> None:
    running = await bench.start()
    with pytest.raises(CommandFailed, match="/workspace/nowhere|nowhere") as caught:
        await running.run("true", cwd="/workspace/nowhere")
    assert caught.value.kind == "bad_cwd"


async def test_a_broken_request_names_its_field(bench: Bench) -> None:
    running = await bench.start()
    with pytest.raises(CommandFailed, match="argv") as caught:
        await running.link.request("start", {"proc": "p", "argv": "sh", "env": {}, "cwd": "/"})
    assert caught.value.kind == "invalid"


async def test_an_unknown_verb_is_answered(bench: Bench) -> None:
    running = await bench.start()
    with pytest.raises(CommandFailed) as caught:
        await running.link.request("dance", {})
    assert caught.value.kind == "unknown_verb"


async def test_starting_the_same_id_again_is_the_same_process(bench: Bench) -> None:
    running = await bench.start()
    process = running.process("cat")
    first = await running.link.start(process)
    assert await running.link.start(process) == first
    stats = await running.link.stats()
    assert stats["procs"] == 1


async def test_a_kill_ends_the_whole_family(bench: Bench) -> None:
    running = await bench.start()
    proc, marked = await start_family(running)
    assert await living(running, marked) >= 4
    assert await running.link.signal(proc, "KILL", tree=True)
    await running.event("exited", proc)
    assert await living(running, marked) == 0
    assert not await running.link.signal(proc, "TERM")


async def test_a_deadline_ends_the_whole_family(bench: Bench) -> None:
    running = await bench.start()
    # Long enough for three programs to start on a busy machine.
    proc, marked = await start_family(running, deadline_seconds=2.0)
    event = await running.event("exited", proc)
    assert event.exit.signal is not None
    assert await living(running, marked) == 0


async def test_the_end_of_the_container_ends_all_that_ran_in_it(bench: Bench) -> None:
    import subprocess

    running = await bench.start()
    _, marked = await start_family(running)
    await bench.runtime.stop(running.spec.id, timeout=5)
    # Seen from this side: nothing of it lives anywhere.
    found = subprocess.run(
        ["pgrep", "-f", "--", f"sleep {marked}"], capture_output=True, check=False
    )
    assert found.stdout == b""


async def test_a_container_that_will_not_end_is_killed_with_all_that_runs_in_it(
    bench: Bench,
) -> None:
    import subprocess

    running = await bench.start()
    proc, marked = await start_family(running)
    stubborn = running.process(
        "sh", "-c", f"trap '' TERM; echo ready; sleep {marked} & sleep {marked} & wait; wait"
    )
    await running.link.start(stubborn)
    async with asyncio.timeout(SECONDS):
        async with await running.link.attach(stubborn.proc) as stream:
            while not getattr(await stream.read(), "data", b"").startswith(b"ready"):
                pass
        info = await bench.runtime.stop(running.spec.id, timeout=0)
    assert info.exit_code in {137, None}
    found = subprocess.run(
        ["pgrep", "-f", "--", f"sleep {marked}"], capture_output=True, check=False
    )
    assert found.stdout == b""
    assert proc


async def test_names_with_newlines_and_other_oddities_survive(bench: Bench) -> None:
    running = await bench.start()
    name = "a\nb 'c' \"d\" $e *\t\x01é"
    made = await running.run("mkdir", name)
    assert made.exit == Exit(code=0)
    result = await running.run(
        "sh", "-c", 'pwd; : > "$1"; printf "%s" "$1"; printf "%s" "$ODD"', "sh", "x\ny",
        cwd=f"/workspace/{name}", env={**running.info.inside.env, "ODD": "line\nline"},
    )  # fmt: skip
    assert result.text == running.info.inside.path(f"/workspace/{name}") + "\nx\nyline\nline"
    assert (running.spec.mounts[0].source / name / "x\ny").exists()


async def test_twenty_processes_run_at_once_without_mixing_their_streams(bench: Bench) -> None:
    running = await bench.start()

    async def one(number: int) -> bool:
        said = f"{number}:".encode() * 20_000
        return (await running.run("cat", stdin=said)).out == said

    async with asyncio.timeout(SECONDS * 2):
        assert all(await asyncio.gather(*(one(number) for number in range(20))))


async def test_limits_reach_the_process(bench: Bench) -> None:
    running = await bench.start()
    limits = ProcessLimits(nofile=77, core=0, cpu_seconds=100)
    result = await running.run("sh", "-c", "ulimit -n; ulimit -c; ulimit -t", limits=limits)
    assert result.text.split() == ["77", "0", "100"]


async def test_a_process_gets_the_environment_that_it_was_given_and_no_other(
    bench: Bench,
) -> None:
    running = await bench.start()
    env = {**running.info.inside.env, "GIVEN": "yes"}
    result = await running.python(
        "import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))", env=env
    )
    # The host adds the one variable by which it knows its own again.
    assert result.text.strip() == repr(sorted({*env, "OUBLIETTE_PROC"}))


async def test_the_client_is_on_the_path_and_the_interpreter_runs_the_zipapp(bench: Bench) -> None:
    running = await bench.start()
    result = await running.run(
        "sh", "-c", "command -v oubliette-client && command -v oubliette-relay"
    )
    assert result.exit == Exit(code=0)
    assert len(result.text.split()) == 2
    inside = running.info.inside
    help_ = await running.run(inside.python, inside.zipapp, "no-such-command")
    assert help_.exit != Exit(code=0)
    assert b"Traceback" not in help_.err


async def test_a_process_that_has_ended_can_be_forgotten_and_one_that_runs_cannot(
    bench: Bench,
) -> None:
    running = await bench.start()
    process = running.process("cat")
    await running.link.start(process)
    with pytest.raises(CommandFailed):
        await running.link.forget(process.proc)
    await running.link.signal(process.proc, "KILL")
    await running.event("exited", process.proc)
    await running.link.forget(process.proc)
    newer = await bench.connect(running.spec, running.info, running.key, epoch=2)
    assert newer.link.hello.process(process.proc) is None


async def test_the_end_of_a_process_is_remembered_until_it_is_forgotten(bench: Bench) -> None:
    running = await bench.start()
    process = running.process("sh", "-c", "echo out; exit 5")
    await running.link.start(process)
    await running.event("exited", process.proc)
    await running.link.aclose()
    newer = await bench.connect(running.spec, running.info, running.key, epoch=2)
    known = newer.link.hello.process(process.proc)
    assert known is not None
    assert (known.state, known.exit, known.out) == ("exited", Exit(code=5), (0, 4))
