"""Owner of the ports of containers that are open for a browser, and of the connections to them.

A port belongs to a session and to one run of its container: it closes when either ends, after
`ports.open_seconds`, and on request. While it is open it keeps the container running.
"""

from __future__ import annotations

import contextlib
import secrets
from collections import Counter
from typing import TYPE_CHECKING, ClassVar, Final

import structlog

from oubliette.actors.container.guest_connection import GetGuestConnection
from oubliette.actors.container.messages import Acquire, Release
from oubliette.actors.container.start_stages import longest_start
from oubliette.actors.ports.messages import (
    ClosePort,
    ConnectionOver,
    GuestStream,
    KeyEnded,
    ListPorts,
    OpenConnection,
    OpenPort,
    PortCookie,
    PortInfo,
    RedeemToken,
    node_mark,
)
from oubliette.actors.ports.open_port import OpenedPort, PortConnection
from oubliette.actors.session.messages import NoteEvent
from oubliette.errors import (
    Conflict,
    ContainerLost,
    Forbidden,
    LimitExceeded,
    NotFound,
    Unauthenticated,
)
from oubliette.kit import Actor, Down, LocalMessage, MailboxFull, Message, handles

if TYPE_CHECKING:
    from oubliette.actors.container.guest_connection import GuestConnection
    from oubliette.actors.context import ActorContext
    from oubliette.actors.ports.messages import PortLink
    from oubliette.kit import Deferred
    from oubliette.kit.timers import ActorTimer

LINK_SECONDS: Final = 10.0  # for the control link of the container to be open
OVERDUE: Final = "ports.open_seconds are over"
SESSION_ENDED: Final = "its session has ended"
SLACK_SECONDS: Final = 30.0  # beyond the longest start

log = structlog.get_logger(__name__)


class ContainerReady(Message):
    """To itself: the container of a port runs."""

    name: str
    container_id: str


class ContainerRefused(LocalMessage):
    """To itself: the container of a port could not be started."""

    name: str
    error: BaseException


class PortContainerEnded(Message):
    """To itself: the container of a port runs no more."""

    name: str


class PortOverdue(Message):
    """To itself: a port was open for as long as is allowed."""

    name: str


class Dialled(Message):
    """To itself: an attempt to connect, or to release a container, has ended."""


