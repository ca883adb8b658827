"""Commands `oubliette serve` and `oubliette stop`: the server of a home, and its end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.terminal.output import Format, Home, Output, note, print_json
from oubliette.errors import DeadlineExceeded

if TYPE_CHECKING:
    from pathlib import Path

Host = Annotated[str | None, typer.Option(help="Address to bind; 127.0.0.1 unless set.")]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="TCP port; 8080 unless set, 0: any free one."),
]
Runtime = Annotated[
    str | None, typer.Option(help="Container runtime: auto, process, docker, podman or apple.")
]
Agent = Annotated[
    str | None,
    typer.Option(help="Default agent, for projects that name none: auto, or its name."),
]
OnStop = Annotated[
    str | None,
    typer.Option(help="Effect of a stop on agents: keep (for the next server) or end."),
]
LogLevel = Annotated[
    str, typer.Option(help="Level of the log on stderr: debug, info, warning or error.")
]
Database = Annotated[
    str | None,
    typer.Option(
        help="Database, postgresql://HOST/NAME; unset: as configured, else a file in the home."
        " A password is better kept in ~/.pgpass.",
        show_default=False,
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        help="Be a node of a cluster: auto, if Ray runs on this machine, or the address of"
        " Ray's head.",
        show_default=False,
    ),
]
Node = Annotated[
    str | None,
    typer.Option(
        help="Name of the node, with --cluster; unset: the name of this machine.",
        show_default=False,
    ),
]


def serve(  # noqa: PLR0917 - one parameter per option
    home: Home = None,
    host: Host = None,
    port: Port = None,
    runtime: Runtime = None,
    agent: Agent = None,
    on_stop: OnStop = None,
    log_level: LogLevel = "info",
    database: Database = None,
    cluster: Cluster = None,
    node: Node = None,
    output: Output = Format.text,
) -> None:
    """Run the server until it gets SIGTERM or Ctrl-C.

    With -o json the first line of stdout, once the port is bound, is
    {"event": "ready", "url": …, "pid": …}.

    With --cluster the server is a process of Ray's. Its home is the folder of the node's name in
    --home, where the first start stores the other options.
    """
    import sys

    from oubliette.cli.terminal import stop_signals
    from oubliette.cli.terminal.lean_structlog import import_structlog

    stop_signals.guard()
    import_structlog()
    from oubliette.cli.terminal import logging_config
    from oubliette.config.loader import find_home
    from oubliette.runtime.files.home import is_there, prepare

    if log_level not in {"debug", "info", "warning", "error"}:
        raise typer.BadParameter(
            f"{log_level!r} is not one of: debug, info, warning, error", param_hint="--log-level"
        )
    as_json = output is Format.json
    logging_config.configure(log_level, as_json=as_json or not sys.stderr.isatty())
    place = find_home(home)
    if cluster is None and node is not None:
        raise typer.BadParameter("is for --cluster", param_hint="--node")
    if is_there(place):  # else the server creates it, once it is known that it can start
        prepare(place)
    overrides: dict[str, object] = {
        "server.host": host,
        "server.port": port,
        "containers.runtime": runtime,
        "agents.default": agent,
        "server.on_stop": on_stop,
        "store.database": database,
    }
    given = {key: value for key, value in overrides.items() if value is not None}
    try:
        if cluster is None:
            _serve_alone(place, given, as_json=as_json)
        else:
            from oubliette.cli.serve.node import serve_node

            serve_node(place, cluster, node, given, log_level=log_level, as_json=as_json)
    finally:
        stop_signals.ignore()


def _serve_alone(place: Path, settings: dict[str, object], *, as_json: bool) -> None:
    """Run the server in this process."""
    import asyncio
    import functools

    from oubliette.config.loader import load
    from oubliette.runtime.heap import collect_rarely

    use_one_arena()
    collect_rarely()

    config = load(place, overrides=settings).config

    from oubliette.server.daemon import serve as serve_home

    ready = functools.partial(_announce, place, as_json=as_json)
    asyncio.run(serve_home(place, config, ready=ready))


def _announce(place: Path, state: Any, *, as_json: bool) -> None:
    """Print that the server listens."""
    if as_json:
        print_json({"event": "ready", "url": state.url, "pid": state.pid})
        return
    with contextlib.suppress(OSError):  # the terminal is closed: the server continues
        note(f"Oubliette listens at {state.url} (home {place}, process {state.pid}).")
        note("A key for a client: oubliette token create --scope write")


_M_ARENA_MAX: Final = -8  # <malloc.h> of glibc; other C libraries have no arenas


def use_one_arena() -> None:
    """Limit the C library to one arena for all threads; to be called before threads start.

    glibc gives each new thread an arena of its own. Python's threads take turns anyway, so it
    speeds up nothing here, while the allocations of the store's threads are spread over many
    half-empty arenas: a quarter of the memory of a hundred idle sessions.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)


STOP_SECONDS: Final = 60.0


def stop(home: Home = None, output: Output = Format.text) -> None:
    """Stop the server of a home, as SIGTERM does; what becomes of agents is `server.on_stop`."""
    from oubliette.api.control import ControlClient
    from oubliette.cli.client.lock_wait import LockWait
    from oubliette.config.loader import find_home

    place = find_home(home)
    with ControlClient(place) as client:
        pid = int(client.status()["pid"])
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
