"""Lines above the limit are dropped, and still tell whose they were."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.incontainer.wire import LineReader, OversizeLine


def read(data, cuts, limit):
    reader = LineReader()
    reader.limit = limit
    lines, start = [], 0
    for cut in [*sorted(cuts), len(data)]:
        lines += reader.feed(data[start:cut])
        start = max(start, cut)
    return lines


@given(
    st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=8),
    st.lists(st.integers(0, 300), max_size=12),
)
def test_however_the_bytes_are_cut_the_lines_are_the_same(lines, cuts):
    data = b"".join(line + b"\n" for line in lines)
    found = read(data, [min(cut, len(data)) for cut in cuts], limit=20)
    assert len(found) == len(lines)
    for line, got in zip(lines, found, strict=True):
        if len(line) > 20:
            assert isinstance(got, OversizeLine)
            assert got.size == len(line)
        else:
            assert got == line


IDS = st.one_of(st.integers(-(10**17), 10**17), st.text(max_size=20))
NESTED = st.recursive(
    IDS,
    lambda inner: (
        st.dictionaries(st.sampled_from(["id", "x"]), inner, max_size=2)
        | st.lists(inner, max_size=2)
    ),
    max_leaves=5,
)


@given(
    IDS,
    NESTED,
    st.sampled_from(["first", "after jsonrpc", "last"]),
    st.lists(st.integers(0, 3000), max_size=5),
    st.booleans(),
)
def test_the_id_of_a_long_line_is_found_where_peers_write_it(
    request_id, nested, place, cuts, spaced
):
    rest = {"method": "m", "params": {"a": nested, "pad": "x" * 500, "id": nested}}
    message = {
        "first": {"id": request_id, "jsonrpc": "2.0", **rest},
        "after jsonrpc": {"jsonrpc": "2.0", "id": request_id, **rest},
        "last": {**rest, "jsonrpc": "2.0", "id": request_id},
    }[place]
    data = json.dumps(message, separators=None if spaced else (",", ":")).encode() + b"\n"
    (line,) = read(data, [min(cut, len(data)) for cut in cuts], limit=100)
    assert isinstance(line, OversizeLine)
    assert line.request_id == request_id


@given(NESTED)
def test_an_id_further_in_is_never_taken_for_the_lines_own(nested):
    data = (
        json.dumps(
            {"jsonrpc": "2.0", "method": "m", "params": {"pad": "x" * 200, "id": nested}}
        ).encode()
        + b"\n"
    )
    (line,) = read(data, [], limit=100)
    assert isinstance(line, OversizeLine)
    assert line.request_id is None


@pytest.mark.parametrize("inner", ['"id": 5}', '\\", \\"id\\": 5}', '{"id": 5, '])
def test_an_id_inside_a_string_is_not_taken_either(inner):
    data = json.dumps({"jsonrpc": "2.0", "params": "x" * 200 + inner}).encode() + b"\n"
    (line,) = read(data, [], limit=100)
    assert isinstance(line, OversizeLine)
    assert line.request_id is None
