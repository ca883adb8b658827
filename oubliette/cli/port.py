"""Command `oubliette port`: a port of a session's container, for a browser."""

from __future__ import annotations

import signal
from functools import partial
from typing import Annotated, Any, Final

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.client.other_owner import explained
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal import stop_signals
from oubliette.cli.terminal.output import Format, Home, Output, note, print_json
from oubliette.errors import OublietteError

STOPS: Final = frozenset({signal.SIGINT, signal.SIGTERM})
SECONDS: Final = 1000.0
"""Time for a port to be opened, with the start of its container."""


def port(
    session_id: Annotated[str, typer.Argument(help="Id of a session, which may be abbreviated.")],
    number: Annotated[
        int, typer.Argument(metavar="PORT", min=1, max=65535, help="Port in the container.")
    ],
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Leave it open, and end at once.")] = False,
    close: Annotated[bool, typer.Option("--close", help="Close it.")] = False,
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Print a link that shows one browser what listens on a port of a session's container.

    The link is valid once, for a minute. The port is closed when the command is interrupted.
    """
    wanted: dict[str, Any] = {
        "session_id": whole_id(home, "session", session_id),
        "port": number,
    }
    if close:
        done = call(home, "port_close", wanted)
        if output is Format.json:
            print_json(done)
        else:
            note(f"Port {number} is closed." if done["closed"] else f"Port {number} was not open.")
        return
    stop_signals.interrupt()
    try:
        opened = call(home, "port_open", wanted, SECONDS)
    except OublietteError as error:
        raise explained(
            partial(call, home), wanted["session_id"], error, "open its ports"
        ) from error
    if not keep:  # they wait for sigwait: none is lost before it
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    if output is Format.json:
        print_json(opened)
    else:
        typer.echo(opened["url"])
    if keep:
        return
    note(f"Port {number} is open until you press Ctrl-C.")
    signal.sigwait(STOPS)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    call(home, "port_close", wanted)
    note(f"Port {number} is closed.")
