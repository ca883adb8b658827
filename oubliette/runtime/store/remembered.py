"""What was read, remembered for as long as nothing of it changes.

A read costs a way to a thread and back, several times what its query costs. Listings that many ask
for again and again are kept until a commit that could change them. The writer says when such a
commit begins and when it is through; between the two nothing is remembered and nothing is answered
from memory, so that no answer is older than one before it.
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
    """Answers about projects and their containers. `begin` and `end` are the writer's.

    Args:
        alone: Nobody else writes to the database; otherwise nothing is remembered.
    """

    def __init__(self, *, alone: bool) -> None:
        self._steps = 0 if alone else 1
        """Odd while such a commit is under way. Written by one thread, read by all."""
        self._answers: dict[Hashable, tuple[int, Any]] = {}

    def begin(self, ops: Iterable[Op]) -> bool:
        """Say that these are about to be committed; whether `end` is to be called then."""
        if not any(isinstance(op, _CHANGING) for op in ops):
            return False
        self._steps += 1
        return True

    def end(self) -> None:
        """Say that they are committed, or never will be."""
        self._steps += 1

    def now(self) -> int | None:
        """What an answer that is read from now on is good for, if for anything."""
        steps = self._steps
        return None if steps % 2 else steps

    def find(self, question: Hashable, now: int | None) -> Any | None:
        """The answer that was put in, if it is still true; read-only."""
        found = self._answers.get(question)
        return found[1] if found is not None and found[0] == now else None

    def put(self, question: Hashable, asked: int | None, answer: Any) -> None:
        """Remember this for the question that was asked then, unless something changed since."""
        if asked is None or asked != self._steps:
            return
        self._answers.pop(question, None)
        if len(self._answers) >= MOST:
            del self._answers[next(iter(self._answers))]
        self._answers[question] = asked, answer
