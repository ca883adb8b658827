"""Ports of this machine's loopback interface that the settings of agents name.

A sandbox with a network of its own reaches these and no others: a local model, a proxy, an MCP
server.
"""

from __future__ import annotations

import contextlib
import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from oubliette.errors import ConfigError
from oubliette.runtime.agents.environment import resolve

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from oubliette.config.schema import Config

_USUAL: Final = {"http": "80", "ws": "80", "https": "443", "wss": "443"}
_REFERENCE: Final = re.compile(r'"(?:[^"=:]*=)?((?:env|file):[^"]+)"')
_ADDRESS: Final = re.compile(
    r"(?:(?<![a-z])([a-z]+)://(?:[^\s/@\"']*@)?|(?<![\w.-]))"
    r"(\[::1\]|[a-z0-9][a-z0-9.-]*)(?::(\d{1,5}))?"
)
"""Its time grows with the text alone: tenants write some of the texts, and it stops all threads."""
_HOSTS: Final = Path("/etc/hosts")
_HERE: Final = frozenset(("localhost", "0.0.0.0", "127.0.0.1", "[::1]"))  # noqa: S104


class LoopbackPorts(msgspec.Struct, frozen=True):
    """Ports of the loopback interface, and addresses there that a sandbox cannot reach."""

    ports: tuple[int, ...] = ()
    beyond: tuple[str, ...] = ()
    """Addresses with ports that are not 127.0.0.1 or ::1."""

    def __add__(self, other: LoopbackPorts) -> LoopbackPorts:
        return LoopbackPorts(
            tuple(sorted({*self.ports, *other.ports})), (*self.beyond, *other.beyond)
        )


def configured(config: Config) -> LoopbackPorts:
    """Return those of the server's configuration, and of what it refers to. Blocks."""
    return named(_texts(config))


def named(texts: Iterable[str]) -> LoopbackPorts:
    """Return those in texts. Blocks: `/etc/hosts` has further names of the loopback interface."""
    hosts = _hosts(_HOSTS.stat().st_mtime_ns if _HOSTS.exists() else 0)
    ports: set[int] = set()
    beyond: set[str] = set()
    for text in set(texts):  # most workspaces have the settings of their project
        for scheme, host, port in _ADDRESS.findall(text.lower()):
            number = int(port or _USUAL.get(scheme, "0"))
            address = str(hosts.get(host, host))
            if not 0 < number < 1 << 16:
                continue
            if address in _HERE:
                ports.add(number)
            elif address.startswith("127."):
                beyond.add(f"{host}:{number}")
    return LoopbackPorts(tuple(sorted(ports)), tuple(sorted(beyond)))


def _texts(config: Config) -> Iterator[str]:
    agents = (config.opencode, config.droid, config.acp, config.acp_agents, config.package_agents)
    text = msgspec.json.encode((agents, config.credentials)).decode()
    yield text
    for reference in _REFERENCE.findall(text):
        with contextlib.suppress(ConfigError):  # the start of the agent fails with it
            yield resolve(reference)


@functools.lru_cache(maxsize=1)
def _hosts(changed: int) -> dict[str, str]:
    """The names of the loopback interface in `/etc/hosts`, which sandboxes have too."""
    del changed
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in _HOSTS.read_text(encoding="utf-8", errors="replace").splitlines():
            address, *names = line.partition("#")[0].split() or [""]
            if address == "::1" or address.startswith("127."):
                here = "[::1]" if address == "::1" else address
                found |= {name.lower(): found.get(name.lower(), here) for name in names}
    return found
