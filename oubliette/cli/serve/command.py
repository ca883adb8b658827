"""Command `oubliette serve`: the server of a home."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from oubliette.cli.terminal import choices
from oubliette.cli.terminal.choices import SCRIPTED, SCRIPTED_DOES
from oubliette.cli.terminal.output import Format, Home, Output, note, print_json

if TYPE_CHECKING:
    from pathlib import Path

Host = Annotated[str | None, typer.Option(help="Address to bind; 127.0.0.1 unless set.")]
Port = Annotated[
    int | None,
    typer.Option(min=0, max=65535, help="TCP port; 8080 unless set, 0: any free one."),
]
Runtime = Annotated[
    str | None, typer.Option(metavar=choices.RUNTIME, help="Container runtime; auto unless set.")
]
Agent = Annotated[
    str | None,
    typer.Option(
        metavar=f"auto|{choices.AGENT}", help="Default agent, for projects that name none."
    ),
]
OnStop = Annotated[
    str | None,
    typer.Option(
        metavar="keep|end", help="Effect of a stop on agents: keep them for the next server."
    ),
]
LogLevel = Annotated[str, typer.Option(metavar=choices.LEVEL, help="Level of the log on stderr.")]
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
Detach = Annotated[
    bool,
    typer.Option(
        "--detach", "-d", help="Run it in the background, and return once it serves or has failed."
    ),
]

OPTIONS: Final = {
    "server.host": "--host",
    "server.port": "--port",
    "containers.runtime": "--runtime",
    "agents.default": "--agent",
    "server.on_stop": "--on-stop",
    "store.database": "--database",
}
"""Key of the configuration → the option that overrides it."""


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
    detach: Detach = False,
    output: Output = Format.text,
) -> None:
    """Run the server until it gets SIGTERM or Ctrl-C.

    With -o json the first line of stdout, once the port is bound, is
    {"event": "ready", "url": …, "pid": …}.

    With --cluster the server is a process of Ray's. Its home is the folder of the node's name in
    --home, where the first start stores the other options.
    """
    if log_level not in {"debug", "info", "warning", "error"}:
        raise typer.BadParameter(
            f"{log_level!r} is not one of: debug, info, warning, error", param_hint="--log-level"
        )
    if cluster is None and node is not None:
        raise typer.BadParameter("is for --cluster", param_hint="--node")
    values = (host, port, runtime, agent, on_stop, database)
    given: dict[str, object] = {
        key: value for key, value in zip(OPTIONS, values, strict=True) if value is not None
    }
    as_json = output is Format.json
    if detach:
        if cluster is not None:
            raise typer.BadParameter("a node stays in the foreground", param_hint="--detach")
        _serve_detached(home, given, log_level, as_json=as_json)
        return
    import sys

    from oubliette.cli.terminal import stop_signals
    from oubliette.cli.terminal.lean_structlog import import_structlog

    stop_signals.guard()
    import_structlog()
    from oubliette.cli.terminal import logging_config
    from oubliette.config.loader import find_home
    from oubliette.runtime.files.home import is_there, prepare

    logging_config.configure(log_level, as_json=as_json or not sys.stderr.isatty())
    place = find_home(home)
    if is_there(place):  # else the server creates it, once it is known that it can start
        prepare(place)
    try:
        if cluster is None:
            _serve_alone(place, given, as_json=as_json)
        else:
            from oubliette.cli.serve.node import serve_node

            serve_node(place, cluster, node, given, log_level=log_level, as_json=as_json)
    finally:
        stop_signals.ignore()


def _serve_detached(
    home: str | None, settings: dict[str, object], log_level: str, *, as_json: bool
) -> None:
    """Run the server in a process of its own."""
    from oubliette.cli.serve import background
    from oubliette.config.loader import find_home
    from oubliette.runtime.files.home import prepare

    place = find_home(home)
    prepare(place)
    words = ["--log-level", log_level]
    for key, value in settings.items():
        words += [OPTIONS[key], str(value)]
    if not as_json:
        note(f"Starting a server on {place} …")
    _announce(place, background.started(place, words), as_json=as_json)


def _serve_alone(place: Path, settings: dict[str, object], *, as_json: bool) -> None:
    """Run the server in this process."""
    import asyncio

    from oubliette.config.loader import load
    from oubliette.errors import ConfigError
    from oubliette.runtime.heap import collect_rarely

    use_one_arena()
    collect_rarely()

    config = load(place, overrides=settings).config

    from oubliette.server.daemon import serve as serve_home

    def ready(state: Any) -> None:
        _announce(place, state, as_json=as_json)
        if not as_json and config.agents.default == "auto" and state.agent == SCRIPTED:
            with contextlib.suppress(OSError):  # the terminal is closed
                note(f"No agent with a model is configured. {SCRIPTED_DOES}")

    try:
        asyncio.run(serve_home(place, config, ready=ready))
    except ConfigError as error:
        if isinstance(error.__cause__, OSError) and error.message.startswith("server.host"):
            from oubliette.mcp_front.transport.listen_errors import taken_hint

            error.hint = taken_hint(error.__cause__, config.server.host, config.server.port)
        raise


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
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 1)
