"""Address of a remote server, and its key: from options, the environment or a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.api.http.address import address, checked, key_in
from oubliette.api.http.surroundings import is_loopback
from oubliette.errors import Unauthenticated

if TYPE_CHECKING:
    import httpx2

__all__ = ("address", "key_of", "shows_key")


def shows_key(url: httpx2.URL) -> bool:
    """Whether a key sent to `url` can be read on the way."""
    return url.scheme != "https" and not is_loopback(url.host)


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
