"""Requests and answers of the files program survive any cut, and nothing too long is collected."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.incontainer.files import frames


@given(
    sent=st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=50)), max_size=5),
    cuts=st.lists(st.integers(0, 300), max_size=8),
)
def test_what_is_sent_arrives_wherever_it_is_cut(
    sent: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(frames.encode({"name": os.fsdecode(name)}, data) for name, data in sent)
    decoder = frames.FileFrames()
    got: list[tuple[bytes, bytes]] = []
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    for start, end in zip(places, places[1:], strict=False):
        for fields, data in decoder.feed(stream[start:end]):
            got.append((os.fsencode(fields["name"]), data))
    assert got == sent
    assert decoder.pending == 0


@pytest.mark.parametrize(
    "piece",
    [
        frames.HEAD.pack(frames.MAX_FIELDS + 1, 0),
        frames.HEAD.pack(2, frames.MAX_DATA + 1),
        frames.HEAD.pack(2, 0) + b"[]",
        frames.HEAD.pack(2, 0) + b"{x",
        frames.HEAD.pack(20_000, 0) + b"[" * 20_000,
    ],
)
def test_what_is_no_frame_is_refused(piece: bytes) -> None:
    with pytest.raises(frames.BadFrame):
        frames.FileFrames().feed(piece)
