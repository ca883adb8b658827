"""What nodes use of a limit, whatever they do and in whatever order the database answers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.actors.shares import ShareLimit

pytest.importorskip("psycopg")

from oubliette.node.share import REFUSE_SECONDS, SHORT_SECONDS, Share
from oubliette.runtime.store.postgres.cluster.limit_shares import ShareGrant, ShareStatement

SLOTS = ShareLimit(64)
CALLS = ShareLimit(400, rate=200.0)


@dataclass
class Pool:
    """The pool of one limit, as the database has it."""

    limit: ShareLimit
    free: float = 0.0
    since: float = 0.0
    recalls: int = 0
    held: dict[int, int] = field(default_factory=dict)
    spent: dict[int, int] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = self.limit.most

    def settle(self, node: int, stated: ShareStatement, now: float) -> ShareGrant:
        had = self.held.pop(node, 0)
        spent = stated.spent - self.spent.pop(node, stated.known)
        cap = self.limit.most - sum(self.held.values()) - stated.keep
        free: float = cap
        if self.limit.rate is not None:
            free = self.free + had - stated.keep - spent + self.limit.rate * (now - self.since)
        self.free, self.since = min(cap, free), now
        granted = max(0, min(stated.need + stated.spare, math.floor(self.free)))
        self.free -= granted
        recalling, seconds = 0, 0.0
        if granted < stated.need:
            seconds = max(0.0, 1 - self.free) / (self.limit.rate or math.inf)
            if stated.recall:
                if any(self.answered.get(each, 0) < stated.recall for each in self.held):
                    recalling = stated.recall
            elif self.held:
                self.recalls += 1
                recalling = self.recalls
        if stated.keep + granted:
            self.held[node], self.spent[node] = stated.keep + granted, stated.spent
            self.answered[node] = max(stated.answer, self.answered.get(node, 0))
        assert sum(self.held.values()) + self.free <= self.limit.most + 1e-6
        return ShareGrant(granted, recalling, seconds)


class Nodes:
    """Nodes that use one limit; each statement may be under way while they go on."""

    def __init__(self, limit: ShareLimit, number: int = 3) -> None:
        self.now = 0.0
        self.pool = Pool(limit)
        self.shares = [Share("s", limit) for _ in range(number)]
        self.under_way: dict[int, ShareStatement] = {}
        self.taken: list[float] = []

    @property
    def used(self) -> int:
        return sum(share.used for share in self.shares)

    def take(self, node: int) -> bool:
        taken = self.shares[node].take()
        if taken:
            self.taken.append(self.now)
        return taken

    def want(self, node: int) -> None:
        if not self.take(node):
            self.shares[node].waiting += 1

    def state(self, node: int, surplus: int = 0) -> None:
        self.under_way.setdefault(node, self.shares[node].state(self.now, surplus))

    def answer(self, node: int, *, lost: bool = False) -> None:
        stated = self.under_way.pop(node)
        grant = self.pool.settle(node, stated, self.now)
        share = self.shares[node]
        if lost:
            share.unanswered()
            return
        share.granted(stated, grant, self.now)
        while share.waiting and self.take(node):
            share.waiting -= 1
        if not grant.recalling:
            share.waiting = 0
        elif not stated.recall:
            for each in self.shares:
                if each is not share:
                    each.recalled(grant.recalling)

    def settle(self, node: int, surplus: int = 0) -> None:
        self.state(node, surplus)
        self.answer(node)

    def call(self, node: int) -> bool:
        """A call; if the node has nothing, the others answer."""
        before = len(self.taken)
        self.want(node)
        for _ in range(2):
            if self.shares[node].waiting:
                self.settle(node)
                for each in range(len(self.shares)):
                    if self.shares[node].waiting and each != node:
                        self.settle(each)
        return len(self.taken) > before


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["want", "want", "want", "state", "answer", "lost", "back", "look", "time"]
        ),
        st.integers(0, 2),
        st.floats(0, 3),
    ),
    max_size=120,
)


@given(st.sampled_from([ShareLimit(1), ShareLimit(5), ShareLimit(20)]), STEPS)
def test_no_more_units_are_in_use_than_the_limit_has(limit, steps):
    nodes = run(limit, steps)
    assert nodes.used <= limit.most


@given(st.sampled_from([ShareLimit(2, 3.0), ShareLimit(8, 5.0), ShareLimit(40, 20.0)]), STEPS)
def test_no_time_has_more_units_used_than_the_most_and_what_refills_in_it(limit, steps):
    taken = run(limit, steps).taken
    for start, first in enumerate(taken):
        for end in range(start, len(taken)):
            assert end - start + 1 <= limit.most + limit.rate * (taken[end] - first) + 1e-6


def run(limit: ShareLimit, steps: list[tuple[str, int, float]]) -> Nodes:
    """The nodes after these steps; at none of them they exceed the limit."""
    nodes = Nodes(limit)
    for action, node, seconds in steps:
        share = nodes.shares[node]
        match action:
            case "want":
                nodes.want(node)
            case "state" if node not in nodes.under_way:
                nodes.state(node)
            case "answer" if node in nodes.under_way:
                nodes.answer(node)
            case "lost" if node in nodes.under_way:
                nodes.answer(node, lost=True)
            case "back" if share.used:
                share.give_back()
            case "look" if node not in nodes.under_way:
                nodes.state(node, share.look())
            case "time":
                nodes.now += seconds
            case _:
                pass
        for number, each in enumerate(nodes.shares):
            assert each.used + each.free <= max(
                nodes.pool.held.get(number, 0), each.used if each.free <= 0 else 0
            )
        assert nodes.used <= limit.most
    return nodes


@pytest.mark.parametrize("limit", [ShareLimit(1), ShareLimit(7), SLOTS, CALLS, ShareLimit(3, 0.1)])
def test_one_node_gets_all_that_the_others_do_not_use(limit):
    nodes = Nodes(limit)
    before = 3 if limit.most > 3 else 0
    assert sum(nodes.call(each) for each in range(before)) == before
    assert sum(nodes.call(0) for _ in range(limit.most + 5)) == limit.most - before


def test_most_calls_ask_nobody():
    nodes = Nodes(SLOTS)
    asked = 0
    for _ in range(1000):
        if not nodes.take(0):
            asked += 1
            nodes.call(0)
        nodes.shares[0].give_back()
    assert asked == 1


def test_what_is_not_used_between_two_looks_is_given_back():
    nodes = Nodes(SLOTS)
    nodes.call(0)
    share = nodes.shares[0]
    assert share.free == 8
    share.look()
    nodes.take(0)
    nodes.settle(0, share.look())
    assert (share.used, share.free, nodes.pool.held) == (2, 0, {0: 2})
    share.give_back()
    share.give_back()
    assert share.look() == 0
    nodes.settle(0, share.look())
    assert nodes.pool.held == {}
    assert share.over


def test_the_database_is_not_asked_for_each_call_that_is_refused():
    nodes = Nodes(CALLS, 1)
    assert sum(nodes.call(0) for _ in range(401)) == 400
    assert nodes.shares[0].refused_for(nodes.now) == pytest.approx(REFUSE_SECONDS)
    nodes.now += SHORT_SECONDS
    assert nodes.shares[0].refused_for(nodes.now) < 0


def test_a_unit_that_is_taken_anyway_is_counted_and_makes_no_room():
    nodes = Nodes(ShareLimit(2), 2)
    assert nodes.call(0)
    assert nodes.call(0)
    nodes.shares[0].take_anyway()
    assert nodes.shares[0].due(nodes.now)
    nodes.settle(0)
    assert nodes.pool.held == {0: 3}
    nodes.shares[0].give_back()
    assert not nodes.call(1)
    assert not nodes.call(0)
    nodes.shares[0].give_back()
    assert nodes.call(1)


# ------------------------------------------------------------------ while the database is away


def test_alone_a_node_has_what_it_had_or_its_part_of_the_slots():
    nodes = Nodes(ShareLimit(9), 2)
    for _ in range(5):
        nodes.call(0)
    first, second = nodes.shares
    while first.take():
        pass
    assert not first.take_alone(3, nodes.now)
    assert sum(second.take_alone(3, nodes.now) for _ in range(9)) == 3
    for _ in range(3):
        second.give_back()
    assert sum(second.take_alone(3, nodes.now) for _ in range(9)) == 3
    assert Share("s", ShareLimit(1)).take_alone(3, 0.0)


def test_alone_a_node_has_what_it_had_and_its_part_of_the_rate():
    share = Share("s", ShareLimit(30, 6.0))
    share.free = 2
    assert [share.take_alone(3, 10.0) for _ in range(3)] == [True, True, False]
    assert share.refused_for(10.0) == pytest.approx(0.5)
    assert sum(share.take_alone(3, 12.0) for _ in range(9)) == 4
    assert sum(share.take_alone(3, 99.0) for _ in range(99)) == 10


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1)), max_size=80))
def test_alone_all_nodes_together_keep_to_the_rate(steps):
    nodes = Nodes(ShareLimit(9, 6.0))
    for each in range(3):
        nodes.call(each)
    for node, seconds in steps:
        nodes.now += seconds
        if nodes.shares[node].take_alone(3, nodes.now):
            nodes.taken.append(nodes.now)
    assert len(nodes.taken) <= 9 + 6.0 * nodes.now + 1e-6
