"""HostPolicy, the check of the headers Host and Origin against DNS rebinding.

A web page in a browser can reach a server on loopback under a name of its own: so the Host header
must be one of the server's names, and an Origin header a trusted one. Both are checked before the
key, and before anything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from oubliette.config.schema import ServerConfig

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")


class HostPolicy:
    """Accepted values of the headers Host and Origin."""

    def __init__(self, config: ServerConfig) -> None:
        own = config.host if ":" not in config.host else f"[{config.host.strip('[]')}]"
        hosts = {*LOOPBACK, own.lower()}
        self._any_port = frozenset(hosts | _wildcards(config.allowed_hosts))
        self._exact = frozenset(name.lower() for name in config.allowed_hosts)
        origins = {f"{scheme}://{name}" for name in LOOPBACK for scheme in ("http", "https")}
        self._origin_any_port = frozenset(origins | _wildcards(config.allowed_origins))
        self._origin_exact = frozenset(name.lower() for name in config.allowed_origins)

    def knows_host(self, value: bytes | None) -> bool:
        if value is None:
            return False
        host = value.decode("latin-1").lower()
        return host in self._exact or _without_port(host) in self._any_port

    def trusts_origin(self, value: bytes | None) -> bool:
        """Whether the page that sends the request is trusted; no Origin is accepted too."""
        if value is None:
            return True
        origin = value.decode("latin-1").lower()
        return origin in self._origin_exact or _without_port(origin) in self._origin_any_port


def _wildcards(names: Iterable[str]) -> set[str]:
    return {name.removesuffix(":*").lower() for name in names if name.endswith(":*")}


def _without_port(value: str) -> str:
    name, colon, port = value.rpartition(":")
    return name if colon and port.isdecimal() and not name.endswith(":") else value
