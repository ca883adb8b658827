"""Relay links of one container: the control link, and one SessionConnectionActor a session."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog
from tenacity import wait_exponential_jitter

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
from oubliette.actors.relay.session_connection import SessionConnectionActor
from oubliette.actors.session.lifecycle import live
from oubliette.actors.session.messages import ClientPaired, CloseLink, OpenLink
from oubliette.errors import OublietteError
from oubliette.failpoints import failpoint
from oubliette.kit import Actor, Down, Message, handles
from oubliette.kit.backoff import backoff_delay
from oubliette.runtime.guest.control_link import ControlLink
from oubliette.runtime.guest.errors import GuestAbsent, GuestImpostor, VersionMismatch

if TYPE_CHECKING:
    from oubliette.actors.context import ActorContext
    from oubliette.kit import Deferred, Ref
    from oubliette.runtime.guest.messages import GuestEvent

log = structlog.get_logger(__name__)

CONNECT_TIMEOUT: Final = 5.0  # seconds for connect, proof and hello
BARE: Final = "+bare"
UNEXPECT_SECONDS: Final = 1.0  # for the guest to expect a client no more
GONE_SECONDS: Final = 2.0  # a live guest listens; this long without is not a short interruption
_BACKOFF: Final = wait_exponential_jitter(multiplier=0.02, max=2.0, jitter=0.02)


class _Connected(Message):
    attempt: int


class _NotConnected(Message):
    attempt: int
    reason: str
    absent: bool = False
    """No process listens."""
    unusable: bool = False
    """The listening process is not our guest, and never will be."""


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


@dataclass(frozen=True, slots=True)
class LinkMemory:
    """State that a SocketActor keeps over its own restarts, and that no other actor uses."""

    specs: dict[str, OpenLink] = field(default_factory=dict[str, OpenLink])
    """Session id → the link that it requested."""


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
        self._specs = memory.specs
        self._accept_bare = accept_bare
        self._container: ContainerIsUp | None = None
        self._link: ControlLink | None = None
        self._fresh: dict[int, ControlLink] = {}
        """By attempt: links that are open and not in use yet."""
        self._connecting = False
        self._attempt = 0
        self._failures = 0
        self._absent_since: float | None = None
        self._links: dict[str, Ref] = {}
        """By session id, with `BARE` appended for those of clients without a secret."""

    async def on_start(self) -> None:
        """After a failure: recover the links, request the running container."""
        failpoint("socket.started")
        for spec in list(self._specs.values()):
            session = await self._context.reader.session(spec.session_id)
            if session is not None and live(session):
                self._spawn_links(spec)
            else:  # it ended while no actor was there
                del self._specs[spec.session_id]
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
        if same and (self._link is not None or self._connecting):
            return  # sent twice, as both actors began at the same time
        self._guest.started(message.info)
        self._absent_since = None
        if self._link is not None:
            await self._link.aclose()
            self._link = None
        self._container = message
        self._failures = 0
        self._begin()

    @handles(ContainerIsLost, at_once=True)
    def _container_lost(self, message: ContainerIsLost) -> None:
        self._guest.lost(message.reason)

    @handles(GetGuestConnection)
    def _get_guest(self, _: GetGuestConnection) -> GuestConnection:
        return GuestConnection(self._guest)

    @handles(_Connect)
    def _connect_again(self, _: _Connect) -> None:
        if self._link is None and self._container is not None and not self._connecting:
            self._begin()

    def _begin(self) -> None:
        self._attempt += 1
        self._connecting = True
        attempt = self._attempt
        self.pipe_to_self(
            self._connect(attempt),
            lambda _: _Connected(attempt=attempt),
            lambda error: _NotConnected(
                attempt=attempt,
                reason=getattr(error, "message", "") or str(error) or repr(error),
                absent=isinstance(error, GuestAbsent),
                unusable=isinstance(error, VersionMismatch | GuestImpostor),
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
            self._tell_paired(event.session, bare=event.bare)
        elif event.event == "draining":
            self._guest.drains()

    def _tell_paired(self, session_id: str, *, bare: bool = False) -> None:
        """Notify the session that its agent has started our MCP server."""
        spec = self._specs.get(session_id)
        session = self.system.lookup(spec.session) if spec is not None else None
        if session is not None and session.is_alive():
            session.tell(ClientPaired(bare=bare))

    @handles(_Connected)
    async def _connected(self, message: _Connected) -> None:
        link = self._fresh.pop(message.attempt)
        if message.attempt != self._attempt:  # another container started meanwhile
            await link.aclose()
            return
        self._link = link
        self._connecting = False
        self._failures = 0
        self._absent_since = None
        assert self._container is not None
        self._guest.opened(link, self._container.info)
        self._owner.tell(GuestConnected(container_id=self._container.container_id))
        for state in link.hello.sessions:
            if state.paired:
                self._tell_paired(state.session)
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
        if message.attempt == self._attempt and self._container is not None:
            self._connecting = False
            log.debug("control link not open", reason=message.reason)
            self._consider_gone(message)
            self._retry()

    def _consider_gone(self, message: _NotConnected) -> None:
        """Report that there is no guest; the engine may be unable to, or only much later."""
        assert self._container is not None
        now = self.clock.monotonic()
        if not message.absent:
            self._absent_since = None
        elif self._absent_since is None:
            self._absent_since = now
        gone = self._absent_since is not None and now - self._absent_since >= GONE_SECONDS
        if gone or message.unusable:
            self._absent_since = None
            self._owner.tell(
                GuestGone(
                    container_id=self._container.container_id,
                    reason=message.reason,
                    unusable=message.unusable,
                )
            )

    @handles(_Broken)
    async def _broken(self, message: _Broken) -> None:
        if message.attempt != self._attempt:
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
        self._failures += 1
        self.after(backoff_delay(_BACKOFF, self._failures), _Connect())

    # ------------------------------------------------------------------ session links

    @handles(OpenLink)
    async def _open(self, message: OpenLink) -> None:
        for key in (message.session_id, message.session_id + BARE):
            known = self._links.pop(key, None)
            if known is not None:  # a new SessionActor: its agent's client has to request it again
                await known.stop()
        self._specs[message.session_id] = message
        self._spawn_links(message)

    def _spawn_links(self, spec: OpenLink) -> None:
        self._spawn_link(spec, bare=False)
        if self._accept_bare:
            self._spawn_link(spec, bare=True)

    def _spawn_link(self, spec: OpenLink, *, bare: bool) -> None:
        key = spec.session_id + BARE * bare
        ref = self.spawn(
            SessionConnectionActor,
            self._context,
            GuestConnection(self._guest),
            spec,
            bare=bare,
            name=f"{self.name}/{key}",
        )
        self.watch(ref)
        self._links[key] = ref

    @handles(CloseLink)
    def _close(self, message: CloseLink) -> None:
        self._specs.pop(message.session_id, None)
        found = (
            self._links.pop(key, None) for key in (message.session_id, message.session_id + BARE)
        )
        closing = self._close_links(message.session_id, [ref for ref in found if ref is not None])
        self.pipe_to_self(closing, lambda _: _Answered(), lambda _: _Answered())

    async def _close_links(self, session_id: str, links: list[Ref]) -> None:
        """Stop the connections of a session; then its client is not expected any more."""
        for link in links:
            await link.stop()
        if links and self._link is not None and session_id not in self._specs:
            try:
                async with asyncio.timeout(UNEXPECT_SECONDS):
                    await self._link.unexpect(session_id)
            except (OublietteError, OSError, TimeoutError) as failure:
                log.debug("unexpect failed", reason=str(failure))

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
        key = message.name.rpartition("/")[2]
        session_id = key.removesuffix(BARE)
        known = self._links.get(key)
        if known is None or known.incarnation != message.incarnation:
            return
        log.warning("session link failed", session_id=session_id, error=message.error)
        if (spec := self._specs.get(session_id)) is not None:
            self._spawn_link(spec, bare=key != session_id)
