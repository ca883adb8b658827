"""Order of the messages of one `session_map`, for clients and for agents. No I/O.

As many run at once as the limit allows. When the tree has no room for another agent, fewer run
until one that runs has ended.
"""

from __future__ import annotations

from typing import Generic, TypeVar

R = TypeVar("R")


class FanOut(Generic[R]):
    """Messages by number: waiting, running, or with their result."""

    def __init__(self, count: int, limit: int) -> None:
        """Begin with `count` waiting messages, of which at most `limit` run at once."""
        self.count = count
        self.parallel = limit
        """Number of messages at once for now: fewer than the limit, while others fill the tree."""
        self.running: set[int] = set()
        self.results: dict[int, R] = {}
        self._limit = limit
        self._waiting = list(reversed(range(count)))

    @property
    def waiting(self) -> int:
        """Number of messages that are not started."""
        return len(self._waiting)

    @property
    def over(self) -> bool:
        return len(self.results) == self.count

    def limit_to(self, limit: int) -> None:
        """Run at most `limit` messages at once from now on, if that is fewer."""
        self._limit = min(self._limit, limit)
        self.parallel = min(self.parallel, limit)

    def start(self) -> int | None:
        """Return the number of the next message, which runs from now on; None: none may start."""
        if not self._waiting or len(self.running) >= self.parallel:
            return None
        number = self._waiting.pop()
        self.running.add(number)
        return number

    def no_room(self, number: int) -> bool:
        """A message that found no room to the waiting ones, as the next one.

        False if none of ours runs, whose end would make room: then it has to be answered.
        """
        if self.running <= {number}:
            return False
        self.running.discard(number)
        self._waiting.append(number)
        self.parallel = len(self.running)
        return True

    def answer(self, number: int, result: R, *, room: bool) -> None:
        """Record the result of a running message; `room` if its agent has left a place."""
        self.running.discard(number)
        self.results[number] = result
        if room:
            self.parallel = min(self._limit, self.parallel + 1)

    def in_order(self) -> tuple[R, ...]:
        """The results in the order of the messages, once it is over."""
        return tuple(self.results[number] for number in range(self.count))
