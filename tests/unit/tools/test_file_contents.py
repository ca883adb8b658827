"""Paths and contents of files, as the tools take and give them."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.errors import InvalidParameter
from oubliette.tools.schema import response_size
from oubliette.tools.schema.file_contents import encoded, name_text, path_bytes

INSIDE = "/workspace/workspaces/w"


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (None, b""),
        ("", b""),
        (".", b""),
        ("a//b/./c/", b"a/b/c"),
        (INSIDE, b""),
        (f"{INSIDE}/ä", "ä".encode()),
    ],
)
def test_a_path_is_relative_or_inside_the_workspace(path: str | None, found: bytes) -> None:
    assert path_bytes(path, None, INSIDE) == found


@pytest.mark.parametrize(
    "path", ["..", "a/..", "/etc", f"{INSIDE}side/x", f"{INSIDE}/../x", "\0", "\ud800", "x" * 5000]
)
def test_another_path_is_refused_by_its_name(path: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        path_bytes(path, None, INSIDE)
    assert caught.value.field == "path"


def test_a_path_in_bytes_is_checked_as_well() -> None:
    assert path_bytes(None, base64.b64encode(b"caf\xe9/x").decode(), INSIDE) == b"caf\xe9/x"
    for path in (b"../x", b"/etc", b"\0"):
        with pytest.raises(InvalidParameter, match="path_base64"):
            path_bytes(None, base64.b64encode(path).decode(), INSIDE)
    for given_twice in (("x", "eA=="), (None, "???")):
        with pytest.raises(InvalidParameter, match="path_base64"):
            path_bytes(*given_twice, INSIDE)


@given(st.text(max_size=40), st.integers(1, 12))
def test_text_that_is_read_in_ranges_is_the_text(text: str, length: int) -> None:
    whole, at, read = text.encode(), 0, b""
    while at < len(whole):
        piece = whole[at : at + length]
        shown, encoding, taken = encoded(piece, None, more=at + len(piece) < len(whole))
        read += shown.encode() if encoding == "text" else base64.b64decode(shown)
        assert 0 < taken <= len(piece)
        at += taken
    assert read == whole


@given(st.binary(max_size=60))
def test_any_bytes_come_back(data: bytes) -> None:
    shown, encoding, taken = encoded(data, None, more=False)
    assert taken == len(data)
    assert (shown.encode() if encoding == "text" else base64.b64decode(shown)) == data
    assert base64.b64decode(encoded(data, "base64", more=True)[0]) == data


def test_text_whose_escapes_do_not_fit_into_a_message_is_cut() -> None:
    shown, encoding, taken = encoded(b"\x01" * 256 * 1024, None, more=True)
    assert encoding == "text"
    assert 0 < taken == len(shown) < 256 * 1024
    assert response_size.cost(shown) <= response_size.MAX_PARTS


def test_bytes_that_are_no_text_are_refused_as_text() -> None:
    for data in (b"\xff", b"a\0b"):
        with pytest.raises(InvalidParameter, match="encoding"):
            encoded(data, "text", more=False)


def test_a_name_that_is_not_utf_8_comes_with_its_bytes() -> None:
    assert name_text("ä".encode()) == ("ä", None)
    shown, exact = name_text(b"\xe9")
    assert shown == "\N{REPLACEMENT CHARACTER}"
    assert base64.b64decode(exact or "") == b"\xe9"
