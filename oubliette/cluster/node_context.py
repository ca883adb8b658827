"""NodeContext: what the program of a node is started with, and the finding of that program.

The program (`node main`) is an async function of one parameter, the context. It is named as
`package.module:function`, and runs on a loop of its own in the process of the node's Ray actor.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, cast

from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    import asyncio

    from oubliette.cluster.ray_transport import RayTransport

LOST_EXIT: Final = 75
"""Exit code of a node that was given up, or has failed: Ray is to start it again."""

Handler = Callable[[str, bytes], Awaitable[bytes]]
"""Answers a request of the agent: its verb and its body."""


@dataclass(frozen=True)
class NodeStart:
    """The order to run a node; it crosses to the node's process."""

    node: str
    """Name of the node."""

    main: str
    """Its program, `package.module:function`."""

    settings: dict[str, str] = field(default_factory=dict[str, str])
    """For the program; no secrets, since Ray keeps them in its database."""


@dataclass
class NodeContext:
    """One run of a node."""

    start: NodeStart
    """The order."""

    epoch: int
    """Number of this run; higher than that of each earlier run of the node."""

    restarted: bool
    """Whether Ray has started the process again after its end."""

    transport: RayTransport
    """The connection to the other nodes."""

    stopping: asyncio.Event
    """Set once the node is to end; the program returns then."""

    handler: Handler | None = None
    """Answers requests of the agent; set by the program."""

    ready: bool = False
    """Whether the program has started; set by it."""


Main = Callable[[NodeContext], Awaitable[None]]


def load_main(name: str) -> Main:
    """Import the program of a node.

    Raises:
        InvalidParameter: there is no such function.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, ValueError, AttributeError) as error:
        raise InvalidParameter(
            f"main: {name!r} cannot be imported: {error}",
            field="main",
            hint="write it as package.module:function, importable on every node",
        ) from error
    return cast("Main", found)