class PortsActor(Actor):
    """Owner of all open ports. Its name must be `ports`."""

    # Each connection to the HTTP port may ask for one of a port, before anything is known of it.
    mailbox_size: ClassVar[int] = 20_000

    def __init__(self, context: ActorContext) -> None:
        super().__init__()
        self._context = context
        self._limits = context.config.ports
        self._ports: dict[str, OpenedPort] = {}
        self._expiries: dict[str, tuple[float, ActorTimer]] = {}
        """Id of a key that expires before a port which it has used → the second, and its timer."""

    def on_exit(self, reason: str, error: BaseException | None) -> None:
        del reason, error
        for port in list(self._ports.values()):
            self._close(port, "the server stopped")

    # ------------------------------------------------------------------ open and close

    @handles(OpenPort)
    def _open(self, message: OpenPort) -> PortLink | None:
        self._end_overdue()
        ports = self._of_session(message.session_id)
        known = next((each for each in ports if each.port == message.port), None)
        if known is None:
            most = self._limits.max_per_session
            if len(ports) >= most:
                raise LimitExceeded(
                    f"ports.max_per_session: the session has {most} open ports",
                    hint="close one by port_close, or raise the limit in the configuration",
                )
            known = self._begin(message)
        if known.principal != message.principal:
            raise Forbidden("this port is open for another owner")
        self._await_expiry(known, message)
        if known.container_id is None:
            known.waiting.append((self.defer(), message.token_id))
            return None
        return known.link(self.clock.time(), message.token_id)

    def _begin(self, message: OpenPort) -> OpenedPort:
        session = self._context.session_registry.session(message.session_id)
        if session is None or not session.is_alive():
            raise Conflict(
                "the session has ended, and its ports with it",
                hint="session_message resumes it; then open the port",
            )
        now = self.clock.time()
        port = OpenedPort(
            name=self._new_name(message.port),
            session_id=message.session_id,
            project_id=message.project_id,
            principal=message.principal,
            port=message.port,
            session=session.name,
            unit=session.name.removesuffix(f"/sessions/{message.session_id}"),
            opened_at=now,
            closes_at=now + self._limits.open_seconds,
        )
        self._ports[port.name] = port
        port.timer = self.after(self._limits.open_seconds, PortOverdue(name=port.name))
        self.watch(session)
        self.ask_to_self(
            self.system.ref(f"{port.unit}/container"),
            Acquire(session_id=port.lease),
            lambda container_id: ContainerReady(name=port.name, container_id=container_id),
            lambda error: ContainerRefused(name=port.name, error=error),
            timeout=longest_start(self._context.config.containers) + SLACK_SECONDS,
        )
        return port

    def _new_name(self, port: int) -> str:
        homes = self._context.homes
        end = "" if homes is None else f"-{node_mark(homes.name)}"
        return f"p{port}-{secrets.token_hex(5)}{end}"

    @handles(ContainerReady)
    def _ready(self, message: ContainerReady) -> None:
        port = self._ports.get(message.name)
        if port is None:
            return
        port.container_id = message.container_id
        ended = PortContainerEnded(name=port.name)
        port.watch = self.pipe_to_self(self._container_ends(port), lambda _: ended, lambda _: ended)
        self._note(port, "port_opened", f"port {port.port} of the container is open")
        now = self.clock.time()
        waiting, port.waiting = port.waiting, []
        for answer, token_id in waiting:
            answer.set(port.link(now, token_id))

    @handles(ContainerRefused)
    def _refused(self, message: ContainerRefused) -> None:
        port = self._ports.get(message.name)
        if port is not None:
            waiting, port.waiting = port.waiting, []
            for answer, _ in waiting:
                answer.set_error(message.error)
            self._close(port, "its container could not be started")

    async def _container_ends(self, port: OpenedPort) -> None:
        guest = await self._guest(port)
        while _is_current(guest, port):
            await guest.wait_changed(self._limits.open_seconds)

    async def _guest(self, port: OpenedPort) -> GuestConnection:
        return await self.system.ref(f"{port.unit}/socket").ask(GetGuestConnection())

    @handles(ClosePort)
    def _close_one(self, message: ClosePort) -> bool:
        for port in self._of_session(message.session_id):
            if port.port == message.port:
                self._close(port, "port_close")
                return True
        return False

    @handles(ListPorts)
    def _list(self, message: ListPorts) -> tuple[PortInfo, ...]:
        return tuple(port.info() for port in self._of_session(message.session_id))

    def _of_session(self, session_id: str) -> list[OpenedPort]:
        return [port for port in self._ports.values() if port.session_id == session_id]

    @handles(PortOverdue)
    def _overdue(self, message: PortOverdue) -> None:
        self._close_named(message.name, OVERDUE)

    def _end_overdue(self) -> None:
        """End ports and keys whose time is over: timers stand still while the machine sleeps."""
        now = self.clock.time()
        for port in [each for each in self._ports.values() if each.closes_at <= now]:
            self._close(port, OVERDUE)
        for token_id in [of for of, (ends, _) in self._expiries.items() if ends <= now]:
            self._key_ended(KeyEnded(token_id=token_id))

    @handles(PortContainerEnded)
    def _container_ended(self, message: PortContainerEnded) -> None:
        self._close_named(message.name, "its container has ended")

    @handles(Down)
    def _session_down(self, message: Down) -> None:
        for port in [each for each in self._ports.values() if each.session == message.name]:
            self._close(port, SESSION_ENDED)

    def _close_named(self, name: str, reason: str) -> None:
        port = self._ports.get(name)
        if port is not None:
            self._close(port, reason)

    def _close(self, port: OpenedPort, reason: str) -> None:
        del self._ports[port.name]
        if port.timer is not None:
            port.timer.cancel()
        if port.watch is not None:
            port.watch.cancel()
        for answer, _ in port.waiting:
            answer.set_error(Conflict(f"the port was closed: {reason}"))
        port.cut(*port.connections)
        container = self.system.ref(f"{port.unit}/container")
        try:
            container.tell(Release(session_id=port.lease))
        except MailboxFull:  # once it has room: the ports of all others do not wait for it
            released = container.send(Release(session_id=port.lease))
            self.pipe_to_self(released, lambda _: Dialled(), lambda _: Dialled())
        if port.container_id is not None:
            self._note(port, "port_closed", f"port {port.port} is closed: {reason}")
        if not any(each.session == port.session for each in self._ports.values()):
            self.unwatch(self.system.ref(port.session))

    def _note(self, port: OpenedPort, kind: str, text: str) -> None:
        """Have the session put it into its log, if it still has one that is open."""
        session = self._context.session_registry.session(port.session_id)
        if session is not None and session.is_alive():
            data = {"message": text, "port": port.port, "name": port.name}
            with contextlib.suppress(MailboxFull):  # an event less, and not all ports
                session.tell(NoteEvent(kind=kind, data=data))

    # ------------------------------------------------------------------ keys
    def _await_expiry(self, port: OpenedPort, used: OpenPort | OpenConnection) -> None:
        ends = used.expires_at
        if ends is not None and ends < port.closes_at and used.token_id not in self._expiries:
            left = max(0.0, ends - self.clock.time())
            timer = self.after(left, KeyEnded(token_id=used.token_id))
            self._expiries[used.token_id] = (ends, timer)

    @handles(KeyEnded)
    def _key_ended(self, message: KeyEnded) -> None:
        expiry = self._expiries.pop(message.token_id, None)
        if expiry is not None:
            expiry[1].cancel()
        for port in self._ports.values():
            port.grants.end(message.token_id)
            of_key = [i for i, c in port.connections.items() if c.token_id == message.token_id]
            port.cut(*of_key)

    # ------------------------------------------------------------------ browsers

    @handles(RedeemToken)
    def _redeem(self, message: RedeemToken) -> PortCookie | None:
        self._end_overdue()
        port = self._ports.get(message.name)
        if port is None:
            raise _unknown(message.name)
        made = port.grants.redeem(message.token, self.clock.time())
        if made is None:
            return None
        return PortCookie(value=made, seconds=max(0.0, port.closes_at - self.clock.time()))

    @handles(OpenConnection)
    def _connect(self, message: OpenConnection) -> None:
        self._end_overdue()
        port = self._ports.get(message.name)
        if port is None or port.container_id is None:
            raise _unknown(message.name)
        if self._context.session_registry.session(port.session_id) is None:
            self._close(port, SESSION_ENDED)  # the notice of its end is on its way
            raise _unknown(message.name)
        admitted = (port.grants.admits(each) for each in message.cookies)
        by_cookie = next((each for each in admitted if each is not None), None)
        if by_cookie is None and message.principal is None:
            raise Unauthenticated(
                "this port is open for its owner only",
                hint="port_open, or oubliette port, makes a link that lets one browser in",
            )
        reached = message.project_id in {None, port.project_id}
        if by_cookie is None and (message.principal != port.principal or not reached):
            raise Forbidden("this port is open for its owner only, and the key is another's")
        self._make_room(port, message.share)
        if by_cookie is None:
            self._await_expiry(port, message)
        port.connections[message.connection_id] = PortConnection(by_cookie or message.token_id)
        dialling = self._dial(port, message.connection_id, self.defer())
        self.pipe_to_self(dialling, lambda _: Dialled(), lambda _: Dialled())

    def _make_room(self, port: OpenedPort, share: int) -> None:
        """Check that its owner may have another connection; one of the owner with most may go."""
        most = self._limits.max_connections
        if len(port.connections) >= most:
            raise LimitExceeded(f"ports.max_connections: {most} connections are open")
        count: Counter[str] = Counter()
        for each in self._ports.values():
            count[each.principal] += len(each.connections)
        if count[port.principal] >= share:
            raise LimitExceeded(
                f"{share} connections to open ports of the same owner are open, the most allowed",
                hint="close some of them, or pages that are not needed",
            )
        if count.total() >= 2 * share:
            (largest, held) = count.most_common(1)[0]
            if count[port.principal] >= held:
                raise LimitExceeded(
                    f"{2 * share} connections to open ports are open, the most of all"
                )
            full = next(p for p in self._ports.values() if p.principal == largest and p.connections)
            full.cut(next(iter(full.connections)))

    async def _dial(self, port: OpenedPort, connection_id: str, answer: Deferred) -> None:
        try:
            guest = await self._guest(port)
            link = await guest.wait(LINK_SECONDS)
            _check_current(guest, port)
            reader, writer = await link.connect_to(port.port)
        except Exception as error:
            port.connections.pop(connection_id, None)
            answer.set_error(error if port.name in self._ports else _unknown(port.name))
            return
        if answer.done or connection_id not in port.connections:  # given up, or closed
            writer.transport.abort()
            answer.set_error(_unknown(port.name))
            return
        port.connections[connection_id].writer = writer
        answer.set(GuestStream(reader, writer, port.port, port.principal))

    @handles(Dialled)
    def _dialled(self, _: Dialled) -> None:
        pass

    @handles(ConnectionOver)
    def _over(self, message: ConnectionOver) -> None:
        port = self._ports.get(message.name)
        over = None if port is None else port.connections.pop(message.connection_id, None)
        writer = None if over is None else over.writer
        if writer is None:
            return
        if writer.transport.get_write_buffer_size():
            writer.transport.abort()  # a program that does not read keeps nothing alive
        else:
            writer.close()


def _is_current(guest: GuestConnection, port: OpenedPort) -> bool:
    info = guest.info
    return guest.why_lost is None and info is not None and info.id == port.container_id


def _check_current(guest: GuestConnection, port: OpenedPort) -> None:
    if not _is_current(guest, port):
        raise ContainerLost("the container has ended, and its ports with it")


def _unknown(name: str) -> NotFound:
    return NotFound(
        f"no port is open under the name {name} on this server",
        hint="port_open opens one; in a cluster, use the address that it returned",
    )
