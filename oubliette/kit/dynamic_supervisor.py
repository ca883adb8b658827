"""Supervisors of children that are started on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from oubliette.kit.retry import BACKOFF
from oubliette.kit.supervisor import StartChild, StopChild, Supervisor

if TYPE_CHECKING:
    from oubliette.kit.supervisor import Backoff, ChildSpec

log = structlog.get_logger("oubliette.kit")


class DynamicSupervisor(Supervisor):
    """A `one_for_one` supervisor that starts without children; its subclass starts them.

    The counterpart of Elixir's `DynamicSupervisor`, except that it never fails because of a child:
    each child has restarts of its own, and one that has used them up is given up. A child that
    ended and is not restarted is forgotten, and its name is free: the next `ensure_child` starts it
    again.

    Args:
        max_restarts: restarts in a row that each child is allowed; one more failure, and it is
            given up. A child that lived for `within` seconds begins at none again.
        within: seconds.
        backoff: as for `Supervisor`; it must delay, since a child may fail at once.
    """

    def __init__(
        self, max_restarts: int = 10, within: float = 10.0, backoff: Backoff = BACKOFF
    ) -> None:
        super().__init__([], max_restarts=max_restarts, within=within, backoff=backoff)

    @property
    def children(self) -> tuple[str, ...]:
        """Names under this supervisor, in start order; a child that awaits its restart counts."""
        return tuple(self._specs)

    def has_child(self, name: str) -> bool:
        """Return whether a child has this name under the supervisor."""
        return name in self._specs

    def ensure_child(self, spec: ChildSpec) -> str:
        """Start a child unless there is one of that name.

        Returns:
            Its name in the System.

        Raises:
            Exception: what its constructor raised; then there is no such child.
        """
        if spec.name in self._specs:
            return self._known_as(spec.name)
        return self._start_child(StartChild(spec=spec))

    async def end_child(self, name: str) -> bool:
        """End a child and forget it; return whether there was one."""
        return await self._stop_child(StopChild(name=name))

    def _may_restart(self, name: str, why: str) -> bool:
        failures = self._failures[name]
        if failures <= self._max_restarts:
            return True
        log.error("child given up", child=self._known_as(name), failures=failures, reason=why)
        return False
