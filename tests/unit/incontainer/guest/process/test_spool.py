"""The spool: every byte between acknowledged and written is there, in memory or in the file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oubliette.incontainer.guest.process import spool as spool_module
from oubliette.incontainer.guest.process.spool import Spool
from tests import selection

PATTERN = bytes(range(251)) * 400

steps = st.lists(
    st.tuples(st.just("write"), st.integers(1, 20_000))
    | st.tuples(st.just("ack"), st.floats(0, 1))
    | st.tuples(st.just("read"), st.floats(0, 1)),
    max_size=40,
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MEMORY_BYTES", 4096)
    monkeypatch.setattr(spool_module, "SPILL", 1000)


@given(steps, st.sampled_from([4096, 10_000, 30_000]))
@settings(max_examples=selection.examples(150))
def test_what_is_kept_reads_back_from_any_offset(plan: list[tuple[str, float]], size: int) -> None:
    """A model in one bytes object against the ring of memory and file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool_module, "MEMORY_BYTES", 4096)
        patch.setattr(spool_module, "SPILL", 1000)
        spool = Spool("/tmp", size)
        written, acked = b"", 0
        for verb, amount in plan:
            if verb == "write":
                piece = PATTERN[len(written) % 251 :][: min(int(amount), spool.room)]
                spool.write(piece)
                written += piece
            elif verb == "ack":
                acked = acked + int((len(written) - acked) * amount)
                spool.ack(acked)
            else:
                offset = acked + int((len(written) - acked) * amount)
                got = b""
                while data := spool.read(offset + len(got), 3000):
                    got += data
                assert got == written[offset:]
            assert (spool.start, spool.end) == (acked, len(written))
            assert spool.kept <= 4096 + size
            assert spool.on_disk <= size
            assert len(spool._memory) <= 4096
        spool.close_file()


def test_a_full_spool_has_no_room_until_something_is_acknowledged(small: None) -> None:
    spool = Spool("/tmp", 8192)
    while spool.room:
        spool.write(b"x" * min(700, spool.room))
    assert spool.kept == 4096 + 8192
    spool.ack(5000)
    assert spool.room == 5000
    spool.close_file()


def test_an_acknowledged_file_gives_its_disk_space_back(small: None) -> None:
    spool = Spool("/tmp", 8192)
    spool.write(b"x" * 10_000)
    assert spool.on_disk > 0
    assert spool._fd >= 0
    spool.ack(9_999)
    assert spool._fd == -1
    assert spool.read(9_999, 10) == b"x"


def test_the_file_has_no_name_and_is_the_owners_only(small: None, tmp_path: Path) -> None:
    spool = Spool(str(tmp_path), 8192)
    spool.write(b"x" * 10_000)
    assert list(tmp_path.iterdir()) == []
    state = os.fstat(spool._fd)
    assert (state.st_mode & 0o777, state.st_nlink) == (0o600, 0)
    assert not os.get_inheritable(spool._fd)
    spool.close_file()


def test_a_full_disk_holds_back_and_loses_nothing(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool("/tmp", 100_000)
    real = os.pwrite

    def full(_fd: int, _data: bytes, _offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    spool.write(PATTERN[:5000])
    assert spool.room == 0
    assert spool.read(0, 10_000) == PATTERN[:5000]
    monkeypatch.setattr(os, "pwrite", real)
    spool.ack(100)
    assert spool.room > 0
    spool.write(PATTERN[5000:9000])
    got = b""
    while data := spool.read(100 + len(got), 2500):
        got += data
    assert got == PATTERN[100:9000]
    spool.close_file()


def test_a_disk_that_fills_in_the_middle_of_a_spill_keeps_the_order(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool("/tmp", 100_000)
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:333], offset))
    spool.write(PATTERN[:9000])
    got = b""
    while data := spool.read(len(got), 2500):
        got += data
    assert got == PATTERN[:9000]
    spool.close_file()


def test_reading_outside_what_is_kept_is_an_error() -> None:
    spool = Spool("/tmp")
    spool.write(b"abc")
    spool.ack(2)
    for offset in (1, 4):
        with pytest.raises(ValueError, match="outside"):
            spool.read(offset, 1)
