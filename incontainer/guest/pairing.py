"""Pairing of upstream and downstream links.

A session that the server announced (`expect`) has one upstream and one downstream, and only the
holder of its secret gets the downstream. Where bare clients are allowed, those without a secret are
paired with upstreams opened for them, never with one of these (`bare_pairing`).
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
    """Session that the server announced, and its links."""

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
    """All pairs and all links that wait for a partner."""

    def __init__(
        self, loop: Loop, tell: Callable[[dict[str, Any]], None], *, accept_bare: bool
    ) -> None:
        self.accept_bare = accept_bare
        self._loop = loop
        self._tell = tell
        self._expected: dict[str, Expected] = {}
        self._bare = BarePairing(loop, tell)

    # Announcements of the server

    def expect(self, session: str, project: str, digest: str, depth: int) -> None:
        """Announce a session; a new secret closes the link that the old one opened."""
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
        """Use an upstream that arrived before its announcement."""
        side = self._bare.withdraw(expected.session, expected.project)
        if side is not None:
            self._wait_upstream(expected, side)

    def unexpect(self, session: str) -> bool:
        """Withdraw a session and close its links; False if it was unknown."""
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
        """Accept an upstream that has proved that it comes from the server.

        Args:
            header: The parsed header.
            connection: The link.
            first: Bytes received after the header.
            bare: The link serves a client without a secret, beside the session's own.

        Raises:
            LinkRefused: The header contradicts the announcement, or too many links wait.

        """
        expected = self._expected.get(header.session)
        if bare and not self.accept_bare:
            raise LinkRefused("bare clients are not accepted")
        if bare or expected is None:
            self._bare.upstream(header, connection, first, announced=bare)
            return
        if (header.project, header.depth) != (expected.project, expected.depth):
            raise LinkRefused("project or depth is not the session's")
        # Only the server gets here: its older link is dead
        for link in (expected.upstream, expected.pair):
            if link is not None:
                link.close()
        side = Side(connection.release(), first, header.session)
        if expected.downstream is None:
            self._wait_upstream(expected, side)
        else:
            self._pair(expected, side, expected.downstream.take())

    def _wait_upstream(self, expected: Expected, side: Side) -> None:
        def on_closed(_waiting: UnpairedLink) -> None:
            expected.upstream = None

        expected.upstream = UnpairedLink(self._loop, side, on_closed)

    def downstream(
        self,
        header: wire.Downstream,
        connection: Connection,
        first: bytes,
        *,
        owner: str | None = None,
    ) -> None:
        """Accept an agent's downstream.

        Args:
            header: The parsed header.
            connection: The link.
            first: Bytes received after the header.
            owner: The session whose agent the peer descends from, if known; only used for
                clients without a secret.

        Raises:
            LinkRefused: Wrong secret, unknown session, a link is open already, or too many wait.

        """
        if header.session is None or header.secret is None:
            self._bare_downstream(header.project, owner, connection, first)
            return
        expected = self._expected.get(header.session)
        # One answer for all of these, so that an agent cannot discover other sessions
        if (
            expected is None
            or not wire.same(wire.digest(header.secret), expected.digest)
            or header.project != expected.project
        ):
            raise LinkRefused("unknown session or wrong secret")
        self._replace_dead(expected)
        side = Side(connection.release(), first, header.session)
        if expected.upstream is None:

            def on_closed(_waiting: UnpairedLink) -> None:
                expected.downstream = None

            expected.downstream = UnpairedLink(self._loop, side, on_closed, DOWNSTREAM_TIMEOUT)
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

    # For hello, stats and shutdown

    def sessions(self) -> list[dict[str, Any]]:
        return [
            {"session": session, "paired": expected.pair is not None}
            for session, expected in sorted(self._expected.items())
        ]

    @property
    def links(self) -> int:
        """Number of open links, paired ones counted twice."""
        count = self._bare.links
        for expected in self._expected.values():
            count += (expected.upstream is not None) + (expected.downstream is not None)
            count += 2 * (expected.pair is not None)
        return count

    def close(self) -> None:
        for expected in list(self._expected.values()):
            self._cut(expected)
        self._bare.close()
