"""What an agent, or anybody else in the container, may try on the socket: refused, and nothing leaks."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oubliette.incontainer import wire
from tests import selection
from tests.unit.incontainer.hostclient import Control, HostProcess, Refusal

PATIENT = "from oubliette.incontainer import wire\nfrom oubliette.incontainer.guest import pairing\nwire.HEADER_TIMEOUT = wire.PROOF_TIMEOUT = 0.2\npairing.DOWNSTREAM_TIMEOUT = 0.2\n"
RUN = "from oubliette.incontainer.__main__ import main; raise SystemExit(main())"


@pytest.fixture(scope="module")
def shared() -> HostProcess:
    with HostProcess() as process:
        yield process


@pytest.fixture
def link(shared: HostProcess) -> Control:
    control = shared.control()
    control.settle()
    return control


@pytest.fixture
def nothing_leaks(shared: HostProcess, link: Control):
    """The host holds as many descriptors after the test as before, and still answers."""
    fds = link.fds()
    yield
    assert link.settle()["links"] == 0
    assert link.fds() <= fds


def refusal(host: HostProcess, data: bytes) -> str | None:
    link = host.dial()
    link.send(data)
    try:
        return wire.parse_error(link.rest())
    finally:
        link.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"\0" * 100 + b"\n",
        b"\xff\xfe\xfd\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OUBLIETTE-HOST 1 zz\n",
        b"OUBLIETTE-HOST 2 " + b"0" * 32 + b"\n",
        b"OUBLIETTE-ATTACH 1 x 0 0 ticket\n",
        b"OUBLIETTE-ATTACH 1 x -1 0 ticket\n",
        b"OUBLIETTE-UPSTREAM s p 0\n",
        b"OUBLIETTE-UPSTREAM s p 0 " + b"0" * 32 + b"\n",
        b"OUBLIETTE-DOWNSTREAM p\n",
        b"OUBLIETTE-DOWNSTREAM p s secret\n",
        b"OUBLIETTE-ERROR no\n",
        b"x" * 1024,
        b"x" * 100_000,
        b"OUBLIETTE-DOWNSTREAM " + b"p" * 1003 + b"\n",
        b"OUBLIETTE-UPSTREAM s p 0" + b" " * 2000 + b"\n",
        '{"id":1,"verb":"start"}\n'.encode(),
    ],
)
def test_what_is_no_valid_header_is_refused_with_one_line(
    shared: HostProcess, nothing_leaks: None, data: bytes
) -> None:
    link = shared.dial()
    link.send(data)
    answer = link.rest()
    assert answer.count(b"\n") == 1
    assert wire.parse_error(answer)
    link.close()


def test_a_header_of_exactly_the_limit_is_read_and_one_byte_more_is_not(
    shared: HostProcess, nothing_leaks: None
) -> None:
    start = b"OUBLIETTE-DOWNSTREAM " + b"p" * 256 + b" " + b"s" * 256 + b" "
    assert (
        refusal(shared, start + b"x" * (1023 - len(start)) + b"\n")
        == "OUBLIETTE-DOWNSTREAM: a word is empty, too long or not printable"
    )
    assert (
        refusal(shared, start + b"x" * (1024 - len(start)) + b"\n")
        == "header longer than 1024 bytes"
    )


@given(st.binary(max_size=1500))
@settings(max_examples=selection.examples(60))
def test_random_bytes_never_hurt_the_host(shared: HostProcess, data: bytes) -> None:
    link = shared.dial()
    link.send(data)
    link.half_close()
    answer = link.rest()
    assert answer == b"" or wire.parse_error(answer)
    link.close()


def test_slow_headers_slow_proofs_and_lone_downstreams_are_cut_at_their_deadlines() -> None:
    with HostProcess(target=["-c", PATIENT + RUN]) as host:
        control = host.control()
        control.expect("s", "sec")
        control.settle()
        fds = control.fds()
        silent, trickling, unproven, lone = (host.dial() for _ in range(4))
        trickling.send(b"OUBLIETTE-UP")
        unproven.send(wire.ControlHeader("0" * 32).line())
        lone.send(wire.Downstream("p", "s", "sec").line())
        assert "proof" in json.loads(unproven.line())
        assert wire.parse_error(silent.rest()) == "no header within 5 seconds"
        assert wire.parse_error(trickling.rest()) == "no header within 5 seconds"
        assert wire.parse_error(unproven.rest()) == "no proof"
        assert wire.parse_error(lone.rest()) == "no upstream"
        for link in (silent, trickling, unproven, lone):
            link.close()
        assert control.settle()["links"] == 0
        assert control.fds() <= fds
        again = host.dial()  # the place is free again
        again.send(wire.Downstream("p", "s", "sec").line())
        assert control.settle()["links"] == 1


def test_a_flood_of_silent_connections_does_not_keep_the_server_out(
    shared: HostProcess, link: Control
) -> None:
    fds = link.fds()
    flood = []
    for _ in range(600):
        sock = socket.socket(socket.AF_UNIX)  # blocking, so that it waits for room in the backlog
        sock.connect(shared.socket)
        flood.append(sock)
    assert link.fds() <= fds + 256
    newer = shared.control()
    assert newer.ask("stats")["links"] == 0
    for sock in flood:
        sock.close()
    assert newer.fds() <= fds + 2


def test_out_of_descriptors_the_host_still_serves_its_server() -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n" + RUN
    with HostProcess(target=["-c", code]) as host:
        control = host.control()
        held = [host.dial() for _ in range(60)]
        control.settle()
        with pytest.raises(Refusal) as refused:
            for i in range(20):
                control.start(f"p{i}", "sleep", "60")
        assert refused.value.code == "limit"
        for link in held:
            link.close()
        control.settle()
        newer = host.control()
        for proc in newer.hello["procs"]:
            newer.ask("signal", proc=proc["id"], signal="KILL")
            newer.event("exited", proc=proc["id"])
            newer.ask("forget", proc=proc["id"])
        newer.start("fine", "true")


def test_refusals_are_told_to_the_server_but_cannot_flood_it(
    shared: HostProcess, link: Control
) -> None:
    refusal(shared, b"OUBLIETTE-DOWNSTREAM p s wrong\n")
    assert link.event("refused")["session"] == "s"
    for _ in range(2000):
        refusal(shared, b"OUBLIETTE-DOWNSTREAM p s wrong\n")
    assert link.ask("stats")["rss"] < 64 << 20
    link.events.clear()


AGENT = """
import json, os, socket, sys
from pathlib import Path
path, key_path, host_pid = sys.argv[1:4]

