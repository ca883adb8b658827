"""Which upstream belongs to which downstream.

A session that the server announced (`expect`) has one place for each side, and only the holder of
its secret gets the downstream's. Where bare clients are allowed, those that know no secret are
paired by project, first in, first out, with upstreams of sessions that nobody announced.
"""

from __future__ import annotations

from incontainer import wire
from incontainer.loop import CLOSED, HANGUP, PEER_ENDED
from incontainer.pump import Pair, Side

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from incontainer.connection import Connection
    from incontainer.loop import Loop, Timer

    Queues = dict[str, list["Waiting"]]

WAITING_LIMIT = 64  # bare links that wait: per project and direction, and projects
DOWNSTREAM_PATIENCE = 600.0  # seconds a downstream waits for its upstream


class Refused(Exception):
    """The link is not accepted; the text is for the peer."""


class Expected:
    """A session the server announced, and the links it has."""

    __slots__ = ("depth", "digest", "downstream", "pair", "project", "session", "upstream")

    def __init__(self, session: str, project: str, digest: str, depth: int) -> None:
        self.session = session
        self.project = project
        self.digest = digest
        self.depth = depth
        self.upstream: Waiting | None = None
        self.downstream: Waiting | None = None
        self.pair: Pair | None = None


class Waiting:
    """An accepted link that has no partner yet; its bytes stay in the kernel."""

    def __init__(
        self,
        loop: Loop,
        side: Side,
        lost: Callable[[Waiting], None],
        patience: float | None = None,
    ) -> None:
        self.side = side
        self._loop = loop
        self._lost = lost
        self._timer: Timer | None = None
        if patience is not None:
            self._timer = loop.call_later(patience, self._expired)
        loop.watch(side.sock.fileno(), PEER_ENDED, self._ready)

    def _ready(self, mask: int) -> None:
        if mask & HANGUP:
            self.close()
        else:  # it has sent all it will send, and still waits for the answer
            self._loop.watch(self.side.sock.fileno(), CLOSED, self._ready)

    def _expired(self) -> None:
        self.close("no upstream")

    def take(self) -> Side:
        """Give the link to a pair."""
        if self._timer is not None:
            self._timer.cancel()
        self._loop.unwatch(self.side.sock.fileno())
        return self.side

    def close(self, reason: str | None = None) -> None:
        """Cut the link, telling its peer why."""
        sock = self.take().sock
        if reason is not None:
            try:
                sock.send(wire.error_line(reason))
            except OSError:
                pass  # the peer is gone too
        sock.close()
        self._lost(self)


