"""Pairing of links whose clients have no secret: by project, first in, first out.

If the guest can find the session whose agent a client descends from, and the server has announced
that session, the client is paired with an upstream of that session only. All others are paired in
order of arrival.
"""

from __future__ import annotations

from .socket_pair import Pair, Side
from .unpaired import DOWNSTREAM_TIMEOUT, LinkRefused, UnpairedLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .. import wire
    from ..io.connection import Connection
    from ..io.event_loop import Loop

    Queues = dict[str, list[UnpairedLink]]

WAITING_LIMIT = 64  # unpaired links: per project and direction, and projects


class BarePairing:
    """Pairs of bare clients, and the links that wait for a partner."""

    def __init__(self, loop: Loop, tell: Callable[[dict[str, Any]], None]) -> None:
        self._loop = loop
        self._tell = tell
        self._up: Queues = {}  # by project, oldest first, no empty list
        self._down: Queues = {}
        self._pairs: set[Pair] = set()

    def upstream(
        self, header: wire.Upstream, connection: Connection, first: bytes, *, announced: bool
    ) -> None:
        """Accept an upstream; one that is not `announced` may still be withdrawn.

        Raises:
            LinkRefused: Too many links wait.

        """
        project = header.project
        waiting = _take(self._down, project, lambda down: down.session in (None, header.session))
        if waiting is None:
            _check_room(self._up, project)
        side = Side(connection.release(), first, header.session)
        if waiting is None:
            self._queue(self._up, project, side, None, announced=announced)
        else:
            self._join(side, waiting.take())

    def downstream(
        self, owner: str | None, project: str, connection: Connection, first: bytes
    ) -> None:
        """Accept a downstream whose client descends from the agent of the session `owner`.

        Raises:
            LinkRefused: Too many links wait.

        """
        waiting = _take(self._up, project, lambda up: owner in (None, up.session))
        if waiting is None:
            _check_room(self._down, project)
        side = Side(connection.release(), first, owner)
        if waiting is None:
            self._queue(self._down, project, side, DOWNSTREAM_TIMEOUT)
        else:
            self._join(waiting.take(), side)

    def withdraw(self, session: str, project: str) -> Side | None:
        """Remove and return an unannounced upstream of `session`, or None if there is none."""
        for waiting in self._up.get(project, ()):
            if waiting.side.session == session and not waiting.announced:
                _remove(self._up, project, waiting)
                return waiting.take()
        return None

    def _join(self, upstream: Side, downstream: Side) -> None:
        pair = Pair(self._loop, upstream, downstream, self._pairs.discard)
        if pair.is_open:
            self._pairs.add(pair)
            self._tell({"event": "paired", "session": upstream.session, "bare": True})

    def _queue(
        self,
        queues: Queues,
        project: str,
        side: Side,
        timeout: float | None,
        *,
        announced: bool = True,
    ) -> None:
        def on_closed(waiting: UnpairedLink) -> None:
            _remove(queues, project, waiting)

        waiting = UnpairedLink(self._loop, side, on_closed, timeout)
        waiting.announced = announced
        queues.setdefault(project, []).append(waiting)

    @property
    def links(self) -> int:
        """Number of open links, paired ones counted twice."""
        queues = (*self._up.values(), *self._down.values())
        return 2 * len(self._pairs) + sum(map(len, queues))

    def close(self) -> None:
        for pair in list(self._pairs):
            pair.close()
        for queues in (self._up, self._down):
            for queue in list(queues.values()):
                for waiting in list(queue):
                    waiting.close()


def _take(queues: Queues, project: str, fits: Callable[[Side], bool]) -> UnpairedLink | None:
    """Remove and return the first open link of a project that satisfies `fits`."""
    for waiting in list(queues.get(project, ())):
        if fits(waiting.side):
            if waiting.side.is_closed():  # its end was not noticed yet
                waiting.close()
                continue
            _remove(queues, project, waiting)
            return waiting
    return None


def _remove(queues: Queues, project: str, waiting: UnpairedLink) -> None:
    queue = queues.get(project, [])
    if waiting in queue:
        queue.remove(waiting)
        if not queue:
            del queues[project]


def _check_room(queues: Queues, project: str) -> None:
    queue = queues.get(project)
    if (len(queues) if queue is None else len(queue)) >= WAITING_LIMIT:
        raise LinkRefused("too many unpaired links")
