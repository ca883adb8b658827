"""Attributes of an actor that describe its place in a System."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.kit.pykka_actor import AsyncioActor

if TYPE_CHECKING:
    import asyncio
    from contextvars import Context

    from oubliette.clock import Clock
    from oubliette.kit.mailbox import Envelope
    from oubliette.kit.messages import Reason
    from oubliette.kit.ref import Ref
    from oubliette.kit.replies import Deferred
    from oubliette.kit.system import System
    from oubliette.kit.timers import ActorTimer


class PlacedActor(AsyncioActor):
    """The attributes that every actor of a System has, apart from its own.

    They are slots: as entries of the instance's dict they would give most actors more keys than
    instances of a class can share, and cost 1.5 KB each for the dict alone.
    """

    __slots__ = (
        "_actor_children",
        "_actor_context",
        "_actor_deferrals",
        "_actor_error",
        "_actor_jobs",
        "_actor_parent",
        "_actor_phase",
        "_actor_reason",
        "_actor_task",
        "_actor_timers",
        "actor_inbox",
        "actor_limit",
        "actor_stopped",
        "actor_urn",
        "clock",
        "envelope",
        "incarnation",
        "name",
        "ref",
        "system",
    )

    system: System
    name: str
    ref: Ref
    clock: Clock
    incarnation: int
    """Number of this incarnation: no two actors of a process have the same."""

    envelope: Envelope
    """The envelope being handled: sender, deadline, trace."""

    actor_limit: float
    _actor_reason: Reason
    _actor_error: BaseException | None
    _actor_phase: str
    _actor_context: Context
    _actor_jobs: set[asyncio.Task[None]]
    _actor_timers: set[ActorTimer]
    _actor_deferrals: set[Deferred]
    _actor_task: asyncio.Task[None]
