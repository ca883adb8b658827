"""Every container runtime that isolates: what an agent in it cannot see, reach or change.

The boundary is the container. Those that do not isolate must say so instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import platform
import shlex
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from oubliette.errors import InvalidParameter, RuntimeFailure
from oubliette.incontainer.io import linux
from oubliette.runtime.containers import Mount
from oubliette.runtime.containers.host_paths import make_owned
from oubliette.runtime.containers.process import syscall_filter
from oubliette.runtime.guest import CommandFailed
from tests.conformance.engines import SECONDS, Bench, Running

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.anyio

TRY = """
import json, os, sys
def outcome(act):
    try:
        return act()
    except OSError as error:
        return "refused: " + type(error).__name__
print(json.dumps(outcome(lambda: eval(sys.argv[1]))))
"""


async def attempt(running: Running, expression: str):
    """What `expression` gives inside, or `refused: <error>`."""
    result = await running.python(TRY, expression)
    assert result.exit is not None
    assert result.exit.code == 0, result.err
    return json.loads(result.out)


async def test_whoever_isolates_nothing_says_so_at_every_start(bench: Bench) -> None:
    running = await bench.start()
    assert running.info.isolation == bench.runtime.capabilities.isolation
    assert bool(running.info.warnings) == (running.info.isolation == "none")


async def test_agents_never_run_as_root(bench: Bench) -> None:
    running = await bench.start()
    uid = await attempt(running, "[os.getuid(), os.geteuid(), os.getgid(), os.getgroups()]")
    assert 0 not in uid[:3]
    if bench.agent_uid is not None:
        assert uid[:3] == [bench.agent_uid] * 3
        # Engines list the primary group among the others too; no other is there.
        assert set(uid[3]) <= {bench.agent_uid}


async def test_agents_have_no_privileges_and_can_get_none(bench: Bench) -> None:
    running = await bench.start()
    status = await attempt(running, "open('/proc/self/status').read()")
    rows = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert rows["NoNewPrivs"] == "1"
    empty = ["CapPrm", "CapEff", "CapAmb"]
    if bench.engine.name == "process":
        empty += ["CapInh", "CapBnd"]
    assert {name: int(rows[name], 16) for name in empty} == dict.fromkeys(empty, 0)


async def test_folders_of_the_server_and_of_others_cannot_be_seen(isolated: Bench) -> None:
    home = isolated.folder / "home"
    home.mkdir(mode=0o700)
    (home / "oubliette.db").write_text("secret", encoding="utf-8")
    other = isolated.project("other-project")
    (other / "file").write_text("secret", encoding="utf-8")
    running = await isolated.start()
    for path in (home, home / "oubliette.db", other, other / "file", isolated.base):
        assert await attempt(running, f"os.path.exists({str(path)!r})") is False
    assert await attempt(running, "os.listdir('/root')") in (
        [], "refused: FileNotFoundError", "refused: PermissionError",
    )  # fmt: skip
    assert await attempt(running, "open('/etc/shadow').read()") in (
        "refused: FileNotFoundError", "refused: PermissionError",
    )  # fmt: skip
    here = os.listdir("/home")
    seen = await attempt(running, "os.listdir('/home')")
    assert seen == ["agent"], here


async def test_only_its_own_relay_folder_is_there_and_no_key(isolated: Bench) -> None:
    running = await isolated.start()
    await isolated.start()
    found = await attempt(running, "os.listdir('/mcp')")
    assert found in ("refused: PermissionError", ["relay.sock"])
    assert await attempt(running, "open('/mcp/key').read()") == "refused: FileNotFoundError"
    assert await attempt(running, "os.path.exists('/mcp/relay.sock')") is True


async def test_system_files_and_the_zipapp_cannot_be_written(isolated: Bench) -> None:
    running = await isolated.start()
    zipapp = running.info.inside.zipapp
    for path in (
        zipapp,
        "/usr/bin/env",
        "/etc/passwd",
        "/usr/new",
        "/new",
        "/opt/new",
        "/mcp/../x",
    ):
        answer = await attempt(running, f"open({path!r}, 'ab').write(b'x')")
        assert answer in ("refused: OSError", "refused: PermissionError"), path
    assert await attempt(running, f"os.rename({zipapp!r}, '/tmp/z')") in (
        "refused: OSError", "refused: PermissionError",
    )  # fmt: skip


CERTIFICATES = "__import__('ssl').create_default_context().cert_store_stats()['x509_ca']"


async def test_agents_find_the_certificates_of_the_system(bench: Bench) -> None:
    """Without them no tool can verify https."""
    if not Path("/etc/ssl/certs/ca-certificates.crt").exists():
        pytest.skip("this machine has no certificates where Debian keeps them")
    running = await bench.start()
    bundle = "len(open('/etc/ssl/certs/ca-certificates.crt').read())"
    assert await attempt(running, bundle) > 0
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", f"print({CERTIFICATES})"],
        capture_output=True, text=True, check=True, timeout=SECONDS,
    )  # fmt: skip
    inside = await running.run("/usr/bin/python3", "-I", "-c", f"print({CERTIFICATES})")
    assert inside.text == done.stdout, inside.err


async def test_agents_pass_every_folder_that_leads_to_what_they_are_given(isolated: Bench) -> None:
    running = await isolated.start()
    source = """
