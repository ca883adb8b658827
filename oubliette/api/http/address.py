"""Address of a server elsewhere, and the key for it: as given, from the environment or a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from oubliette.errors import InvalidParameter, Unauthenticated

if TYPE_CHECKING:
    import httpx2

PATH: Final = "/mcp"
KEY: Final = "OUBLIETTE_KEY"
KEY_FILE: Final = "OUBLIETTE_KEY_FILE"
MAX_KEY: Final = 4096  # characters; ours have less than a hundred


def address(text: str) -> httpx2.URL:
    """Return the address of a server; without a path, the path is `/mcp`.

    Raises:
        InvalidParameter: the text is no address, or contains a user name and a password.
    """
    import httpx2

    hint = "such as http://127.0.0.1:8080/mcp, which a server prints when it starts"
    try:
        url = httpx2.URL(text.strip())
        _ = urlsplit(text).port  # httpx2 does not check it
    except (httpx2.InvalidURL, ValueError):
        # Their messages quote parts of it, and of a password with a slash in it.
        raise InvalidParameter(
            "the URL cannot be read: its host or port is not valid", field="url", hint=hint
        ) from None
    if url.scheme not in {"http", "https"} or not url.host:
        raise InvalidParameter(
            "the URL must begin with http:// or https:// and name a host", field="url", hint=hint
        )
    if url.userinfo:
        raise InvalidParameter(
            "the URL has a name or a password in it, which our servers do not know",
            field="url",
            hint=f"give the key in {KEY}",
        )
    return url.copy_with(path=PATH) if url.path in {"", "/"} else url


def key_for(token: str | None) -> str:
    """Return the key to use: `token`, or the one that the environment gives.

    Raises:
        Unauthenticated: no key was given.
        InvalidParameter: what was given is no key.
    """
    if token is not None:
        return checked(token, "token")
    if found := os.environ.get(KEY):
        return checked(found, KEY)
    if file := os.environ.get(KEY_FILE):
        return key_in(file)
    raise Unauthenticated(
        "a server elsewhere requires an API key",
        hint=f"give it as token, or set {KEY}; oubliette token create, on the machine of the"
        " server, makes one",
    )


def key_in(file: str) -> str:
    """Return the key that is read from a file.

    Raises:
        InvalidParameter: the file cannot be read, or has no key in it.
    """
    try:
        with Path(file).open(encoding="utf-8") as opened:
            text = opened.read(MAX_KEY + 1)
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is not text"
        raise InvalidParameter(
            f"{file}: cannot be read: {said}", field="key_file", hint="a file with a key in it"
        ) from error
    return checked(text, file)


def checked(text: str, where: str) -> str:
    """Return the key in `text`. Errors name `where` it was found, and do not contain it.

    Raises:
        InvalidParameter: the text is no key.
    """
    key = text.strip()
    if not key or len(key) > MAX_KEY or not all("!" <= each <= "~" for each in key):
        raise InvalidParameter(
            f"{where}: is no API key", field="key", hint="a key looks like oub_…, without spaces"
        )
    return key
