"""Leases of a container: who holds it, and who has memory in it."""

from __future__ import annotations

from oubliette.actors.container.lease_memory import LeaseMemory


def test_a_session_holds_it_until_it_gives_its_lease_back() -> None:
    memory = LeaseMemory()
    assert memory.hold("a", 0, starts=True)
    assert memory.leases == {"a"}
    memory.give_back("a")
    memory.give_back("a")
    assert memory.leases == set()


def test_an_agent_that_is_about_to_start_has_no_memory_while_others_have_it() -> None:
    memory = LeaseMemory(1000)
    assert memory.hold("a", 800, starts=True)
    assert not memory.hold("b", 800, starts=True)
    assert memory.leases == {"a", "b"}, "who waits holds the container too"
    memory.give_back("a")
    assert memory.hold("b", 800, starts=True)


def test_an_agent_that_runs_is_counted_even_if_it_does_not_fit() -> None:
    memory = LeaseMemory(1000)
    assert memory.hold("a", 800, starts=False)
    assert memory.hold("b", 800, starts=False)
    assert not memory.hold("c", 100, starts=True)


def test_after_a_restart_only_live_sessions_keep_their_leases_and_memory() -> None:
    memory = LeaseMemory(1000)
    memory.hold("a", 500, starts=True)
    memory.hold("b", 500, starts=True)
    memory.keep({"b", "never_held_it"})
    assert memory.leases == {"b"}
    assert memory.hold("c", 500, starts=True), "the memory of the other is free"


def test_the_sessions_of_an_adopted_container_hold_it_beside_those_that_asked() -> None:
    memory = LeaseMemory()
    memory.hold("a", 0, starts=True)
    memory.adopt({"b"})
    assert memory.leases == {"a", "b"}


def test_others_hold_it_if_anyone_else_does() -> None:
    memory = LeaseMemory()
    assert not memory.held_by_others("a")
    memory.hold("a", 0, starts=True)
    assert not memory.held_by_others("a")
    assert memory.held_by_others("b")
    assert memory.held_by_others()
