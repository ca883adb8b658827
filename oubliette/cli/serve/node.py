"""`oubliette serve --cluster`: the options of a node, and its agent in this process.

The address of the database may have a password. It is written to the configuration in the node's
home, and the process starts itself again without it: neither the list of processes nor Ray, which
keeps the command line of its drivers, has it from then on.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

from oubliette.cli.terminal.output import note, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import NoReturn

DATABASE = "OUBLIETTE_STORE__DATABASE"


def serve_node(
    folder: Path,
    address: str,
    node: str | None,
    settings: Mapping[str, object],
    *,
    log_level: str,
    as_json: bool,
) -> None:
    """Run the node of this machine until a signal.

    Args:
        folder: with Ray's token; the node's home is below it, by its name.
        address: of Ray's head, or `auto`.
        node: its name; None: the name of this machine.
        settings: `section.key` → value that the options name, for its configuration.
        log_level: of this process.
        as_json: whether its output is for programs.

    Raises:
        ConfigError: the cluster or its database cannot be used; names the remedy.
        Conflict: the node's configuration has another value of an option.
    """
    from oubliette.cluster import machine, node_homes, trial_servers

    trial_servers.check_packages()
    name = node or socket.gethostname().partition(".")[0]
    home = folder / name
    if DATABASE in os.environ:
        settings = {"store.database": os.environ[DATABASE], **settings}
    if "store.database" in settings:
        trial_servers.check_database(str(settings["store.database"]))
    if settings:
        node_homes.configure(home, settings, command="oubliette serve")
        _start_again(folder, address, name, log_level=log_level, as_json=as_json)
    node_homes.database_of(home)  # refused here, and not by the node over and over
    machine.run(
        folder,
        address,
        name,
        ready=lambda status: _announce(home, status, as_json=as_json),
        trouble=note,
    )


def _start_again(
    folder: Path, address: str, node: str, *, log_level: str, as_json: bool
) -> NoReturn:
    """Replace this process by the same command without settings."""
    environment = {name: value for name, value in os.environ.items() if name != DATABASE}
    words = [sys.executable, "-P", "-m", "oubliette", "serve", "--home", str(folder)]
    words += ["--cluster", address, "--node", node, "--log-level", log_level]
    os.execve(sys.executable, words + ["-o", "json"] * as_json, environment)  # noqa: S606


def _announce(home: Path, status: dict[str, Any], *, as_json: bool) -> None:
    """Print that the node serves."""
    url, pid = status.get("url", ""), status.get("pid")
    if as_json:
        print_json({"event": "ready", "url": url, "pid": pid, "node": home.name})
        return
    with contextlib.suppress(OSError):  # the terminal is closed: the agent continues
        note(f"{home.name} listens at {url} (home {home}, process {pid}).")
        note(f"A key for a client: oubliette token create --scope write --home {home}")
