"""Command `oubliette top`: all live trees in the whole terminal."""

from __future__ import annotations

import sys
from typing import Final

import typer

from oubliette.cli.client.calls import call
from oubliette.cli.terminal.output import Format, Home, Output, print_json

TREES: Final = 200


def top(home: Home = None, output: Output = Format.text) -> None:
    """Show the live trees as they go on; keys attach to a session, answer it, or interrupt it.

    With -o json the trees are printed once, as they are now.
    """
    import asyncio

    from oubliette.cli.run import conversation
    from oubliette.cli.serve import background
    from oubliette.config.loader import find_home

    if output is Format.json:
        print_json(call(home, "tree_list", {"limit": TREES}))
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("it needs a terminal; oubliette ps lists the sessions in a pipe")
    place = find_home(home)
    url = background.answering(place).url
    with conversation.key_of_operator(place, "admin", "oubliette top") as key:
        asyncio.run(_show(url, key))


async def _show(url: str, key: str) -> None:
    import oubliette
    from oubliette.cli.run.session_app import SessionApp, shown_from
    from oubliette.cli.run.top_app import TopApp

    async with oubliette.connect(url, key, on_exit="keep") as ob:
        while (chosen := await TopApp(ob).run_async()) is not None:
            session = await ob.session(chosen)
            await SessionApp(ob, session, await shown_from(ob, chosen)).run_async()
