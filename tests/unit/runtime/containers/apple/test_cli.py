"""Calls of Apple's program: deadlines, bounds, errors; played by a few lines of shell."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from oubliette.errors import DeadlineExceeded
from oubliette.runtime.containers.apple import cli as apple_cli
from oubliette.runtime.containers.apple.cli import AppleCli
from oubliette.runtime.containers.apple.runtime import AppleRuntime
from oubliette.runtime.containers.engine_errors import EngineMissing, EngineNotFound, EngineRefused

pytestmark = pytest.mark.anyio


def program(tmp_path: Path, text: str) -> AppleCli:
    path = tmp_path / "container"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return AppleCli(str(path))


def lives(pid: str) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def test_a_call_gives_its_output(tmp_path: Path) -> None:
    cli = program(tmp_path, 'printf "%s\\n" "$@"')
    assert await cli.call("look", ["inspect", "a b"]) == b"inspect\na b\n"


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_call_that_takes_too_long_is_ended(
    tmp_path: Path, stubborn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apple_cli, "END_SECONDS", 0.3)
    trap = "trap '' TERM" if stubborn else ":"
    cli = program(
        tmp_path, f"{trap}\necho $$ > {tmp_path}/pid\nwhile :; do read x < {tmp_path}/never; done"
    )
    os.mkfifo(tmp_path / "never")
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match="no answer within"):
        await cli.call("look", ["inspect", "x"], timeout=0.5)
    assert time.monotonic() - began < 20
    assert not lives((tmp_path / "pid").read_text().strip())


async def test_a_call_that_is_given_up_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    os.mkfifo(tmp_path / "begun")
    cli = program(
        tmp_path, f"echo > {tmp_path}/begun\nread x < {tmp_path}/go\necho done > {tmp_path}/done"
    )
    task = asyncio.create_task(cli.call("start", ["start", "x"]))
    await asyncio.to_thread((tmp_path / "begun").read_text)
    task.cancel()
    await asyncio.to_thread((tmp_path / "go").write_text, "go\n")
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(20):
            await task
    assert (tmp_path / "done").exists()


async def test_the_last_of_endless_output_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apple_cli, "OUTPUT_BYTES", 1000)
    cli = program(tmp_path, "head -c 3000000 /dev/zero; echo the end")
    out = await cli.call("read the logs", ["logs", "x"])
    assert len(out) == 1000
    assert out.endswith(b"the end\n")


@pytest.mark.parametrize(
    ("code", "said", "kind", "text"),
    [
        (1, 'Error: notFound: "container not found: x"', EngineNotFound, "container not found"),
        (1, "Error: no such container: x", EngineNotFound, "no such container"),
        (1, "Error: interrupted: XPC connection error: Connection invalid\nEnsure container system service has been started with container system start.", EngineMissing, "do not run"),
        (64, "Error: Unknown option '--shm-size'\nUsage: container create", EngineRefused, "--shm-size"),
        (1, "Error: something else", EngineRefused, "something else"),
        (3, "", EngineRefused, "exit code 3"),
    ],
)  # fmt: skip
async def test_errors_say_what_they_mean(
    tmp_path: Path, code: int, said: str, kind: type, text: str
) -> None:
    cli = program(tmp_path, f"cat >&2 <<'END'\n{said}\nEND\nexit {code}")
    with pytest.raises(kind, match=text) as caught:
        await cli.call("try it", ["start", "x"])
    assert type(caught.value) is kind
    if code == 64 or kind is EngineMissing:
        assert caught.value.hint


async def test_a_program_that_is_not_there_is_named_with_where_to_get_it(tmp_path: Path) -> None:
    status = await AppleRuntime(tmp_path, tmp_path, path=str(tmp_path / "none")).ping()
    assert not status.ok
    assert str(tmp_path / "none") in (status.reason or "")
    assert "github.com/apple/container" in (status.remedy or "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('[ "$1" = --version ] && echo "container CLI version 0.4.1 (build: release)" || exit 64', "0.4.1 is too old"),
        ("echo something else entirely", "does not say its version"),
        ("exit 64", "does not say its version"),
        ("""case $2 in version) echo '[{"version":"0.12.3"}]';; esac""", "0.12.3 is too old"),
        ("""case $2 in version) echo '[{"version":"1.0.0"}]';; *) echo '{"status":"unregistered"}'; exit 1;; esac""", "unregistered"),
    ],
)  # fmt: skip
async def test_a_release_that_cannot_be_used_is_refused_with_a_sentence(
    tmp_path: Path, text: str, reason: str
) -> None:
    program(tmp_path, text)
    status = await AppleRuntime(tmp_path, tmp_path, path=str(tmp_path / "container")).ping()
    assert not status.ok
    assert reason in (status.reason or "")
    assert status.remedy


async def test_a_release_of_today_and_tomorrow_is_taken(tmp_path: Path) -> None:
    for version in ("1.0.0", "1.10.2", "2.0", "10.1.0"):
        program(
            tmp_path,
            f"""case $2 in version) echo '[{{"version":"{version}"}}]';; *) echo '{{"status":"running"}}';; esac""",
        )
        status = await AppleRuntime(tmp_path, tmp_path, path=str(tmp_path / "container")).ping()
        assert (status.ok, status.version) == (True, version)
