"""Simulation of other releases' protocol: a server and a zipapp with other versions.

There is only one version so far. Upgrades are tested with the present program under the next
version number, or the one after it.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oubliette.incontainer import wire

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "OUBLIETTE_TEST_RELEASE"
WIRE: Final = "incontainer/wire.py"


def build(target: Path, zipapp: Path, versions: tuple[int, int]) -> Path:
    """Return a copy of `zipapp` at `target` whose guest supports `versions`, lowest and highest."""
    with zipfile.ZipFile(zipapp) as old, target.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w") as new:
            for name in old.namelist():
                data = old.read(name)
                if name == WIRE:
                    for constant, value in zip(("MIN", "MAX"), versions, strict=True):
                        pattern = rb"(?m)^PROTOCOL_%s = \d+$" % constant.encode()
                        data, count = re.subn(
                            pattern, b"PROTOCOL_%s = %d" % (constant.encode(), value), data
                        )
                        assert count == 1, constant
                if name != WIRE + "c":  # its bytecode belongs to the old source
                    new.writestr(name, data)
    target.chmod(0o755)
    return target


def variable(zipapp: Path, versions: tuple[int, int]) -> dict[str, str]:
    """Return the environment of a server of that release; see `become`."""
    return {VARIABLE: f"{versions[0]} {versions[1]} {zipapp}"}


def become(environment: Mapping[str, str]) -> None:
    """Make this process a server of the release in its environment, if there is one."""
    named = environment.get(VARIABLE)
    if named is None:
        return
    import oubliette.server.startup

    low, high, path = named.split(" ", 2)
    wire.PROTOCOL_MIN, wire.PROTOCOL_MAX = int(low), int(high)
    oubliette.server.startup.zipapp_path = lambda: Path(path)
