"""The stdin half: which frame the guest gets next, under which number."""

from __future__ import annotations

from typing import Any

import pytest

from oubliette.actors.agent_process.stdin import AwaitToolList, StdinHalf, WriteStdin
from oubliette.actors.session.messages import StdinFrame
from tests.unit.actors.agent_process.fake_adapter import FakeAdapter


def writing(adapter: FakeAdapter | None = None) -> StdinHalf:
    half = StdinHalf()
    half.begin(adapter or FakeAdapter())
    half.take_protocol_frames()
    return half


def prompt(seq: int, text: str = "hello") -> StdinFrame:
    return StdinFrame(seq=seq, kind="prompt", turn=1, text=text)


def written(half: StdinHalf, accepted: int = 0) -> list[tuple[int, bytes]]:
    """What one attachment writes to a guest that had accepted so much."""
    found = []
    while isinstance(action := half.following(accepted), WriteStdin):
        found.append((action.number, action.data))
        accepted = action.number
    return found


# ------------------------------------------------------------ order and numbers


def test_without_a_frame_there_is_nothing_to_write():
    assert writing().following(0) is None


def test_frames_are_written_in_the_order_of_their_numbers():
    half = writing()
    half.submit(prompt(2, "second"))
    assert half.following(0) is None
    half.submit(prompt(1, "first"))
    assert written(half) == [(1, b"prompt 1 first"), (2, b"prompt 1 second")]


@pytest.mark.parametrize(
    ("fields", "data"),
    [
        ({"kind": "prompt", "turn": 3, "text": "go"}, b"prompt 3 go"),
        ({"kind": "interrupt", "turn": 3}, b"interrupt 3"),
        (
            {"kind": "permission", "request_id": "r", "decision": "allow", "text": "yes"},
            b"allow r yes",
        ),
        ({"kind": "raw", "raw": b"as it is"}, b"as it is"),
    ],
)
def test_each_kind_of_frame_is_put_into_the_agent_s_words(fields: dict[str, Any], data: bytes):
    half = writing()
    half.submit(StdinFrame(seq=1, **fields))
    assert half.following(0) == WriteStdin(1, data)


def test_the_handshake_has_the_first_numbers():
    adapter = FakeAdapter(2)
    half = writing(adapter)
    half.submit(prompt(1))
    assert written(half) == [(1, b"open-1"), (2, b"open-2")]
    adapter.ready = True
    assert written(half, accepted=2) == [(3, b"prompt 1 hello")]


def test_a_frame_of_the_handshake_that_was_not_accepted_is_written_again():
    half = writing(FakeAdapter(2))
    assert written(half) == [(1, b"open-1"), (2, b"open-2")]
    assert written(half, accepted=1) == [(2, b"open-2")]


def test_the_rest_of_a_handshake_is_waited_for():
    adapter = FakeAdapter(2)
    adapter.outbox = [b"open-1"]
    half = writing(adapter)
    assert written(half) == [(1, b"open-1")]
    adapter.outbox = [b"open-2"]
    assert half.take_protocol_frames() == []
    assert written(half, accepted=1) == [(2, b"open-2")]


def test_frames_of_the_protocol_after_the_handshake_are_for_the_session_to_number():
    adapter = FakeAdapter(1)
    adapter.outbox = [b"open-1", b"early"]
    half = StdinHalf()
    half.begin(adapter)
    assert half.take_protocol_frames() == [b"early"]
    adapter.outbox = [b"late"]
    assert half.take_protocol_frames() == [b"late"]
    assert written(half) == [(1, b"open-1")]


def test_another_adapter_has_its_own_handshake():
    half = writing(FakeAdapter(1))
    again = FakeAdapter(1)
    again.outbox = [b"again"]
    half.begin(again)
    assert half.take_protocol_frames() == []
    assert written(half) == [(1, b"again")]


# ------------------------------------------------------------ held back


def test_a_prompt_waits_until_the_agent_is_ready():
    adapter = FakeAdapter(1)
    half = writing(adapter)
    half.submit(prompt(1))
    assert half.following(1) is None
    adapter.ready = True
    assert half.following(1) == WriteStdin(2, b"prompt 1 hello")


