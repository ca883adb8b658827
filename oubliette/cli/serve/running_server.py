"""Commands `oubliette status` and `oubliette stop`: the server of a home that runs, and its end."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from oubliette.api.control import ControlClient
from oubliette.cli.client.calls import call, pages
from oubliette.cli.terminal.choices import LIVE
from oubliette.cli.terminal.output import (
    Format,
    Home,
    Output,
    moment,
    note,
    print_fields,
    print_json,
)
from oubliette.cli.terminal.waiting import span
from oubliette.errors import DeadlineExceeded, NotFound
from oubliette.version import __version__

STOP_SECONDS: Final = 60.0
LIMIT: Final = 1000


class Agents(StrEnum):
    """Effect of a stop on agents."""

    keep = "keep"
    end = "end"


def status(home: Home = None, output: Output = Format.text) -> None:
    """Show the server of a home: its address, its sessions, and what waits for you."""
    from oubliette.config.loader import find_home

    place = find_home(home)
    with ControlClient(place) as client:
        server = client.status()
    sessions = pages(home, "session_list", "sessions", {"status": LIVE})
    asked = call(home, "permission_list", {"limit": LIMIT})
    found: dict[str, Any] = {
        "home": str(place),
        "pid": server["pid"],
        "version": server["version"],
        "since": server.get("since"),  # absent, as is the runtime, from one of an earlier release
        "url": server["url"],
        "runtime": server.get("runtime"),
        "isolation": server.get("isolation"),
        "sessions": dict(Counter(each["status"] for each in sessions)),
        "agents": dict(Counter(each["agent"] for each in sessions)),
        "permissions": len(asked["permissions"]),
    }
    if output is Format.json:
        print_json(found)
        return
    print_fields(_told(found))
    if asked["permissions"]:
        note("Agents wait for you: oubliette permit lists what they ask for.")
    if found["version"] != __version__:
        note(f"The server is of version {found['version']}, this command of {__version__}.")


def _told(found: dict[str, Any]) -> dict[str, Any]:
    """The status as people read it."""
    since = found["since"]
    process = str(found["pid"])
    if since is not None:
        process += f", since {moment(since)} ({span(time.time() - since)})"
    runtime, isolation = found["runtime"], found["isolation"]
    states, agents = (
        ", ".join(f"{count} {name}" for name, count in sorted(found[of].items()))
        for of in ("sessions", "agents")
    )
    return {
        "home": found["home"],
        "address": found["url"] or "none: it runs in a program",
        "process": process,
        "version": found["version"],
        "runtime": f"{runtime} ({isolation})" if runtime else None,
        "live sessions": states or "none",
        "their agents": agents,
        "permissions asked": found["permissions"] or "none",
    }


def stop(
    home: Home = None,
    agents: Annotated[
        Agents | None,
        typer.Option(help="Effect on agents; unset: that of `server.on_stop`."),
    ] = None,
    output: Output = Format.text,
) -> None:
    """Stop the server of a home, as SIGTERM does, and keep its agents for the next one or not."""
    from oubliette.cli.client.lock_wait import LockWait
    from oubliette.config.loader import find_home

    place = find_home(home)
    with ControlClient(place) as client:
        pid = int(client.status()["pid"])
        if agents is not None:
            try:
                client.decide_for_agents(agents.value)
            except NotFound as error:
                raise NotFound(
                    f"the server of {place} is of a release without --agents",
                    hint="oubliette session end --all ends them; then oubliette stop",
                ) from error
    os.kill(pid, signal.SIGTERM)
    with LockWait(place) as lock:  # the server has it until it has ended
        if not lock.within(STOP_SECONDS):
            raise DeadlineExceeded(
                f"the server of {place} (process {pid}) has not ended within {STOP_SECONDS:g} s",
                hint="read its log",
            )
    if output is Format.json:
        print_json({"pid": pid, "stopped": True})
        return
    note(f"The server of {place} (process {pid}) has stopped.")