class Pairing:
    """All pairs and all links that wait for one."""

    def __init__(
        self, loop: Loop, tell: Callable[[dict[str, Any]], None], *, accept_bare: bool
    ) -> None:
        self.accept_bare = accept_bare
        self._loop = loop
        self._tell = tell
        self._expected: dict[str, Expected] = {}
        self._bare_up: Queues = {}  # by project, oldest first, no empty list
        self._bare_down: Queues = {}
        self._bare_pairs: set[Pair] = set()

    # What the server announces

    def expect(self, session: str, project: str, digest: str, depth: int) -> None:
        """Announce a session; a new secret cuts the link that the old one opened."""
        known = self._expected.get(session)
        if known is None:
            known = self._expected[session] = Expected(session, project, digest, depth)
            self._adopt(known)
        elif (known.project, known.digest) != (project, digest):
            for link in (known.downstream, known.pair):
                if link is not None:
                    link.close()
        known.project, known.digest, known.depth = project, digest, depth

    def _adopt(self, expected: Expected) -> None:
        """Take over an upstream that came before its announcement."""
        for waiting in self._bare_up.get(expected.project, []):
            if waiting.side.session == expected.session:
                _leave(self._bare_up, expected.project, waiting)
                self._wait_upstream(expected, waiting.take())
                return

    def unexpect(self, session: str) -> bool:
        """Forget a session and cut its links; False if it was not known."""
        expected = self._expected.pop(session, None)
        if expected is None:
            return False
        self._cut(expected)
        return True

    @staticmethod
    def _cut(expected: Expected) -> None:
        for link in (expected.upstream, expected.downstream, expected.pair):
            if link is not None:
                link.close()

    # Links

    def upstream(self, header: wire.Upstream, connection: Connection, first: bytes) -> None:
        """Take the server's half, which has proved where it comes from.

        Raises:
            Refused: It does not fit what was announced, or too many wait.

        """
        expected = self._expected.get(header.session)
        if expected is None:
            waiting = _oldest(self._bare_down, header.project)
            if waiting is None:
                _check_room(self._bare_up, header.project)
            side = Side(connection.release(), first, header.session)
            if waiting is None:
                self._queue(self._bare_up, header.project, side, None)
            else:
                self._join_bare(side, waiting.take())
            return
        if (header.project, header.depth) != (expected.project, expected.depth):
            raise Refused("project or depth is not the session's")
        # Only the server gets here, and it knows when its older link is dead
        for link in (expected.upstream, expected.pair):
            if link is not None:
                link.close()
        side = Side(connection.release(), first, header.session)
        if expected.downstream is None:
            self._wait_upstream(expected, side)
        else:
            self._pair(expected, side, expected.downstream.take())

    def _wait_upstream(self, expected: Expected, side: Side) -> None:
        def lost(_waiting: Waiting) -> None:
            expected.upstream = None

        expected.upstream = Waiting(self._loop, side, lost)

    def downstream(self, header: wire.Downstream, connection: Connection, first: bytes) -> None:
        """Take an agent's half.

        Raises:
            Refused: Wrong secret, unknown session, a live link is there, or too many wait.

        """
        if header.session is None or header.secret is None:
            self._bare_downstream(header.project, connection, first)
            return
        expected = self._expected.get(header.session)
        # One answer for all of these: an agent learns nothing about other sessions
        if (
            expected is None
            or not wire.same(wire.digest(header.secret), expected.digest)
            or header.project != expected.project
        ):
            raise Refused("unknown session or wrong secret")
        self._replace_dead(expected)
        side = Side(connection.release(), first, header.session)
        if expected.upstream is None:

            def lost(_waiting: Waiting) -> None:
                expected.downstream = None

            expected.downstream = Waiting(self._loop, side, lost, DOWNSTREAM_PATIENCE)
        else:
            self._pair(expected, expected.upstream.take(), side)

    def _bare_downstream(self, project: str, connection: Connection, first: bytes) -> None:
        if not self.accept_bare:
            raise Refused("a pairing secret is needed")
        waiting = _oldest(self._bare_up, project)
        if waiting is None:
            _check_room(self._bare_down, project)
            side = Side(connection.release(), first, None)
            self._queue(self._bare_down, project, side, DOWNSTREAM_PATIENCE)
        else:
            self._join_bare(waiting.take(), Side(connection.release(), first, None))

    @staticmethod
    def _replace_dead(expected: Expected) -> None:
        if expected.downstream is not None:
            if not expected.downstream.side.is_closed():
                raise Refused("already connected")
            expected.downstream.close()
        if expected.pair is not None:
            if not expected.pair.downstream.is_closed():
                raise Refused("already connected")
            expected.pair.close()

    def _pair(self, expected: Expected, upstream: Side, downstream: Side) -> None:
        expected.upstream = expected.downstream = None

        def ended(_pair: Pair) -> None:
            expected.pair = None

        pair = Pair(self._loop, upstream, downstream, ended)
        if pair.is_open:
            expected.pair = pair
            self._tell({"event": "paired", "session": expected.session})

    def _join_bare(self, upstream: Side, downstream: Side) -> None:
        pair = Pair(self._loop, upstream, downstream, self._bare_pairs.discard)
        if pair.is_open:
            self._bare_pairs.add(pair)
            self._tell({"event": "paired", "session": upstream.session})

    def _queue(self, queues: Queues, project: str, side: Side, patience: float | None) -> None:
        def lost(waiting: Waiting) -> None:
            _leave(queues, project, waiting)

        queues.setdefault(project, []).append(Waiting(self._loop, side, lost, patience))

    # For hello, stats and the end

    def sessions(self) -> list[dict[str, Any]]:
        """The announced sessions, as `hello` lists them."""
        return [
            {"session": session, "paired": expected.pair is not None}
            for session, expected in sorted(self._expected.items())
        ]

    @property
    def links(self) -> int:
        """Links held, paired ones counted twice."""
        count = 2 * len(self._bare_pairs)
        for queues in (self._bare_up, self._bare_down):
            count += sum(map(len, queues.values()))
        for expected in self._expected.values():
            count += (expected.upstream is not None) + (expected.downstream is not None)
            count += 2 * (expected.pair is not None)
        return count

    def close(self) -> None:
        """Cut all links."""
        for expected in list(self._expected.values()):
            self._cut(expected)
        for pair in list(self._bare_pairs):
            pair.close()
        for queues in (self._bare_up, self._bare_down):
            for queue in list(queues.values()):
                for waiting in list(queue):
                    waiting.close()


def _oldest(queues: Queues, project: str) -> Waiting | None:
    """Take the first of a project's queue out of it."""
    queue = queues.get(project)
    if not queue:
        return None
    waiting = queue[0]
    _leave(queues, project, waiting)
    return waiting


def _leave(queues: Queues, project: str, waiting: Waiting) -> None:
    queue = queues.get(project, [])
    if waiting in queue:
        queue.remove(waiting)
        if not queue:
            del queues[project]


def _check_room(queues: Queues, project: str) -> None:
    queue = queues.get(project)
    if (len(queues) if queue is None else len(queue)) >= WAITING_LIMIT:
        raise Refused("too many unpaired links")
