"""Credentials of git hosts: which of the configured ones is for which URL.

An entry is `HOST=REFERENCE`, `HOST/PATH=REFERENCE` or either with `USER:` before the reference. The
longest that fits is taken. Only the configuration determines which host gets a secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from oubliette.errors import ConfigError
from oubliette.runtime.agents.environment import resolve
from oubliette.runtime.repositories.addresses import host_and_path

if TYPE_CHECKING:
    from collections.abc import Iterable

_ENTRY: Final = re.compile(
    r"(?P<place>[^=\s]+)=(?:(?P<user>[^:=\s]+):)?(?P<reference>(?:env|file):.+)", re.DOTALL
)
USER: Final = "x-access-token"
"""User name that goes with a token, where none is configured: hosts accept any with it."""


@dataclass(frozen=True, slots=True)
class HostCredential:
    """A secret for one host."""

    scope: str
    """URL of the host, to which git restricts it."""
    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Entry:
    user: str
    reference: str


def _entry(entries: Iterable[str], url: str) -> _Entry | None:
    _, host, path = host_and_path(url)
    best, length = None, -1
    for each in entries:
        found = _ENTRY.fullmatch(each)
        if found is None:  # the configuration's pattern has refused it before
            continue
        place = found["place"]
        wanted, slash, below = place.partition("/")
        fits = wanted.lower() == host and (
            not slash or path == f"/{below}" or path.startswith(f"/{below.rstrip('/')}/")
        )
        if fits and len(place) > length:
            best, length = _Entry(found["user"] or USER, found["reference"]), len(place)
    return best


def credential_for(entries: Iterable[str], url: str) -> HostCredential | None:
    """The credential for an http or https URL, if one is configured. Blocks.

    Raises:
        ConfigError: its reference cannot be resolved; names it, never its value.
    """
    scheme, host, _ = host_and_path(url)
    found = _entry(entries, url) if scheme in {"http", "https"} else None
    if found is None:
        return None
    try:
        password = resolve(found.reference)
    except ConfigError as error:
        raise ConfigError(
            f"repositories.credentials ({found.reference}): {error.message}", hint=error.hint
        ) from error
    return HostCredential(f"{scheme}://{host}", found.user, password.strip())


def key_file_for(entries: Iterable[str], url: str) -> str | None:
    """The file with the key for an ssh URL, if one is configured."""
    scheme, _, _ = host_and_path(url)
    found = _entry(entries, url) if scheme == "ssh" else None
    if found is None or not found.reference.startswith("file:"):
        return None
    return found.reference.removeprefix("file:")
