"""Streams of this process as those of a command: what its user gets, whatever the server sends."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import socket
import termios
import threading
from typing import TYPE_CHECKING

import pytest

from oubliette.cli.terminal.attached_streams import AttachedStreams
from oubliette.errors import Conflict, Unavailable
from oubliette.incontainer import wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ENDED = wire.encode_frame(wire.EXIT, 0, b'{"code": 3, "signal": null}')
REFUSED = b'{"error": {"code": "conflict", "message": "the session has ended", "hint": null}}'
SECONDS = 20.0


@contextlib.contextmanager
def linked() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    theirs.settimeout(SECONDS)
    with ours, theirs:
        yield ours, theirs


def outcome(sent: bytes, first: bytes = b"") -> int:
    with linked() as (ours, theirs):
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        return AttachedStreams(ours, first, terminal=False).run(None)


def test_output_goes_to_both_streams_and_the_exit_code_is_the_commands(capfd):
    first = wire.encode_frame(wire.STDOUT, 0, b"out")
    cut = wire.encode_frame(wire.STDERR, 0, b"err") + ENDED
    assert outcome(cut[5:], first + cut[:5]) == 3
    assert capfd.readouterr() == ("out", "err")


def test_the_end_by_a_signal_is_128_and_its_number():
    assert outcome(wire.encode_frame(wire.EXIT, 0, b'{"code": null, "signal": 15}')) == 143


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", Unavailable),
        (ENDED[:-1], Unavailable),
        (b"\xff" * 20, Unavailable),
        (wire.encode_frame(wire.EXIT, 0, REFUSED), Conflict),
    ],
)
def test_what_is_no_end_of_a_command_is_an_error(sent, error):
    with pytest.raises(error):
        outcome(sent)


def test_input_of_a_file_is_sent_to_its_end(tmp_path: Path):
    given = os.urandom(200_000)
    (tmp_path / "file").write_bytes(given)
    with linked() as (ours, theirs), (tmp_path / "file").open("rb") as file:
        got = b""

        def serve() -> None:
            nonlocal got
            decoder = wire.FrameDecoder()
            while True:
                for frame in decoder.feed(theirs.recv(65536)):
                    got += frame.payload
                    if frame.kind == wire.EOF:
                        theirs.sendall(ENDED)
                        return

        server = threading.Thread(target=serve)
        server.start()
        assert AttachedStreams(ours, b"", terminal=False).run(file.fileno()) == 3
        server.join()
    assert got == given


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_keys_go_to_the_command_and_the_mode_is_restored_when_it_is_interrupted(number):
    handler = signal.getsignal(number)
    screen, terminal = pty.openpty()
    try:
        before = termios.tcgetattr(terminal)
        with linked() as (ours, theirs):
            typed = b""
            raw = False

            def person() -> None:
                nonlocal typed, raw
                theirs.recv(1 << 16)  # what was typed before is sent in raw mode
                raw = not termios.tcgetattr(terminal)[3] & (termios.ISIG | termios.ICANON)
                os.write(screen, b"\x03\x1a\x04")
                decoder = wire.FrameDecoder()
                while len(typed) < 3:
                    typed += b"".join(each.payload for each in decoder.feed(theirs.recv(100)))
                os.kill(os.getpid(), number)

            os.write(screen, b"\n")
            someone = threading.Thread(target=person)
            someone.start()
            with pytest.raises(KeyboardInterrupt):
                AttachedStreams(ours, b"", terminal=True).run(terminal)
            someone.join()
            assert theirs.recv(1) == b""
        assert raw
        assert typed == b"\x03\x1a\x04"
        assert termios.tcgetattr(terminal) == before
        assert signal.getsignal(number) == handler
    finally:
        os.close(screen)
        os.close(terminal)


def test_output_that_nobody_reads_any_more_ends_it():
    reading, writing = os.pipe()
    os.close(reading)
    kept = os.dup(1)
    os.dup2(writing, 1)
    try:
        with pytest.raises(BrokenPipeError):
            outcome(wire.encode_frame(wire.STDOUT, 0, b"out") + ENDED)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(writing)
