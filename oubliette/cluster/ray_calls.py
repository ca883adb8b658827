"""Calls of Ray actors from a loop: with a deadline, and with one error for all that Ray raises."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    RayError,
    RayTaskError,
)

from oubliette.cluster.environment import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

F = TypeVar("F")

RAY: Final = cast("Any", ray)
"""Ray without its types, which are unknown in part."""


class RayCallFailed(Exception):
    """A call had no answer; the text is the reason in one line.

    `passing`: the actor is not dead, but cannot be reached now, or is being started again.
    """

    def __init__(self, reason: str, *, passing: bool = False) -> None:
        super().__init__(reason)
        self.passing = passing


def grouped(group: str) -> Callable[[F], F]:
    """Mark a method of a Ray actor as one of a concurrency group."""
    return RAY.method(concurrency_group=group)


def actor_name(node: str) -> str:
    """Name of the node's actor among Ray's."""
    return f"node/{node}"


async def find_actor(node: str) -> Any:
    """A handle of the node's actor.

    Raises:
        RayCallFailed: there is none, or Ray's head does not answer.
    """
    try:
        return await asyncio.to_thread(RAY.get_actor, actor_name(node), NAMESPACE)
    except (ValueError, RayError, RuntimeError) as error:
        raise RayCallFailed(reason_of(error)) from error


async def result_of(reference: Any, seconds: float | None) -> Any:
    """Return the result of a call, waited for on the running loop; None: for ever.

    Raises:
        RayCallFailed: the actor has died, cannot be reached, has raised, or is too slow.
    """
    future = cast("Future[Any]", reference.future())
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.wrap_future(future)
    except TimeoutError as error:
        raise RayCallFailed(f"no answer in {seconds:g} s") from error
    except RayError as error:
        passing = isinstance(error, ActorUnavailableError)
        raise RayCallFailed(reason_of(error), passing=passing) from error


def reason_of(error: Exception) -> str:
    """The reason in one line: Ray's texts have many, with paths and process ids."""
    if isinstance(error, ActorDiedError):
        return "its process has ended"
    if isinstance(error, ActorUnavailableError):
        return "its process or machine cannot be reached"
    if isinstance(error, RayTaskError):
        return str(cast("Any", error).cause or error).strip().splitlines()[-1]
    if isinstance(error, GetTimeoutError):
        return "no answer in time"
    if isinstance(error, ValueError):
        return "there is no such node"
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