def talk(data):
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(5)
    link.connect(path)
    link.sendall(data)
    answer = b""
    while True:
        try:
            piece = link.recv(65536)
        except ConnectionResetError:
            break
        if not piece:
            break
        answer += piece
        if b"proof" in answer and answer.endswith(b"\\n") and b"ERROR" not in answer:
            first = json.loads(answer)
            link.sendall(json.dumps({"proof": first["proof"], "epoch": 10**9}).encode() + b"\\n")
    return answer.decode(errors="replace").splitlines()[-1]

def tried(call):
    try:
        call()
    except OSError as error:
        return type(error).__name__
    return "worked"

print(json.dumps({
    "host": talk(b"OUBLIETTE-HOST 1 " + b"0" * 32 + b"\\n"),
    "upstream": talk(b"OUBLIETTE-UPSTREAM s p 0\\n"),
    "forged": talk(b"OUBLIETTE-UPSTREAM s p 0 " + b"0" * 32 + b"\\n"),
    "attach": talk(b"OUBLIETTE-ATTACH 1 victim 0 0 " + b"0" * 32 + b"\\n"),
    "key": tried(lambda: open(key_path)),
    "memory": tried(lambda: open(f"/proc/{host_pid}/mem", "rb")),
    "environ": tried(lambda: open(f"/proc/{host_pid}/environ", "rb").read()),
    "fds": tried(lambda: os.listdir(f"/proc/{host_pid}/fd")),
}))
"""


@pytest.mark.requires("root")
def test_an_agent_cannot_play_the_host_or_the_server_and_cannot_look_into_the_host() -> None:
    """The host runs as the agent's own user here, the hardest case."""
    from oubliette.incontainer.build import build

    with HostProcess() as outer:
        outer.folder.chmod(0o777)
        pyz, inner = outer.folder / "o.pyz", outer.folder / "in.sock"
        build(pyz)
        key_file = outer.folder / "inner-key"
        key = os.urandom(32)
        key_file.write_bytes(key)
        key_file.chmod(0o644)
        root = outer.control()
        python = "/usr/bin/python3"
        pid = root.start(
            "host",
            python,
            str(pyz),
            "host",
            "--socket",
            str(inner),
            "--key",
            str(key_file),
            "--ready-fd",
            "1",
            uid=4321,
        )
        ready = root.attach("host")
        ready.until(lambda: ready.out == b"ready\n")
        assert not key_file.exists()
        control = Control(str(inner), key, 1)
        control.start("victim", "sleep", "60")
        control.start("agent", python, "-c", AGENT, str(inner), str(key_file), str(pid))
        agent = control.attach("agent")
        agent.until_exit()
        assert agent.err == b""
        got = json.loads(agent.out)
        assert got == {
            "host": "OUBLIETTE-ERROR bad proof",
            "upstream": "OUBLIETTE-ERROR a ticket is needed",
            "forged": "OUBLIETTE-ERROR bad ticket",
            "attach": "OUBLIETTE-ERROR bad ticket",
            "key": "FileNotFoundError",
            "memory": "PermissionError",
            "environ": "PermissionError",
            "fds": "PermissionError",
        }
        control.settle()
        assert {event["reason"] for event in control.events if event["event"] == "refused"} >= {
            "bad ticket",
            "a ticket is needed",
        }
        control.ask("drain")
        assert root.event("exited", proc="host")["exit"] == {"code": 0, "signal": None}
        control.close()
        agent.close()


