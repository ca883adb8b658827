"""Outbound: what the actors of this node asked of one peer, and wait for."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from oubliette.kit.errors import MailboxFull
from oubliette.kit.mailbox import EndObserver, Envelope, Mailbox
from oubliette.kit.messages import Down
from oubliette.kit.remote import frames, kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from oubliette.clock import Clock, TimerHandle
    from oubliette.kit.loop_bridge import LoopBridge
    from oubliette.kit.remote.transport import PeerGone

QUEUED = 10_000
"""Frames that may wait for a peer; `tell`s beyond them are refused, asks and sends wait."""
UNANSWERED = 10_000
"""Requests that a peer may have unanswered; asks and sends beyond them wait."""
BATCH = 256
"""Frames of one batch."""
BATCH_BYTES = 1 << 20
"""Bytes after which a batch takes no further frame."""
SWEEP = 30.0
"""Seconds between two looks for requests whose asker ended without a word."""


class Parcel(msgspec.Struct):
    """A message on its way out."""

    to: str
    """Name of the actor on the peer."""

    kind: str
    body: bytes
    envelope: Envelope

    @property
    def waiting(self) -> Any:
        """The asker, or the sender that waits for room; None for a `tell`."""
        return self.envelope.reply_to or self.envelope.receipt


class WatcherEnd:
    """Observer of a watcher: its watch on another node ends with it."""

    __slots__ = ("_number", "_outbound")

    def __init__(self, outbound: Outbound, number: int) -> None:
        self._outbound = outbound
        self._number = number

    def deliver(self, down: Down) -> None:
        """Cancel the watch."""
        del down
        self._outbound.unwatch_number(self._number)


class Watching(msgspec.Struct):
    """A watch on an actor of the peer."""

    to: str
    name: str
    """Its whole address, for the notice."""
    observer: EndObserver
    end: WatcherEnd | None


class Outbound:
    """Queue, requests and watches towards one peer; all on the System's loop."""

    def __init__(
        self, clock: Clock, bridge: LoopBridge, wake: Callable[[], None], numbers: Iterator[int]
    ) -> None:
        self._clock = clock
        self._bridge = bridge
        self._thread = bridge.thread
        self._wake = wake
        self._numbers = numbers
        self._queue: deque[tuple[bytes, Parcel | None]] = deque()
        self._outcomes = 0  # frames at the head of the queue that are outcomes
        self._overflow: deque[Parcel] = deque()
        self._requests: dict[int, tuple[type, Any, float | None]] = {}
        self._watches: dict[int, Watching] = {}
        self._watch_numbers: dict[tuple[str, EndObserver], int] = {}
        self._flying: list[Parcel] = []
        self._sweeper: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def pending(self) -> int:
        """Number of requests and watches without an outcome, and of messages that wait."""
        return len(self._requests) + len(self._watches) + len(self._overflow) + len(self._queue)

    # ------------------------------------------------------------ going out
    def push(self, frame: frames.AnyFrame) -> None:
        """Queue a frame that is not held back."""
        self._queue.append((frames.encode(frame), None))
        self._wake()

    def push_outcome(self, frame: frames.Outcome) -> None:
        """Queue the outcome of a request or watch of the peer."""
        if self._outcomes == len(self._queue):
            self._outcomes += 1
        self.push(frame)

    def post(self, parcel: Parcel) -> None:
        """Queue a message.

        Raises:
            MailboxFull: it is a `tell`, and too much waits for the peer already.
            NotSendable: a name or trace in it does not encode.
        """
        if self._overflow or not self._has_room(parcel):
            if parcel.waiting is None:
                raise MailboxFull(f"{len(self._queue)} messages wait for its node already")
            self._overflow.append(parcel)
        else:
            self._admit(parcel)

    def batch(self) -> list[bytes]:
        """Return the next frames to send; those before have arrived."""
        self._flying.clear()
        taken: list[bytes] = []
        size = 0
        while self._queue and len(taken) < BATCH and size < BATCH_BYTES:
            data, parcel = self._queue.popleft()
            taken.append(data)
            size += len(data)
            if parcel is not None:
                self._flying.append(parcel)
        self._outcomes = max(0, self._outcomes - len(taken))
        self._admit_waiting()
        return taken

    def outcomes(self) -> list[bytes]:
        """Return the outcomes that are next to be sent: nothing here depends on their arrival."""
        taken: list[bytes] = []
        size = 0
        while self._outcomes and len(taken) < BATCH and size < BATCH_BYTES:
            data, _ = self._queue.popleft()
            self._outcomes -= 1
            taken.append(data)
            size += len(data)
        self._admit_waiting()
        return taken

    def arrived(self) -> None:
        """Note that the last batch has arrived."""
        self._flying.clear()

    def _has_room(self, parcel: Parcel) -> bool:
        if len(self._queue) >= QUEUED:
            return False
        return parcel.waiting is None or len(self._requests) < UNANSWERED

    def _admit_waiting(self) -> None:
        while self._overflow and self._has_room(self._overflow[0]):
            parcel = self._overflow.popleft()
            if parcel.waiting.done:
                continue  # its sender no longer waits, so it was never sent
            try:
                self._admit(parcel)
            except kinds.NotSendable as error:
                parcel.waiting.set_exception((type(error), error, None))

    def _admit(self, parcel: Parcel) -> None:
        envelope = parcel.envelope
        waiting = parcel.waiting
        seconds = None
        if envelope.deadline is not None:
            seconds = max(0.0, envelope.deadline - self._clock.monotonic())
        number = 0 if waiting is None else next(self._numbers)
        frame = frames.MessageFrame(
            number,
            parcel.to,
            parcel.kind,
            parcel.body,
            envelope.sender,
            envelope.trace,
            "" if waiting is None else "answer" if envelope.reply_to is not None else "room",
            seconds,
        )
        try:
            data = frames.encode(frame)
        except (TypeError, ValueError) as error:
            raise kinds.NotSendable(f"the message to {parcel.to!r} cannot be sent: {error}") from (
                error
            )
        self._queue.append((data, None if waiting is not None else parcel))
        if waiting is not None:
            # To a `send` the peer reports room, which has no value of the declared type.
            kind: type = envelope.message.__class__ if envelope.reply_to is not None else bool
            self._expect(number, kind, waiting, envelope.deadline)
        self._wake()

    # ------------------------------------------------------------ requests
    def end(self, name: str, seconds: float, waiting: Any) -> None:
        """Request the end of an actor."""
        number = next(self._numbers)
        self._expect(number, bool, waiting, None)
        self.push(frames.EndFrame(number, name, seconds))

    def _expect(self, number: int, kind: type, waiting: Any, deadline: float | None) -> None:
        self._requests[number] = (kind, waiting, deadline)
        waiting.on_gone = lambda: self._let_go(number)

        def release(_: object) -> None:
            self._let_go(number)

        if deadline is None:
            waiting.future.add_done_callback(release)
        elif self._sweeper is None:
            self._sweeper = self._clock.call_later(SWEEP, self._sweep)

    def _let_go(self, number: int) -> None:
        if threading.get_ident() == self._thread:
            self.give_up(number)
        else:
            self._bridge.call(self.give_up, number)

    def give_up(self, number: int) -> None:
        """Report to the peer that a request is given up."""
        if self._requests.pop(number, None) is not None:
            self.push(frames.GiveUpFrame(number))
            self._admit_waiting()

    def _sweep(self) -> None:
        self._sweeper = None
        now = self._clock.monotonic()
        for number, (_, _, deadline) in list(self._requests.items()):
            if deadline is not None and deadline < now:
                self.give_up(number)
        if self._requests:
            self._sweeper = self._clock.call_later(SWEEP, self._sweep)

    def finish(self, frame: frames.AnyFrame) -> None:
        """Pass on the outcome of a request or a watch; of none that is known, ignore it."""
        if isinstance(frame, frames.DownFrame):
            self._ended(frame.number, frame)
        elif isinstance(frame, frames.AnswerFrame):
            self._answered(frame)
        elif isinstance(frame, frames.FailureFrame):
            if frame.number in self._watches:
                self._ended(frame.number, frames.DownFrame(frame.number, "noconnection"))
            else:
                self._failed(frame.number, kinds.unpack_error(frame))

    def _answered(self, frame: frames.AnswerFrame) -> None:
        known = self._requests.get(frame.number)
        if known is None:
            return
        try:
            answer = kinds.unpack_answer(known[0], frame)
        except kinds.NotSendable as error:
            self._failed(frame.number, error)
            return
        del self._requests[frame.number]
        waiting = known[1]
        waiting.on_gone = None
        waiting.set(answer)
        self._admit_waiting()

    def _failed(self, number: int, error: BaseException) -> None:
        known = self._requests.pop(number, None)
        if known is not None:
            waiting = known[1]
            waiting.on_gone = None
            waiting.set_exception((type(error), error, None))
            self._admit_waiting()

    # ------------------------------------------------------------ watches
    def watch(self, to: str, name: str, observer: EndObserver) -> None:
        """Watch an actor of the peer; a second time changes nothing."""
        if (to, observer) in self._watch_numbers:
            return
        number = next(self._numbers)
        end = None
        if isinstance(observer, Mailbox):
            end = WatcherEnd(self, number)
        self._watches[number] = Watching(to, name, observer, end)
        self._watch_numbers[to, observer] = number
        self.push(frames.WatchFrame(number, to))
        if isinstance(observer, Mailbox) and end is not None:
            observer.watch(end)

    def unwatch(self, to: str, observer: EndObserver) -> None:
        """Cancel a watch."""
        number = self._watch_numbers.get((to, observer))
        if number is not None:
            self.unwatch_number(number)

    def unwatch_number(self, number: int) -> None:
        """Cancel the watch of that number."""
        if self._forget_watch(number) is not None:
            self.push(frames.GiveUpFrame(number))

    def _ended(self, number: int, frame: frames.DownFrame) -> None:
        watching = self._forget_watch(number)
        if watching is not None:
            watching.observer.deliver(
                Down(
                    name=watching.name,
                    reason=frame.reason,
                    error=frame.error,
                    incarnation=frame.incarnation,
                )
            )

    def _forget_watch(self, number: int) -> Watching | None:
        watching = self._watches.pop(number, None)
        if watching is not None:
            del self._watch_numbers[watching.to, watching.observer]
            if isinstance(watching.observer, Mailbox) and watching.end is not None:
                watching.observer.unwatch(watching.end)
        return watching

    # ------------------------------------------------------------ the end
    def lose(self, error: PeerGone) -> list[Parcel]:
        """End everything that waits; return each `tell` that may not have arrived."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        unsent = self._flying + [parcel for _, parcel in self._queue if parcel is not None]
        self._flying = []
        self._queue.clear()
        self._outcomes = 0
        overflow, self._overflow = self._overflow, deque()
        requests, self._requests = self._requests, {}
        watches = list(self._watches)
        downs = [(n, self._forget_watch(n)) for n in watches]
        for _, waiting, _ in requests.values():
            waiting.on_gone = None
            waiting.set_exception((type(error), error, None))
        for parcel in overflow:
            parcel.waiting.set_exception((type(error), error, None))
        for _, watching in downs:
            if watching is not None:
                watching.observer.deliver(Down(name=watching.name, reason="noconnection"))
        return unsent
