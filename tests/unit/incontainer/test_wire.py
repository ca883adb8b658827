"""The wire module: what is written can be read, and nothing else can."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.incontainer import wire

word = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x2FFF), min_size=1, max_size=40
).filter(lambda w: w.isprintable() and " " not in w)
count = st.integers(0, wire.MAX_COUNT)
hexes = st.binary(min_size=16, max_size=16).map(bytes.hex)
headers = st.one_of(
    st.builds(wire.Upstream, word, word, count, st.none() | word),
    st.builds(wire.Downstream, word),
    st.builds(wire.Downstream, word, word, word),
    st.builds(wire.ControlHeader, hexes),
    st.builds(wire.Attach, word, count, count, word),
)


@given(headers)
def test_a_header_reads_back_as_it_was_written(header: wire.Upstream) -> None:
    assert wire.parse_header(header.line()) == header
    assert hash(wire.parse_header(header.line())) == hash(header)


@given(st.binary(max_size=2000))
def test_garbage_is_refused_with_a_reason_and_nothing_else(line: bytes) -> None:
    try:
        wire.parse_header(line)
    except wire.WireError as error:
        assert str(error)


@given(headers, st.data())
def test_a_damaged_header_is_refused_or_still_a_header(
    header: wire.Upstream, data: st.DataObject
) -> None:
    line = bytearray(header.line())
    line[data.draw(st.integers(0, len(line) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = wire.parse_header(bytes(line))
    except wire.WireError:
        return
    assert wire.parse_header(read.line()) == read


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"GET / HTTP/1.1\n",
        b"OUBLIETTE-UPSTREAM s p\n",
        b"OUBLIETTE-UPSTREAM s p -1\n",
        b"OUBLIETTE-UPSTREAM s p 1_0\n",
        "OUBLIETTE-UPSTREAM s p ١\n".encode(),
        b"OUBLIETTE-UPSTREAM s  p 0\n",
        b"OUBLIETTE-UPSTREAM s p 99999999999999999999\n",
        b"OUBLIETTE-UPSTREAM s p 0 t extra\n",
        b"OUBLIETTE-DOWNSTREAM\n",
        b"OUBLIETTE-DOWNSTREAM p s\n",
        b"OUBLIETTE-DOWNSTREAM p s\x00 x\n",
        b"OUBLIETTE-HOST 1 short\n",
        b"OUBLIETTE-HOST 2 00112233445566778899aabbccddeeff\n",
        b"OUBLIETTE-HOST 1 00112233445566778899AABBCCDDEEFF\n",
        b"OUBLIETTE-ATTACH 1 p 0 t\n",
        b"OUBLIETTE-ATTACH 1 p 0 18446744073709551616 t\n",
        b"oubliette-host 1 00112233445566778899aabbccddeeff\n",
        b"OUBLIETTE-DOWNSTREAM \xff\n",
        b"OUBLIETTE-DOWNSTREAM " + b"p" * 257 + b"\n",
        b"OUBLIETTE-DOWNSTREAM " + b"p" * 1024 + b"\n",
    ],
)
def test_a_malformed_header_is_refused(line: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.parse_header(line)


def test_the_seeds_headers_are_understood_with_either_line_end() -> None:
    """`OUBLIETTE-DOWNSTREAM {project}` and `OUBLIETTE-UPSTREAM {session} {project} {depth}`."""
    assert wire.parse_header(b"OUBLIETTE-DOWNSTREAM proj\n") == wire.Downstream("proj")
    assert wire.parse_header(b"OUBLIETTE-UPSTREAM s proj 2\r\n") == wire.Upstream("s", "proj", 2)


def test_a_header_that_cannot_be_read_back_is_not_written() -> None:
    with pytest.raises(wire.WireError):
        wire.Upstream("two words", "p", 0).line()
    with pytest.raises(wire.WireError):
        wire.Downstream("p" * 250, "ä" * 250, "ü" * 250).line()


def test_secrets_do_not_show_in_a_representation() -> None:
    shown = (
        repr(wire.Downstream("p", "s", "hush"))
        + repr(wire.Attach("p", 0, 0, "hush"))
        + repr(wire.Upstream("s", "p", 0, "hush"))
    )
    assert "hush" not in shown


def test_an_error_line_carries_its_reason_on_one_line() -> None:
    assert wire.parse_error(wire.error_line("no\nsuch  thing")) == "no such thing"
    assert wire.parse_error(b"OUBLIETTE-UPSTREAM s p 0\n") is None
    assert len(wire.error_line("x" * 5000)) <= wire.MAX_HEADER


def test_proofs_are_those_of_the_design() -> None:
    """HMAC-SHA256 over label, own view of both nonces; the labels keep the roles apart."""
    key, nonce, challenge = b"k" * 32, "a" * 32, "b" * 32
    expected = hmac.new(
        key, f"oubliette-host|{nonce}|{challenge}".encode(), hashlib.sha256
    ).hexdigest()
    assert wire.host_proof(key, nonce, challenge) == expected
    expected = hmac.new(
        key, f"oubliette-server|{challenge}|{nonce}".encode(), hashlib.sha256
    ).hexdigest()
    assert wire.server_proof(key, challenge, nonce) == expected
    assert wire.digest("s") == hashlib.sha256(b"s").hexdigest()


@pytest.mark.parametrize("given", [None, 1, "", "b", "é", b"a", ["a"]])
def test_anything_but_the_right_secret_is_different(given: object) -> None:
    assert wire.same("a", "a")
    assert not wire.same(given, "a")


frames = st.lists(
    st.builds(
        wire.Frame, st.sampled_from(sorted(wire.FRAME_KINDS)), count, st.binary(max_size=300)
    ),
    max_size=6,
)


@given(frames, st.data())
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[wire.Frame], data: st.DataObject
) -> None:
    stream = b"".join(wire.encode_frame(f.kind, f.n, f.payload) for f in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder, got = wire.FrameDecoder(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.feed(stream[start:end])
    assert got == sent
    assert decoder.pending == 0


@given(frames.filter(bool))
def test_a_cut_after_any_byte_yields_whole_frames_only(sent: list[wire.Frame]) -> None:
    encoded = [wire.encode_frame(f.kind, f.n, f.payload) for f in sent]
    stream = b"".join(encoded)
    ends = [sum(map(len, encoded[: i + 1])) for i in range(len(encoded))]
    for cut in range(len(stream) + 1):
        got = wire.FrameDecoder().feed(stream[:cut])
        assert got == sent[: sum(end <= cut for end in ends)]


@pytest.mark.parametrize(
    "head", [(9, 0, 0), (0, 0, 0), (1, 0, wire.MAX_FRAME + 1), (3, 1, 0xFFFFFFFF)]
)
def test_an_oversize_or_unknown_frame_is_refused_at_its_head(head: tuple[int, int, int]) -> None:
    with pytest.raises(wire.WireError):
        wire.FrameDecoder().feed(wire.FRAME_HEAD.pack(*head))
    with pytest.raises(wire.WireError):
        wire.encode_frame(1, 0, bytes(wire.MAX_FRAME + 1))


@given(st.lists(st.binary(max_size=30).filter(lambda b: b"\n" not in b), max_size=8), st.data())
def test_lines_come_out_as_they_went_in_and_long_ones_are_reported(
    lines: list[bytes], data: st.DataObject
) -> None:
    limit = 12
    stream = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader, got = wire.LineReader(limit), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += reader.feed(stream[start:end])
    assert [line.size if isinstance(line, wire.OversizeLine) else line for line in got] == [
        len(line) if len(line) > limit else line for line in lines
    ]
    assert reader.end() is None


def test_an_endless_line_takes_no_memory_and_is_reported_at_its_end() -> None:
    reader = wire.LineReader(1000)
    for _ in range(100):
        assert reader.feed(b"x" * 500) == []
    assert reader.pending == 50_000
    assert sum(map(len, reader._parts)) <= 1000
    (long, fine) = reader.feed(b"\nfine\n")
    assert isinstance(long, wire.OversizeLine)
    assert long.size == 50_000
    assert fine == b"fine"


@pytest.mark.parametrize(
    ("named", "known"),
    [
        (b"7", 7),
        (b'"a"', "a"),
        (rb'"\u00e9\""', 'é"'),
        (b"007", None),
        (b"-", None),
        (rb'"\q"', None),
        (b'"\xff"', None),
        (b'"\x00"', None),
        (b"1.5", None),
        (b"null", None),
    ],
)
@pytest.mark.parametrize("line", [b'{"id":%b,"x":"%b"}\n', b'{"x":"%b","id":%b}\n'])
def test_a_line_that_is_too_long_is_reported_with_any_id(
    line: bytes, named: bytes, known: str | int | None
) -> None:
    rest = b"x" * 2000
    content = line % ((named, rest) if line.startswith(b'{"id"') else (rest, named))
    (long,) = wire.LineReader(1000).feed(content)
    assert isinstance(long, wire.OversizeLine)
    assert long.request_id == known


def test_what_follows_the_last_newline_is_told_at_the_end() -> None:
    reader = wire.LineReader(10)
    reader.feed(b"a\nb")
    assert reader.end() == b"b"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=())),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=8,
    )
)
def test_any_json_value_crosses_as_one_line_lone_surrogates_included(value: object) -> None:
    line = wire.encode_json({"v": value})
    assert line.count(b"\n") == 1
    assert wire.decode_json(line)["v"] == json.loads(json.dumps(value))


@pytest.mark.parametrize("line", [b"", b"[]", b"null", b"{", b"\xff", b"[" * 100_000, b"1e999999"])
def test_what_is_no_json_object_is_refused(line: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode_json(line)
