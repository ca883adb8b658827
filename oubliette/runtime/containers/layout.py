"""Layout of the file system inside every container, and the guest's command and environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from oubliette.runtime.containers.base import ISOLATED, KEY_FILE, RELAY_DIR, RELAY_SOCKET

if TYPE_CHECKING:
    from oubliette.runtime.containers.base import ContainerSpec, Hardening

OPT: Final = "/opt/oubliette"
ZIPAPP: Final = f"{OPT}/oubliette.pyz"
BIN: Final = f"{OPT}/bin"
SPOOL: Final = "/var/spool/oubliette"
AGENT_HOME: Final = "/home/agent"
PATH: Final = f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

READY: Final = "ready"
"""Name of the FIFO in the runtime folder on which the guest reports that it listens."""

NOBODY: Final = 65534
"""User id of agents that have none of their own."""


def guest_command(spec: ContainerSpec, hard: Hardening) -> list[str]:
    """Return the command of the container: the guest of the zipapp, or the spec's command."""
    if spec.command is not None:
        return list(spec.command)
    command = ["python3", *ISOLATED, ZIPAPP, "host"]
    command += ["--socket", f"{RELAY_DIR}/{RELAY_SOCKET}", "--key", f"{RELAY_DIR}/{KEY_FILE}"]
    command += ["--spool", SPOOL, "--orphan-grace", f"{spec.orphan_grace:g}"]
    command += ["--ready", f"{RELAY_DIR}/{READY}"]
    if spec.accept_bare:
        command.append("--accept-bare")
    if not hard.no_new_privileges:
        command.append("--new-privileges")  # the guest forbids them to the programs it starts
    # Shown by `ps`.
    return [*command, "--label", f"dev.oubliette.container={spec.id}"]


def environment(spec: ContainerSpec) -> dict[str, str]:
    """The environment of the guest, inherited by all that it starts except for HOME."""
    return {**inside_environment(), "HOME": AGENT_HOME, **spec.env}


def inside_environment() -> dict[str, str]:
    """The environment variables that every program inside needs."""
    return {"PATH": PATH, "LANG": "C.UTF-8"}
