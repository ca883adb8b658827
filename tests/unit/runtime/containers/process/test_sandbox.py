"""How a spec becomes a sandbox: the probe, the command line, what is refused, what is kept."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from oubliette.errors import DeadlineExceeded, InvalidParameter, RuntimeFailure
from oubliette.runtime.containers import (
    ContainerSpec,
    Inside,
    Mount,
    ProcessRuntime,
    guest_bundle,
    host_paths,
)
from oubliette.runtime.containers.base import LABEL_CONTAINER, LABEL_INSTANCE
from oubliette.runtime.containers.host_paths import make_owned, new_runtime_dir, runtime_base
from oubliette.runtime.containers.layout import NOBODY
from oubliette.runtime.containers.process import (
    adoption,
    bubblewrap,
    procfs,
    sandbox_probe,
    state_file,
)
from oubliette.runtime.containers.process.sandbox_plan import SandboxPlan
from oubliette.runtime.guest import Exit
from oubliette.runtime.zipapp import zipapp_path
from tests.conformance.engines import ENGINES, Bench, zipapp_cache

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.sandboxless

SANDBOX = bubblewrap.Sandbox(
    bwrap="bwrap",
    root=True,
    python_prefix=None,
    zipapp=Path("/x/oubliette.pyz"),
    wrappers=Path("/x/bin"),
)


def spec_in(base: Path, **fields) -> ContainerSpec:
    labels = {LABEL_INSTANCE: "i", LABEL_CONTAINER: "c"}
    fields.setdefault("runtime_dir", new_runtime_dir(base))
    return ContainerSpec(id="c", labels=labels, **fields)


def following(argv: list[str], option: str) -> list[str]:
    return [argv[at + 1] for at, word in enumerate(argv) if word == option]


# ---------------------------------------------------------------- the command line


def test_root_keeps_four_capabilities_and_no_user_namespace() -> None:
    argv = bubblewrap.arguments(SANDBOX, command=["true"])
    assert following(argv, "--cap-add") == [*"CAP_SETUID CAP_SETGID CAP_KILL CAP_SETPCAP".split()]
    assert "--unshare-user" not in argv


def test_an_ordinary_user_gets_a_user_namespace_and_no_capability() -> None:
    argv = bubblewrap.arguments(msgspec.structs.replace(SANDBOX, root=False), command=["true"])
    assert "--unshare-user" in argv
    assert "--cap-add" not in argv
    assert following(argv, "--cap-drop") == ["ALL"]


def test_a_sandbox_outlives_its_server_and_dies_with_its_host() -> None:
    argv = bubblewrap.arguments(SANDBOX, command=["true"])
    assert "--die-with-parent" not in argv
    assert {"--as-pid-1", "--unshare-pid", "--unshare-ipc", "--new-session"} <= set(argv)


def test_no_variable_stands_on_the_command_line() -> None:
    argv = bubblewrap.arguments(SANDBOX, command=["true"])
    assert "--setenv" not in argv


def test_nothing_of_root_home_or_var_is_bound() -> None:
    argv = bubblewrap.arguments(SANDBOX, command=["true"])
    sources = [
        Path(s) for o in ("--bind", "--ro-bind", "--ro-bind-try") for s in following(argv, o)
    ]
    for source in sources:
        assert not source.is_relative_to("/root")
        assert not source.is_relative_to("/home")
        assert not source.is_relative_to("/var")
        assert source not in {Path("/"), Path("/etc"), Path("/etc/ssl"), Path("/etc/ssl/private")}


def test_a_mount_below_another_comes_after_it() -> None:
    mounts = [
        Mount(Path("/a/inner"), "/workspace/a/b"),
        Mount(Path("/a/data"), "/data", read_only=True),
        Mount(Path("/a/outer"), "/workspace"),
    ]
    argv = bubblewrap.arguments(SANDBOX, command=["true"], mounts=mounts)
    assert argv.index("/a/outer") < argv.index("/a/inner")
    assert argv[argv.index("/a/data") - 1] == "--ro-bind"
    assert argv[argv.index("/a/outer") - 1] == "--bind"
    # Folders below another mount belong to its source; nothing is made there with our modes.
    assert "/workspace/a" not in following(argv, "--dir")


@pytest.mark.parametrize(("network", "cut"), [("none", True), ("host", False)])
def test_the_network_is_cut_or_shared(network: str, cut: bool) -> None:
    argv = bubblewrap.arguments(SANDBOX, command=["true"], network=network)
    assert ("--unshare-net" in argv) is cut


def test_the_command_comes_last_and_untouched() -> None:
    command = ["python3", "--", "--bind", "a\nb"]
    argv = bubblewrap.arguments(SANDBOX, command=command)
    assert argv[-5:] == ["--", *command]


def test_users_of_the_machine_are_not_listed_inside() -> None:
    text = bubblewrap.passwd(1234).decode()
    assert [line.split(":")[0] for line in text.splitlines()] == ["root", "nobody", "agent"]
    assert "agent" not in bubblewrap.passwd(65534).decode().split(":")[0:1]
    assert bubblewrap.group(1234).endswith(b"agent:x:1234:\n")


# ---------------------------------------------------------------- the plan


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"network": "bridge"}, "network"),
        ({"network": "none"}, "network"),
        ({"uid": 0}, "uid"),
        ({"mounts": (Mount(Path("/nowhere/at/all"), "/x"),)}, "mounts"),
        ({"mounts": (Mount(Path("relative"), "/x"),)}, "mounts"),
        ({"mounts": (Mount(Path("/usr"), "/"),)}, "mounts"),
        ({"mounts": (Mount(Path("/usr"), "x"),)}, "mounts"),
        ({"mounts": (Mount(Path("/usr"), "/x/../y"),)}, "mounts"),
        ({"mounts": (Mount(Path("/usr"), "/x/"),)}, "mounts"),
        ({"runtime_dir": Path("/tmp/elsewhere")}, "runtime_dir"),
    ],
)
def test_a_plan_refuses_by_field(short: Path, fields: dict, field: str) -> None:
    fields.setdefault("network", "host")
    plan = SandboxPlan(spec=spec_in(short, **fields), sandboxed=True, root=False)
    with pytest.raises(InvalidParameter) as caught:
        plan.check(short, network_none=False)
    assert caught.value.field == field


def test_without_a_sandbox_root_refuses_folders_that_its_agents_cannot_reach(short: Path) -> None:
    (short / "home").mkdir(mode=0o700)
    (short / "home" / "project").mkdir()
    short.chmod(0o755)
    mounts = (Mount(short / "home" / "project", "/workspace"),)
    spec = spec_in(short, network="host", uid=os.geteuid() + 1, mounts=mounts)
    plan = SandboxPlan(spec=spec, sandboxed=False, root=True)
    with pytest.raises(InvalidParameter, match="chmod o\\+x") as caught:
        plan.check(short, network_none=False)
    assert str(short / "home") in str(caught.value)
    SandboxPlan(spec=spec, sandboxed=True, root=True).check(short, network_none=False)


@pytest.mark.requires("root")
@pytest.mark.anyio
@pytest.mark.parametrize("closed", ["above", "beside"])
async def test_without_a_sandbox_root_hears_at_the_start_of_a_way_that_its_agents_cannot_pass(
    short: Path, closed: str
) -> None:
    """Not from the first session: nothing that it runs could work."""
    short.chmod(0o755)
    for name in ("above", "beside"):
        (short / name).mkdir(mode=0o755)
    (short / closed).chmod(0o700)
    home = short / "above" / "home"
    home.mkdir(mode=0o700)
    base = runtime_base(short / "beside")
    runtime = ProcessRuntime(base, zipapp_path(zipapp_cache()), sandbox="best-effort", home=home)
    status = await runtime.ping()
    assert not status.ok
    assert f"may not pass {short / closed} to reach" in str(status.reason)
    assert f"chmod o+x {short / closed}" in str(status.remedy)
    (short / closed).chmod(0o711)
    assert (await runtime.ping()).ok


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has agents of another user")
@pytest.mark.anyio
async def test_without_a_sandbox_root_opens_its_own_home_for_its_agents_and_no_more() -> None:
    """Nothing can be mounted there, and `make demo` has to work in any container."""
    bench = Bench(ENGINES[1])
    try:
        home = bench.folder / "home"
        (home / "projects").mkdir(parents=True)
        (home / "homes").mkdir()
        for closed in (home, home / "projects", home / "homes"):
            closed.chmod(0o700)
        (home / "database").write_text("secret", encoding="utf-8")
        (home / "database").chmod(0o600)
        project = make_owned(home / "projects", "p", uid=bench.agent_uid)
        bench.runtime._home = home  # type: ignore[attr-defined]
        running = await bench.start(mounts=(Mount(project, "/workspace"),))
        result = await running.run(
            "sh", "-c", f"echo ok > file; ls {home}; cat {home}/database; pwd"
        )
        assert result.text.splitlines() == [str(project)]
        assert (project / "file").exists()
        assert stat.S_IMODE((home / "homes").stat().st_mode) == 0o700
        # A server closes its home when it starts; adopting opens the way again.
        home.chmod(0o700)
        other = Bench(ENGINES[1], bench.folder)
        other.runtime._home = home  # type: ignore[attr-defined]
        await other.runtime.adopt(bench.instance)
        assert (await running.run("ls", str(project / "file"))).exit == Exit(code=0)
        await other.aclose()
    finally:
        await bench.aclose()


def test_root_never_runs_agents_as_itself(short: Path) -> None:
    spec = spec_in(short)
    assert SandboxPlan(spec=spec, sandboxed=True, root=True).agent_uid == NOBODY
    assert SandboxPlan(spec=spec, sandboxed=False, root=True).host_uid == NOBODY
    assert SandboxPlan(spec=spec, sandboxed=True, root=True).host_uid is None
    assert SandboxPlan(spec=spec, sandboxed=True, root=False).agent_uid is None


def test_paths_inside_are_found_where_nothing_is_mounted() -> None:
    inside = Inside(places={"/workspace": "/p/1", "/workspace/workspaces/x": "/q", "/mcp": "/r"})
    assert inside.path("/workspace") == "/p/1"
    assert inside.path("/workspace/a/../b") == "/p/1/b"
    assert inside.path("/workspace/workspaces/x/y") == "/q/y"
    assert inside.path("/workspace2") == "/workspace2"
    assert Inside().path("/workspace/a") == "/workspace/a"


# ---------------------------------------------------------------- the kit and the record


def test_the_kit_is_a_copy_by_content_that_everybody_may_read(short: Path) -> None:
    zipapp = short / "z"
    zipapp.write_bytes(b"one")
    zipapp.chmod(0o600)
    first = guest_bundle.install(short, zipapp, python="/usr/bin/python3", inside="/opt/x.pyz")
    assert (
        guest_bundle.install(short, zipapp, python="/usr/bin/python3", inside="/opt/x.pyz") == first
    )
    zipapp.write_bytes(b"two")
    second = guest_bundle.install(short, zipapp, python="/usr/bin/python3", inside="/opt/x.pyz")
    assert first.zipapp.read_bytes() == b"one"
    assert second.zipapp.read_bytes() == b"two"
    assert stat.S_IMODE(second.zipapp.stat().st_mode) == 0o644
    assert os.access(second.wrappers / "oubliette-client", os.X_OK)
    plain = guest_bundle.install(short, zipapp, python="/a b/python3", inside=None)
    text = (plain.wrappers / "oubliette-relay").read_text(encoding="utf-8")
    assert text == f"#!/bin/sh\nexec '/a b/python3' -S {plain.zipapp} relay \"$@\"\n"


def test_a_record_is_read_back_as_it_was_and_a_broken_one_is_left_alone(short: Path) -> None:
    spec = spec_in(short, mounts=(Mount(short, "/workspace"),), env={"A": "b"}, spool_dir=short)
    kept = state_file.StoredContainer(spec=spec, started_at=1.5)
    state_file.save(kept)
    (short / "ffffffff.json").write_text('{"of": "another release"}', encoding="utf-8")
    (short / "eeeeeeee.json").write_bytes(b"\xff")
    assert list(state_file.load_all(short)) == [kept]
    assert stat.S_IMODE(host_paths.beside(spec.runtime_dir, "json").stat().st_mode) == 0o600
    host_paths.forget_beside(spec.runtime_dir)
    assert list(state_file.load_all(short)) == []
    assert (short / "ffffffff.json").exists()


@pytest.mark.parametrize(
    ("content", "lines", "expected"),
    [
        (b"", 5, ("", False)),
        (b"a\nb\nc\n", 2, ("b\nc\n", True)),
        (b"a\nb\nc", 3, ("a\nb\nc", False)),
        (b"a\n", 0, ("", True)),
        (b"x" * 50 + b"\nend\n", 5, ("x" * 6 + "\nend\n", True)),
        (b"\xff\n", 5, ("\ufffd\n", False)),
    ],
)
def test_the_end_of_a_log_is_cut_by_lines_and_bytes(
    tmp_path: Path, content: bytes, lines: int, expected: tuple
) -> None:
    (tmp_path / "log").write_bytes(content)
    assert state_file.tail(tmp_path / "log", lines, limit=11) == expected
    assert state_file.tail(tmp_path / "none", lines) == ("", False)


# ---------------------------------------------------------------- the probe


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


async def ping(short: Path, bwrap: str | None = None, **options):
    runtime = ProcessRuntime(
        runtime_base(short), zipapp_path(zipapp_cache()), bwrap=bwrap, **options
    )
    return runtime, await runtime.ping()


@pytest.mark.anyio
async def test_without_bubblewrap_the_remedy_is_said(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(short))
    runtime, status = await ping(short)
    assert not status.ok
    assert "not installed" in str(status.reason)
    assert "apt install bubblewrap" in str(status.remedy)
    assert "best-effort" in str(status.remedy)
    with pytest.raises(RuntimeFailure, match="apt install"):
        await runtime.create(spec_in(runtime_base(short)))


@pytest.mark.anyio
async def test_forbidden_namespaces_are_told_apart_from_a_missing_program(short: Path) -> None:
    fake = program(
        short / "bwrap",
        'case "$1" in --version) echo bubblewrap 0.9.9;;'
        " --help) echo --as-pid-1 --perms --json-status-fd;;"
        " *) echo 'bwrap: No permissions to create new namespace' >&2; exit 1;; esac",
    )
    _, status = await ping(short, fake)
    assert not status.ok
    assert "No permissions" in str(status.reason)
    assert "namespaces are forbidden" in str(status.remedy)


@pytest.mark.anyio
async def test_an_old_bubblewrap_is_refused(short: Path) -> None:
    fake = program(short / "bwrap", 'test "$1" = --version && echo bubblewrap 0.4.0; exit 0')
    _, status = await ping(short, fake)
    assert (status.ok, status.version) == (False, "bubblewrap 0.4.0")
    assert "too old" in str(status.reason)


@pytest.mark.anyio
async def test_a_bubblewrap_that_hangs_is_given_up(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_probe, "PROBE_TIMEOUT", 0.1)
    code, text = sandbox_probe._run(["sleep", "1000"], timeout=0.05)
    assert code == 124
    assert "no answer" in text


@pytest.mark.anyio
async def test_a_probe_that_failed_is_tried_again(short: Path) -> None:
    fake = short / "bwrap"
    runtime, status = await ping(short, str(fake))
    assert not status.ok
    program(fake, "exit 3")
    assert "exit" in str((await runtime.ping()).reason) or not (await runtime.ping()).ok
    assert runtime.capabilities.network_none is False


@pytest.mark.requires("bubblewrap")
@pytest.mark.anyio
async def test_without_a_python_below_usr_the_servers_own_is_bound(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only root may pass to it: agents see empty folders on the way."""
    if Path(sys.base_prefix).is_relative_to("/usr"):
        pytest.skip("the tests run with the system's Python")
    monkeypatch.setattr(sandbox_probe, "_SYSTEM_PYTHONS", ())
    bench = Bench(ENGINES[0])
    bench.runtime._probe = None  # type: ignore[attr-defined] -- to probe anew
    try:
        running = await bench.start()
        result = await running.python("import sys; print(sys.prefix)")
        assert result.text.strip() == str(Path(sys.base_prefix))
        first = "/" + str(sys.base_prefix).split("/")[1]
        listed = await running.run("ls", "-A", first)
        assert len(listed.text.split()) == 1
    finally:
        await bench.aclose()


