"""Command `oubliette serve`."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oubliette.cli.terminal.output import Format, Home, Output, note, print_json

if TYPE_CHECKING:
    from pathlib import Path


def serve(  # noqa: PLR0917 - one parameter per option
    home: Home = None,
    host: Annotated[str | None, typer.Option(help="Address to bind; 127.0.0.1 unless set.")] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="TCP port; 8080 unless set, 0: any free one."),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(help="Container runtime: auto, process, docker, podman or apple."),
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="Default agent, for projects that name none: auto, or its name."),
    ] = None,
    on_stop: Annotated[
        str | None,
        typer.Option(help="Effect of a stop on agents: keep (for the next server) or end."),
    ] = None,
    log_level: Annotated[
        str, typer.Option(help="Level of the log on stderr: debug, info, warning or error.")
    ] = "info",
    output: Output = Format.text,
) -> None:
    """Run the server until it gets SIGTERM or Ctrl-C.

    With -o json the first line of stdout, once the port is bound, is
    {"event": "ready", "url": …, "pid": …}.
    """
    import asyncio
    import functools
    import sys

    from oubliette.cli import stop_signals
    from oubliette.cli.one_arena import use_one_arena
    from oubliette.cli.terminal.lean_structlog import import_structlog
    from oubliette.heap import collect_rarely

    stop_signals.guard()
    use_one_arena()
    collect_rarely()
    import_structlog()
    from oubliette.cli.terminal import logging_config
    from oubliette.config.loader import find_home, load
    from oubliette.runtime.files.home import prepare

    if log_level not in {"debug", "info", "warning", "error"}:
        raise typer.BadParameter(
            f"{log_level!r} is not one of: debug, info, warning, error", param_hint="--log-level"
        )
    as_json = output is Format.json
    logging_config.configure(log_level, as_json=as_json or not sys.stderr.isatty())
    place = find_home(home)
    if place.exists():  # else the server creates it, once it is known that it can start
        prepare(place)
    overrides: dict[str, object] = {
        "server.host": host,
        "server.port": port,
        "containers.runtime": runtime,
        "agents.default": agent,
        "server.on_stop": on_stop,
    }
    given = {key: value for key, value in overrides.items() if value is not None}
    config = load(place, overrides=given).config

    from oubliette.daemon import serve as serve_home

    try:
        ready = functools.partial(_announce, place, as_json=as_json)
        asyncio.run(serve_home(place, config, ready=ready))
    finally:
        stop_signals.ignore()


def _announce(place: Path, state: Any, *, as_json: bool) -> None:
    """Print that the server listens."""
    if as_json:
        print_json({"event": "ready", "url": state.url, "pid": state.pid})
        return
    with contextlib.suppress(OSError):  # the terminal is closed: the server continues
        note(f"Oubliette listens at {state.url} (home {place}, process {state.pid}).")
        note("A key for a client: oubliette token create --scope write")
