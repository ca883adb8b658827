"""PortHosts: the host names under which open ports are reached."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

LOCAL: Final = "localhost"  # browsers resolve all names below it to this machine
_NAME: Final = re.compile(r"p[1-9][0-9]{0,4}-[0-9a-f]{10}(?:-(?P<mark>[0-9a-f]{8}))?")
_LONGEST: Final = 300


def mark_of(name: str) -> str | None:
    """Return the mark of the node on which the port of this name is open; None: it has none."""
    found = _NAME.fullmatch(name)
    return None if found is None else found["mark"]


class PortHosts:
    """Names of open ports, as labels before `localhost` or before the host of `ports.base_url`."""

    def __init__(self, base_url: str) -> None:
        parts = urlsplit(base_url)
        self.secure = parts.scheme == "https"
        self._scheme = parts.scheme or "http"
        self._host = parts.netloc
        self._suffixes = frozenset({LOCAL, parts.hostname or LOCAL})

    def name_of(self, host: bytes | None) -> str | None:
        """Return the name of the port that a Host header means; None: it means this server."""
        if host is None or len(host) > _LONGEST:
            return None
        whole = host.decode("latin-1").lower()
        label, _, rest = whole.partition(".")
        suffix, colon, number = rest.partition(":")
        if suffix not in self._suffixes or (colon and not number.isdecimal()):
            return None
        return label if _NAME.fullmatch(label) else None

    def address(self, name: str, server_port: int) -> str:
        """The address of an open port for browsers, without a slash at the end."""
        return f"{self._scheme}://{name}.{self._host or f'{LOCAL}:{server_port}'}"