import os
for top, folders, _ in os.walk("/"):
    below = [os.path.join(top, name) for name in folders]
    print(*(path for path in below if not os.access(path, os.X_OK)))
    if top.count("/") > 3:
        folders.clear()
    elif top == "/":
        folders[:] = set(folders) - {"proc", "sys", "dev", "usr", "var"}
"""
    result = await running.python(source)
    assert set(result.text.split()) <= {"/root", "/etc/ssl/private"}, result.err


async def test_node_starts_for_agents(bench: Bench) -> None:
    """It reads OpenSSL's configuration and gives up where it may not."""
    running = await bench.start()
    find = "__import__('shutil').which('node', path='/usr/local/bin:/usr/bin:/bin')"
    node = await attempt(running, find)
    if node is None:
        pytest.skip("there is no node in it")
    digest = "console.log(require('crypto').createHash('sha256').update('').digest('hex'))"
    done = await running.run(node, "-e", digest, cwd="/")
    assert done.text.startswith("e3b0c442"), done.err


async def test_without_a_network_there_is_only_the_loopback(isolated: Bench) -> None:
    running = await isolated.start(network="none")
    names = "[name for _, name in __import__('socket').if_nameindex()]"
    assert await attempt(running, names) == ["lo"]
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as outside:
        port = outside.getsockname()[1]
        connect = f"__import__('socket').create_connection(('127.0.0.1', {port}), 1).close()"
        assert await attempt(running, connect) == "refused: ConnectionRefusedError"


async def test_with_the_hosts_network_it_is_the_hosts(isolated: Bench) -> None:
    if not isolated.runtime.capabilities.network_host:
        with pytest.raises(InvalidParameter) as caught:
            await isolated.runtime.create(isolated.spec(network="host"))
        assert caught.value.field == "network"
        return
    running = await isolated.start(network="host")
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as outside:
        port = outside.getsockname()[1]
        connect = f"__import__('socket').create_connection(('127.0.0.1', {port}), 5).close()"
        assert await attempt(running, connect) is None


ABSTRACT = """
import os, socket, sys
def connected(kind, name):
    with socket.socket(socket.AF_UNIX, kind) as link:
        try:
            link.connect(name)
        except OSError as error:
            return type(error).__name__
        return "connected"
own = []
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    with socket.socket(socket.AF_UNIX, kind) as listener:
        name = f"\\0own-{os.getpid()}-{kind}"
        listener.bind(name)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        own.append(connected(kind, name))
        kinds = {"stream": socket.SOCK_STREAM, "datagram": socket.SOCK_DGRAM}
print(*own, *(connected(kinds[each], f"\\0{sys.argv[1]}-{each}") for each in sys.argv[2:]))
"""


