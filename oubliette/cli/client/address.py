"""Address of a remote server, and its key: from options, the environment or a file."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx2

from oubliette.errors import InvalidParameter, Unauthenticated

PATH: Final = "/mcp"
MAX_KEY: Final = 4096  # characters; ours have less than a hundred


def address(text: str) -> httpx2.URL:
    """Return the address of a server; without a path, the path is `/mcp`.

    Raises:
        InvalidParameter: the text is no address, or contains a user name and a password.
    """
    hint = "such as http://127.0.0.1:8080/mcp, which a server prints when it starts"
    try:
        url = httpx2.URL(text.strip())
        _ = urlsplit(text).port  # httpx2 does not check it
    except (httpx2.InvalidURL, ValueError) as error:
        raise InvalidParameter(
            f"the URL cannot be read: {error}", field="url", hint=hint
        ) from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise InvalidParameter(
            "the URL must begin with http:// or https:// and name a host", field="url", hint=hint
        )
    if url.userinfo:
        raise InvalidParameter(
            "the URL has a name or a password in it, which our servers do not know",
            field="url",
            hint="give the key in OUBLIETTE_KEY or with --key-file",
        )
    return url.copy_with(path=PATH) if url.path in {"", "/"} else url


def shows_key(url: httpx2.URL) -> bool:
    """Return whether a key sent to `url` can be read on the way."""
    if url.scheme == "https" or url.host == "localhost" or url.host.endswith(".localhost"):
        return False
    try:
        return not ipaddress.ip_address(url.host).is_loopback
    except ValueError:
        return True


def key_of(key: str | None, file: str | None) -> str:
    """Return the key as given, or as read from the file.

    Raises:
        Unauthenticated: no key was given.
        InvalidParameter: the file cannot be read, or is no key. The message does not contain it.
    """
    where = "the key"
    if key is None and file is not None:
        where = file
        try:
            with Path(file).open(encoding="utf-8") as opened:
                key = opened.read(MAX_KEY + 1)
        except (OSError, UnicodeDecodeError) as error:
            said = error.strerror if isinstance(error, OSError) else "it is not text"
            raise InvalidParameter(
                f"{file}: cannot be read: {said}", field="key_file", hint="a file with a key in it"
            ) from error
    key = (key or "").strip()
    if not key:
        raise Unauthenticated(
            "a server elsewhere requires an API key",
            hint="set OUBLIETTE_KEY, or name a file with --key-file; oubliette token create, on the"
            " machine of the server, makes one",
        )
    if len(key) > MAX_KEY or not all("!" <= each <= "~" for each in key):
        raise InvalidParameter(
            f"{where}: is no API key", field="key", hint="a key looks like oub_…, without spaces"
        )
    return key