# ---------------------------------------------------------------- bwrap's own process


@pytest.mark.requires("bubblewrap")
@pytest.mark.anyio
async def test_a_killed_bwrap_takes_nothing_with_it_but_the_exit_code() -> None:
    bench = Bench(ENGINES[0])
    try:
        running = await bench.start()
        place = procfs.parent_and_session(running.info.handle["pid"])
        assert place is not None
        os.kill(place[0], signal.SIGKILL)
        assert (await running.run("echo", "alive")).text == "alive\n"
        other = Bench(ENGINES[0], bench.folder)
        (info,) = await other.runtime.adopt(bench.instance)
        assert info.state == "running"
        await other.aclose()
        async with asyncio.timeout(20):
            info = await bench.runtime.stop(running.spec.id)
        assert (info.state, info.exit_code) == ("exited", None)
    finally:
        await bench.aclose()


@pytest.mark.requires("bubblewrap")
@pytest.mark.anyio
async def test_the_exit_code_is_known_to_a_server_that_was_not_there() -> None:
    bench = Bench(ENGINES[0])
    try:
        running = await bench.start()
        other = Bench(ENGINES[0], bench.folder)
        await other.runtime.adopt(bench.instance)
        await running.link.drain()
        async with asyncio.timeout(20):
            info = await other.runtime.watch(running.spec.id)
        assert (info.state, info.exit_code) == ("exited", 0)
        await other.aclose()
    finally:
        await bench.aclose()


