"""Scripts for agents of a test: one for each turn, and none may be left."""

from __future__ import annotations

import json

import pytest

from oubliette.errors import InvalidParameter
from oubliette.testing.agent_script import AgentScript, RehearsedAdapter, ScriptIncomplete


def sent(adapter: RehearsedAdapter, turn: int, prompt: str) -> str:
    return json.loads(adapter.prompt(turn, prompt))["text"]


def printed(adapter: RehearsedAdapter, *events: dict[str, object]) -> None:
    adapter.feed(b"".join(json.dumps(event).encode() + b"\n" for event in events), 0)


def message(turn: int) -> dict[str, object]:
    return {"type": "message", "turn": turn, "text": "m"}


def test_without_scripts_prompts_are_the_scripts() -> None:
    script = AgentScript()
    adapter = RehearsedAdapter(script, "ses_1")
    assert sent(adapter, 1, "say hello") == "say hello"
    assert script.prompts == ["say hello"]
    script.assert_complete()


def test_each_turn_gets_the_next_script_and_a_repeated_prompt_the_same_one() -> None:
    script = AgentScript()
    script.script("say one", "say two")
    script.script("say three")
    first, second = RehearsedAdapter(script, "ses_1"), RehearsedAdapter(script, "ses_2")
    assert sent(first, 1, "Why?") == "say one\nsay two"
    assert sent(second, 1, "How?") == "say three"
    assert sent(first, 1, "Why?") == "say one\nsay two"  # a process that was started anew
    assert script.prompts == ["Why?", "How?"]
    printed(first, message(1), message(1))
    printed(second, message(1))
    script.assert_complete()


def test_a_script_that_no_turn_began_with_is_left() -> None:
    script = AgentScript()
    script.script("say never")
    with pytest.raises(ScriptIncomplete, match=r"no turn has begun(.|\n)*say never"):
        script.assert_complete()


def test_lines_that_were_not_reached_are_left() -> None:
    script = AgentScript()
    script.script("say one", "parallel", "call a", "call b", "end", "say two")
    adapter = RehearsedAdapter(script, "ses_1")
    sent(adapter, 1, "Why?")
    printed(adapter, message(1))
    with pytest.raises(ScriptIncomplete, match="turn 1 of ses_1 did 1 of 3 directives"):
        script.assert_complete()


def test_a_prompt_without_a_script_fails_its_turn_and_the_test() -> None:
    script = AgentScript()
    script.script("say one")
    adapter = RehearsedAdapter(script, "ses_1")
    sent(adapter, 1, "Why?")
    printed(adapter, message(1))
    assert sent(adapter, 2, "And now?").startswith("fail ")
    with pytest.raises(ScriptIncomplete, match=r"after its 1 scripts(.|\n)*And now\?"):
        script.assert_complete()


@pytest.mark.parametrize("lines", [[], ["", " "], ["call tool {x}"], ["parallel", "call a"]])
def test_a_malformed_script_is_refused_at_once(lines: list[str]) -> None:
    with pytest.raises(InvalidParameter, match="script"):
        AgentScript().script(*lines)
