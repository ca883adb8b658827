"""Command `oubliette git-credential`: a key for git, which has it in no URL and no file then."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlsplit

import typer

from oubliette.cli.terminal.output import Format, Home, Output, note, print_json
from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from typing import IO

USER: Final = "oub"
"""User name, of which servers take any."""
KEY_SECONDS: Final = 3600.0
"""Time for which the key of one clone or fetch is valid."""
MAX_LINES: Final = 100
_PORTS: Final = {"http": 80, "https": 443}


def git_credential(
    action: Annotated[
        str,
        typer.Argument(
            metavar="get|store|erase", help="Word that git adds itself; only get is answered."
        ),
    ],
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="OUBLIETTE_URL",
            help="Address of a server elsewhere; wants OUBLIETTE_KEY or --key-file.",
        ),
    ] = None,
    key_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", envvar="OUBLIETTE_KEY_FILE", help="File with the API key for --url."
        ),
    ] = None,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Give git a key for the server of the home, or for the one at --url, and for no other host.

    For the server of the home it is a new key, which can only read and expires after an hour.
    """
    asked = _asked(sys.stdin)
    if action != "get":  # it keeps nothing
        return
    host = f"{asked.get('protocol', '')}://{asked.get('host', '')}"
    found = _elsewhere(host, url, key_file) if url is not None else _here(host, home)
    if output is Format.json:
        print_json(found)
        return
    for name, value in found.items():
        sys.stdout.write(f"{name}={value}\n")


def _asked(lines: IO[str]) -> dict[str, str]:
    """Read git's question: lines of a name and a value, up to an empty one."""
    asked: dict[str, str] = {}
    for _ in range(MAX_LINES):
        name, sign, value = lines.readline().rstrip("\n").partition("=")
        if not sign:
            break
        asked[name] = value
    return asked


def _elsewhere(host: str, url: str, key_file: str | None) -> dict[str, str]:
    import os

    from oubliette.cli.client import address

    if not _same(host, str(address.address(url))):
        return {}
    key = None if key_file is not None else os.environ.get("OUBLIETTE_KEY")
    return {"username": USER, "password": address.key_of(key, key_file)}


def _here(host: str, home: str | None) -> dict[str, str]:
    from oubliette.api.control import ControlClient
    from oubliette.api.http.surroundings import is_loopback
    from oubliette.config.loader import find_home

    if not is_loopback(urlsplit(host).hostname or ""):
        return {}
    with ControlClient(find_home(home)) as server:
        if not _same(host, str(server.status()["url"])):
            return {}
        made = server.call(
            "token_create",
            {
                "name": "git",
                "scope": "read",
                "principal": "operator",
                "expires_in_seconds": KEY_SECONDS,
            },
        )
    until = int(time.time() + KEY_SECONDS)
    return {"username": USER, "password": made["token"], "password_expiry_utc": str(until)}


def _same(host: str, url: str) -> bool:
    """Whether a host of git is the server at a URL, by the same name.

    Another name of this machine may be another program's: an agent or another user can listen on
    `127.0.0.2` or `::1`, and have a repository with a submodule from there.

    Raises:
        InvalidParameter: git has asked for something that is no host.
    """
    from oubliette.api.http.surroundings import is_loopback

    asked, server = urlsplit(host), urlsplit(url)
    try:
        ports = [each.port or _PORTS.get(each.scheme) for each in (asked, server)]
    except ValueError as error:
        raise InvalidParameter(f"git asks for {host!r}, which has no valid port") from error
    if asked.scheme != server.scheme or ports[0] != ports[1]:
        return False
    names = [each.hostname or "" for each in (asked, server)]
    if names[0] != names[1] and all(map(is_loopback, names)):
        note(
            f"git-credential: no key for {host!r}: what listens there may be another program;"
            f" the server is at {server.scheme}://{server.netloc.rpartition('@')[2]}"
        )
    return names[0] == names[1]
