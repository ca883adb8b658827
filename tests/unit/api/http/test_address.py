"""Addresses and keys that a connection is made with."""

from __future__ import annotations

import pytest

from oubliette.api.http import HttpConnection
from oubliette.errors import InvalidParameter, Unauthenticated

KEY = "oub_not_to_be_shown"


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUBLIETTE_KEY", raising=False)
    monkeypatch.delenv("OUBLIETTE_KEY_FILE", raising=False)


def test_without_a_key_there_is_no_connection() -> None:
    with pytest.raises(Unauthenticated, match="requires an API key"):
        HttpConnection("http://127.0.0.1:8080/mcp")


@pytest.mark.parametrize("key", ["", "two words", "oub_\u00e9", "oub_\r\nx"])
def test_what_is_no_key_is_not_shown(key: str) -> None:
    with pytest.raises(InvalidParameter, match="token: is no API key") as refused:
        HttpConnection("http://127.0.0.1:8080/mcp", key)
    assert not key or key not in str(refused.value)


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://x/", "http://", "http://me:x@y/"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        HttpConnection(url, KEY)
    assert refused.value.field == "url"


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "http://127.0.0.1:8080/mcp"])
def test_the_path_of_an_address_may_be_left_out(url: str) -> None:
    assert HttpConnection(url, KEY).url == "http://127.0.0.1:8080/mcp"
