"""Clusters of Ray that this machine is part of, read from the raylets that run on it.

Ray's own search (`auto`) takes the cluster that was started last, or any, if there are several. A
node that joins another cluster than its user means is of no use to either, so here it is a refusal.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from oubliette.cluster.local import LABEL
from oubliette.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

AUTO: Final = "auto"
"""The address that stands for the Ray of this machine."""
ADDRESS_VARIABLE: Final = "RAY_ADDRESS"
_PROGRAM: Final = "raylet"
_ADDRESS: Final = "--gcs-address="
_LABELS: Final = "--labels="
_PROCESSES: Final = Path("/proc")


class Raylet(NamedTuple):
    """Ray's process on this machine, of one cluster."""

    address: str
    """Of its cluster's head, `host:port`."""
    node: str = ""
    """Its label `oubliette/node`; empty: it has none."""


def raylets_here() -> list[Raylet]:
    found: list[Raylet] = []
    for each in _PROCESSES.glob("[0-9]*"):
        try:
            if each.stat().st_uid != os.geteuid():  # that user has the token, and would be the node
                continue
            words = (each / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # it has ended
            continue
        if (raylet := raylet_of(words)) is not None:
            found.append(raylet)
    return sorted(found)


def raylet_of(words: list[str]) -> Raylet | None:
    """Return the raylet that has this command line; None: it is another program's."""
    if not words or Path(words[0]).name != _PROGRAM:
        return None
    address = next((each for each in words if each.startswith(_ADDRESS)), _ADDRESS)
    labels = next((each for each in words if each.startswith(_LABELS)), _LABELS)
    if address == _ADDRESS:
        return None
    try:
        node = str(json.loads(labels.removeprefix(_LABELS))[LABEL])
    except (ValueError, KeyError, TypeError):
        node = ""
    return Raylet(address.removeprefix(_ADDRESS), node)


def chosen_address(
    node: str, raylets: Iterable[Raylet], environ: Mapping[str, str] = os.environ
) -> str:
    """The address of the head of the cluster that `auto` stands for.

    RAY_ADDRESS decides, as it does for Ray's own commands. Otherwise it is the one whose raylet on
    this machine has the node's name as its label, or the only one.

    Raises:
        ConfigError: there is none, or it is not clear which is meant; names them.
    """
    given = environ.get(ADDRESS_VARIABLE, "")
    if given and given != AUTO:
        return given
    found = sorted(set(raylets))
    if not found:
        raise ConfigError(
            "No Ray of this user runs on this machine",
            hint="run ray start first, as this user, or give the address of Ray's head:"
            " --cluster HOST:PORT",
        )
    named = {each.address for each in found if each.node == node}
    meant = named or {each.address for each in found}
    if len(meant) > 1:
        each = ", ".join(f"{address} ({_named(name)})" for address, name in found)
        raise ConfigError(
            f"This machine is part of several clusters of Ray: {each}",
            hint=f"name the head of the one that {node} belongs to: --cluster HOST:PORT",
        )
    return meant.pop()


def _named(node: str) -> str:
    return f"node {node}" if node else "without a node's label"
