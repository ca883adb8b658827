"""Completion of values in a shell: ids, names and choices.

They are read from the server that runs, or from the database if none does. A person waits for them
with a finger on the key: a server that is slow, or a failure, offers nothing and prints nothing.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from oubliette.cli.terminal import documents
from oubliette.cli.terminal.output import SHORT
from oubliette.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Read = Callable[[str, dict[str, Any]], dict[str, Any]]
    """Calls a tool."""
    Source = Callable[[Read, str], list["Offer"]]
    """Returns values, of what is read and of what was typed."""

VARIABLE: Final = "_OUBLIETTE_COMPLETE"
"""Set by the shell's script, which typer installs."""
SECONDS: Final = 1.0
NEWEST: Final = 100
"""Sessions that are offered."""
MOST: Final = 1000
_PLAIN: Final = re.compile(r"[A-Za-z0-9._+-]+")
_ODD: Final = re.compile(r"[^\w .,/+-]")
"""Characters that a description does not need: shells evaluate it, and agents choose some of it."""


class Offer(NamedTuple):
    """A value that is offered; has the fields of click's `CompletionItem`."""

    value: str
    help: str = ""
    type: str = "plain"


def words() -> list[str]:
    """The words of the command line before the one that is completed."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    return re.split(r"\s", line)[1:-1]


def offer(command: Any) -> None:
    """Let the parameters of this command, and of those below it, complete their values."""
    for each in command.params:
        source = _sessions if each.metavar == "SESSION" else _SOURCES.get(each.name)
        if source is not None or _choices(each):
            each.shell_complete = partial(_fitting, source, each)
    below: dict[str, Any] = getattr(command, "commands", {})
    for each in below.values():
        offer(each)


def _choices(parameter: Any) -> list[str]:
    """The choices that its usage line shows."""
    shown = (parameter.metavar or "").split("|")
    return [each for each in shown if each.islower()] if len(shown) > 1 else []


def _fitting(source: Source | None, parameter: Any, context: Any, incomplete: str) -> list[Offer]:
    """Return the choices, and what there is, as far as it begins as it was typed."""
    found = [*map(Offer, _choices(parameter)), *_read(source, context, incomplete)]
    fit = {each.value: each for each in found if each.value.startswith(incomplete)}
    return list(fit.values())


def _read(source: Source | None, context: Any, incomplete: str) -> list[Offer]:
    if source is None:
        return []
    try:
        return source(partial(_call, context.params.get("home")), incomplete)
    except Exception:  # a prompt is no place for errors: the command itself reports them
        return []


def _call(home: str | None, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool of the server, or read the database; nothing is made, and no lock awaited."""
    from oubliette.api.control import ControlClient
    from oubliette.config.loader import find_home

    place = find_home(home)
    try:
        with ControlClient(place) as client:
            if client.answers(SECONDS):
                return client.call(tool, arguments, SECONDS)
    except Unavailable:
        pass
    from oubliette.cli.client.offline import read_offline
    from oubliette.cli.terminal import logging_config

    logging_config.configure("critical", as_json=False)
    return read_offline(place, tool, arguments)


def _ids(entries: Iterable[tuple[str, str]], incomplete: str) -> list[Offer]:
    """Candidates of ids with a description each: the ends, as in tables, or whole ones."""
    found = {each: _ODD.sub(" ", text)[:60] for each, text in entries}
    length = SHORT
    while len({each[-length:] for each in found}) < len(found):
        length += 1
    ends = [Offer(each[-length:], text) for each, text in found.items()]
    if any(each.value.startswith(incomplete) for each in ends):
        return ends
    return [Offer(each, text) for each, text in found.items()]


def _sessions(read: Read, incomplete: str) -> list[Offer]:
    page = read("session_list", {"newest_first": True, "limit": NEWEST})
    described = ((each["session_id"], _described(each)) for each in page["sessions"])
    return _ids(described, incomplete)


def _described(session: dict[str, Any]) -> str:
    return f"{session['status']}, {session['agent']}: {session['title'] or ''}"


def _projects(read: Read, incomplete: str) -> list[Offer]:
    """Names of projects; the ends of their ids where a name would need quotes."""
    projects = read("project_list", {"limit": MOST})["projects"]
    plain = [each["name"] for each in projects if _PLAIN.fullmatch(each["name"])]
    odd = ((each["id"], each["name"]) for each in projects if each["name"] not in plain)
    return [*map(Offer, plain), *_ids(odd, incomplete)]


def _places(read: Read, incomplete: str) -> list[Offer]:
    return [*_sessions(read, incomplete), *_projects(read, incomplete)]


def _scopes(read: Read, incomplete: str) -> list[Offer]:
    if not incomplete.startswith("project"):
        return [Offer("project:")]
    projects = read("project_list", {"limit": MOST})["projects"]
    return [Offer(f"project:{each['id']}", _ODD.sub(" ", each["name"])) for each in projects]


def _tokens(read: Read, incomplete: str) -> list[Offer]:
    tokens = read("token_list", {"limit": MOST})["tokens"]
    living = (each for each in tokens if each["revoked_at"] is None)
    return _ids(((each["token_id"], each["name"]) for each in living), incomplete)


def _agents(read: Read, incomplete: str) -> list[Offer]:
    del incomplete
    return list(map(Offer, read("project_options", {})["agents"]))


def _tools(read: Read, incomplete: str) -> list[Offer]:
    del read, incomplete
    return list(map(Offer, documents.tools()))


def _documents(read: Read, incomplete: str) -> list[Offer]:
    del read, incomplete
    return [Offer(each, _ODD.sub(" ", documents.title(each))) for each in documents.names()]


_SOURCES: Final[dict[str, Source]] = {
    "agent": _agents,
    "document": _documents,
    "key_scope": _scopes,
    "place": _places,
    "project": _projects,
    "scope": _scopes,
    "session": _sessions,
    "session_id": _sessions,
    "session_ids": _sessions,
    "token_id": _tokens,
    "tool": _tools,
}
"""Name of a parameter → its values."""
