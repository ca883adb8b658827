"""Context of running code: the sender and the trace that its messages will carry."""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from oubliette.kit.mailbox import Envelope

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping


class TraceScope(Protocol):
    """An actor, a task beside it, or a program that set a trace."""

    @property
    def name(self) -> str | None:
        """Name of the actor, None outside any."""
        ...

    @property
    def envelope(self) -> Envelope:
        """The envelope being handled; its trace is passed on."""
        ...


class DetachedScope:
    """Scope that keeps the envelope of its start while the actor handles others."""

    __slots__ = ("envelope", "name")

    def __init__(self, name: str | None, envelope: Envelope) -> None:
        self.name = name
        self.envelope = envelope


current_scope: ContextVar[TraceScope | None] = ContextVar("oubliette_scope", default=None)


@contextlib.contextmanager
def tracing(trace: Mapping[str, str]) -> Generator[None]:
    """Add `trace` to every message sent inside, and to the messages that these cause."""
    outer = current_scope.get()
    scope = DetachedScope(None if outer is None else outer.name, Envelope(None, trace=dict(trace)))
    token = current_scope.set(scope)
    try:
        yield
    finally:
        current_scope.reset(token)