def test_a_prompt_waits_for_the_list_of_our_tools_and_its_time_is_limited_once():
    half = writing()
    half.expect_tool_list()
    assert half.following(0) is None, "nothing is held back yet"
    half.submit(prompt(1))
    assert half.following(0) == AwaitToolList()
    assert half.following(0) is None
    half.tools_listed()
    assert half.following(0) == WriteStdin(1, b"prompt 1 hello")


def test_tools_that_were_listed_in_time_hold_nothing_back():
    half = writing()
    half.expect_tool_list()
    half.tools_listed()
    half.submit(prompt(1))
    assert half.following(0) == WriteStdin(1, b"prompt 1 hello")


def test_an_agent_that_never_lists_our_tools_is_prompted_and_reported_once():
    half = writing()
    half.expect_tool_list()
    half.submit(prompt(1))
    assert half.following(0) == AwaitToolList()
    assert half.list_overdue()
    assert half.following(0) == WriteStdin(1, b"prompt 1 hello")
    assert not half.list_overdue()


def test_an_agent_that_listed_our_tools_in_time_is_not_reported():
    half = writing()
    half.expect_tool_list()
    half.submit(prompt(1))
    half.following(0)
    half.tools_listed()
    assert not half.list_overdue()


# ------------------------------------------------------------ accepted, and again


def test_a_frame_that_was_not_accepted_is_written_again_as_the_same_bytes():
    half = writing()
    half.submit(prompt(1))
    first = written(half)
    assert written(half) == first == [(1, b"prompt 1 hello")]


def test_a_frame_that_was_accepted_is_not_written_again():
    half = writing()
    half.submit(prompt(1))
    half.submit(prompt(2, "next"))
    written(half)
    half.accepted(1)
    assert written(half, accepted=1) == [(2, b"prompt 1 next")]


def test_accepted_is_counted_in_the_session_s_numbers():
    half = writing(FakeAdapter(2))
    assert [half.accepted(number) for number in (0, 1, 2, 3, 7)] == [0, 0, 0, 1, 5]


def test_a_frame_that_an_earlier_server_had_written_is_dropped_when_it_comes_again():
    half = StdinHalf()
    half.submit(prompt(1))
    half.begin(FakeAdapter())
    half.accepted(1)
    assert not half.withdraw(1)
    half.submit(prompt(2, "next"))
    assert written(half, accepted=1) == [(2, b"prompt 1 next")]


def test_an_agent_that_is_interrupted_by_a_signal_gets_it_once():
    half = writing(FakeAdapter(by_signal=True))
    half.submit(StdinFrame(seq=1, kind="interrupt", turn=1))
    assert half.following(0) == WriteStdin(1, b"\n", interrupt=True)
    assert half.following(0) == WriteStdin(1, b"\n"), "written again after a break"


# ------------------------------------------------------------ withdrawn


def test_a_withdrawn_prompt_leaves_an_empty_frame_so_that_its_number_is_used():
    half = writing()
    half.submit(prompt(1))
    half.submit(prompt(2, "next"))
    assert half.withdraw(1)
    assert written(half) == [(1, b""), (2, b"prompt 1 next")]


def test_a_prompt_is_withdrawn_once():
    half = writing()
    half.submit(prompt(1))
    assert half.withdraw(1)
    assert not half.withdraw(1)


def test_a_prompt_that_was_put_into_the_agent_s_words_may_have_been_read():
    half = writing()
    half.submit(prompt(1))
    written(half)
    assert not half.withdraw(1)


def test_a_frame_that_is_not_there_cannot_be_withdrawn():
    assert not writing().withdraw(1)


def test_a_prompt_that_is_held_back_can_be_withdrawn():
    half = writing()
    half.expect_tool_list()
    half.submit(prompt(1))
    assert half.following(0) == AwaitToolList()
    assert half.withdraw(1)


# ------------------------------------------------------------ forks


def test_an_agent_that_could_not_fork_gets_the_text_for_that_before_the_prompt():
    half = writing()
    half.submit(StdinFrame(seq=1, kind="prompt", turn=1, text="go", unless_forked="said before: "))
    half.not_forked()
    assert written(half) == [(1, b"prompt 1 said before: go")]


def test_an_agent_that_has_forked_gets_the_prompt_alone():
    half = writing()
    half.submit(StdinFrame(seq=1, kind="prompt", turn=1, text="go", unless_forked="said before: "))
    assert written(half) == [(1, b"prompt 1 go")]
