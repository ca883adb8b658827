"""An agent is asked until its answer is of the type, a bounded number of times."""

from __future__ import annotations

import msgspec
import pytest

from oubliette.api.errors import BadResultType, ResultInvalid, TurnInterrupted
from oubliette.api.events import TurnResult
from oubliette.api.results import ask_for_result, result_type
from oubliette.errors import InvalidParameter

pytestmark = pytest.mark.anyio


class Count(msgspec.Struct):
    number: int


class Agent:
    """Answers in their order; keeps the messages."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.heard: list[str] = []

    async def send(self, text: str) -> TurnResult:
        self.heard.append(text)
        return TurnResult(
            text=self.answers.pop(0),
            session_id="gogol_1",
            turn=len(self.heard),
            status="completed",
        )


async def test_a_valid_answer_is_taken_at_once() -> None:
    agent = Agent('```json\n{"number": 3}\n```')
    assert await ask_for_result(Count, "Count them.", agent.send) == Count(3)
    assert agent.heard == [result_type(Count).prompt("Count them.")]


async def test_an_invalid_answer_is_answered_with_its_error() -> None:
    agent = Agent("Three.", '{"number": "3"}', '{"number": 3}')
    assert await ask_for_result(result_type(Count), "Count them.", agent.send) == Count(3)
    assert "there is no JSON in it" in agent.heard[1]
    assert "Expected `int`, got `str` - at `$.number`" in agent.heard[2]
    assert all('"integer"' in text for text in agent.heard)


async def test_after_the_last_attempt_the_error_has_the_answer() -> None:
    agent = Agent("Three.", '{"number": "3"}', '{"number": 3}')
    with pytest.raises(ResultInvalid, match="no Count in 2 answers") as caught:
        await ask_for_result(Count, "Count them.", agent.send, attempts=2)
    assert caught.value.answer == '{"number": "3"}'
    assert "$.number" in caught.value.reason
    assert caught.value.attempts == 2
    assert len(agent.heard) == 2


async def test_a_bad_type_or_number_is_refused_before_a_prompt() -> None:
    agent = Agent()
    with pytest.raises(BadResultType):
        await ask_for_result(object, "Count them.", agent.send)
    with pytest.raises(InvalidParameter, match="attempts is 0"):
        await ask_for_result(Count, "Count them.", agent.send, attempts=0)
    assert agent.heard == []


async def test_an_error_of_a_turn_is_the_programs() -> None:
    async def send(_: str) -> TurnResult:
        raise TurnInterrupted("turn 1 was interrupted")

    with pytest.raises(TurnInterrupted):
        await ask_for_result(Count, "Count them.", send)
