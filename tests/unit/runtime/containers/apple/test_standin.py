"""The stand-in for Apple's `container` takes what the real one takes, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.conformance.apple_standin import grammar, shapes

STANDIN = Path(grammar.__file__).parent / "container"


def refused(*argv: str) -> str:
    with pytest.raises(grammar.UsageError) as caught:
        grammar.parse(list(argv))
    return str(caught.value)


def run(tmp_path: Path, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "APPLE_STANDIN_STATE": str(tmp_path), **variables}
    return subprocess.run(
        [STANDIN, *argv], capture_output=True, text=True, timeout=30, check=False, env=env
    )


@pytest.mark.parametrize(
    "argv",
    [
        ["dance"],
        ["images", "list"],
        ["image"],
        ["image", "dance"],
        [],
        ["create"],
        ["exec", "c1"],
        ["create", "--no-such-option", "image"],
        ["create", "--name"],
        ["create", "--name", "--init", "image"],
        ["create", "-v/x:/y", "image"],
        ["create", "-ex", "image"],
        ["create", "--cpus", "0.5", "image"],
        ["create", "--cpus", "two", "image"],
        ["create", "--init=yes", "image"],
        ["create", "--name", "a", "--name", "b", "image"],
        ["create", "--", "image"],
        ["exec", "--", "c1", "true"],
        ["create", "--progress", "none", "image"],
        ["create", "--security-opt", "no-new-privileges", "image"],
        ["create", "--pids-limit", "5", "image"],
        ["create", "--restart", "no", "image"],
        ["inspect", "--format", "json", "c1"],
        ["inspect"],
        ["list", "--format", "xml"],
        ["list", "c1"],
        ["logs", "c1", "c2"],
        ["logs", "-n", "many", "c1"],
        ["stop", "--time", "1.5", "c1"],
        ["image", "pull", "--progress", "tty", "x"],
        ["start", "c1", "extra"],
    ],
)
def test_what_the_original_does_not_take_is_refused(argv: list[str]) -> None:
    assert refused(*argv)


@pytest.mark.parametrize(
    ("argv", "name", "options", "words"),
    [
        (["ls", "-aq"], "list", {"all": True, "quiet": True}, []),
        (["exec", "c1", "-i", "cat"], "exec", {}, ["c1", "-i", "cat"]),
        (["exec", "-i", "c1", "sh", "--", "-c"], "exec", {"interactive": True}, ["c1", "sh", "--", "-c"]),
        (["create", "--name=-x", "i"], "create", {"name": "-x"}, ["i"]),
        (["create", "-e=A=1", "-e", "B=2", "i", "-e"], "create", {"env": ["A=1", "B=2"]}, ["i", "-e"]),
        (["i", "rm", "-f", "x"], "image delete", {"force": True}, ["x"]),
        (["stop", "c1", "-t", "3"], "stop", {"time": 3}, ["c1"]),
        (["s", "status", "--format", "json"], "system status", {"format": "json"}, []),
    ],
)  # fmt: skip
def test_what_the_original_takes_is_read_as_the_original_does(
    argv: list[str], name: str, options: dict, words: list[str]
) -> None:
    assert grammar.parse(argv) == (name, options, words)


def test_a_command_line_that_cannot_be_read_is_64_and_what_cannot_be_done_is_1(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    unread = run(tmp_path, "create", "--cpus", "0.5", "image", APPLE_STANDIN_LOG=str(log))
    assert (unread.returncode, unread.stdout) == (64, "")
    assert unread.stderr.startswith("Error: ")
    undone = run(tmp_path, "start", "x", APPLE_STANDIN_STOPPED="1", APPLE_STANDIN_LOG=str(log))
    assert undone.returncode == 1
    assert "XPC connection error" in undone.stderr
    assert "`container system start`" in undone.stderr
    said = [json.loads(line) for line in log.read_text().splitlines()]
    assert said == [["create", "--cpus", "0.5", "image"], ["start", "x"]]


def test_services_are_started_only_by_who_answers_the_question_beforehand(tmp_path: Path) -> None:
    assert run(tmp_path, "system", "stop").returncode == 0
    status = run(tmp_path, "system", "status", "--format", "json")
    assert (status.returncode, json.loads(status.stdout)["status"]) == (1, "unregistered")
    assert run(tmp_path, "system", "start").returncode == 1
    assert run(tmp_path, "system", "start", "--enable-kernel-install").returncode == 0
    status = run(tmp_path, "system", "status", "--format", "json")
    assert (status.returncode, json.loads(status.stdout)["status"]) == (0, "running")
    (program, services) = json.loads(run(tmp_path, "system", "version", "--format", "json").stdout)
    assert program["version"] == "1.2.2"
    assert "1.2.2" in services["version"]


@pytest.mark.parametrize("name", ["a", "-ab", ".ab", "a b", "a/b", "x" * 64, ""])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(shapes.CannotError):
        shapes.check_name(name)


def test_mounts_and_sockets_are_checked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    good = f"type=bind,source={tmp_path},target=/x,readonly"
    assert shapes.mount(good) == {
        "type": "bind", "source": str(tmp_path), "target": "/x", "ro": True,
    }  # fmt: skip
    assert shapes.volume(f"{tmp_path}/file:/x:ro")["ro"]
    assert shapes.mount("type=tmpfs,target=/x,size=2M,mode=1777")["size"] == 2 << 20
    for bad in (
        f"type=bind,source={tmp_path}/file,target=/x",
        f"type=bind,source={tmp_path}/none,target=/x",
        "type=tmpfs,source=/tmp,target=/x",
        "type=tmpfs,target=/x,size=half",
        "type=dance,target=/x",
        f"type=bind,source={tmp_path},target=/x,nosuid",
        f"type=bind,source={tmp_path}",
    ):
        with pytest.raises(shapes.CannotError):
            shapes.mount(bad)
    for bad in (f"{tmp_path}/none:/x", f"{tmp_path}:/x:ro:z", f"{tmp_path}:/x:nosuid", "/x"):
        with pytest.raises(shapes.CannotError):
            shapes.volume(bad)
    assert shapes.published(f"{tmp_path}/new/a.sock:/b.sock")["containerPath"] == "/b.sock"
    assert (tmp_path / "new").is_dir()
    shapes.published(f"{tmp_path}/file:/b.sock")
    assert not (tmp_path / "file").exists()
    for bad in ("/a", "/a:/b:/c", f"/{'x' * 120}:/b", "a:/b"):
        with pytest.raises(shapes.CannotError):
            shapes.published(bad)
