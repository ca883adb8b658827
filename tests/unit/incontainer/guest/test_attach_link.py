"""Attached streams: wherever a link is cut, no output is lost or repeated, no input halved or doubled."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oubliette.incontainer import wire
from tests import selection
from tests.unit.incontainer.hostclient import Attached, Closed, Control, HostProcess, Link

# Writes what its arguments say: stream number, size; then the exit code
WRITER = """
import os, sys
for part in sys.argv[2:]:
    fd, size = map(int, part.split(":"))
    piece = bytes(i % 251 for i in range(size))
    while piece:
        piece = piece[os.write(fd, piece):]
sys.exit(int(sys.argv[1]))
"""


def pattern(*sizes: int) -> bytes:
    return b"".join(bytes(i % 251 for i in range(size)) for size in sizes)


@pytest.fixture(scope="module")
def shared() -> Iterator[HostProcess]:
    with HostProcess() as process:
        yield process


@pytest.fixture
def link(shared: HostProcess) -> Control:
    return shared.control()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"proc-{uuid.uuid4()}"


def test_output_input_and_exit_cross_an_attached_link(link: Control, name: str) -> None:
    link.start(name, "sh", "-c", "cat; echo done >&2; exit 7")
    attached = link.attach(name)
    assert attached.frame() == wire.Frame(wire.STDIN_OK, 0)
    attached.stdin(1, b"one\n")
    attached.stdin(2, b"two\n")
    attached.stdin_eof(3)
    assert attached.until_exit() == {"code": 7, "signal": None}
    assert (attached.out, attached.err, attached.stdin_ok) == (b"one\ntwo\n", b"done\n", 3)


def test_the_exit_is_the_last_frame_and_comes_again_to_who_attaches_later(
    link: Control, name: str
) -> None:
    link.start(name, "sh", "-c", "printf out; printf err >&2")
    link.event("exited", proc=name)
    for _ in range(2):
        attached = link.attach(name)
        assert attached.until_exit() == {"code": 0, "signal": None}
        assert (attached.out, attached.err) == (b"out", b"err")
    attached = link.attach(name, 3, 2)
    attached.until_exit()
    assert (attached.out, attached.err) == (b"", b"r")


def test_cutting_the_link_after_every_byte_of_output_loses_and_repeats_nothing(
    link: Control, name: str
) -> None:
    """Every prefix of what crosses the link, cut there; a new link goes on from what had arrived whole."""
    link.start(name, sys.executable, "-c", WRITER, "3", "1:50", "2:40", "1:30", "2:1")
    link.event("exited", proc=name)
    whole = Link(link.path)
    whole.send(wire.Attach(name, 0, 0, link.ticket("attach")).line())
    stream = whole.rest()
    for cut in range(len(stream) + 1):
        first = Link(link.path)
        first.send(wire.Attach(name, 0, 0, link.ticket("attach")).line())
        prefix = first.exactly(cut)
        first.close()
        frames = wire.FrameDecoder().feed(prefix)
        out = b"".join(frame.payload for frame in frames if frame.kind == wire.STDOUT)
        err = b"".join(frame.payload for frame in frames if frame.kind == wire.STDERR)
        second = link.attach(name, len(out), len(err))
        second.until_exit()
        assert out + second.out == pattern(50, 30)
        assert err + second.err == pattern(40, 1)
        second.close()


def test_cutting_the_link_after_every_byte_of_input_halves_and_repeats_no_line(
    link: Control, name: str
) -> None:
    """Every prefix of the header and of three frames; the server then sends what was not accepted."""
    link.start(name, "cat")
    expected = b""
    seq = 0
    header_size = len(wire.Attach(name, 0, 0, "0" * 32).line())
    frames_size = 3 * wire.FRAME_HEAD.size + len(b"a\n" + b"bb\n" + b"")
    for cut in range(header_size + frames_size + 1):
        lines = {seq + 1: b"a\n", seq + 2: b"bb\n", seq + 3: b""}
        stream = b"".join(wire.encode_frame(wire.STDIN, n, data) for n, data in lines.items())
        first = Link(link.path)
        first.send((wire.Attach(name, 0, 0, link.ticket("attach")).line() + stream)[:cut])
        if cut % 3 == 0:
            first.half_close()
        first.close()
        second = link.attach(name, len(expected), 0)
        second.until(lambda: second.stdin_ok >= 0)
        assert seq <= second.stdin_ok <= seq + 3
        for n, data in lines.items():
            if n > second.stdin_ok:
                second.stdin(n, data)
        second.until(lambda: second.stdin_ok == seq + 3)
        second.until(lambda: len(second.out) == 5)
        assert second.out == b"a\nbb\n"
        expected += second.out
        seq += 3
        second.close()
    assert link.attach(name, len(expected), 0).frame() == wire.Frame(wire.STDIN_OK, seq)
    link.ask("signal", proc=name, signal="KILL")


@pytest.mark.whole
@given(
    st.lists(
        st.tuples(st.sampled_from([1, 2]), st.sampled_from([0, 1, 77, 4096, 70_000, 400_000])),
        max_size=8,
    ),
    st.lists(st.integers(0, 60_000), max_size=6),
    st.booleans(),
)
@settings(max_examples=selection.examples(25))
def test_however_often_a_live_link_is_cut_the_output_is_whole(
    shared: HostProcess, parts: list[tuple[int, int]], cuts: list[int], acking: bool
) -> None:
    control = shared.control()
    proc = f"live-{uuid.uuid4()}"
    control.start(
        proc,
        sys.executable,
        "-c",
        WRITER,
        "0",
        *(f"{fd}:{size}" for fd, size in parts),
        spool_bytes=65536 if acking else 4 << 20,
    )
    out = err = b""

    def settle(attached: Attached) -> None:
        nonlocal out, err
        out, err = out + attached.out, err + attached.err
        attached.close()
        if acking:
            control.ask("ack", proc=proc, out=len(out), err=len(err))

    for cut in cuts:
        attached = control.attach(proc, len(out), len(err))
        try:
            attached.until(lambda: len(attached.out) + len(attached.err) >= cut)  # noqa: B023
        except Closed:
            assert attached.exit is not None
        settle(attached)
    while True:
        attached = control.attach(proc, len(out), len(err))
        attached.until(
            lambda: attached.exit is not None or len(attached.out) + len(attached.err) >= 60_000
        )  # noqa: B023
        settle(attached)
        if attached.exit is not None:
            break
        control.ask("ack", proc=proc, out=len(out), err=len(err))
    assert out == pattern(*(size for fd, size in parts if fd == 1))
    assert err == pattern(*(size for fd, size in parts if fd == 2))
    control.ask("forget", proc=proc)
    control.close()


def test_a_frame_that_was_accepted_is_dropped_when_it_comes_again(link: Control, name: str) -> None:
    link.start(name, "cat")
    attached = link.attach(name)
    attached.stdin(1, b"once\n")
    attached.until(lambda: attached.stdin_ok == 1)
    attached.stdin(1, b"once\n")
    attached.stdin(1, b"other\n")
    attached.stdin(2, b"twice\n")
    attached.stdin_eof(3)
    attached.stdin_eof(3)
    attached.until_exit()
    assert attached.out == b"once\ntwice\n"


def test_a_frame_that_skips_a_number_closes_the_link_and_nothing_of_it_arrives(
    link: Control, name: str
) -> None:
    link.start(name, "cat")
    attached = link.attach(name)
    attached.stdin(2, b"too early\n")
    assert attached.rest()[:1] == bytes([wire.STDIN_OK])
    assert "after 0" in link.event("refused")["reason"]
    attached = link.attach(name)
    attached.stdin(1, b"fine\n")
    attached.stdin_eof(2)
    attached.until_exit()
    assert attached.out == b"fine\n"


@pytest.mark.parametrize(
    "frame",
    [
        wire.encode_frame(wire.STDOUT, 0, b"x"),
        wire.encode_frame(wire.EXIT, 0),
        wire.FRAME_HEAD.pack(wire.STDIN, 1, wire.MAX_STDIN_FRAME + 1),
        b"\xff" * 13,
    ],
)
def test_a_frame_that_is_not_the_servers_to_send_closes_the_link_only(
    link: Control, name: str, frame: bytes
) -> None:
    pid = link.start(name, "cat")
    attached = link.attach(name)
    attached.send(frame)
    attached.rest()
    link.event("refused")
    assert link.start(name, "cat") == pid
    attached = link.attach(name)
    attached.stdin_eof(1)
    assert attached.until_exit() == {"code": 0, "signal": None}


def test_a_newer_link_evicts_the_older_one(link: Control, name: str) -> None:
    link.start(name, "cat")
    older = link.attach(name)
    older.until(lambda: older.stdin_ok == 0)
    newer = link.attach(name)
    assert older.rest() == b""
    newer.stdin(1, b"x\n")
    newer.until(lambda: newer.out == b"x\n")
    newer.stdin_eof(2)
    newer.until_exit()


def test_what_was_acknowledged_is_gone_and_a_gap_says_so(link: Control, name: str) -> None:
    link.start(name, "sh", "-c", "printf 0123456789; printf abcdef >&2")
    link.event("exited", proc=name)
    link.ask("ack", proc=name, out=4)
    attached = link.attach(name, 2, 0)
    attached.until_exit()
    assert attached.gaps == [{"stream": 1, "next": 4}]
    assert (attached.out, attached.err) == (b"456789", b"abcdef")
    attached = link.attach(name, 4, 0)
    attached.until_exit()
    assert attached.gaps == []


def test_attaching_does_not_acknowledge(link: Control, name: str) -> None:
    link.start(name, "printf", "0123456789")
    link.attach(name).until_exit()
    attached = link.attach(name)
    attached.until_exit()
    assert attached.out == b"0123456789"


def test_an_acknowledgement_ahead_of_a_slow_link_gives_it_a_gap_not_wrong_bytes(
    link: Control, name: str
) -> None:
    size = 4 << 20
    link.start(name, sys.executable, "-c", WRITER, "0", f"1:{size}")
    link.event("exited", proc=name)
    slow = link.attach(name)
    slow.until(lambda: bool(slow.out))
    link.ask("ack", proc=name, out=size - 10)
    slow.until_exit()
    assert slow.gaps == [{"stream": 1, "next": size - 10}]
    assert slow.out == pattern(size)[-10:]


@pytest.mark.parametrize(
    ("proc", "out", "ticket", "reason"),
    [
        ("nobody", 0, None, "unknown process"),
        (None, 11, None, "offset beyond the end"),
        (None, 0, "made-up", "bad ticket"),
    ],
)
def test_an_attach_that_makes_no_sense_is_refused(
    link: Control, name: str, proc: str | None, out: int, ticket: str | None, reason: str
) -> None:
    link.start(name, "printf", "0123456789")
    link.event("exited", proc=name)
    refused = Link(link.path)
    refused.send(wire.Attach(proc or name, out, 0, ticket or link.ticket("attach")).line())
    assert wire.parse_error(refused.rest()) == reason


def test_input_for_a_process_that_does_not_read_is_held_back_and_not_lost(
    link: Control, name: str
) -> None:
    link.start(
        name, sys.executable, "-c", "import sys; print(len(sys.stdin.buffer.read()), end='')"
    )
    attached = link.attach(name)
    piece = b"z" * 200_000
    for seq in range(1, 11):
        attached.stdin(seq, piece)
    attached.stdin_eof(11)
    attached.until_exit()
    assert attached.out == b"2000000"
    assert attached.stdin_ok == 11


def test_a_process_that_never_reads_takes_a_bounded_amount(link: Control, name: str) -> None:
    link.start(name, "sleep", "60")
    attached = link.attach(name)
    attached.sock.settimeout(0.3)
    seq = 0
    with pytest.raises(TimeoutError):
        while seq < 100:
            seq += 1
            attached.stdin(seq, b"z" * 200_000)
    assert seq < 20
    accepted = 0
    with pytest.raises(TimeoutError):
        while True:
            attached.frame()
            accepted = attached.stdin_ok
    assert 5 <= accepted < seq
    attached.close()
    assert link.attach(name).frame() == wire.Frame(wire.STDIN_OK, accepted)
    link.ask("signal", proc=name, signal="KILL")
    assert link.event("exited", proc=name)["exit"] == {"code": None, "signal": 9}


def test_input_for_a_process_that_closed_its_stdin_is_taken_and_dropped(
    link: Control, name: str
) -> None:
    link.start(name, "sh", "-c", "exec <&-; echo closed; exec sleep 60")
    attached = link.attach(name)
    attached.until(lambda: attached.out == b"closed\n")
    for seq in range(1, 20):
        attached.stdin(seq, b"z" * 200_000)
    attached.until(lambda: attached.stdin_ok == 19)
    link.ask("signal", proc=name, signal="KILL")


def test_a_link_nobody_reads_holds_the_process_back_and_not_the_host(
    link: Control, shared: HostProcess, name: str
) -> None:
    before = link.ask("stats")["rss"]
    link.start(name, "cat", "/dev/zero", spool_bytes=1 << 20)
    attached = link.attach(name)
    link.event("spool_full", proc=name, stream="out")
    assert link.ask("stats")["rss"] - before < 16 << 20
    attached.until(lambda: len(attached.out) >= 2 << 20)
    link.ask("ack", proc=name, out=len(attached.out))
    link.event("spool_resumed", proc=name, stream="out")
    attached.until(lambda: len(attached.out) >= 3 << 20)
    assert set(attached.out) == {0}
    link.ask("signal", proc=name, signal="KILL")
    attached.until(lambda: True)


def test_what_a_killed_process_had_written_is_all_there_even_when_the_spool_was_full(
    link: Control, name: str
) -> None:
    """Nothing lost; the pipe's last bytes are read after the spool has room again."""
    link.start(name, sys.executable, "-c", WRITER, "5", "1:60000", spool_bytes=4096)
    link.event("spool_full", proc=name)
    out = b""
    while True:
        attached = link.attach(name, len(out))
        attached.until(lambda: attached.exit is not None or bool(attached.out))
        out += attached.out
        attached.close()
        if attached.exit is not None:
            break
        link.ask("ack", proc=name, out=len(out))
    assert out == pattern(60000)
    assert attached.exit == {"code": 5, "signal": None}


def test_gap_and_exit_payloads_are_json(link: Control, name: str) -> None:
    link.start(name, "sh", "-c", "kill -9 $$")
    attached = link.attach(name)
    attached.until(lambda: attached.exit is not None)
    assert json.dumps(attached.exit) == '{"code": null, "signal": 9}'
