"""Supervisors of children that are started on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.kit.supervisor import StartChild, StopChild, Supervisor

if TYPE_CHECKING:
    from oubliette.kit.supervisor import Backoff, ChildSpec


class DynamicSupervisor(Supervisor):
    """A `one_for_one` supervisor that starts without children; its subclass starts them.

    The counterpart of Elixir's `DynamicSupervisor`. Children are restarted according to their
    `restart`, as those of any supervisor; one that ended and is not restarted is forgotten, and its
    name is free.

    Args:
        max_restarts: restarts, of all children, that are allowed `within` seconds.
        within: seconds.
        backoff: as for `Supervisor`.
    """

    def __init__(
        self, max_restarts: int = 3, within: float = 5.0, backoff: Backoff | None = None
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
            return spec.known_as or f"{self.name}/{spec.name}"
        return self._start_child(StartChild(spec=spec))

    async def end_child(self, name: str) -> bool:
        """End a child and forget it; return whether there was one."""
        return await self._stop_child(StopChild(name=name))
