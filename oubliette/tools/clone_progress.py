"""CloneProgressReceiver, which passes on to a client how far a clone or a fetch is."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from oubliette.actors.messages import CloneProgressed
from oubliette.ids import new_uuid
from oubliette.kit import Actor, handles

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from oubliette.tools.services import ToolServices
    from oubliette.tools.spec import CallContext


class CloneProgressReceiver(Actor):
    """Receiver of the progress of one call, for as long as the call lasts."""

    def __init__(self, progress: Callable[[str], object]) -> None:
        super().__init__()
        self._progress = progress

    @handles(CloneProgressed)
    def _progressed(self, message: CloneProgressed) -> None:
        self._progress(message.text)


@contextlib.asynccontextmanager
async def receiving(services: ToolServices, context: CallContext) -> AsyncGenerator[str | None]:
    """Receive the progress of a call; yields the name of its receiver, if the client wants it."""
    if context.progress is None or services.spawn is None:
        yield None
        return
    name = f"clone-progress/{new_uuid()}"
    receiver = services.spawn(CloneProgressReceiver, context.progress, name=name)
    try:
        yield receiver.name
    finally:
        await receiver.stop()
