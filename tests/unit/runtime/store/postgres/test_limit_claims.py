"""Limits are exact over nodes, whatever happens at the same moment."""

from __future__ import annotations

import itertools
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oubliette.errors import LimitExceeded
from oubliette.runtime.store.postgres import limit_claims
from tests.unit.runtime.store.postgres.conftest import WAIT

pytestmark = pytest.mark.requires("postgres")


def test_a_hundred_attempts_from_three_connections_give_exactly_the_limit(connect):
    connections = [connect() for _ in range(3)]
    numbers = itertools.count()
    granted, refused = [], []
    barrier = threading.Barrier(3)

    def attempt(connection) -> None:
        barrier.wait(WAIT)
        while (number := next(numbers)) < 100:
            try:
                limit_claims.claim(
                    connection, f"r{number}", {"calls:p": 37, "agents:t": 50}, node="a"
                )
                granted.append(number)
            except LimitExceeded:
                refused.append(number)

    threads = [threading.Thread(target=attempt, args=(each,)) for each in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert (len(granted), len(refused)) == (37, 63)
    assert limit_claims.used(connections[0], "calls:p") == 37
    assert limit_claims.used(connections[0], "agents:t") == 37, "refused in one, counted in none"


def test_a_refusal_names_the_limit_that_is_full(connection):
    limits = {"agents:t": 5, "calls:p": 1}
    limit_claims.claim(connection, "r1", limits, node="a")
    with pytest.raises(LimitExceeded, match="calls:p: the limit is 1, 1 are taken"):
        limit_claims.claim(connection, "r2", limits, node="a")
    assert limit_claims.used(connection, "agents:t") == 1


def test_a_claim_counts_once_and_a_release_frees_once(connection):
    for _ in range(2):
        limit_claims.claim(connection, "r1", {"calls:p": 1}, node="a")
    limit_claims.claim(connection, "r2", {"calls:q": 1}, node="a")
    for _ in range(2):
        limit_claims.release(connection, "r1")
        limit_claims.release(connection, "r2", ["calls:p"])
    assert limit_claims.used(connection, "calls:p") == 0
    assert limit_claims.used(connection, "calls:q") == 1
    limit_claims.claim(connection, "r3", {"calls:p": 1}, node="a")


def test_a_claim_in_a_transaction_that_fails_was_never_made(connection):
    with pytest.raises(RuntimeError), connection.transaction():
        limit_claims.claim(connection, "r1", {"calls:p": 1}, node="a")
        raise RuntimeError
    limit_claims.claim(connection, "r2", {"calls:p": 1}, node="a")


def test_claims_and_releases_at_once_leave_the_count_of_the_claims_that_are_left(connect):
    connections = [connect() for _ in range(4)]

    def churn(number: int) -> None:
        own = connections[number]
        for turn in range(40):
            try:
                limit_claims.claim(
                    own, f"h{number}.{turn}", {"x": 2, "y": 3, "z": 3}, node=f"n{number}"
                )
            except LimitExceeded:
                limit_claims.keep_only(own, f"n{number}", [])
            if turn % 3 == 0:
                limit_claims.release(own, f"h{number}.{turn}", ["x"])

    threads = [threading.Thread(target=churn, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    for scope in "xyz":
        claimed = connections[0].execute(
            "SELECT count(*) FROM limit_claims WHERE scope = %s", (scope,)
        )
        assert claimed.fetchone() == (limit_claims.used(connections[0], scope),)
        assert limit_claims.used(connections[0], scope) <= 3


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "release", "keep_only"]),
        st.sampled_from(["h1", "h2", "h3", "h4"]),
        st.sets(st.sampled_from(["x", "y"]), min_size=1),
    ),
    max_size=30,
)


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(ACTIONS)
def test_the_database_counts_as_a_table_of_sets_does(connection, actions):
    connection.execute("DELETE FROM limit_claims")
    connection.execute("DELETE FROM limit_counts")
    model: dict[str, set[str]] = {"x": set(), "y": set()}
    for action, holder, scopes in actions:
        if action == "claim":
            full = any(holder not in model[s] and len(model[s]) >= 2 for s in scopes)
            try:
                limit_claims.claim(connection, holder, dict.fromkeys(scopes, 2), node="a")
                assert not full
                for scope in scopes:
                    model[scope].add(holder)
            except LimitExceeded:
                assert full
        elif action == "release":
            limit_claims.release(connection, holder, scopes)
            for scope in scopes:
                model[scope].discard(holder)
        else:
            limit_claims.keep_only(connection, "a", [holder])
            for holders in model.values():
                holders &= {holder}
        for scope, holders in model.items():
            assert limit_claims.used(connection, scope) == len(holders)
