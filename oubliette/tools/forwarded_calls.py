"""ForwardedCallsActor, which carries out the calls that other machines of a cluster send here."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import structlog

from oubliette.errors import ProjectMoves
from oubliette.kit import Actor, LocalMessage, MailboxFull, handles
from oubliette.kit.fair_loop import working_for
from oubliette.runtime.store.codec import decode_payload
from oubliette.tools.home_nodes import (
    CallProgressed,
    CancelForwardedCall,
    ForwardedAnswer,
    ForwardedCall,
)
from oubliette.tools.registry import call_here
from oubliette.tools.spec import CallContext, CallerIdentity

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.kit import Deferred
    from oubliette.kit.timers import PipedTask
    from oubliette.tools.services import ToolServices

_log = structlog.get_logger("oubliette.tools")


class _CallEnded(LocalMessage):
    """A call has its answer, or failed."""

    call_id: str
    answer: ForwardedAnswer | None = None
    error: BaseException | None = None


class ForwardedCallsActor(Actor):
    """Carries out each call beside its mailbox, and cancels it when its result is no longer wanted.

    Its name must be `calls`. A call for a project that does not live here is not carried out.
    """

    mailbox_size: ClassVar[int] = 10_000

    def __init__(self, services: ToolServices) -> None:
        super().__init__()
        self._services = services
        self._running: dict[str, tuple[PipedTask, Deferred]] = {}

    @property
    def running(self) -> int:
        return len(self._running)

    @handles(ForwardedCall)
    def _call(self, message: ForwardedCall) -> None:
        answer = self.defer()
        call_id = message.call_id
        if call_id in self._running:
            # It was sent again, as the first answer cannot arrive.
            self._running.pop(call_id)[0].cancel()
        task = self.pipe_to_self(
            self._carry_out(message),
            ok=lambda answer: _CallEnded(call_id=call_id, answer=answer),
            err=lambda error: _CallEnded(call_id=call_id, error=error),
        )
        self._running[call_id] = task, answer

    async def _carry_out(self, message: ForwardedCall) -> ForwardedAnswer:
        working_for.set(message.caller.principal)
        nodes, project_id = self._services.nodes, message.project_id
        if nodes is not None and project_id is not None:
            nodes.forget(project_id)  # the sender may know better
            if await nodes.home(project_id, needed=False) is not None:
                return ForwardedAnswer()
        given = {name: getattr(message.caller, name) for name in CallerIdentity.__struct_fields__}
        context = CallContext(**given, progress=self._progress_to(message))
        arguments = decode_payload(message.arguments)
        try:
            result = await call_here(self._services, context, message.tool, arguments)
        except ProjectMoves:
            return ForwardedAnswer(moves=True)
        return ForwardedAnswer(result=result)

    def _progress_to(self, message: ForwardedCall) -> Callable[[str], object] | None:
        nodes = self._services.nodes
        if nodes is None or message.progress_to is None:
            return None
        receiver = nodes.ref(*message.progress_to)

        def progressed(text: str) -> None:
            try:
                receiver.tell(CallProgressed(text=text))
            except MailboxFull:
                _log.debug("progress of a forwarded call dropped", to=receiver.name)

        return progressed

    @handles(CancelForwardedCall)
    def _cancel(self, message: CancelForwardedCall) -> None:
        running = self._running.pop(message.call_id, None)
        if running is not None:
            running[0].cancel()

    @handles(_CallEnded)
    def _ended(self, message: _CallEnded) -> None:
        running = self._running.pop(message.call_id, None)
        if running is None:
            return
        if message.error is not None:
            running[1].set_error(message.error)
        else:
            running[1].set(message.answer)
