"""What actors are given by reference: immutable things, refs, views, and state of their own."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import oubliette.actors
from oubliette import records
from oubliette.actors.container.guest_connection import ContainerRefs, GuestConnection
from oubliette.actors.container.messages import ContainerKey
from oubliette.actors.context import ActorContext
from oubliette.actors.session.messages import OpenLink
from oubliette.actors.session_registry import SessionRegistry, SessionTable
from oubliette.actors.subscriptions.stored_cursor import SubscriptionPlan
from oubliette.actors.tree.messages import OpenTree
from oubliette.config.schema import CallersConfig
from oubliette.kit import Actor

if TYPE_CHECKING:
    from collections.abc import Iterator

PLAIN = {"str", "int", "float", "bool", "bytes", "None", "tuple"}
FROZEN = {
    each.__name__: each
    for each in (
        ActorContext,
        CallersConfig,
        ContainerKey,
        OpenTree,
        OpenLink,
        SubscriptionPlan,
        ContainerRefs,
        records.CallerRequest,
        records.Limits,
        records.Project,
        records.Session,
    )
}
REFS = {"Ref"}
VIEWS = {"GuestConnection", "Reader"}
"""They read what another part owns."""
PORTS = {"CallerBoard", "Claims"}
"""Their state belongs to the adapter behind them."""
OWN = {
    "SessionTable": "SessionRegistryActor",
    "OpenCallTable": "OpenCallsActor",
    "CallerMemory": "CallerActor",
    "Database": "StoreActor",
    "PostgresDatabase": "StoreActor",
    "GuestConnectionState": "SocketActor",
    "LinkMemory": "SocketActor",
    "LeaseMemory": "ContainerActor",
    "SessionMemory": "SessionActor",
    "SubscriptionTable": "SubscriptionsActor",
    "SubscriptionMemory": "SubscriptionActor",
    "Callable": "CriticalActorMonitor",
}
"""Mutable things, and the one class of actors that gets each."""

CONTEXT = {
    # values
    "config", "home", "instance", "epoch", "zipapp", "runtime_base", "loopback_ports",
    # names of actors, and views
    "store", "session_registry",
    # ports, whose state belongs to the adapter behind them
    "clock", "reader", "folders", "runtime", "agents", "missing_agents", "agent_tools", "keys",
    "caller_board", "claims", "copies", "homes", "start_pace",
    "callers_served",
}  # fmt: skip


def actors() -> list[type[Actor]]:
    """The classes of the package that are started; those of tests are none of them."""
    for module in pkgutil.walk_packages(oubliette.actors.__path__, "oubliette.actors."):
        importlib.import_module(module.name)

    def below(cls: type[Actor]) -> Iterator[type[Actor]]:
        ours = [
            each
            for each in cls.__subclasses__()
            if each.__module__.startswith(("oubliette.actors.", "oubliette.kit."))
        ]
        for each in ours:
            yield from below(each)
        if not ours and cls.__module__.startswith("oubliette.actors."):
            yield cls

    return sorted(set(below(Actor)), key=lambda each: each.__name__)


def given_to(cls: type[Actor]) -> set[str]:
    """The names of the types of what the constructor takes."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    return {
        name.rpartition(".")[2]
        for parameter in parameters
        for name in re.findall(r"[A-Za-z_][\w.]*", str(parameter.annotation))
    }


@pytest.mark.parametrize("cls", actors(), ids=lambda cls: cls.__name__)
def test_an_actor_takes_nothing_that_another_one_changes(cls: type[Actor]) -> None:
    given = given_to(cls) - PLAIN - FROZEN.keys() - REFS - VIEWS - PORTS
    owners = {name: OWN.get(name) for name in given}
    if "Callable" in given:
        given -= {"object"}
        owners.pop("object", None)
    assert set(owners.values()) <= {cls.__name__}, owners


def test_what_one_class_owns_is_taken_by_it() -> None:
    taken = {(name, cls.__name__) for cls in actors() for name in given_to(cls) & OWN.keys()}
    assert taken == set(OWN.items())


@pytest.mark.parametrize("cls", FROZEN.values(), ids=FROZEN)
def test_what_several_actors_get_cannot_be_changed(cls: Any) -> None:
    if dataclasses.is_dataclass(cls):
        assert cls.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]
    elif issubclass(cls, tuple):
        assert cls.__slots__ == () or hasattr(cls, "_fields")
    else:
        assert issubclass(cls, msgspec.Struct)
        assert cls.__struct_config__.frozen


def test_each_field_of_the_context_is_a_value_a_ref_a_view_or_a_port() -> None:
    assert {field.name for field in dataclasses.fields(ActorContext)} == CONTEXT


@pytest.mark.parametrize("view", [GuestConnection(), SessionRegistry(SessionTable())])
def test_a_view_has_nothing_that_can_be_set_and_returns_no_part_of_its_state(view: Any) -> None:
    assert not hasattr(view, "__dict__")
    for name in ("current", "info", "draining", "why_lost", "sessions", "anything"):
        with pytest.raises(AttributeError):
            setattr(view, name, None)
    public = [name for name in dir(view) if not name.startswith("_")]
    values = [getattr(view, name) for name in public]
    assert not [value for value in values if isinstance(value, dict | list | set)]
