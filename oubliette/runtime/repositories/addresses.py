"""Addresses of repositories and names of branches, checked before git sees them.

git runs programs for some kinds of URL (`ext::`), and takes a leading dash for an option.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from oubliette.errors import Forbidden, InvalidParameter
from oubliette.ids import shown
from oubliette.user_paths import expanded

if TYPE_CHECKING:
    from collections.abc import Collection

_URL: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://[^\s\x00-\x1f\x7f]+")
_OTHER_MACHINE: Final = re.compile(
    r"(?P<user>[A-Za-z0-9_][A-Za-z0-9_.-]*)@(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*)"
    r":(?P<path>[^\s\x00-\x1f\x7f:-][^\s\x00-\x1f\x7f]*)"
)
"""ssh as git abbreviates it: `git@host:path`."""
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\]")
_NOT_IN_BRANCH: Final = re.compile(
    r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^/|/$|\.$|(^|/)\.|\.lock(/|$)"
)
MAX_BRANCH: Final = 200
"""Characters of a branch's name."""


def check_url(url: str, protocols: Collection[str], field: str = "repository.url") -> str:
    """A URL that git may be given.

    Args:
        url: As the user wrote it; `user@host:path` is ssh.
        protocols: Those that this server allows.
        field: Name of the parameter, for errors.

    Raises:
        InvalidParameter: it is none, has a password in it, or its protocol is not allowed.
    """
    if _OTHER_MACHINE.fullmatch(url):
        scheme = "ssh"
    elif (found := _URL.fullmatch(url)) is not None:
        scheme = found["scheme"]
    else:
        raise InvalidParameter(
            f"{field}: {shown(without_password(url))} is no URL of a repository",
            field=field,
            hint="write https://host/path or git@host:path; a folder of the server is"
            " repository.path",
        )
    if scheme not in protocols:
        allowed = ", ".join(sorted(protocols)) or "none"
        raise InvalidParameter(
            f"{field}: this server does not clone over {scheme}; allowed: {allowed}",
            field=field,
            hint="repositories.protocols in the server's configuration determines that",
        )
    if "://" in url:
        _check_parts(url, scheme, field)
    return url


def _check_parts(url: str, scheme: str, field: str) -> None:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise InvalidParameter(
            f"{field}: {shown(without_password(url))} has no valid host and port", field=field
        ) from None
    if parts.password is not None or (parts.username is not None and scheme != "ssh"):
        raise InvalidParameter(
            f"{field}: must not contain a user name or a password",
            field=field,
            hint="repositories.credentials in the server's configuration gives git the password"
            " for a host",
        )
    if scheme != "file" and _HOST.fullmatch(f"[{host}]" if ":" in host else host) is None:
        raise InvalidParameter(
            f"{field}: {shown(without_password(url))} has no valid host",
            field=field,
            hint="https://host/path",
        )
    if parts.username is not None and parts.username.startswith("-"):
        raise InvalidParameter(f"{field}: the URL has no valid user", field=field)


def host_and_path(url: str) -> tuple[str, str, str]:
    """Return scheme, host (with its port) and path of a checked URL."""
    short = _OTHER_MACHINE.fullmatch(url)
    if short is not None:
        return "ssh", short["host"].lower(), "/" + short["path"].lstrip("/")
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.rpartition("@")[2].lower(), parts.path


def without_password(url: str) -> str:
    """Return text that may be shown: URLs without what stands before an @ and may be a password."""
    # After the last @ nothing can match, and each :// there would be searched to the text's end.
    head, at, tail = url.rpartition("@")
    return re.sub(r"(?s)(?<=://)(?:[^/@\s]*|[^/@:\s]*:.*)@", "", head + at) + tail


def check_branch(name: str, field: str = "repository.branch") -> str:
    """A name that git accepts for a branch.

    Raises:
        InvalidParameter: it does not, or would take it for an option.
    """
    if (
        not name
        or len(name) > MAX_BRANCH
        or name.startswith("-")
        or name in {"@", "HEAD"}
        or _NOT_IN_BRANCH.search(name)
    ):
        raise InvalidParameter(
            f"{field}: {shown(name)} is no name of a branch", field=field, hint="for example main"
        )
    return name


def check_folder(
    path: str, allowed: Collection[str], *, any_folder: bool, field: str = "repository.path"
) -> str:
    """The folder of a repository on the server's machine, without links. Blocks.

    Args:
        path: As the user wrote it.
        allowed: Folders of the configuration; it has to be one of them, or below one.
        any_folder: Whether the caller may read all that the server's user can.
        field: Name of the parameter, for errors.

    Raises:
        InvalidParameter: it is no absolute path of a folder.
        Forbidden: this folder is not to be cloned.
    """
    if not path.startswith("/") or "\x00" in path or "\n" in path:
        raise InvalidParameter(
            f"{field}: {shown(path)} is no absolute path of a folder", field=field
        )
    folder = Path(path).resolve()
    if not any_folder and not any(
        folder.is_relative_to(expanded(each, "repositories.folders").resolve()) for each in allowed
    ):
        raise Forbidden(
            f"{field}: keys may not clone {shown(path)} of the server's machine",
            hint="repositories.folders in the server's configuration lists the folders that keys"
            " may clone; the command line on that machine may clone all",
        )
    if not folder.is_dir():
        raise InvalidParameter(
            f"{field}: there is no folder {shown(path)} on the server's machine", field=field
        )
    return str(folder)
