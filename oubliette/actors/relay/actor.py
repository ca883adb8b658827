"""Actor of the control link to one container: opened, lost, opened again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from oubliette.actors.container.guest_connection import (
    GetGuestConnection,
    GuestConnection,
    GuestConnectionState,
)
from oubliette.actors.container.messages import (
    ContainerIsLost,
    ContainerIsUp,
    ForgetProcess,
    GuestConnected,
    GuestGone,
    SocketStarted,
)
from oubliette.actors.relay.link_attempts import LinkAttempts
from oubliette.actors.relay.session_links import SessionLinks
from oubliette.actors.session.lifecycle import live
from oubliette.actors.session.messages import CloseLink, OpenLink
from oubliette.failpoints import failpoint
from oubliette.kit import Actor, Down, Message, handles
from oubliette.runtime.guest.control_link import ControlLink
from oubliette.runtime.guest.errors import (
    GuestAbsent,
    GuestImpostor,
    SocketFolderGone,
    VersionMismatch,
)

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.actors.relay.session_links import LinkMemory
    from oubliette.kit import Deferred, Ref
    from oubliette.runtime.guest.messages import GuestEvent

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT: Final = 5.0  # seconds for connect, proof and hello


class _Connected(Message):
    attempt: int


class _NotConnected(Message):
    attempt: int
    reason: str
    absent: bool = False
    """No process listens."""
    unusable: bool = False
    """No guest of ours listens, and none ever will."""


class _Broken(Message):
    attempt: int
    reason: str


class _OrphansEnded(Message):
    count: int
    error: str | None = None


class _Connect(Message):
    pass


class _Answered(Message):
    """Notice that a job has done all there was to do."""


class SocketActor(Actor):
    """Actor that keeps the control link to the guest open while the container runs.

    Args:
        context: ports of the server.
        guest: state of the link, which this actor alone changes.
        container: the ContainerActor.
        memory: links of sessions.
        accept_bare: whether sessions also have a link for clients without a secret.
    """

    def __init__(
        self,
        context: ActorContext,
        guest: GuestConnectionState,
        container: Ref,
        memory: LinkMemory,
        *,
        accept_bare: bool = False,
    ) -> None:
        super().__init__()
        self._context = context
        self._guest = guest
        self._owner = container
        self._container: ContainerIsUp | None = None
        self._link: ControlLink | None = None
        self._fresh: dict[int, ControlLink] = {}
        """By attempt: links that are open and not in use yet."""
        self._attempts = LinkAttempts()
        self._sessions = SessionLinks(
            self,
            context,
            GuestConnection(guest),
            memory,
            lambda: self._link,
            accept_bare=accept_bare,
        )

    async def on_start(self) -> None:
        """After a failure: recover the links, request the running container."""
        failpoint("socket.started")
        await self._sessions.recover()
        self._owner.tell(SocketStarted())

    async def on_exit(self, reason: str, error: BaseException | None) -> None:
        """Close the link; processes in the container run on."""
        del error
        if reason == "shutdown":
            self._guest.lost("container lost: its unit ended")
        else:
            self._guest.closed()
        for link in (self._link, *self._fresh.values()):
            if link is not None:
                await link.aclose()

    @handles(ContainerIsUp)
    async def _container_up(self, message: ContainerIsUp) -> None:
        known = self._container
        same = known is not None and (known.container_id, known.key) == (
            message.container_id,
            message.key,
        )
        if same and (self._link is not None or self._attempts.connecting):
            return  # sent twice, as both actors began at the same time
        self._guest.started(message.info)
        if self._link is not None:
            await self._link.aclose()
            self._link = None
        self._container = message
        self._attempts.container_changed()
        self._begin()

    @handles(ContainerIsLost, at_once=True)
    def _container_lost(self, message: ContainerIsLost) -> None:
        self._guest.lost(message.reason)

    @handles(GetGuestConnection)
    def _get_guest(self, _: GetGuestConnection) -> GuestConnection:
        return GuestConnection(self._guest)

    @handles(_Connect)
    def _connect_again(self, _: _Connect) -> None:
        if self._link is None and self._container is not None and not self._attempts.connecting:
            self._begin()

    def _begin(self) -> None:
        attempt = self._attempts.begin()
        self.pipe_to_self(
            self._connect(attempt),
            lambda _: _Connected(attempt=attempt),
            lambda error: _NotConnected(
                attempt=attempt,
                reason=getattr(error, "message", "") or str(error) or repr(error),
                absent=isinstance(error, GuestAbsent),
                unusable=isinstance(error, VersionMismatch | GuestImpostor | SocketFolderGone),
            ),
        )

    async def _connect(self, attempt: int) -> None:
        assert self._container is not None
        self._fresh[attempt] = await ControlLink.connect(
            self._context.runtime.dial(self._container.info),
            self._container.key,
            epoch=self._context.epoch,
            timeout=CONNECT_TIMEOUT,
            on_event=self._host_event,
        )

    def _host_event(self, event: GuestEvent) -> None:
        if event.event == "paired" and event.session is not None:
            self._sessions.tell_paired(event.session, bare=event.bare)
        elif event.event == "draining":
            self._guest.drains()

    @handles(_Connected)
    async def _connected(self, message: _Connected) -> None:
        link = self._fresh.pop(message.attempt)
        if not self._attempts.is_latest(message.attempt):  # another container started meanwhile
            await link.aclose()
            return
        self._link = link
        self._attempts.opened()
        assert self._container is not None
        self._guest.opened(link, self._container.info)
        self._owner.tell(GuestConnected(container_id=self._container.container_id))
        for state in link.hello.sessions:
            if state.paired:
                self._sessions.tell_paired(state.session)
        self.pipe_to_self(
            self._end_orphans(link),
            lambda count: _OrphansEnded(count=count),
            lambda error: _OrphansEnded(count=0, error=str(error)),
        )
        self.pipe_to_self(
            link.closed(),
            lambda reason: _Broken(attempt=message.attempt, reason=str(reason)),
            lambda error: _Broken(attempt=message.attempt, reason=str(error)),
        )

    async def _end_orphans(self, link: ControlLink) -> int:
        """End agents that no session owns: a server may be killed before it could do that.

        A process is in a session's record before it starts, so a process that existed when the link
        opened and that no live session names has no owner.
        """
        orphans = 0
        for process in link.hello.procs:
            if process.session is None:
                continue
            session = await self._context.reader.session(process.session)
            if session is None or not live(session) or session.process_id != process.id:
                orphans += 1
                await link.end(process.id)
        return orphans

    @handles(_OrphansEnded)
    def _orphans_ended(self, message: _OrphansEnded) -> None:
        if message.count or message.error:
            log.warning("agents without a session", ended=message.count, error=message.error)

    @handles(_NotConnected)
    def _not_connected(self, message: _NotConnected) -> None:
        if not self._attempts.is_latest(message.attempt) or self._container is None:
            return
        log.debug("control link not open", reason=message.reason)
        now = self.clock.monotonic()
        if self._attempts.failed(now, absent=message.absent, unusable=message.unusable):
            # the engine may be unable to report it, or only much later
            self._owner.tell(
                GuestGone(
                    container_id=self._container.container_id,
                    reason=message.reason,
                    unusable=message.unusable,
                )
            )
        self._retry()

    @handles(_Broken)
    async def _broken(self, message: _Broken) -> None:
        if not self._attempts.is_latest(message.attempt):
            return
        log.info("control link broke", reason=message.reason)
        if self._link is not None:
            await self._link.aclose()
        self._link = None
        self._guest.closed()
        self._retry()

    def _retry(self) -> None:
        if self._guest.why_lost is not None:
            self._container = None
            return
        self.after(self._attempts.next_delay(), _Connect())

    # ------------------------------------------------------------------ session links

    @handles(OpenLink)
    async def _open(self, message: OpenLink) -> None:
        await self._sessions.open(message)

    @handles(CloseLink)
    def _close(self, message: CloseLink) -> None:
        closing = self._sessions.close(message.session_id)
        self.pipe_to_self(closing, lambda _: _Answered(), lambda _: _Answered())

    @handles(ForgetProcess)
    def _forget(self, message: ForgetProcess) -> None:
        forgetting = self._forget_process(message.process_id, self.defer())
        self.pipe_to_self(forgetting, lambda _: _Answered(), lambda _: _Answered())

    async def _forget_process(self, process_id: str, answer: Deferred) -> None:
        try:
            if self._link is not None:
                await self._link.end(process_id)
            answer.set(None)
        except Exception as error:
            answer.set_error(error)

    @handles(_Answered)
    def _answered(self, _: _Answered) -> None:
        pass

    @handles(Down)
    def _down(self, message: Down) -> None:
        self._sessions.restore(message)
