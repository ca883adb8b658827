"""Which upstream belongs to which downstream.

A session that the server announced (`expect`) has one place for each side, and only the holder of
its secret gets the downstream's. Where bare clients are allowed, those that know no secret meet
upstreams that are there for them, and never one of these (`bare_pairing`).
"""

from __future__ import annotations

from .. import wire
from .bare_pairing import BarePairing
from .socket_pair import Pair, Side
from .unpaired import DOWNSTREAM_TIMEOUT, LinkRefused, UnpairedLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..io.connection import Connection
    from ..io.event_loop import Loop


class Expected:
    """A session the server announced, and the links it has."""

    __slots__ = ("depth", "digest", "downstream", "pair", "project", "session", "upstream")

    def __init__(self, session: str, project: str, digest: str, depth: int) -> None:
        self.session = session
        self.project = project
        self.digest = digest
        self.depth = depth
        self.upstream: UnpairedLink | None = None
        self.downstream: UnpairedLink | None = None
        self.pair: Pair | None = None


class Pairing:
    """All pairs and all links that wait for one."""

    def __init__(
        self, loop: Loop, tell: Callable[[dict[str, Any]], None], *, accept_bare: bool
    ) -> None:
        self.accept_bare = accept_bare
        self._loop = loop
        self._tell = tell
        self._expected: dict[str, Expected] = {}
        self._bare = BarePairing(loop, tell)

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
        side = self._bare.give_up(expected.session, expected.project)
        if side is not None:
            self._wait_upstream(expected, side)

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

    def upstream(
        self, header: wire.Upstream, connection: Connection, first: bytes, *, bare: bool
    ) -> None:
        """Take the server's half, which has proved where it comes from.

        Args:
            header: What it says of itself.
            connection: The link.
            first: What came with the header.
            bare: It is there for a client without a secret, beside the session's own.

        Raises:
            Refused: It does not fit what was announced, or too many wait.

        """
        expected = self._expected.get(header.session)
        if bare and not self.accept_bare:
            raise LinkRefused("bare clients are not accepted")
        if bare or expected is None:
            self._bare.upstream(header, connection, first, announced=bare)
            return
        if (header.project, header.depth) != (expected.project, expected.depth):
            raise LinkRefused("project or depth is not the session's")
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
        def lost(_waiting: UnpairedLink) -> None:
            expected.upstream = None

        expected.upstream = UnpairedLink(self._loop, side, lost)

    def downstream(
        self,
        header: wire.Downstream,
        connection: Connection,
        first: bytes,
        *,
        owner: str | None = None,
    ) -> None:
        """Take an agent's half.

        Args:
            header: What it says of itself.
            connection: The link.
            first: What came with the header.
            owner: The session whose agent its peer descends from, where that is known; it counts
                for clients without a secret.

        Raises:
            Refused: Wrong secret, unknown session, a live link is there, or too many wait.

        """
        if header.session is None or header.secret is None:
            self._bare_downstream(header.project, owner, connection, first)
            return
        expected = self._expected.get(header.session)
        # One answer for all of these: an agent learns nothing about other sessions
        if (
            expected is None
            or not wire.same(wire.digest(header.secret), expected.digest)
            or header.project != expected.project
        ):
            raise LinkRefused("unknown session or wrong secret")
        self._replace_dead(expected)
        side = Side(connection.release(), first, header.session)
        if expected.upstream is None:

            def lost(_waiting: UnpairedLink) -> None:
                expected.downstream = None

            expected.downstream = UnpairedLink(self._loop, side, lost, DOWNSTREAM_TIMEOUT)
        else:
            self._pair(expected, expected.upstream.take(), side)

    def _bare_downstream(
        self, project: str, owner: str | None, connection: Connection, first: bytes
    ) -> None:
        if not self.accept_bare:
            raise LinkRefused("a pairing secret is needed")
        announced = self._expected.get(owner) if owner is not None else None
        if announced is not None and announced.project != project:
            raise LinkRefused("project is not the session's")
        self._bare.downstream(owner if announced else None, project, connection, first)

    @staticmethod
    def _replace_dead(expected: Expected) -> None:
        if expected.downstream is not None:
            if not expected.downstream.side.is_closed():
                raise LinkRefused("already connected")
            expected.downstream.close()
        if expected.pair is not None:
            if not expected.pair.downstream.is_closed():
                raise LinkRefused("already connected")
            expected.pair.close()

    def _pair(self, expected: Expected, upstream: Side, downstream: Side) -> None:
        expected.upstream = expected.downstream = None

        def ended(_pair: Pair) -> None:
            expected.pair = None

        pair = Pair(self._loop, upstream, downstream, ended)
        if pair.is_open:
            expected.pair = pair
            self._tell({"event": "paired", "session": expected.session})

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
        count = self._bare.links
        for expected in self._expected.values():
            count += (expected.upstream is not None) + (expected.downstream is not None)
            count += 2 * (expected.pair is not None)
        return count

    def close(self) -> None:
        """Cut all links."""
        for expected in list(self._expected.values()):
            self._cut(expected)
        self._bare.close()
