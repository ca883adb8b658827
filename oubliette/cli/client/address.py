"""Address of a remote server, and its key: from options, the environment or a file."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from oubliette.api.http.address import address, checked, key_in
from oubliette.errors import Unauthenticated

if TYPE_CHECKING:
    import httpx2

__all__ = ("address", "key_of", "shows_key")


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
    if key is None and file is not None:
        return key_in(file)
    if key is None or not key.strip():
        raise Unauthenticated(
            "a server elsewhere requires an API key",
            hint="set OUBLIETTE_KEY, or name a file with --key-file; oubliette token create, on the"
            " machine of the server, makes one",
        )
    return checked(key, "the key")