def test_empty_folders_of_servers_that_died_are_cleared_and_no_others(short: Path) -> None:
    empty, used = new_runtime_dir(short), new_runtime_dir(short)
    (used / "relay.sock").touch()
    spec = spec_in(short)
    state_file.save(state_file.StoredContainer(spec=spec))
    (short / "kit-0123456789ab").mkdir()
    adoption.clear_empty(short)
    assert not empty.exists()
    assert used.exists()
    assert spec.runtime_dir.exists()
    assert (short / "kit-0123456789ab").exists()


# ---------------------------------------------------------------- starts that fail


@pytest.fixture(
    params=[pytest.param(0, marks=pytest.mark.requires("bubblewrap")), 1], ids=["bwrap", "plain"]
)
async def bench(request: pytest.FixtureRequest, anyio_backend: str) -> AsyncIterator[Bench]:
    made = Bench(ENGINES[request.param])
    try:
        yield made
    finally:
        await made.aclose()


@pytest.mark.anyio
async def test_a_host_that_ends_at_once_is_told_with_what_it_said(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        SandboxPlan,
        "command",
        lambda self, inside, fd: ["/bin/sh", "-c", "echo why it failed >&2; exit 3"],
    )
    spec = bench.spec()
    bench.made.append(spec.id)
    await bench.runtime.create(spec)
    with pytest.raises(RuntimeFailure, match="why it failed"):
        await bench.runtime.start(spec.id, key=b"k" * 32)
    assert not (spec.runtime_dir / "key").exists()
    assert (await bench.runtime.inspect(spec.id)).state == "created"
    monkeypatch.undo()
    assert (await bench.runtime.start(spec.id, key=b"k" * 32)).state == "running"


