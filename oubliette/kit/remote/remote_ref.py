"""Remote ref: the address of an actor on another node, with the verbs of any ref."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from oubliette.kit.errors import AskTimeout
from oubliette.kit.mailbox import Envelope, Mailbox
from oubliette.kit.ref import Ref
from oubliette.kit.remote import kinds
from oubliette.kit.remote.addresses import SEPARATOR
from oubliette.kit.remote.outbound import Parcel
from oubliette.kit.replies import LoopReply
from oubliette.kit.shutdown import GRACE, within

if TYPE_CHECKING:
    from oubliette.kit.mailbox import EndObserver
    from oubliette.kit.remote.node_link import NodeLink
    from oubliette.kit.system import System

BEYOND = 2 * GRACE + 5.0
"""Seconds, beyond those of a stop, in which the other node has to report it."""


class RemoteMailbox(Mailbox):
    """Near end of a mailbox on another node: what is posted to it goes out by the link.

    It has no incarnation: the waits of other nodes are unknown here, so no circle is found.
    """

    __slots__ = ("_link", "_to")

    def __init__(self, link: NodeLink, to: str) -> None:
        super().__init__()
        self._link = link
        self._to = to
        self.name = f"{link.node}{SEPARATOR}{to}"
        self.incarnation = -1
        self.bind(link.system.bridge)

    def post(self, envelope: Envelope, *, urgent: bool = False) -> None:
        """Send an envelope to the other node, from any thread.

        Raises:
            MailboxFull: it is a plain `tell`, and too much waits for that node already.
            NotSendable: the message cannot leave this process.
        """
        del urgent
        kind, body = kinds.pack_message(envelope.message)
        parcel = Parcel(self._to, kind, body, envelope)
        if threading.get_ident() == self.thread:
            self._link.post(parcel)
        else:
            self.on_loop(lambda: self._link.post_from_afar(parcel))

    def watch(self, sink: EndObserver) -> None:
        """Notify `sink` once: of the actor's end, of its absence, or of the loss of its node."""
        self.on_loop(lambda: self._link.watch(self._to, self.name, sink))

    def unwatch(self, sink: EndObserver) -> None:
        """Stop notifying `sink`."""
        self.on_loop(lambda: self._link.outbound.unwatch(self._to, sink))


class RemoteRef(Ref):
    """The name of an actor on another node. Made by `System.ref("NODE!name")`."""

    __slots__ = ("_far", "_link", "_to")

    def __init__(self, system: System, link: NodeLink, to: str) -> None:
        self._far = RemoteMailbox(link, to)
        super().__init__(system, self._far.name, self._far)
        self._link = link
        self._to = to

    @property
    def incarnation(self) -> int:
        """0: the number is known on the actor's node only."""
        return 0

    def is_alive(self) -> bool:
        """Return whether the node was reached last; the actor itself is not asked for."""
        return self._link.lost is None

    def watch(self, observer: EndObserver) -> None:
        """Notify `observer` once: the reason of the end, `noproc`, or `noconnection`."""
        self._far.watch(observer)

    def unwatch(self, observer: EndObserver) -> None:
        """Stop notifying `observer`; a notice on its way may still arrive."""
        self._far.unwatch(observer)

    async def _end(self, timeout: float) -> bool:
        reply = LoopReply()
        self._far.on_loop(lambda: self._link.end(self._to, timeout, reply))
        try:
            if not await within(reply, timeout + BEYOND, self._link.system.clock.call_later):
                raise AskTimeout(f"{self.name}: no report of its end within {timeout + BEYOND:g} s")
            return bool(reply.future.result())
        finally:
            reply.future.cancel()
            reply.give_up()
