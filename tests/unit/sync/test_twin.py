"""The blocking API is the asynchronous one: the same methods, parameters, types and first lines."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest

from oubliette import sync
from oubliette.api import (
    browser_port,
    client,
    event_iterator,
    opening,
    project,
    session,
    tree,
    turn,
)
from oubliette.api._generated import spawner
from oubliette.api.callers import caller
from oubliette.api.files import workspace_files
from oubliette.sync.browser_port import BrowserPort
from oubliette.sync.spawner import Spawner

if TYPE_CHECKING:
    from collections.abc import Callable

TWINS: list[tuple[type, type]] = [
    (client.Oubliette, sync.Oubliette),
    (project.Project, sync.Project),
    (session.Session, sync.Session),
    (turn.Turn, sync.Turn),
    (tree.Tree, sync.Tree),
    (spawner.Spawner, Spawner),
    (workspace_files.WorkspaceFiles, sync.WorkspaceFiles),
    (caller.Caller, sync.Caller),
    (browser_port.BrowserPort, BrowserPort),
    (event_iterator.EventIterator, sync.Events),
    (event_iterator.TurnEvents, sync.Events),
]
BLOCKING = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
}
"""Names of the protocol of `async`, and what stands for them."""
LEFT_OUT = {
    "Oubliette.__enter__": "refuses",
    "Oubliette.__exit__": "refuses",
    "Turn.__await__": "is `result`",
    "Oubliette.system": "actors live on an event loop: a program that has some is asynchronous",
    "Oubliette.subscribe": "needs an actor",
    "Session.subscribe": "needs an actor",
    "Session.began": "for the package",
    "Caller.arguments": "for the package",
}
OWN_WORDS = {"TurnEvents.__anext__", "TurnEvents.cursor"}
CLASSES = {"EventIterator": "Events", "TurnEvents": "Events"}
OBJECT = vars(object).keys() | {"__init__", "__module__", "__slots__", "__weakref__", "__dict__"}


def members(kind: type) -> dict[str, Any]:
    """What a class defines or overrides, or one above it that has no twin of its own."""
    twins = {one for pair in TWINS for one in pair} | {object}
    first = next(place for place, each in enumerate(kind.__mro__[1:], 1) if each in twins)
    return {k: v for each in reversed(kind.__mro__[:first]) for k, v in vars(each).items()}


def public(kind: type) -> dict[str, Any]:
    """Public methods and properties of these."""
    return {
        name: member
        for name, member in members(kind).items()
        if (callable(member) or isinstance(member, property))
        and name not in OBJECT
        and (not name.startswith("_") or name.startswith("__"))
    }


def twin_of(kind: type, name: str) -> str | None:
    return None if f"{kind.__name__}.{name}" in LEFT_OUT else BLOCKING.get(name, name)


def first_line(member: object) -> str:
    return (inspect.getdoc(member) or "").partition("\n")[0]


def described(function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """Parameters with kinds, defaults and annotations, and the result."""
    signature = inspect.signature(function)
    of = [(p.name, p.kind, p.default, p.annotation) for p in signature.parameters.values()]
    answer = re.sub(
        r"\w+", lambda word: CLASSES.get(word[0], word[0]), str(signature.return_annotation)
    )
    return [*of, ("return", answer)]


METHODS = [
    (one, name, two) for one, two in TWINS for name in public(one) if twin_of(one, name) is not None
]


@pytest.mark.parametrize(
    ("kind", "name", "blocking"), METHODS, ids=[f"{k.__name__}.{n}" for k, n, _ in METHODS]
)
def test_each_method_has_its_twin(kind: type, name: str, blocking: type) -> None:
    one, two = members(kind)[name], members(blocking).get(twin_of(kind, name) or "")
    assert two is not None, f"oubliette.sync lacks {kind.__name__}.{name}"
    if isinstance(one, property):
        assert isinstance(two, property)
        one, two = one.fget, two.fget
    assert not inspect.iscoroutinefunction(two)
    assert described(two) == described(one)
    if f"{kind.__name__}.{name}" not in OWN_WORDS:
        assert first_line(two) == first_line(one)


@pytest.mark.parametrize("twins", TWINS, ids=lambda twins: twins[0].__name__)
def test_the_blocking_class_has_no_more(twins: tuple[type, type]) -> None:
    one, two = twins
    given = {twin_of(one, name) for name in public(one)}
    # An attribute there may be a property here.
    given |= {name for name in public(two) if isinstance(members(two)[name], property)}
    assert public(two).keys() <= given


def test_what_is_left_out_exists() -> None:
    names = {f"{one.__name__}.{name}" for one, _ in TWINS for name in public(one)}
    assert LEFT_OUT.keys() <= names


@pytest.mark.parametrize("name", ["open", "connect"])
def test_opening_is_the_same(name: str) -> None:
    one, two = getattr(opening, name), getattr(sync, name)
    assert described(two) == described(one)
    assert inspect.getdoc(two) == inspect.getdoc(one)


def test_attributes_are_the_same() -> None:
    """Those that `__init__` sets."""
    for one, two in TWINS:
        missing = attributes(one) - attributes(two) - public(two).keys()
        assert not missing, f"{two.__name__} lacks {missing}"


def attributes(kind: type) -> set[str]:
    source = inspect.getsource(kind.__init__)
    return set(re.findall(r"self\.([a-z]\w*)(?:: [^=\n]+)? = ", source))


def test_overloads_are_the_same() -> None:
    """Of `run` and `map`, whose results depend on `returns`."""
    found = [
        re.findall(
            r"@overload\n\s+def (.*?: \.\.\.)\n",
            re.sub(r"async def", "def", inspect.getsource(module)),
            re.DOTALL,
        )
        for module in (spawner, inspect.getmodule(Spawner))
    ]
    one, two = ([" ".join(each.split()) for each in each_module] for each_module in found)
    assert len(one) == 6
    assert one == two