async def test_abstract_sockets_of_the_machine_are_out_of_reach(isolated: Bench) -> None:
    """With the host's network too, where X11 and D-Bus listen at such addresses."""
    if not isolated.runtime.capabilities.network_host:
        pytest.skip("it has no network of the host")
    if linux.landlock_version() < linux.SCOPES:
        pytest.skip("the kernel's Landlock has no scopes")
    running = await isolated.start(network="host")
    name = f"oubliette-test-{os.getpid()}"
    with (
        socket.socket(socket.AF_UNIX) as stream,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        stream.bind(f"\0{name}-stream")
        stream.listen()
        datagrams.bind(f"\0{name}-datagram")
        result = await running.python(ABSTRACT, name, "stream", "datagram")
    assert result.text.split() == ["connected"] * 2 + ["PermissionError"] * 2, result.err


async def test_processes_of_the_machine_cannot_be_seen(isolated: Bench) -> None:
    running = await isolated.start()
    pids = await attempt(running, "[int(p) for p in os.listdir('/proc') if p.isdigit()]")
    # Its init, the host, this program and its reader, and a bridge for each of two links.
    assert len(pids) <= (4 if isolated.runtime.capabilities.sockets_cross else 6)
    assert 1 in pids
    assert await attempt(running, f"os.kill({os.getpid()}, 0)") == "refused: ProcessLookupError"


async def test_the_host_cannot_be_read_traced_or_killed_by_an_agent(isolated: Bench) -> None:
    running = await isolated.start()
    host = running.link.hello.pid
    for name in ("environ", "mem", "fd"):
        act = "os.listdir" if name == "fd" else "open"
        answer = await attempt(running, f"bool({act}('/proc/{host}/{name}'))")
        assert answer == "refused: PermissionError", name
    if running.info.inside.uid is not None:  # agents have another user than the host
        assert await attempt(running, f"os.kill({host}, 9)") == "refused: PermissionError"
    assert (await running.run("true")).exit is not None


async def test_every_container_has_a_tmp_of_its_own(isolated: Bench) -> None:
    first, second = await isolated.start(), await isolated.start()
    written = await first.run("sh", "-c", "echo here > /tmp/mark && ls /tmp")
    assert written.text == "mark\n"
    assert (await second.run("ls", "/tmp")).text == ""


async def test_programs_find_the_shared_memory_terminals_and_devices_that_they_need(
    bench: Bench,
) -> None:
    running = await bench.start()
    result = await running.python(
        "import multiprocessing, os, tempfile\n"
        "multiprocessing.Lock()\n"
        "os.openpty()\n"
        "tempfile.TemporaryFile()\n"
        "open('/dev/null', 'w').write('x')\n"
        "print(len(os.urandom(4)), open('/dev/zero', 'rb').read(2))"
    )
    assert result.text == "4 b'\\x00\\x00'\n", result.err


async def test_what_one_container_leaves_in_ipc_is_not_seen_by_another(isolated: Bench) -> None:
    running = await isolated.start()
    own = os.readlink("/proc/self/ns/ipc")
    assert await attempt(running, "os.readlink('/proc/self/ns/ipc')") != own
    for kind in ("mnt", "pid", "uts"):
        assert await attempt(running, f"os.readlink('/proc/self/ns/{kind}')") != os.readlink(
            f"/proc/self/ns/{kind}"
        )


async def test_no_descriptor_of_the_server_is_inherited(bench: Bench) -> None:
    with (bench.folder / "secret").open("wb") as secret:
        os.set_inheritable(secret.fileno(), True)
        running = await bench.start()
        links = "[os.readlink('/proc/self/fd/' + fd) for fd in os.listdir('/proc/self/fd') if os.path.lexists('/proc/self/fd/' + fd)]"
        found = await attempt(running, links)
    assert not [name for name in found if "secret" in name]
    assert len(found) <= 4


async def test_no_secret_of_the_servers_environment_is_inherited(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "do not tell")
    running = await bench.start()
    assert await attempt(running, "'SECRET_OF_THE_SERVER' in os.environ") is False
    pid = running.info.handle.get("pid")
    if pid is None:
        return  # it is no process of this machine
    with contextlib.suppress(PermissionError):
        with open(f"/proc/{pid}/environ", "rb") as environment:
            assert b"SECRET_OF_THE_SERVER" not in environment.read()


@pytest.fixture
def operators_key() -> Iterator[int]:
    """A key in the session keyring of who started the server, as Kerberos or AFS keep one."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    numbers = syscall_filter.MACHINES[platform.machine()].refused
    refused = linux.new_session_keyring()
    text = b"do not tell"
    serial = call(numbers["add_key"], b"user", b"of-the-operator", text, len(text), -3)
    if refused or serial < 0:
        pytest.skip("the kernel keeps no keys here")
    yield serial
    linux.new_session_keyring()


KEYS = """
import ctypes, sys
call, keyctl, serial = ctypes.CDLL(None).syscall, int(sys.argv[1]), int(sys.argv[2])
room = ctypes.create_string_buffer(64)
READ, SEARCH, SESSION = 11, 10, -3
call(keyctl, READ, serial, room, 64)
found = call(keyctl, SEARCH, SESSION, b"user", b"of-the-operator", 0)
call(keyctl, READ, found, room, 64)
print(room.value)
"""


async def test_keys_of_who_started_the_server_are_not_inherited(
    bench: Bench, operators_key: int
) -> None:
    """Over fork and exec a process keeps its session keyring, whatever its user and namespaces."""
    running = await bench.start()
    number = str(linux.KEYCTL[platform.machine()])
    result = await running.python(KEYS, number, str(operators_key))
    assert result.text == "b''\n", result.err


REFUSED = """
import ctypes, json, mmap, os, socket, struct, sys
call = ctypes.CDLL(None, use_errno=True).syscall
def outcome(number, *arguments):
    result = call(number, *(ctypes.c_long(each) for each in arguments))
    return 0 if result >= 0 else ctypes.get_errno()
refused, ioctl, sockets, x32 = json.loads(sys.argv[1])
print(json.dumps({
    **{name: outcome(number, 0, 0, 0, 0, 0) for name, number in refused.items()},
    "typed": outcome(ioctl, 0, (7 << 32) | 0x5412, 0),
    "console": outcome(ioctl, 0, 0x541C, 0),
    "hypervisor": outcome(sockets, (9 << 32) | 40, 1, 0),
    "x32": outcome((1 << 30) | 39) if x32 else 38,
}))
"""
GETPID_OF_32_BITS = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(bytes.fromhex("b814000000cd80c3"))
print(ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))())
"""


async def test_system_calls_that_no_namespace_covers_are_refused(isolated: Bench) -> None:
    machine = syscall_filter.MACHINES.get(platform.machine())
    if isolated.engine.name != "process" or machine is None:
        pytest.skip("engines have a filter of their own")
    running = await isolated.start()
    asked = json.dumps([machine.refused, machine.ioctl, machine.socket, machine.x32])
    outcomes = json.loads((await running.python(REFUSED, asked)).text)
    assert outcomes.pop("hypervisor") == errno.EAFNOSUPPORT
    assert outcomes.pop("x32") == errno.ENOSYS
    assert outcomes == dict.fromkeys(outcomes, errno.EPERM)
    if platform.machine() == "x86_64":
        # A kernel without 32-bit programs ends it; with them the call would give a pid.
        assert (await running.python(GETPID_OF_32_BITS)).text in ("", f"-{errno.ENOSYS}\n")


@pytest.mark.parametrize("program", ["bash -c 'echo ok'", "git --version", "node -e 1", "sh -c :"])
async def test_programs_of_agents_run_in_the_filter(isolated: Bench, program: str) -> None:
    argv = shlex.split(program)
    running = await isolated.start()
    if await attempt(running, f"__import__('shutil').which({argv[0]!r})") is None:
        pytest.skip(f"there is no {argv[0]} in it")
    done = await running.run(*argv, cwd="/")
    assert done.exit is not None
    assert done.exit.code == 0, done.err


NO_RANDOM_ADDRESSES = 0x0040000


async def test_agents_have_no_priority_of_the_server(bench: Bench) -> None:
    """A service may be protected from the kernel's killer, run first, or have other settings."""
    if bench.engine.image is not None:
        pytest.skip("an engine sets these itself")
    libc, adjust = ctypes.CDLL(None), Path("/proc/self/oom_score_adj")
    before, nice = adjust.read_text(encoding="ascii"), os.getpriority(os.PRIO_PROCESS, 0)
    libc.personality(NO_RANDOM_ADDRESSES)
    try:
        if os.geteuid() == 0:
            os.setpriority(os.PRIO_PROCESS, 0, -5)
            with contextlib.suppress(PermissionError):  # root of a machine that has less rights
                adjust.write_text("-500", encoding="ascii")
        running = await bench.start()
    finally:
        libc.personality(0)
        if os.geteuid() == 0:
            os.setpriority(os.PRIO_PROCESS, 0, nice)
            adjust.write_text(before, encoding="ascii")
    found = await attempt(
        running,
        "[open('/proc/self/oom_score_adj').read(), os.getpriority(os.PRIO_PROCESS, 0) >= 0,"
        " open('/proc/self/personality').read()]",
    )
    assert not found[0].startswith("-")
    assert found[1:] == [True, "00000000\n"]


async def test_a_link_planted_for_a_folder_is_not_followed(bench: Bench) -> None:
    """An agent may replace what it owns by a link to something of the server's."""
    secret = bench.folder / "secret"
    secret.mkdir(mode=0o700)
    project = bench.project()
    (project / "planted").symlink_to(secret)
    with pytest.raises(RuntimeFailure, match="link"):
        make_owned(project, "planted", uid=bench.agent_uid)
    with pytest.raises(RuntimeFailure, match="link"):
        await bench.runtime.create(bench.spec(mounts=(Mount(project / "planted", "/workspace"),)))
    assert secret.stat().st_uid == os.geteuid()


async def test_a_file_that_an_agent_replaced_by_a_link_is_not_mounted_at_the_next_start(
    isolated: Bench,
) -> None:
    secret = isolated.folder / "secret"
    secret.write_text("do not tell", encoding="utf-8")
    secret.chmod(0o644)
    project = isolated.project()
    (project / "metadata.json").write_text("{}", encoding="utf-8")
    mounts = (
        Mount(project, "/workspace"),
        Mount(project / "metadata.json", "/workspace/metadata.json", read_only=True),
    )
    running = await isolated.start(isolated.spec(mounts=mounts))
    assert await attempt(running, "open('/workspace/metadata.json').read()") == "{}"
    await isolated.runtime.stop(running.spec.id)
    (project / "metadata.json").unlink()
    (project / "metadata.json").symlink_to(secret)
    with pytest.raises(RuntimeFailure, match=r"metadata\.json is a link"):
        await isolated.runtime.start(running.spec.id, key=running.key)


async def test_an_agent_cannot_play_the_server(bench: Bench) -> None:
    """Neither UPSTREAM nor the control link nor ATTACH is open to who has no proof."""
    running = await bench.start()
    source = """
import socket, sys
said = []
for header in sys.argv[2:]:
    s = socket.socket(socket.AF_UNIX)
    s.connect(sys.argv[1])
    s.sendall(header.encode() + b"\\n")
    line = s.makefile("rb").readline()
    if b"challenge" in line:
        s.sendall(b'{"proof": "' + b"0" * 64 + b'", "epoch": 99, "versions": [1, 1]}\\n')
        line = s.makefile("rb").readline()
    said.append(line.split(b" ")[0].decode().strip())
print(said)
"""
    headers = (
        "OUBLIETTE-UPSTREAM s p 0",
        "OUBLIETTE-UPSTREAM s p 0 " + "0" * 32,
        "OUBLIETTE-HOST 1 " + "0" * 32,
        "OUBLIETTE-ATTACH 1 proc 0 0 " + "0" * 32,
        "OUBLIETTE-DOWNSTREAM p",
    )
    async with asyncio.timeout(SECONDS):
        result = await running.python(source, running.info.inside.relay_socket, *headers)
    assert result.text.strip() == str(["OUBLIETTE-ERROR"] * 5), result.err
    assert not running.link.is_closed


async def test_agents_cannot_raise_what_limits_them(bench: Bench) -> None:
    from oubliette.runtime.guest import ProcessLimits

    running = await bench.start()
    raise_it = "__import__('resource').setrlimit(7, (60, 10**6))"
    result = await running.python(
        f"try:\n {raise_it}\nexcept ValueError:\n print('refused')",
        limits=ProcessLimits(nofile=64),
    )
    assert result.text == "refused\n"


async def test_only_roots_host_can_choose_the_user_of_a_process(bench: Bench) -> None:
    running = await bench.start()
    if running.info.inside.uid is not None:
        assert (await running.run("id", "-u", uid=4321, cwd="/")).text == "4321\n"
        return
    with pytest.raises(CommandFailed) as caught:
        await running.run("id", uid=4321)
    assert caught.value.kind == "permission"
