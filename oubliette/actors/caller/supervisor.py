"""Supervisor of all callers: opens them on request, up to a number for each principal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import tenacity

from oubliette.actors.caller.actor import CallerActor
from oubliette.actors.caller.memory import CallerMemory
from oubliette.actors.messages import OpenCaller, caller_key
from oubliette.errors import LimitExceeded
from oubliette.kit import ChildSpec, DynamicSupervisor, handles

if TYPE_CHECKING:
    from oubliette.actors.caller.reader import CallerReader
    from oubliette.config.schema import CallersConfig
    from oubliette.kit import Ref

MAX_CALLERS: Final = 1000
"""Callers of one principal at a time; those that are idle for an hour do not count."""


class CallersActor(DynamicSupervisor):
    """Supervisor that starts a CallerActor on request. Its name must be `callers`."""

    def __init__(self, store: Ref, reader: CallerReader, config: CallersConfig) -> None:
        super().__init__(
            max_restarts=50,
            within=10.0,
            backoff=tenacity.wait_exponential(multiplier=0.05, max=2.0),
        )
        self._store = store
        self._reader = reader
        self._config = config

    @handles(OpenCaller)
    def _open(self, message: OpenCaller) -> str:
        key = caller_key(message.principal, message.caller_id)
        mine = f"{message.principal}/"
        if not self.has_child(key) and (
            sum(1 for name in self.children if name.startswith(mine)) >= MAX_CALLERS
        ):
            raise LimitExceeded(
                f"{message.principal} has {MAX_CALLERS} callers already",
                hint="use fewer caller_ids; those that stay away for an hour are forgotten",
            )
        return self.ensure_child(
            ChildSpec(
                name=key,
                cls=CallerActor,
                args=(self._store, self._reader, self._config),
                kwargs={
                    "principal": message.principal,
                    "caller_id": message.caller_id,
                    "memory": CallerMemory(),
                },
                restart="transient",
                shutdown=1.0,
            )
        )
