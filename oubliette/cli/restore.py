"""Command `oubliette restore`: gives the copy of a home a new identity."""

from __future__ import annotations

from oubliette.cli.terminal.output import Format, Home, Output, note, print_json


def restore(home: Home = None, output: Output = Format.text) -> None:
    """Give the copy of a home an identity of its own.

    The agents of the original home stay with it. A session that was running when the copy was made
    is resumed by its next message.
    """
    import asyncio

    from oubliette.cli.client.offline import take_identity
    from oubliette.cli.terminal import logging_config
    from oubliette.config.loader import find_home

    logging_config.configure("warning", as_json=output is Format.json)
    place = find_home(home)
    instance = asyncio.run(take_identity(place))
    if output is Format.json:
        print_json({"home": str(place), "instance": instance})
        return
    note(f"{place} has the new identity {instance}; a server can run on it beside the original.")
