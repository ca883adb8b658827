"""Any order of commits, restarts and answers sends the log once and in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from oubliette.actors.messages import EventsCommitted
from oubliette.actors.subscriptions.cycle import DeliveryCycle, SubscriptionPage
from oubliette.records import Event

if TYPE_CHECKING:
    from oubliette.actors.subscriptions.cycle import Step

EVERYTHING = ["commit", "commit unnoticed", "notice", "read", "read fails", "take", "take half",
              "refuse", "store", "store fails", "end", "begin", "repeat", "process"]  # fmt: skip


class World:
    """A log, a subscriber, and the one step of the subscription that is under way."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.log: list[Event] = []
        self.taken: list[int] = []
        """What the subscriber acknowledged."""
        self.stored = -1
        self.step: Step = "wait"
        self.read_to = 0
        """Length of the log when the read that is under way began."""
        self.alive = True
        self.failed = False
        self.cycle = DeliveryCycle(-1, durable=True)
        self.do(self.cycle.subscriber_began())

    def do(self, step: Step) -> None:
        if step == "wait":
            return
        assert self.step == "wait", "two steps at a time"
        self.step = step
        if step == "read":
            self.read_to = len(self.log)

    def over(self, step: Step) -> bool:
        if self.step != step:
            return False
        self.step = "wait"
        return True

    def happens(self, what: str) -> None:
        if what in {"commit", "commit unnoticed"}:
            self.log.append(Event(session_id="s", index=len(self.log), ts=0.0, type="message"))
        if what in {"commit", "notice"}:
            self.do(self.cycle.log_grew())
        elif what == "read" and self.over("read"):
            self.do(self.cycle.page_read(self.page()))
        elif what == "read fails" and self.over("read"):
            self.cycle.read_failed()
            self.failed = True
        elif what == "take" and self.over("send"):
            message = self.cycle.message
            assert isinstance(message, EventsCommitted)
            self.taken += [event.index for event in message.events]
            self.do(self.cycle.acknowledged())
        elif what == "refuse" and self.over("send"):
            self.cycle.refused()
            self.failed = True
        elif what == "store" and self.over("store"):
            self.stored = self.cycle.cursor
            self.do(self.cycle.stored())
        elif what == "store fails" and self.over("store"):
            self.cycle.not_stored()
            self.failed = True
        elif what == "end" and self.alive:
            self.alive = False
            self.over("send")
            self.cycle.subscriber_ended()
        elif what == "begin" and not self.alive:
            self.alive = True
            self.do(self.cycle.subscriber_began())
        elif what == "repeat" and self.failed:
            self.failed = False
            self.do(self.cycle.log_grew())
        elif what == "process":
            self.next_process()

    def next_process(self) -> None:
        """The process is killed: a batch whose cursor was not stored comes again, no other."""
        again = [index for index in self.taken if index > self.stored]
        assert len(again) <= self.batch
        self.taken = [index for index in self.taken if index <= self.stored]
        self.step, self.alive, self.failed = "wait", True, False
        self.cycle = DeliveryCycle(self.stored, durable=True)
        self.do(self.cycle.subscriber_began())

    def page(self) -> SubscriptionPage:
        after = self.cycle.cursor + 1
        events = tuple(self.log[after : self.read_to][: self.batch])
        last = events[-1].index if events else self.cycle.cursor
        messages = (EventsCommitted(events=events),) if events else ()
        return SubscriptionPage(messages=messages, next=last, more=last + 1 < self.read_to)

    def settle(self) -> None:
        """The store notices us once more, and everything that is begun ends well."""
        self.happens("begin")
        self.happens("repeat")
        self.happens("notice")
        while self.step != "wait":
            self.happens({"read": "read", "send": "take", "store": "store"}[self.step])


@given(st.integers(1, 4), st.lists(st.sampled_from(EVERYTHING), max_size=80))
def test_any_order_of_events_sends_the_log_once_and_in_order(batch: int, story: list[str]) -> None:
    world = World(batch)
    for what in story:
        world.happens(what)
        assert world.taken == list(range(len(world.taken)))
    world.settle()
    assert world.taken == list(range(len(world.log)))
    assert world.stored == world.cycle.cursor == len(world.log) - 1


def test_a_notice_during_a_read_leads_to_another_read() -> None:
    cycle = DeliveryCycle(-1, durable=False)
    assert cycle.subscriber_began() == "read"
    assert cycle.log_grew() == "wait"
    assert cycle.page_read(SubscriptionPage(messages=(), next=-1)) == "read"


def test_nothing_is_read_for_a_subscriber_that_is_away() -> None:
    cycle = DeliveryCycle(-1, durable=False)
    assert cycle.log_grew() == "wait"
    assert cycle.subscriber_began() == "read"