def test_a_peer_in_a_parent_pid_namespace_is_outside_and_needs_no_ticket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SO_PEERCRED shows pid 0 for who has no number in our namespace."""
    from oubliette.incontainer.io import linux

    one, other = socket.socketpair()
    assert not linux.peer_is_outside(one)

    class Outside:
        def getsockopt(self, *_: int) -> bytes:
            return b"\0" * 12

    assert linux.peer_is_outside(Outside())  # type: ignore[arg-type]
    one.close()
    other.close()


def test_a_defect_in_one_link_does_not_end_the_others() -> None:
    code = (
        "from oubliette.incontainer.guest import pairing\ndef boom(*_, **__): raise RuntimeError('defect')\npairing.Pairing.downstream = boom\n"
        + RUN
    )
    host = HostProcess(target=["-c", code])
    with pytest.raises(AssertionError, match="defect"), host:
        control = host.control()
        control.start("cat", "cat")
        attached = control.attach("cat")
        broken = host.dial()
        broken.send(b"OUBLIETTE-DOWNSTREAM p\n")
        assert broken.rest() == b""
        attached.stdin(1, b"alive\n")
        attached.until(lambda: attached.out == b"alive\n")


@pytest.mark.parametrize("name", ["cmdline", "environ"])
def test_nothing_secret_is_in_argv_or_the_environment(shared: HostProcess, name: str) -> None:
    if name == "environ" and os.geteuid() != 0:
        with pytest.raises(PermissionError):  # the host's own user cannot even read it
            Path(f"/proc/{shared.pid}/environ").read_bytes()
        return
    content = Path(f"/proc/{shared.pid}/{name}").read_bytes()
    assert content
    assert shared.key not in content
    assert shared.key.hex().encode() not in content
