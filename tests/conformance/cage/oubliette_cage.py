"""What a package has to say to add a container runtime: all of it."""

from __future__ import annotations

import msgspec

from oubliette.runtime.containers import ProcessRuntime, RuntimeSetup, RuntimeSpec


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of `[package_runtimes.cage]`."""

    bars: int = 12


class Cage(ProcessRuntime):
    """A runtime that is not one of Oubliette's own; this one works like the sandbox."""

    settings: Settings

    @property
    def name(self) -> str:
        """As its spec says."""
        return "cage"


def make(setup: RuntimeSetup) -> Cage:
    """A cage, not tried yet."""
    made = Cage(setup.base, setup.zipapp, home=setup.home)
    made.settings = msgspec.convert(setup.settings, Settings, strict=False)
    return made


CAGE = RuntimeSpec(
    name="cage",
    aliases=("kennel",),
    make=make,
    images=False,
    limits=False,
    network=lambda _: "none",
    strengths={"cage": 2},
)

TAKES_A_NAME = msgspec.structs.replace(CAGE, name="docker", strengths={})
TAKES_AN_ALIAS = msgspec.structs.replace(CAGE, name="pen", aliases=("podman",), strengths={})
NAMELESS = msgspec.structs.replace(CAGE, name=" ", aliases=(), strengths={})
BROKEN = msgspec.structs.replace(CAGE, make=lambda _: 1 // 0)
UNFINISHED = msgspec.structs.replace(CAGE, make=lambda _: object())
MISNAMED = msgspec.structs.replace(
    CAGE, make=lambda setup: ProcessRuntime(setup.base, setup.zipapp)
)
