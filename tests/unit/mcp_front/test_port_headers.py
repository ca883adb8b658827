"""Cookies of the browser that belong to this server, and those that do not."""

from __future__ import annotations

import pytest

from oubliette.mcp_front.ports.headers import cookies_of, to_container


@pytest.mark.parametrize(
    ("sent", "own", "left"),
    [
        ([b"oubliette_port=a"], ("a",), []),
        ([b"oubliette_port=x; oubliette_port=a; b=1"], ("x", "a"), [b"b=1"]),
        ([b"b=1;oubliette_port=a ;c=2", b"oubliette_port=x"], ("a", "x"), [b"b=1; c=2"]),
        (
            [b"oubliette_portal=x; xoubliette_port=y"],
            (),
            [b"oubliette_portal=x; xoubliette_port=y"],
        ),
        ([b"oubliette_port"], ("",), []),
    ],
)
def test_each_cookie_of_our_name_is_tried_and_none_goes_to_the_container(
    sent: list[bytes], own: tuple[str, ...], left: list[bytes]
) -> None:
    headers = [(b"host", b"p"), *((b"cookie", each) for each in sent)]
    assert tuple(each.strip() for each in cookies_of(headers)) == own
    passed = to_container(headers, port=1, client="c", scheme="http", own_key=False)
    assert [value for name, value in passed if name == b"cookie"] == left
