"""Session links of one container: which sessions asked for one, and the actors that keep them."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import structlog

from oubliette.actors.relay.session_connection import SessionConnectionActor
from oubliette.actors.session.lifecycle import live
from oubliette.actors.session.messages import ClientPaired, OpenLink
from oubliette.actors.store.outages import once_back
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from oubliette.actors.container.guest_connection import GuestConnection
    from oubliette.actors.context import ActorContext
    from oubliette.kit import Actor, Down, Ref
    from oubliette.runtime.guest.control_link import ControlLink

log = structlog.get_logger(__name__)

BARE: Final = "+bare"
UNEXPECT_SECONDS: Final = 1.0  # for the guest to expect a client no more


@dataclass(frozen=True, slots=True)
class LinkMemory:
    """State that a SocketActor keeps over its own restarts, and that no other actor uses."""

    specs: dict[str, OpenLink] = field(default_factory=dict[str, OpenLink])
    """Session id → the link that it requested."""


class SessionLinks:
    """Links that sessions asked a SocketActor for, each kept by a child of it.

    Args:
        actor: the SocketActor.
        context: ports of the server.
        guest: view of the control link.
        memory: the links that were asked for.
        control: returns the control link, if one is open.
        accept_bare: whether sessions also have a link for clients without a secret.
    """

    def __init__(
        self,
        actor: Actor,
        context: ActorContext,
        guest: GuestConnection,
        memory: LinkMemory,
        control: Callable[[], ControlLink | None],
        *,
        accept_bare: bool,
    ) -> None:
        self._actor = actor
        self._context = context
        self._guest = guest
        self._specs = memory.specs
        self._control = control
        self._accept_bare = accept_bare
        self._links: dict[str, Ref] = {}
        """By session id, with `BARE` appended for those of clients without a secret."""

    async def recover(self) -> None:
        """Open again the links of the sessions that still live, and forget the others."""
        for spec in list(self._specs.values()):
            read = functools.partial(self._context.reader.session, spec.session_id)
            session = await once_back(read)
            if session is not None and live(session):
                self._spawn_all(spec)
            else:  # it ended while no actor was there
                del self._specs[spec.session_id]

    async def open(self, spec: OpenLink) -> None:
        """Keep a link open for a session, in place of an earlier one of it."""
        for known in self._drop(spec.session_id):
            await known.stop()  # a new SessionActor: its agent's client has to request it again
        self._specs[spec.session_id] = spec
        self._spawn_all(spec)

    def close(self, session_id: str) -> Coroutine[Any, Any, None]:
        """Forget the link of a session, and return the job that closes it."""
        self._specs.pop(session_id, None)
        return self._close(session_id, self._drop(session_id))

    async def _close(self, session_id: str, links: list[Ref]) -> None:
        """Stop the connections of a session; then its client is not expected any more."""
        for link in links:
            await link.stop()
        control = self._control()
        if links and control is not None and session_id not in self._specs:
            try:
                async with asyncio.timeout(UNEXPECT_SECONDS):
                    await control.unexpect(session_id)
            except (OublietteError, OSError, TimeoutError) as failure:
                log.debug("unexpect failed", reason=str(failure))

    def restore(self, down: Down) -> None:
        key = down.name.rpartition("/")[2]
        session_id = key.removesuffix(BARE)
        known = self._links.get(key)
        if known is None or known.incarnation != down.incarnation:
            return
        log.warning("session link failed", session_id=session_id, error=down.error)
        if (spec := self._specs.get(session_id)) is not None:
            self._spawn(spec, bare=key != session_id)

    def tell_paired(self, session_id: str, *, bare: bool = False) -> None:
        """Notify the session that its agent has started our MCP server."""
        spec = self._specs.get(session_id)
        session = self._actor.system.lookup(spec.session) if spec is not None else None
        if session is not None and session.is_alive():
            session.tell(ClientPaired(bare=bare))

    def _drop(self, session_id: str) -> list[Ref]:
        found = (self._links.pop(key, None) for key in (session_id, session_id + BARE))
        return [ref for ref in found if ref is not None]

    def _spawn_all(self, spec: OpenLink) -> None:
        self._spawn(spec, bare=False)
        if self._accept_bare:
            self._spawn(spec, bare=True)

    def _spawn(self, spec: OpenLink, *, bare: bool) -> None:
        key = spec.session_id + BARE * bare
        ref = self._actor.spawn(
            SessionConnectionActor,
            self._context,
            self._guest,
            spec,
            bare=bare,
            name=f"{self._actor.name}/{key}",
        )
        self._actor.watch(ref)
        self._links[key] = ref
