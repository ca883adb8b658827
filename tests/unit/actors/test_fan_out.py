"""Which message of a `session_map` runs when."""

from __future__ import annotations

from oubliette.actors.fan_out import FanOut


def started(order: FanOut[str]) -> list[int]:
    """Start all that may run now."""
    numbers: list[int] = []
    while (number := order.start()) is not None:
        numbers.append(number)
    return numbers


def test_as_many_run_as_the_limit_allows_in_order() -> None:
    order = FanOut[str](4, 2)
    assert started(order) == [0, 1]
    assert order.waiting == 2
    order.answer(1, "b", room=True)
    assert started(order) == [2]
    order.answer(0, "a", room=True)
    order.answer(2, "c", room=True)
    assert started(order) == [3]
    assert not order.over
    order.answer(3, "d", room=True)
    assert order.over
    assert order.in_order() == ("a", "b", "c", "d")


def test_a_message_without_room_is_the_next_once_another_has_ended() -> None:
    order = FanOut[str](4, 3)
    assert started(order) == [0, 1, 2]
    assert order.no_room(2)
    assert (order.parallel, started(order)) == (2, [])
    order.answer(0, "a", room=True)
    assert started(order) == [2, 3]  # its place, and one more to see whether there is room again


def test_a_message_without_room_while_none_runs_has_to_be_answered() -> None:
    order = FanOut[str](2, 2)
    assert started(order) == [0, 1]
    assert order.no_room(0)
    assert not order.no_room(1)
    order.answer(1, "refused", room=False)
    assert started(order) == [0]
    assert not order.no_room(0)
    order.answer(0, "refused", room=False)
    assert order.over


def test_the_limit_is_never_exceeded_by_what_has_ended() -> None:
    order = FanOut[str](9, 2)
    for number in range(9):
        assert number in order.running or number in started(order)
        order.answer(number, "x", room=True)
        assert order.parallel == 2
    assert order.over


def test_a_limit_that_is_known_later_holds_from_then_on():
    order = FanOut[str](4, 3)
    order.limit_to(5)
    assert order.parallel == 3
    order.limit_to(1)
    assert (order.start(), order.start()) == (0, None)
    order.answer(0, "a", room=True)
    assert (order.start(), order.start()) == (1, None)
