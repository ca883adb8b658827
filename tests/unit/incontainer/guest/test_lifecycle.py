"""How a host begins and ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from oubliette.incontainer import wire
from tests.unit.incontainer.hostclient import ROOT, HostProcess, Link


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "oubliette.incontainer", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=10, check=False)


@contextlib.contextmanager
def begun(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A host on pipes of ours, which is gone with the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "oubliette.incontainer", "host", *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_key_is_gone_before_anybody_can_connect_and_the_socket_is_the_owners(
    host: HostProcess,
) -> None:
    assert not (host.folder / "key").exists()
    state = os.stat(host.socket)
    assert stat.S_ISSOCK(state.st_mode)
    assert state.st_mode & 0o777 == 0o600
    assert (host.folder / "spool").stat().st_mode & 0o777 == 0o700


def test_a_stale_socket_is_replaced(host: HostProcess) -> None:
    """The file stays when its container goes."""
    path = str(host.folder / "old.sock")
    old = socket.socket(socket.AF_UNIX)
    old.bind(path)
    old.close()
    (host.folder / "key2").write_bytes(host.key)
    with begun(f"--socket={path}", f"--key={host.folder}/key2", "--ready-fd=1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(path)
        process.terminate()
        assert process.wait(5) == 0
    assert not os.path.exists(path)


def test_a_server_that_is_killed_before_the_host_is_ready_does_not_take_it_along(
    host: HostProcess,
) -> None:
    """The next server finds it; whoever waited for the word is gone."""
    path = str(host.folder / "other.sock")
    (host.folder / "key2").write_bytes(host.key)
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.Popen(
        [sys.executable, "-m", "oubliette.incontainer", "host", f"--socket={path}"]
        + [f"--key={host.folder}/key2", f"--ready-fd={writing}"],
        cwd=ROOT,
        pass_fds=(writing,),
        stderr=subprocess.PIPE,
    )
    os.close(writing)
    assert process.stderr is not None
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link:
            link.connect(path)
            break
        time.sleep(0.01)
    assert process.poll() is None, process.stderr.read()
    process.terminate()
    assert process.wait(30) == 0
    process.stderr.close()


def test_a_key_may_come_over_standard_input_and_the_word_go_over_standard_output(
    host: HostProcess,
) -> None:
    """For engines on which no file and no FIFO of the server is seen (`docs/runtimes.md`)."""
    path = str(host.folder / "other.sock")
    with begun(f"--socket={path}", "--key=-", "--ready-fd=1") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for half in (host.key[:10], host.key[10:] + b"what follows is nobody's"):
            process.stdin.write(half)
        assert process.stdout.readline() == b"ready\n"
        with contextlib.closing(Link(path)) as link:
            nonce = "0" * 32
            link.send(wire.ControlHeader(nonce).line())
            offer = wire.decode_json(link.line())
            assert offer["proof"] == wire.host_proof(host.key, nonce, offer["challenge"])
        with pytest.raises(BrokenPipeError):  # nobody can read on where the key was
            process.stdin.write(b"x")
        assert not select.select([process.stdout], [], [], 0)[0]  # still open
        if os.geteuid() == 0:  # nobody else may look
            assert os.readlink(f"/proc/{process.pid}/fd/0") == os.devnull
            assert os.readlink(f"/proc/{process.pid}/fd/1").startswith("pipe:")
        process.terminate()
        assert process.wait(5) == 0


def test_standard_input_without_a_whole_key_is_refused() -> None:
    argv = [sys.executable, "-m", "oubliette.incontainer", "host", "--key", "-"]
    done = subprocess.run(
        argv, cwd=ROOT, input=b"x" * 31, capture_output=True, timeout=10, check=False
    )
    assert (done.returncode, b"not 32 bytes" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--nonsense"], 2, "--nonsense"),
        (["--socket"], 2, "--socket needs a value"),
        (["--orphan-grace", "soon"], 2, "soon"),
        (["--socket", "/tmp/" + "x" * 120], 2, "103 bytes"),
        (["--key", "/no/such/key"], 2, "/no/such/key"),
        (["--key", "/etc/passwd", "--spool", "/etc/passwd"], 2, "--spool /etc/passwd"),
    ],
)
def test_a_host_that_cannot_start_says_why_in_one_line(
    arguments: list[str], code: int, says: str
) -> None:
    done = run("host", *arguments)
    assert done.returncode == code
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_key_of_the_wrong_size_or_behind_a_link_is_refused(host: HostProcess) -> None:
    short = host.folder / "short"
    short.write_bytes(b"x" * 31)
    done = run("host", "--key", str(short), "--socket", str(host.folder / "s"))
    assert (done.returncode, "not 32 bytes" in done.stderr) == (2, True)
    target = host.folder / "target"
    target.write_bytes(b"x" * 32)
    (host.folder / "link").symlink_to(target)
    assert (
        run(
            "host", "--key", str(host.folder / "link"), "--socket", str(host.folder / "s")
        ).returncode
        == 2
    )
    assert target.exists()


def test_a_folder_that_is_not_there_is_named(host: HostProcess) -> None:
    (host.folder / "key3").write_bytes(host.key)
    done = run("host", "--key", str(host.folder / "key3"), "--socket", "/no/such/folder/s")
    assert done.returncode == 1
    assert "/no/such/folder/s" in done.stderr


def test_without_a_subcommand_the_usage_is_shown() -> None:
    done = run()
    assert done.returncode == 2
    assert "host|relay|files|client|bridge|opencode|opencode-acp|scripted-agent" in done.stderr


STUBBORN = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); sys.stdin.read(); signal.pause()"


@pytest.mark.parametrize("how", ["drain", "SIGTERM", "SIGINT"])
def test_draining_ends_the_processes_tells_their_exit_and_leaves_with_zero(how: str) -> None:
    with HostProcess() as host:
        control = host.control()
        pid = control.start(
            "p", "sh", "-c", "setsid sleep 60 & trap 'echo bye; exit 5' TERM; echo up; wait"
        )
        attached = control.attach("p")
        attached.until(lambda: attached.out == b"up\n")
        if how == "drain":
            control.ask("drain")
        else:
            host.process.send_signal(getattr(signal, how))
        attached.until(lambda: attached.exit is not None)
        assert attached.out == b"up\nbye\n"
        assert attached.exit == {"code": 5, "signal": None}
        assert control.event("exited", proc="p")["exit"]["code"] == 5
        assert host.process.wait(5) == 0
        assert not os.path.exists(host.socket)
        assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.whole
def test_draining_kills_what_ignores_it_after_three_seconds() -> None:
    with HostProcess() as host:
        control = host.control()
        control.start("p", sys.executable, "-c", STUBBORN)
        attached = control.attach("p")
        attached.until(lambda: attached.out == b"up\n")
        control.ask("drain")
        assert control.event("exited", proc="p")["exit"] == {"code": None, "signal": 9}
        assert host.process.wait(5) == 0


def test_a_draining_host_accepts_nothing_more(host: HostProcess) -> None:
    control = host.control()
    control.start("p", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.2; done")
    attached = control.attach("p")
    attached.until(lambda: attached.out == b"up\n")
    control.ask("drain")
    with pytest.raises(ConnectionRefusedError):
        host.dial()
    control.ask("signal", proc="p", signal="KILL")
    assert host.process.wait(5) == 0


def test_without_a_server_the_host_ends_its_processes_and_leaves() -> None:
    """`orphan_grace`; it counts from the start, and an agent's links do not count."""
    with HostProcess("--orphan-grace", "0.3") as host:
        stranger = host.dial()
        stranger.send(b"OUBLIETTE-HOST 1 " + b"0" * 32 + b"\n")
        assert host.process.wait(5) == 0
        assert "no server" in host.stderr()


