"""NodeKeeper: what an agent does at each look at one node, so that it runs.

A node whose program has failed is started again after a delay, which doubles with each failure in
a row. One that Ray has not started, or that has hung, is silent while its machine is alive: its
actor is ended, and a new one is started. If the old process wakes up after all, it can store
nothing, since its lease has ended and the new one has another epoch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import tenacity

from oubliette.errors import OublietteError
from oubliette.kit.retry import Failures

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.cluster.node_context import NodeStart

FIRST_SECONDS: Final = 5.0
"""Time until a node that has failed is started again; it doubles with each failure in a row."""
MOST_SECONDS: Final = 120.0
"""Longest such time."""
JITTER_SECONDS: Final = 2.0
"""Random part of it: nodes that failed together are not started at the same moment."""
STEADY_SECONDS: Final = 60.0
"""Time for which a node must be ready for its failures to be forgotten."""
SILENT_SECONDS: Final = 90.0
"""Time without an answer after which a node counts as hung, or as one that Ray does not start."""


class NodeCalls(Protocol):
    """Requests about nodes that an agent makes; `oubliette.cluster.nodes` has them."""

    def node_state(self, node: str) -> dict[str, Any]: ...

    def has_machine(self, node: str) -> bool: ...

    def start_node(self, start: NodeStart) -> dict[str, Any]:
        """Start a node, or find it."""
        ...

    def restart_process(self, node: str) -> None:
        """Let Ray start the process of a node again."""
        ...

    def end_actor(self, node: str) -> None:
        """End the actor of a node, which Ray does not start again."""
        ...


class NodeFailure(msgspec.Struct, frozen=True):
    """The latest failure of a node."""

    reason: str
    at: float
    """Seconds since 1970."""
    count: int = 0
    """Failed starts in a row; 0: it had started."""
    again_at: float | None = None
    """Seconds since 1970 at which it is started again; None: at once."""


class NodeKeeper:
    """Keeps one node started, look by look.

    Args:
        start: The order to run it.
        nodes: Does what has to be done.
        clock: Seconds since any moment.
    """

    def __init__(
        self, start: NodeStart, nodes: NodeCalls, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._start = start
        self._nodes = nodes
        self._clock = clock
        self._failures = Failures(
            tenacity.wait_exponential_jitter(
                multiplier=FIRST_SECONDS, max=MOST_SECONDS, jitter=JITTER_SECONDS
            )
        )
        self._count = 0
        self._failed_epoch: int | None = None
        """Run of the node whose failure was counted."""
        self._again_at = 0.0
        self._ready_since: float | None = None
        self._silent_since: float | None = None
        self._failure: NodeFailure | None = None

    def look(self) -> dict[str, Any]:
        """Start the node if it does not run, and return its state with its latest failure."""
        state = self._nodes.node_state(self._start.node)
        try:
            if state["state"] == "unreachable":
                state = self._unreachable(state)
            else:
                self._answered(state)
        except OublietteError as error:
            if self._silent_since is None:  # its machine is gone; a slow start is no failure
                self._trouble(error.message)
            state = {"node": self._start.node, "state": "missing", "error": error.message}
        if self._failure is not None:
            state = state | {"failure": msgspec.to_builtins(self._failure)}
        return state

    def _answered(self, state: dict[str, Any]) -> None:
        self._silent_since = None
        now = self._clock()
        if state["state"] in {"failed", "ended"}:
            self._ready_since = None
            self._failed(state, now)
            if now >= self._again_at:
                self._nodes.restart_process(self._start.node)
            return
        if not state.get("ready"):
            self._ready_since = None
        elif self._ready_since is None:
            self._ready_since = now
        elif now - self._ready_since >= STEADY_SECONDS:
            self._count = 0
            self._failures.reset()

    def _failed(self, state: dict[str, Any], now: float) -> None:
        """Count the failure of a run, once."""
        if state["epoch"] == self._failed_epoch:
            return
        self._failed_epoch = state["epoch"]
        self._count += 1
        delay = self._failures.next_delay()
        self._again_at = now + delay
        at = round(time.time(), 1)
        reason = state.get("error") or "its program has ended"
        self._failure = NodeFailure(reason, at, self._count, round(at + delay, 1))

    def _unreachable(self, state: dict[str, Any]) -> dict[str, Any]:
        """Start it, with a new actor if it was silent for too long, and return its state."""
        if self._ready_since is not None:
            self._ready_since = None
            self._trouble(state["error"])
        now = self._clock()
        if not self._nodes.has_machine(self._start.node):
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = now
        elif now - self._silent_since >= SILENT_SECONDS:
            self._silent_since = now
            self._trouble(f"it was silent for {SILENT_SECONDS:g} s, and is started again")
            self._nodes.end_actor(self._start.node)
        started = self._nodes.start_node(self._start)
        self._silent_since = None
        return started

    def _trouble(self, reason: str) -> None:
        """Note why there is no answer, unless that follows from a failure of the program."""
        if self._count == 0 and (self._failure is None or self._failure.reason != reason):
            self._failure = NodeFailure(reason, round(time.time(), 1))
