"""`oubliette.messages`: documented, complete, and all that the tools and the front send."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oubliette.actors
import oubliette.messages
from oubliette.kit import Actor, Message, Reply
from oubliette.kit.messages import reply_type
from tests.syntax import parse
from tests.unit.test_architecture import subclasses

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "python-actors.md"
FRONT = ("oubliette/tools", "oubliette/mcp_front", "oubliette/server/control_socket.py")
"""What serves clients and the agents' own tools."""
STORE = {"FollowLog", "GetStoreState", "LogGrew", "Transact"}
"""Writes of records, the log, and the state of the store: to and from no actor of the domain."""
SNAPSHOTS = {"AskHistory", "FindKept", "RestoreWorkspace", "StoreLast", "TakeCheckpoint"}
"""Questions about snapshots, in the terms of their repository: programs have `Session.diff` etc."""
BRANCHES = {"DropUnused", "FetchAgentCommits", "MergeSession", "PushBranch"}
"""Work on branches, in the terms of repositories: programs have `Session.merge` and `push`."""
PORTS = {
    *("ClosePort", "ConnectionOver", "KeyEnded", "ListPorts", "OpenConnection", "OpenPort"),
    "RedeemToken",
}
"""Requests of browsers and of what lets them in: programs have `Session.open_port`."""
RECORDS = {"Event", "Session", "Project", "Limits", "CallerTool"}
TO_SUBSCRIBERS = {"CloneProgressed", "EventsCommitted", "EventsDeleted", "SubscriptionEnded"}

NAMES = oubliette.messages.__all__
MESSAGES: list[type[Message]] = [
    each
    for each in (getattr(oubliette.messages, name) for name in NAMES)
    if issubclass(each, Message)
]


def modules(*places: str) -> Iterator[Path]:
    for place in places:
        path = ROOT / place
        yield from path.rglob("*.py") if path.is_dir() else [path]


def imported(path: Path) -> Iterator[tuple[str, Any]]:
    """The names that a module imports from those of actors, with what they stand for."""
    for node in ast.walk(parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("oubliette.actors"):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                yield alias.name, getattr(module, alias.name)


def test_each_message_that_the_front_and_the_tools_send_is_public() -> None:
    sent = {
        name
        for path in modules(*FRONT)
        for name, value in imported(path)
        if isinstance(value, type) and issubclass(value, Message)
    }
    assert len(sent) > 20
    assert sent - STORE - SNAPSHOTS - BRANCHES - PORTS - set(NAMES) == set()


def test_the_front_and_the_tools_import_no_module_of_actors_whole() -> None:
    """Else the test above would not see what they send."""
    whole = [
        path
        for path in modules(*FRONT)
        for node in ast.walk(parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import)
        and any(alias.name.startswith("oubliette.actors") for alias in node.names)
    ]
    assert whole == []


def test_the_page_lists_exactly_what_the_module_exports() -> None:
    page = PAGE.read_text(encoding="utf-8")
    section = page.partition("\n## Messages\n")[2].partition("\n## ")[0]
    table, rest = re.findall(r"(?m)^\|.*$", section), re.sub(r"(?m)^\|.*$", "", section)
    listed = {row.split("|")[1].strip().strip("`") for row in table[2:]}
    named = {name for row in table for name in re.findall(r"`([A-Z]\w+)`", row)}
    named |= set(re.findall(r"`([A-Z]\w+)`", rest)) & RECORDS
    actors = {each.__name__ for each in subclasses(Actor)}
    assert listed == {each.__name__ for each in MESSAGES}
    assert named - actors == set(NAMES)


def test_the_names_and_their_messages_are_those_of_the_table_of_messages() -> None:
    page = PAGE.read_text(encoding="utf-8")
    section = page.partition("\n## Names\n")[2].partition("\n## ")[0]
    named: set[str] = set()
    for row in re.findall(r"(?m)^\|.*$", section)[2:]:
        named |= set(re.findall(r"`([A-Z]\w+)`", row.split("|")[3]))
    assert named == {each.__name__ for each in MESSAGES} - TO_SUBSCRIBERS


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.__name__)
def test_the_docstring_of_a_message_gives_its_receiver(message: type[Message]) -> None:
    receiver = r"(?:To|From) (?:an? \w+Actor\b|the store\b|a subscription\b|`\w+`)"
    assert re.match(receiver, message.__doc__ or "")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.__name__)
def test_what_a_message_answers_is_public_too(message: type[Message]) -> None:
    if issubclass(message, Reply):
        text = str(reply_type(message))
        classes = set(re.findall(r"oubliette\.[\w.]+\.(\w+)", text))
        # By what it is: a class may be exported under a name of its own.
        assert classes <= {getattr(oubliette.messages, name).__name__ for name in NAMES}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.__name__)
def test_each_message_to_us_has_a_handler(message: type[Message]) -> None:
    for module in pkgutil.walk_packages(oubliette.actors.__path__, "oubliette.actors."):
        importlib.import_module(module.name)
    handled = {
        kind
        for actor in subclasses(Actor)
        for function in vars(actor).values()
        for kind in getattr(function, "_handles", ())
    }
    assert message in handled or message.__name__ in TO_SUBSCRIBERS


def test_the_names_are_sorted_and_each_is_there_once() -> None:
    assert list(NAMES) == sorted(set(NAMES))
