"""Command `oubliette attach`: a session in the whole terminal."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated, Final

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import Format, Home, Output, note

HISTORY: Final = 1000
"""Events before the present that are shown."""


def attach(
    session: Annotated[
        str, typer.Argument(metavar="SESSION", help="Session, whose id may be abbreviated.")
    ],
    home: Home = None,
    output: Output = Format.text,
) -> None:
    """Show a session as it goes on, answer what it asks, and send it messages; Ctrl-] leaves.

    In a pipe, and with -o json, it is `session logs --follow`.
    """
    from oubliette.cli.client import following
    from oubliette.cli.run import conversation
    from oubliette.cli.serve import background
    from oubliette.config.loader import find_home

    session_id = whole_id(home, "session", session)
    if output is Format.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        following.log(home, session_id, output, follow=True)
        return
    place = find_home(home)
    url = background.answering(place).url
    found = call(home, "session_get", {"session_id": session_id})
    with conversation.key_of_project(place, found["project_id"], "oubliette attach") as key:
        asyncio.run(_show(url, key, session_id, max(-1, found["last_index"] - HISTORY)))
    note(f"{session_id} is left as it is. Come back to it: oubliette attach {session_id}")


async def _show(url: str, key: str, session_id: str, after: int) -> None:
    import oubliette
    from oubliette.cli.run.session_app import SessionApp

    async with oubliette.connect(url, key, on_exit="keep") as ob:
        await SessionApp(ob, await ob.session(session_id), after).run_async()
