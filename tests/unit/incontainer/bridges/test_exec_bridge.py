"""`oubliette.pyz bridge`: a socket's two directions, their ends and their back-pressure over pipes."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.incontainer.bridges import exec_frames

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 30
ROOT = Path(__file__).resolve().parents[4]


class Bridged:
    """A bridge process between our pipes and a relay that we play."""

    def __init__(self, path: str) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            listener.settimeout(SECONDS)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "oubliette.incontainer", "bridge", path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                cwd=ROOT,
                bufsize=0,
            )
            self.relay = listener.accept()[0]
        self.relay.settimeout(SECONDS)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input = self.process.stdin
        self.output = self.process.stdout
        assert self.read(len(exec_frames.HELLO)) == exec_frames.HELLO

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            assert select.select([self.output], [], [], SECONDS)[0], "nothing comes"
            piece = os.read(self.output.fileno(), size - len(data))
            if not piece:
                break
            data += piece
        return data

    def piece(self) -> bytes | None:
        """The next piece; None at the end of the direction."""
        length = int.from_bytes(self.read(4), "big")
        return self.read(length) if length else None

    def send(self, data: bytes) -> None:
        self.input.write(exec_frames.head(len(data)) + data)

    def received(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.relay.recv(size - len(data))
            if not piece:
                break
            data += piece
        return data

    def ended(self) -> int:
        return self.process.wait(SECONDS)

    def close(self) -> None:
        self.relay.close()
        for pipe in (self.input, self.output):
            with contextlib.suppress(OSError):
                pipe.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture
def bridged() -> Iterator[Bridged]:
    folder = tempfile.mkdtemp(prefix="ob", dir="/tmp")
    made = Bridged(f"{folder}/relay.sock")
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder)


def test_bytes_go_both_ways(bridged: Bridged) -> None:
    bridged.send(b"question")
    assert bridged.received(8) == b"question"
    bridged.relay.sendall(b"answer")
    assert bridged.piece() == b"answer"


def test_the_end_of_our_direction_leaves_the_other_open(bridged: Bridged) -> None:
    bridged.send(b"last words")
    bridged.input.write(exec_frames.head(0))
    assert bridged.received(100) == b"last words"  # and then the end
    bridged.relay.sendall(b"still here")
    assert bridged.piece() == b"still here"
    bridged.relay.close()
    assert bridged.piece() is None
    assert bridged.ended() == 0


def test_the_end_of_the_relays_direction_leaves_ours_open(bridged: Bridged) -> None:
    bridged.relay.shutdown(socket.SHUT_WR)
    assert bridged.piece() is None
    bridged.send(b"more")
    assert bridged.received(4) == b"more"
    bridged.input.write(exec_frames.head(0))
    assert bridged.received(1) == b""
    assert bridged.ended() == 0


def test_a_relay_that_closes_ends_the_bridge_after_its_last_word(bridged: Bridged) -> None:
    bridged.relay.sendall(b"OUBLIETTE-ERROR bad ticket\n")
    bridged.relay.close()
    assert bridged.piece() == b"OUBLIETTE-ERROR bad ticket\n"
    assert bridged.piece() is None
    assert bridged.ended() == 0


@pytest.mark.parametrize("end", ["input", "output"])
def test_a_server_that_is_gone_ends_the_bridge_and_its_link(bridged: Bridged, end: str) -> None:
    getattr(bridged, end).close()
    assert bridged.ended() == 0
    assert bridged.received(1) == b""


def test_what_was_sent_before_the_server_left_is_delivered(bridged: Bridged) -> None:
    bridged.send(b"x" * 50_000)
    bridged.input.close()
    assert len(bridged.received(100_000)) == 50_000
    assert bridged.ended() == 0


@pytest.mark.parametrize("way", ["up", "down"])
def test_who_reads_nothing_holds_the_other_side_back(bridged: Bridged, way: str) -> None:
    source = bridged.input.fileno() if way == "up" else bridged.relay.fileno()
    os.set_blocking(source, False)
    if way == "up":
        os.write(source, exec_frames.head(100 << 20))
    sent = 0
    # Two buffers of the kernel and one piece in the bridge; far less than is offered.
    with contextlib.suppress(BlockingIOError):
        while sent < 20 << 20:
            if not select.select([], [source], [], 0.5)[1]:
                break
            sent += os.write(source, b"x" * 4096)
    assert sent < 4 << 20
    if way == "up":
        assert len(bridged.received(sent)) == sent
    else:
        came = 0
        while came < sent:
            came += len(bridged.piece() or b"")
        assert came == sent


def test_megabytes_pass_whole_in_both_directions_at_once(bridged: Bridged) -> None:
    import threading

    data = os.urandom(3 << 20)

    def echo() -> None:
        left = len(data)
        while left:
            piece = bridged.relay.recv(1 << 16)
            left -= len(piece)
            bridged.relay.sendall(piece)

    def feed() -> None:
        for at in range(0, len(data), 100_000):
            bridged.send(data[at : at + 100_000])

    threads = [threading.Thread(target=act) for act in (echo, feed)]
    for thread in threads:
        thread.start()
    came = b""
    while len(came) < len(data):
        came += bridged.piece() or b""
    for thread in threads:
        thread.join()
    assert came == data


def test_a_relay_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "oubliette.incontainer", "bridge", str(tmp_path / "none.sock")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=ROOT,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith(b"OUBLIETTE-ERROR ")
    assert b"No such file" in done.stdout
    assert done.stderr == b""


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    after=st.binary(max_size=10),
)
def test_pieces_are_found_wherever_the_stream_was_cut(
    pieces: list[bytes], cuts: list[int], after: bytes
) -> None:
    stream = b"".join(exec_frames.head(len(piece)) + piece for piece in pieces)
    stream += exec_frames.head(0) + after
    unpacker = exec_frames.Unpacker()
    found = b""
    at = turn = 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        assert not unpacker.ended or found == b"".join(pieces)
        found += unpacker.feed(stream[at : at + size])
        at += size
        turn += 1
    assert found == b"".join(pieces)
    assert unpacker.ended