def test_the_grace_counts_anew_from_each_servers_leaving() -> None:
    with HostProcess("--orphan-grace", "0.4") as host:
        control = host.control()
        pid = control.start("p", "sleep", "60")
        attached = control.attach("p")
        attached.sock.settimeout(0.6)
        with pytest.raises(TimeoutError):
            attached.until(lambda: False)  # the server is there: nothing ends
        control.close()
        again = host.control()
        assert [proc["pid"] for proc in again.hello["procs"]] == [pid]
        again.close()
        assert host.process.wait(5) == 0
        assert not os.path.exists(f"/proc/{pid}")


def test_a_server_that_came_while_the_host_was_frozen_past_the_grace_is_served() -> None:
    with HostProcess("--orphan-grace", "0.5") as host:
        host.process.send_signal(signal.SIGSTOP)
        link = host.dial()
        nonce = "0" * 32
        link.send(wire.ControlHeader(nonce).line())
        link.sock.settimeout(0.8)
        with pytest.raises(TimeoutError):
            link.line()  # it is frozen, and its grace passes
        link.sock.settimeout(5)
        host.process.send_signal(signal.SIGCONT)
        first = json.loads(link.line())
        proof = wire.server_proof(host.key, first["challenge"], nonce)
        link.send(wire.encode_json({"proof": proof, "epoch": 1}))
        assert json.loads(link.line())["event"] == "hello"
        link.close()
        assert host.process.wait(5) == 0, "the grace holds once it runs"


