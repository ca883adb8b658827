"""Graph of waiting actors: an ask that would close a cycle is refused at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.kit.errors import DeadlockError

if TYPE_CHECKING:
    from oubliette.kit.mailbox import Mailbox


class WaitGraph:
    """The waits of actors for actors, by incarnation.

    An actor handles one message at a time in one task, so it waits for at most one other, and a
    cycle is found by following the chain.
    """

    def __init__(self) -> None:
        self._waits: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._waits)

    def enter(self, me: Mailbox, target: Mailbox) -> None:
        """Record that `me` waits for `target` from now on.

        Raises:
            DeadlockError: `target` waits for `me` already, directly or through others.
        """
        mine = me.incarnation
        waits = self._waits
        step: int | None = target.incarnation
        while step is not None:
            if step == mine:
                raise DeadlockError(
                    f"{me.name} cannot wait for {target.name}, which waits for {me.name}"
                    if me is not target
                    else f"{me.name} cannot wait for itself"
                )
            step = waits.get(step)
        waits[mine] = target.incarnation

    def leave(self, me: Mailbox) -> None:
        """Record that `me` waits no longer."""
        self._waits.pop(me.incarnation, None)
