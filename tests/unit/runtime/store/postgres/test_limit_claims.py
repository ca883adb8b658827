"""Limits are exact over nodes, whatever happens at the same moment."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oubliette.errors import StaleNode
from oubliette.runtime.store import operations
from oubliette.runtime.store.postgres.cluster import limit_claims, placements
from oubliette.runtime.store.postgres.cluster.limit_claims import LimitClaim
from oubliette.runtime.store.postgres.database import PostgresDatabase
from oubliette.runtime.store.writer import Writer
from tests import selection
from tests.unit.runtime.store import samples
from tests.unit.runtime.store.postgres.cluster_rows import take
from tests.unit.runtime.store.postgres.conftest import WAIT

pytestmark = pytest.mark.requires("postgres")


def counts(connection) -> dict[str, int]:
    """The holders of each scope, as the counters have them, which is as many as there are."""
    rows = connection.execute("SELECT scope, used FROM limit_counts WHERE used > 0").fetchall()
    claimed = "SELECT scope, count(*) FROM limit_claims GROUP BY scope"
    assert sorted(rows) == sorted(connection.execute(claimed).fetchall())
    return dict(rows)


def test_a_hundred_attempts_of_three_nodes_give_exactly_the_limit(connect):
    connections = [connect() for _ in range(3)]
    fences = [take(own, name) for own, name in zip(connections, "abc", strict=True)]
    numbers = itertools.count()
    granted, refused = [], []
    barrier = threading.Barrier(3)

    def attempt(connection, fence) -> None:
        barrier.wait(WAIT)
        while (number := next(numbers)) < 100:
            claim = LimitClaim(f"r{number}", "calls:p", 37)
            full = limit_claims.settle(connection, fence, claims=[claim])
            (refused if full else granted).append(number)

    threads = [
        threading.Thread(target=attempt, args=each)
        for each in zip(connections, fences, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert (len(granted), len(refused)) == (37, 63)
    assert counts(connections[0]) == {"calls:p": 37}


def test_of_one_batch_the_first_that_fit_are_granted_each_scope_by_itself(connection):
    fence = take(connection, "a")
    claims = [LimitClaim(f"{scope}{n}", scope, 2) for n in range(4) for scope in "xy"]
    assert limit_claims.settle(connection, fence, claims=claims) == {"x2", "y2", "x3", "y3"}
    assert limit_claims.settle(connection, fence, claims=claims) == {"x2", "y2", "x3", "y3"}
    assert counts(connection) == {"x": 2, "y": 2}
    assert limit_claims.used(connection, "x") == 2


def test_what_is_released_makes_room_in_the_same_batch_and_only_once(connection):
    fence = take(connection, "a")
    limit_claims.settle(connection, fence, claims=[LimitClaim(h, "x", 2) for h in ("h1", "h2")])
    third, fourth = LimitClaim("h3", "x", 2), LimitClaim("h4", "x", 2)
    released = ["h1", "h1", "nobody"]
    assert limit_claims.settle(connection, fence, released=released, claims=[third]) == set()
    assert limit_claims.settle(connection, fence, released=["h1"], claims=[fourth]) == {"h4"}
    limit_claims.settle(connection, fence, released=["h2", "h3"])
    assert counts(connection) == {}


def test_a_claim_without_a_maximum_counts_in_any_case(connection):
    fence = take(connection, "a")
    recovered = [LimitClaim(f"r{n}", "x", None) for n in range(3)]
    assert limit_claims.settle(connection, fence, claims=recovered) == set()
    assert limit_claims.settle(connection, fence, claims=[LimitClaim("h", "x", 3)]) == {"h"}
    assert counts(connection) == {"x": 3}


def test_an_epoch_that_has_ended_claims_and_releases_nothing(connection):
    fence = take(connection, "a")
    limit_claims.settle(connection, fence, claims=[LimitClaim("h1", "x", 2)])
    take(connection, "a")
    with pytest.raises(StaleNode):
        limit_claims.settle(connection, fence, released=["h1"])
    with pytest.raises(StaleNode):
        limit_claims.settle(connection, fence, claims=[LimitClaim("h2", "x", 2)])
    with pytest.raises(StaleNode):
        limit_claims.release_earlier(connection, fence)
    assert counts(connection) == {"x": 1}


def test_a_node_that_starts_again_keeps_the_open_calls_of_the_sessions_it_recovers(url, connection):
    take(connection, "a")
    placements.place(connection, "proj_1", "a")
    settled = operations.SettleCallerRequest(id="req2", outcome="result", settled_at=2.0)
    writer = Writer(PostgresDatabase(url, fence=take(connection, "a")))
    writer.start()
    for ops in (
        (operations.PutSession(samples.session(1)),),
        (operations.PutSession(samples.session(2, status="failed")),),
        (operations.PutCallerRequest(samples.request(1)),),
        (operations.PutCallerRequest(samples.request(2)), settled),
        (operations.PutCallerRequest(samples.request(3, session_id="s2")),),
    ):
        writer.submit(ops).result(WAIT)
    writer.close().result(WAIT)
    fence, other = take(connection, "a"), take(connection, "b")
    holders = ["req1", "req2", "req3", "never stored", "listener"]
    limit_claims.settle(connection, fence, claims=[LimitClaim(h, "x", 9) for h in holders])
    limit_claims.settle(connection, other, claims=[LimitClaim("elsewhere", "x", 9)])
    limit_claims.release_earlier(connection, take(connection, "a"))
    left = connection.execute("SELECT holder FROM limit_claims ORDER BY holder").fetchall()
    assert left == [("elsewhere",), ("req1",)]
    assert counts(connection) == {"x": 2}


def test_nodes_that_claim_and_release_in_any_order_do_not_wait_for_each_other(connect):
    connections = [connect() for _ in range(4)]
    fences = [take(own, f"n{number}") for number, own in enumerate(connections)]
    failures = []

    def churn(number: int) -> None:
        own, fence = connections[number], fences[number]
        try:
            for turn in range(40):
                scopes = "xyz" if (turn + number) % 2 else "zyx"
                limit_claims.settle(
                    own,
                    fence,
                    released=[f"{s}{number}.{turn - 2}" for s in scopes],
                    claims=[LimitClaim(f"{s}{number}.{turn}", s, 3) for s in scopes],
                )
                if turn % 10 == 9:
                    limit_claims.release_earlier(own, fence)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert failures == []
    assert all(number <= 3 for number in counts(connections[0]).values())


HOLDERS = st.sets(st.sampled_from(["h1", "h2", "h3", "h4"]))
BATCHES = st.lists(
    st.tuples(
        HOLDERS,
        st.lists(
            st.tuples(
                st.sampled_from(["h1", "h2", "h3", "h4"]),
                st.sampled_from(["x", "y"]),
                st.sampled_from([2, None]),
            ),
            max_size=5,
        ),
    ),
    max_size=12,
)


@settings(
    max_examples=selection.examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(BATCHES)
def test_the_database_counts_as_a_table_of_sets_does(connection, batches):
    connection.execute("DELETE FROM limit_claims")
    connection.execute("DELETE FROM limit_counts")
    fence = take(connection, "a")
    model: dict[str, set[str]] = {"x": set(), "y": set()}
    for released, asked in batches:
        claims = [LimitClaim(*each) for each in asked]
        refused = limit_claims.settle(connection, fence, released=released, claims=claims)
        for holders in model.values():
            holders.difference_update(released)
        expected = set()
        for claim in sorted(claims, key=lambda claim: claim.most is not None):
            holders = model[claim.scope]
            if claim.most is None or claim.holder in holders or len(holders) < claim.most:
                holders.add(claim.holder)
            else:
                expected.add(claim.holder)
        assert refused == expected
        assert counts(connection) == {s: len(held) for s, held in model.items() if held}