@pytest.mark.whole
def test_a_header_that_came_in_time_is_taken_by_a_host_that_was_frozen_past_its_deadline(
    host: HostProcess,
) -> None:
    control = host.control()
    control.start("p", "sleep", "60")
    header = wire.Attach("p", 0, 0, control.ticket("attach")).line()
    link = host.dial()
    control.settle()
    host.process.send_signal(signal.SIGSTOP)
    link.send(header)
    link.sock.settimeout(wire.HEADER_TIMEOUT + 0.5)
    with pytest.raises(TimeoutError):
        link.line()
    link.sock.settimeout(5)
    host.process.send_signal(signal.SIGCONT)
    assert wire.FRAME_HEAD.unpack(link.exactly(wire.FRAME_HEAD.size)) == (wire.STDIN_OK, 0, 0)


def test_an_evicted_links_leaving_does_not_start_the_grace() -> None:
    with HostProcess("--orphan-grace", "0.2") as host:
        older = host.control()
        newer = host.control()
        older.close()
        newer.sock.settimeout(0.4)
        with pytest.raises(TimeoutError):
            newer.event("never")
        newer.sock.settimeout(5)
        assert newer.ask("stats")["procs"] == 0


def test_a_label_is_only_for_those_who_look_at_ps() -> None:
    with HostProcess("--label", "oubliette.project=x", "--label=a=b") as host:
        assert host.control().hello["event"] == "hello"


def test_nothing_the_host_inherited_reaches_its_processes() -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    code = f"import os; os.set_inheritable({write}, True)\nfrom oubliette.incontainer.__main__ import main; raise SystemExit(main())"
    with HostProcess(target=["-c", code], keep=[write]) as host:
        os.close(write)
        control = host.control()
        control.start("p", "ls", "-l", "/proc/self/fd")
        attached = control.attach("p")
        attached.until_exit()
        assert attached.out.count(b" -> ") == 4  # 0, 1, 2 and the listing itself
    os.close(read)


def test_a_host_started_without_standard_streams_works() -> None:
    code = "import os; [os.close(fd) for fd in (0, 1)]\nfrom oubliette.incontainer.__main__ import main; raise SystemExit(main())"
    with HostProcess(target=["-c", code]) as host:
        control = host.control()
        control.start("p", "cat")
        attached = control.attach("p")
        attached.stdin(1, b"x")
        attached.stdin_eof(2)
        attached.until_exit()
        assert attached.out == b"x"


def test_the_header_constants_are_the_designs() -> None:
    assert (wire.MAX_HEADER, wire.HEADER_TIMEOUT, wire.MAX_FRAME, wire.MAX_SESSION_LINE) == (
        1024,
        5.0,
        256 * 1024,
        16 << 20,
    )
