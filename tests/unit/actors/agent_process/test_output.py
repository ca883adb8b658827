"""The output half: what is read, delivered to the session and acknowledged to the guest."""

from __future__ import annotations

import pytest

from oubliette.actors.agent_process.output import (
    MAX_REPLAY,
    PORTION,
    Acknowledgement,
    OutputHalf,
    ack_of,
    portions,
)
from oubliette.actors.session.messages import OutputEvent
from oubliette.runtime.agents.base import AgentEvent
from tests.unit.actors.agent_process.fake_adapter import FakeAdapter


def reading(offset: int = 0, err: int = 0, handshake: int = 0) -> OutputHalf:
    half = OutputHalf(offset, err)
    half.begin(FakeAdapter(handshake), err)
    return half


def texts(half: OutputHalf) -> list[str]:
    """What is to be delivered, and is from now on."""
    found = []
    while (portion := half.portion("proc_x")) is not None:
        found += [item.data["text"] for item in portion.items]
        half.delivered()
    return found


# ------------------------------------------------------------ where it reads


def test_a_process_without_a_handshake_is_read_from_the_end_of_the_log():
    assert reading(offset=40).offset == 40


def test_a_process_with_a_handshake_is_read_from_its_first_kept_output():
    assert reading(offset=40, handshake=2).offset == 0


def test_another_process_is_read_from_its_start():
    half = OutputHalf(40, 7)
    half.restart()
    half.begin(FakeAdapter(), 0)
    assert half.offset == 0


def test_the_next_attachment_reads_behind_what_was_read_even_inside_a_line():
    half = reading()
    half.read(b"one\ntw", 0)
    assert half.offset == 6
    half.read(b"o\n", 6)
    assert (half.offset, texts(half)) == (8, ["one", "two"])


def test_reading_goes_on_behind_a_gap():
    half = reading()
    half.read(b"one\n", 0)
    half.skip(100)
    assert half.offset == 100
    half.read(b"two\n", 100)
    assert (half.offset, texts(half)) == (104, ["one", "two"])


# ------------------------------------------------------------ what it delivers


def test_nothing_is_delivered_before_a_line_is_complete():
    half = reading()
    half.read(b"on", 0)
    assert half.portion("proc_x") is None


def test_an_event_has_its_place_and_the_offset_that_it_acknowledges():
    half = reading(offset=10)
    half.read(b"a,b\n", 10)
    portion = half.portion("proc_x")
    assert portion is not None
    assert portion.process_id == "proc_x"
    assert [(item.offset, item.ordinal, item.ack) for item in portion.items] == [
        (14, 0, 10),
        (14, 1, 14),
    ]


def test_a_portion_counts_the_steps_of_the_model():
    half = reading()
    half.read(b"one\ntwo\n", 0)
    portion = half.portion("proc_x")
    assert portion is not None
    assert portion.steps == 2


def test_the_adapter_of_an_older_package_counts_no_steps():
    adapter = FakeAdapter()
    half = OutputHalf(0, 0)
    half.begin(adapter, 0)
    half.read(b"one\n", 0)
    del adapter.steps
    portion = half.portion("proc_x")
    assert portion is not None
    assert portion.steps == 0


def test_what_the_session_has_not_accepted_is_delivered_again_after_a_break():
    half = reading()
    half.read(b"one\n", 0)
    first = half.portion("proc_x")
    assert half.portion("proc_x") == first
    half.read(b"two\n", half.offset)
    assert texts(half) == ["one", "two"]


def test_what_the_session_has_accepted_is_not_delivered_again():
    half = reading()
    half.read(b"one\n", 0)
    half.portion("proc_x")
    half.delivered()
    assert half.portion("proc_x") is None


def test_portions_come_in_the_order_of_the_output():
    half = reading()
    lines = [f"line-{number}" for number in range(2 * PORTION + 1)]
    half.read("".join(f"{line}\n" for line in lines).encode(), 0)
    portion = half.portion("proc_x")
    assert portion is not None
    assert len(portion.items) == PORTION
    assert texts(half) == lines


def test_a_handshake_that_fails_has_its_reason():
    half = reading(handshake=1)
    assert half.failed is None
    half.read(b"no!\n", 0)
    assert half.failed == "it does not like us"


def test_nothing_has_failed_before_there_is_an_adapter():
    assert OutputHalf(0, 0).failed is None


# ------------------------------------------------------------ gaps


def test_a_gap_where_a_handshake_would_be_read_needs_an_adapter_that_is_ready():
    assert reading(handshake=1).must_be_ready