@pytest.mark.anyio
async def test_a_host_that_is_never_ready_is_killed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"1000.{secrets.randbelow(1 << 40):013d}"  # tests beside this one sleep too
    monkeypatch.setattr(SandboxPlan, "command", lambda self, inside, fd: ["sleep", mark])
    spec = bench.spec()
    bench.made.append(spec.id)
    await bench.runtime.create(spec)
    with pytest.raises(DeadlineExceeded, match=r"0\.1 s"):
        await bench.runtime.start(spec.id, key=b"k" * 32, timeout=0.1)
    command = ["pgrep", "-f", mark.replace(".", "[.]")]
    found = subprocess.run(command, capture_output=True, check=False)
    assert found.stdout == b""


@pytest.mark.anyio
async def test_a_start_that_cannot_be_written_down_is_undone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = bench.spec()
    bench.made.append(spec.id)
    await bench.runtime.create(spec)

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(state_file, "save", full)
    with pytest.raises(RuntimeFailure, match="No space left"):
        await bench.runtime.start(spec.id, key=b"k" * 32)
    found = subprocess.run(["pgrep", "-f", "--", spec.id], capture_output=True, check=False)
    assert found.stdout == b""
    assert (await bench.runtime.inspect(spec.id)).state == "exited"
    monkeypatch.undo()
    assert (await bench.runtime.start(spec.id, key=b"k" * 32)).state == "running"


@pytest.mark.anyio
async def test_without_a_descriptor_left_a_start_fails_and_leaves_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = bench.spec()
    bench.made.append(spec.id)
    await bench.runtime.create(spec)

    def none_left(_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(procfs, "open_process", none_left)
    with pytest.raises(RuntimeFailure, match="Too many open files"):
        await bench.runtime.start(spec.id, key=b"k" * 32)
    found = subprocess.run(["pgrep", "-f", "--", spec.id], capture_output=True, check=False)
    assert found.stdout == b""
    monkeypatch.undo()
    assert (await bench.runtime.start(spec.id, key=b"k" * 32)).state == "running"


@pytest.mark.anyio
async def test_a_program_that_is_not_there_is_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SandboxPlan, "command", lambda self, inside, fd: ["/no/such/python"])
    spec = bench.spec()
    bench.made.append(spec.id)
    await bench.runtime.create(spec)
    with pytest.raises(RuntimeFailure, match="/no/such/python"):
        await bench.runtime.start(spec.id, key=b"k" * 32)
