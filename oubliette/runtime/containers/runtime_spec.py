"""Description of a container runtime: how it is selected, configured and made.

Everything outside a runtime's own package learns from its `RuntimeSpec` what distinguishes it, and
compares no names. The specs that ship with Oubliette, and those of installed packages, are in
`registry`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from oubliette.config.schema import Config
from oubliette.runtime.containers.base import ContainerRuntime, Hardening

ENGINE_STRENGTH: Final = 3
"""Strength of an engine's isolation; a process sandbox has 2, none at all 1."""


class RuntimeSetup(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments for making a runtime."""

    config: Config
    base: Path
    """Folder of the runtime folders, one for each container."""
    zipapp: Path
    """Programs that run inside containers."""
    home: Path
    """Home of the server."""
    hardening: Hardening
    """Hardening of containers whose spec has none."""
    settings: Mapping[str, Any] = {}
    """Its table `[package_runtimes.NAME]`, if a package adds it; the package checks the keys."""


class RuntimeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Immutable description of a container runtime."""

    name: str
    """Value of `containers.runtime` that selects it, and the `name` of the runtimes it makes."""
    make: Callable[[RuntimeSetup], ContainerRuntime]
    """Makes the runtime without trying it; `ping` reports its availability and the remedy."""
    aliases: tuple[str, ...] = ()
    """Further values of `containers.runtime` that select it."""
    unsupported: Callable[[], str | None] = lambda: None
    """Returns why no machine of this kind can have it; None: `ping` decides."""
    images: bool = True
    """Its containers come from images; equal to its capability `images`."""
    limits: bool = True
    """It limits memory, processors and processes of a container; otherwise the size of /tmp."""
    uses_sandbox: bool = False
    """Its containers are those of `[process]`."""
    network: Callable[[Config], str] | None = None
    """Returns the network of all its containers; None: `network` of their options."""
    oci_runtime: Callable[[Config], str | None] = lambda _: None
    """Returns the OCI runtime of containers whose options name none."""
    isolation: Callable[[Config], str] | None = None
    """Returns the name of its isolation, one of `strengths`; None: its own name."""
    strengths: Mapping[str, int] = {}
    """Name of an isolation → its strength, so that `auto` never selects a weaker one than before;
    empty: its own name has that of an engine."""
    pull: str = ""
    """Command that pulls the image whose name follows; empty: `NAME pull`."""

    def isolation_of(self, config: Config) -> str:
        return self.name if self.isolation is None else self.isolation(config)

    @property
    def walls(self) -> Mapping[str, int]:
        """Its isolations by name, with their strengths."""
        return self.strengths or {self.name: ENGINE_STRENGTH}

    @property
    def pull_prefix(self) -> str:
        """Command that pulls the image whose name follows."""
        return self.pull or f"{self.name} pull"
