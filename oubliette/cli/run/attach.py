"""Command `oubliette attach`: a session in the whole terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.client.resolver import whole_id
from oubliette.cli.terminal.output import Format, Home, Output, note


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
    import asyncio

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
    scope = f"project:{found['project_id']}"
    with conversation.key_of_operator(place, scope, "oubliette attach") as key:
        asyncio.run(_show(url, key, session_id))
    note(f"{session_id} is left as it is. Come back to it: oubliette attach {session_id}")


async def _show(url: str, key: str, session_id: str) -> None:
    import oubliette
    from oubliette.cli.run.session_app import SessionApp, shown_from

    async with oubliette.connect(url, key, on_exit="keep") as ob:
        session = await ob.session(session_id)
        await SessionApp(ob, session, await shown_from(ob, session_id)).run_async()