def test_a_gap_behind_output_that_was_read_does_not():
    half = reading(handshake=1)
    half.read(b"ready!\n", 0)
    assert not half.must_be_ready


def test_a_gap_for_an_agent_without_a_handshake_does_not():
    assert not reading(offset=40).must_be_ready


def test_the_ready_adapter_reads_what_follows_the_gap():
    half = reading(handshake=1)
    ready = FakeAdapter()
    half.resume(ready)
    half.skip(50)
    half.read(b"one\n", 50)
    assert (half.must_be_ready, half.offset, texts(half)) == (False, 54, ["one"])
    assert ready.steps == 1


# ------------------------------------------------------------ what it acknowledges


def test_output_that_was_only_read_or_delivered_is_not_acknowledged():
    half = reading()
    half.read(b"one\n", 0)
    assert texts(half) == ["one"]
    assert half.acknowledge(0) is None


def test_output_in_the_log_is_acknowledged_once():
    half = reading()
    half.commit(4)
    assert half.acknowledge(0) == Acknowledgement(4, 0)
    half.acknowledged()
    assert half.acknowledge(0) is None


def test_one_acknowledgement_is_under_way_at_a_time_and_the_next_has_all_since():
    half = reading()
    half.commit(4)
    assert half.acknowledge(0) is not None
    half.commit(8)
    half.commit(12)
    assert half.acknowledge(0) is None
    half.acknowledged()
    assert half.acknowledge(0) == Acknowledgement(12, 0)


def test_an_older_commit_does_not_take_an_acknowledgement_back():
    half = reading()
    half.commit(8)
    half.commit(4)
    assert half.acknowledge(0) == Acknowledgement(8, 0)


def test_standard_error_is_acknowledged_as_far_as_it_was_read():
    half = reading(offset=4, err=2)
    assert half.acknowledge(2) is None
    assert half.acknowledge(9) == Acknowledgement(4, 9)


def test_a_process_that_is_taken_over_has_acknowledged_what_is_in_the_log():
    assert reading(offset=40, err=3).acknowledge(3) is None


def test_the_acknowledgements_of_a_replay_begin_again_with_the_log_s_own():
    half = reading(offset=40, handshake=1)
    assert half.acknowledge(0) is None
    half.commit(40)
    assert half.acknowledge(0) == Acknowledgement(40, 0)


def test_nothing_of_an_earlier_process_is_acknowledged_to_another():
    half = OutputHalf(40, 7)
    half.restart()
    half.begin(FakeAdapter(), 0)
    assert half.acknowledge(0) is None
    assert half.acknowledge(5) == Acknowledgement(0, 5)


# ------------------------------------------------------------ the cut


def item(offset: int, ordinal: int = 0) -> OutputEvent:
    return OutputEvent(type="message", data={}, offset=offset, ordinal=ordinal, ack=offset)


def test_the_events_of_one_line_are_never_cut_apart():
    items = [item(offset) for offset in range(PORTION - 1)]
    items += [item(PORTION, ordinal) for ordinal in range(5)]
    items.append(item(PORTION + 1))
    assert [len(portion) for portion in portions(items)] == [PORTION + 4, 1]


def test_no_events_make_no_portion():
    assert portions([]) == []


@pytest.mark.parametrize(("lag", "ack"), [(MAX_REPLAY, 0), (MAX_REPLAY + 1, MAX_REPLAY + 1)])
def test_a_turn_that_is_too_long_to_be_read_again_is_acknowledged_to_its_end(lag: int, ack: int):
    event = AgentEvent(type="message", data={}, end_offset=lag, ordinal=0, ack_offset=0)
    assert ack_of(event) == ack


def test_what_the_adapter_of_a_package_has_not_checked_is_replaced_by_the_reason():
    class Careless(FakeAdapter):
        def feed(self, data: bytes, offset: int) -> list[AgentEvent]:
            return [
                AgentEvent(
                    type="tool_call",
                    data={"call_id": "c", "arguments": {"x": 2**64}},
                    end_offset=offset + len(data),
                    ordinal=0,
                    ack_offset=offset + len(data),
                )
            ]

    half = OutputHalf(0, 0)
    half.begin(Careless(), 0)
    half.read(b"one\n", 0)
    portion = half.portion("proc_x")
    assert portion is not None
    (item,) = portion.items
    raw = "arguments.x: an integer of more than 64 bits"
    assert (item.type, item.data) == ("system", {"raw": raw})
