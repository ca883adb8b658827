"""Cache of read results, valid until a commit changes their tables.

A read costs a switch to a thread and back, several times the cost of its query. Popular listings
are cached until a commit that could change them. The writer marks the beginning and the end of such
a commit; in between nothing is stored and nothing is answered from the cache, so that no answer is
older than an earlier one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from oubliette.runtime.store.operations import DeleteContainer, PutContainer, PutProject

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from oubliette.runtime.store.operations import Op

MOST: Final = 32  # answers
_CHANGING: Final = (PutProject, PutContainer, DeleteContainer)


class Remembered:
    """Cached answers about projects and their containers; the writer calls `begin` and `end`.

    Args:
        alone: No other process writes to the database; otherwise nothing is cached.
    """

    def __init__(self, *, alone: bool) -> None:
        self._steps = 0 if alone else 1
        """Odd during such a commit. Written by one thread, read by all."""
        self._answers: dict[Hashable, tuple[int, Any]] = {}

    def begin(self, ops: Iterable[Op]) -> bool:
        """Mark the beginning of a commit; return whether `end` must be called after it."""
        if not any(isinstance(op, _CHANGING) for op in ops):
            return False
        self._steps += 1
        return True

    def end(self) -> None:
        """Mark the end of a commit, successful or not."""
        self._steps += 1

    def now(self) -> int | None:
        """Return the version of an answer read from now on; None if it cannot be cached."""
        steps = self._steps
        return None if steps % 2 else steps

    def find(self, question: Hashable, now: int | None) -> Any | None:
        """Return the cached answer, if it is still valid; read-only."""
        found = self._answers.get(question)
        return found[1] if found is not None and found[0] == now else None

    def put(self, question: Hashable, asked: int | None, answer: Any) -> None:
        """Store the answer of a query begun at `asked`, unless a commit intervened."""
        if asked is None or asked != self._steps:
            return
        self._answers.pop(question, None)
        if len(self._answers) >= MOST:
            del self._answers[next(iter(self._answers))]
        self._answers[question] = asked, answer
