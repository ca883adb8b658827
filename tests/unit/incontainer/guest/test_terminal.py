"""Programs with a terminal, and all that end with the link which is attached to them."""

from __future__ import annotations

import os
import select
import sys
import uuid
from collections.abc import Iterator

import pytest

from tests.unit.incontainer.hostclient import TIMEOUT, Attached, Control, HostProcess, Refusal

# Writes its window at the start, and when that changes
WINDOW = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGWINCH})
for changed in range(2):
    size = os.get_terminal_size(0)
    print(f"{size.lines}x{size.columns}", flush=True)
    if not changed:
        signal.sigwait({signal.SIGWINCH})
sys.stdin.read()
"""
# Names a hang-up in the file of its argument, and stays
STAYS = """
import pathlib, signal, sys
signal.signal(signal.SIGHUP, lambda *_: pathlib.Path(sys.argv[1]).write_text("HUP"))
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
def shared() -> Iterator[HostProcess]:
    with HostProcess() as process:
        yield process


@pytest.fixture
def link(shared: HostProcess) -> Control:
    return shared.control()


@pytest.fixture
def name() -> str:
    return f"proc-{uuid.uuid4()}"


def sees(attached: Attached, text: bytes) -> None:
    attached.until(lambda: text in attached.out)


def wait_for_end(pid: int) -> None:
    watched = os.pidfd_open(pid)
    try:
        assert select.select([watched], [], [], 2 * TIMEOUT)[0], f"{pid} still runs"
    finally:
        os.close(watched)


def test_a_program_has_a_terminal_whose_size_changes(link: Control, name: str) -> None:
    link.pty(name, sys.executable, "-c", WINDOW, rows=30, cols=100)
    attached = link.attach(name)
    sees(attached, b"30x100\r\n")
    link.ask("resize", proc=name, rows=50, cols=132)
    sees(attached, b"50x132\r\n")
    attached.stdin(1, b"\x04")  # Ctrl-D
    assert attached.until_exit() == {"code": 0, "signal": None}


def test_the_terminal_is_the_controlling_one_and_ctrl_c_interrupts_its_foreground(
    link: Control, name: str
) -> None:
    link.pty(name, "sh", "-c", "tty; echo shown >/dev/tty; exec sleep 600")
    attached = link.attach(name)
    sees(attached, b"shown\r\n")
    assert attached.out.startswith(b"/dev/pts/")
    attached.stdin(1, b"\x03")
    assert attached.until_exit() == {"code": None, "signal": 2}


def test_ctrl_z_stops_the_foreground_of_a_shell(link: Control, name: str) -> None:
    env = {"PATH": os.environ["PATH"], "PS1": "$ "}
    pid = link.pty(name, "sh", "-i", env=env)
    attached = link.attach(name)
    sees(attached, b"$ ")
    attached.stdin(1, b"sh -c 'echo begun; exec sleep 600'\n")
    sees(attached, b"begun\r\n")
    attached.stdin(2, b"\x1a")
    sees(attached, b"Stopped")
    attached.until(lambda: attached.out.count(b"$ ") == 2)
    attached.close()
    wait_for_end(pid)  # with the job that is stopped


def test_a_program_whose_link_closes_is_hung_up_and_forgotten(
    link: Control, name: str, tmp_path
) -> None:
    before = link.fds()
    pid = link.pty(name, "sh", "-c", f"trap 'echo HUP >{tmp_path}/end; exit' HUP; echo on; read x")
    attached = link.attach(name)
    sees(attached, b"on\r\n")
    attached.close()
    wait_for_end(pid)
    assert (tmp_path / "end").read_text() == "HUP\n"
    link.event("exited", proc=name)
    assert link.fds() == before


@pytest.mark.whole
def test_a_program_that_ignores_the_hang_up_is_killed_with_all_that_it_started(
    shared: HostProcess, name: str, tmp_path
) -> None:
    link = shared.control()
    pid = link.start(name, sys.executable, "-c", STAYS, str(tmp_path / "end"), until_detached=True)
    attached = link.attach(name)
    sees(attached, b"ready\n")
    attached.close()
    wait_for_end(pid)
    assert (tmp_path / "end").read_text() == "HUP"
    assert link.event("exited", proc=name)["exit"] == {"code": None, "signal": 9}
    with pytest.raises(Refusal, match="no process"):
        link.ask("signal", proc=name, signal="TERM")


def test_a_normal_end_leaves_nothing_to_forget(link: Control, name: str) -> None:
    link.start(name, "sh", "-c", "cat; exit 3", until_detached=True)
    attached = link.attach(name)
    attached.stdin(1, b"piped")
    attached.stdin_eof(2)
    assert attached.until_exit() == {"code": 3, "signal": None}
    assert attached.out == b"piped"
    attached.close()
    link.settle()
    with pytest.raises(Refusal, match="no process"):
        link.ask("signal", proc=name, signal="TERM")


@pytest.mark.whole
def test_a_flood_that_is_not_read_blocks_the_program_and_nothing_grows(
    link: Control, name: str
) -> None:
    link.pty(name, "sh", "-c", "yes", spool_bytes=65536)
    attached = link.attach(name)
    link.event("spool_full", proc=name)
    held = link.settle()
    assert held["spool_bytes"] <= 2 * 65536
    assert held["rss"] < 64 << 20
    while len(attached.out) < 1 << 20:  # it goes on as soon as it is read
        attached.frame()
    attached.stdin(1, b"\x03")
    assert attached.until_exit() == {"code": None, "signal": 2}


@pytest.mark.parametrize(
    ("verb", "fields", "named"),
    [
        ("pty", {"argv": ["sh\0"]}, "argv"),
        ("pty", {"argv": []}, "argv"),
        ("pty", {"rows": 0}, "rows"),
        ("pty", {"rows": 4097}, "rows"),
        ("pty", {"cols": -1}, "cols"),
        ("pty", {"cols": 2**70}, "cols"),
        ("pty", {"cols": True}, "cols"),
        ("pty", {"rows": "24"}, "rows"),
        ("pty", {"cols": None}, "cols"),
        ("resize", {"cols": 0}, "cols"),
        ("resize", {"proc": "no\0ne"}, "proc"),
        ("start", {"until_detached": "yes"}, "until_detached"),
    ],
)
def test_hostile_fields_are_refused_by_name(
    link: Control, name: str, verb: str, fields: dict, named: str
) -> None:
    link.pty(f"{name}-2", "cat")
    proc = f"{name}-2" if verb == "resize" else name
    whole = {"proc": proc, "argv": ["cat"], "rows": 24, "cols": 80, **fields}
    with pytest.raises(Refusal, match=f"^invalid: {named}"):
        link.ask(verb, **whole)
    link.attach(f"{name}-2").close()


def test_a_process_without_a_terminal_has_no_size(link: Control, name: str) -> None:
    link.start(name, "sleep", "600")
    with pytest.raises(Refusal, match="no terminal"):
        link.ask("resize", proc=name, rows=10, cols=10)
    link.ask("signal", proc=name, signal="KILL")
