"""How an ACP session is opened: resumed by one way or another, with the model and mode it is to have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oubliette.runtime.agents import AcpAdapter
from oubliette.runtime.agents.base import ForkPoint
from oubliette.runtime.agents.handshake_adapter import FRAMES, Opening

BOTH = {"loadSession": True, "sessionCapabilities": {"resume": {}}}
SCHEMAS = {
    "session/new": "NewSessionRequest",
    "session/load": "LoadSessionRequest",
    "session/resume": "ResumeSessionRequest",
    "session/fork": "ForkSessionRequest",
    "session/set_mode": "SetSessionModeRequest",
    "session/set_config_option": "SetSessionConfigOptionSelectRequest",
}
"""Names in `acp.schema`, whose import takes a second: not at collection, in every process."""
OPTIONS = [
    {
        "id": "llm",
        "name": "Model",
        "category": "model",
        "type": "select",
        "currentValue": "m/small",
        "options": [
            {"group": "g", "name": "G", "options": [{"value": "m/large", "name": "Large one"}]},
            {"value": "m/small", "name": "Small one"},
        ],
    },
    {
        "id": "mode",
        "name": "Mode",
        "category": "mode",
        "type": "select",
        "currentValue": "build",
        "options": [{"value": "build", "name": "Build"}, {"value": "plan", "name": "Plan"}],
    },
]
OLDER = {
    "models": {
        "currentModelId": "m/small",
        "availableModels": [
            {"modelId": "m/large", "name": "Large one"},
            {"modelId": "m/small", "name": "Small one"},
        ],
    },
    "modes": {
        "currentModeId": "build",
        "availableModes": [{"id": "build", "name": "Build"}, {"id": "plan", "name": "Plan"}],
    },
}


class Exchange:
    """An adapter, and an agent that answers what it is asked."""

    def __init__(
        self, can: dict[str, Any] | None = None, state: dict[str, Any] | None = None, **told: Any
    ) -> None:
        self.adapter = AcpAdapter(Opening(cwd="/w", **told), state)
        self.frames: list[bytes] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._offset = 0
        self._take()
        self.answer("initialize", {"protocolVersion": 1, "agentCapabilities": can or {}})

    def _take(self) -> None:
        self.frames += self.adapter.writes()

    @property
    def asked(self) -> dict[str, Any]:
        """The last request."""
        said = json.loads(next(frame for frame in reversed(self.frames) if frame))
        if said["method"] in SCHEMAS:
            from acp import schema

            getattr(schema, SCHEMAS[said["method"]]).model_validate(said["params"])
        return said

    def say(self, message: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        self.events += [(e.type, e.data) for e in self.adapter.feed(line, self._offset)]
        self._offset += len(line)
        self._take()

    def answer(self, request: str, result: dict[str, Any]) -> None:
        self.say({"id": request, "result": result})

    def refuse(self, request: str, message: str = "Method not found", code: int = -32601) -> None:
        self.say({"id": request, "error": {"code": code, "message": message}})

    @property
    def ready(self) -> dict[str, Any]:
        (told,) = [data for kind, data in self.events if kind == "ready"]
        assert self.adapter.ready
        assert len(self.frames) == FRAMES  # always as many
        return told


# ---------------------------------------------------------------- forks

FORKS = {"loadSession": True, "sessionCapabilities": {"fork": {}, "resume": {}}}
OTHER = ForkPoint(agent_session_id="other", turn=2)


def test_a_fork_begins_with_the_conversation_of_another_session() -> None:
    agent = Exchange(FORKS, fork_of=OTHER)
    assert agent.asked["method"] == "session/fork"
    assert agent.asked["params"] == {"sessionId": "other", "cwd": "/w", "mcpServers": []}
    past = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "past"}}
    agent.say({"method": "session/update", "params": {"sessionId": "fork", "update": past}})
    assert agent.events == []
    agent.answer(agent.asked["id"], {"sessionId": "fork"})
    assert (agent.ready["agent_session_id"], agent.ready["forked"]) == ("fork", True)
    assert agent.ready["forks"] == "end"
    assert json.loads(agent.adapter.prompt(1, "x"))["params"]["sessionId"] == "fork"


def test_a_fork_that_is_refused_begins_anew_and_says_so() -> None:
    agent = Exchange(FORKS, fork_of=OTHER)
    agent.refuse(agent.asked["id"], "Session not found", -32002)
    assert agent.events == [
        ("system", {"kind": "not_forked", "reason": "session/fork: Session not found"})
    ]
    assert agent.asked["method"] == "session/new"
    agent.answer(agent.asked["id"], {"sessionId": "new"})
    assert (agent.ready["agent_session_id"], agent.ready["forked"]) == ("new", False)


def test_a_fork_that_goes_on_is_resumed() -> None:
    agent = Exchange(FORKS, fork_of=OTHER, agent_session_id="fork")
    assert agent.asked["method"] == "session/resume"
    agent.answer(agent.asked["id"], {})
    assert agent.ready["resumed"] is True
    assert "forked" not in agent.ready


def test_a_fork_that_is_of_no_use_is_not_offered() -> None:
    agent = Exchange(FORKS, forks=False)
    agent.answer(agent.asked["id"], {"sessionId": "new"})
    assert "forks" not in agent.ready


# ---------------------------------------------------------------- going on


def test_a_resume_that_is_refused_is_tried_by_loading() -> None:
    """Qwen Code says that it can, and answers that there is no such method."""
    agent = Exchange(BOTH, agent_session_id="before")
    assert agent.asked["method"] == "session/resume"
    agent.refuse("session")
    assert agent.asked["method"] == "session/load"
    assert agent.asked["params"]["sessionId"] == "before"
    (refused,) = agent.events
    assert refused == (
        "system",
        {"kind": "resume_refused", "reason": "Method not found", "next": "session/load"},
    )
    past = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "past"}}
    agent.say({"method": "session/update", "params": {"sessionId": "before", "update": past}})
    assert agent.events == [refused]  # nothing is told twice
    agent.answer(agent.asked["id"], {})
    assert agent.ready["resumed"] is True
    assert agent.ready["agent_session_id"] == "before"
    assert json.loads(agent.adapter.prompt(1, "x"))["params"]["sessionId"] == "before"


def test_a_conversation_that_cannot_be_loaded_either_is_begun_anew() -> None:
    agent = Exchange(BOTH, agent_session_id="before")
    agent.refuse("session")
    agent.refuse(agent.asked["id"], "Internal error", -32603)
    assert agent.asked["method"] == "session/new"
    assert "sessionId" not in agent.asked["params"]
    agent.answer(agent.asked["id"], {"sessionId": "another"})
    assert [data["kind"] for kind, data in agent.events if kind == "system"] == [
        "resume_refused",
        "not_resumed",
    ]
    assert agent.events[1][1]["reason"] == "session/load: Internal error"
    assert agent.ready["resumed"] is False
    assert agent.ready["agent_session_id"] == "another"


@pytest.mark.parametrize(
    "can",
    [{"loadSession": True}, {"sessionCapabilities": {"resume": {}}}, {**BOTH, "loadSession": 1}],
)
def test_what_an_agent_does_not_say_that_it_can_is_not_tried(can: dict[str, Any]) -> None:
    agent = Exchange(can, agent_session_id="before")
    agent.refuse("session", "no")
    assert agent.asked["method"] == "session/new"
    agent.answer(agent.asked["id"], {"sessionId": "another"})
    assert agent.ready["resumed"] is False


def test_an_agent_that_opens_no_session_at_all_is_given_up() -> None:
    agent = Exchange(BOTH, agent_session_id="before")
    agent.refuse("session")
    agent.refuse(agent.asked["id"])
    agent.say(
        {"id": agent.asked["id"], "error": {"message": "Internal error", "data": {"details": "x"}}}
    )
    assert agent.adapter.failed == "the agent opened no session: Internal error: x"


def test_a_process_of_an_earlier_release_has_the_frames_that_it_had() -> None:
    """The number of its frames before the first prompt is that of its server's time."""
    agent = Exchange({}, {"frames": 3}, model="m/large")
    agent.answer("session", {"sessionId": "s", "configOptions": OPTIONS})
    assert agent.adapter.handshake == len(agent.frames) == 3
    assert agent.adapter.ready


# ---------------------------------------------------------------- model and mode


@pytest.mark.parametrize("wanted", ["m/large", "M/LARGE", "large one"])
@pytest.mark.parametrize("offered", [{"configOptions": OPTIONS}, OLDER])
def test_model_and_mode_are_chosen_before_the_first_prompt(
    offered: dict[str, Any], wanted: str
) -> None:
    agent = Exchange({}, model=wanted, mode="plan")
    agent.answer("session", {"sessionId": "s", **offered})
    assert not agent.adapter.ready
    chosen = [json.loads(frame) for frame in agent.frames[2:]]
    if offered is OLDER:
        assert [(each["method"], each["params"]) for each in chosen] == [
            ("session/set_model", {"sessionId": "s", "modelId": "m/large"}),
            ("session/set_mode", {"sessionId": "s", "modeId": "plan"}),
        ]
    else:
        assert {each["method"] for each in chosen} == {"session/set_config_option"}
        assert [each["params"] for each in chosen] == [
            {"sessionId": "s", "configId": "llm", "value": "m/large"},
            {"sessionId": "s", "configId": "mode", "value": "plan"},
        ]
    agent.answer("choose-mode", {})
    assert not agent.adapter.ready
    agent.answer("choose-model", {})
    assert agent.ready["resumed"] is False


def test_what_a_session_has_already_is_not_asked_for() -> None:
    agent = Exchange({}, model="m/small", mode="build")
    agent.answer("session", {"sessionId": "s", "configOptions": OPTIONS})
    assert agent.ready
    assert [bool(frame) for frame in agent.frames] == [True, True] + [False] * (FRAMES - 2)


def test_a_resumed_session_gets_its_model_again() -> None:
    agent = Exchange(BOTH, agent_session_id="before", model="m/large")
    agent.refuse("session")
    agent.answer("session-load", {"configOptions": OPTIONS})
    assert agent.asked["params"] == {"sessionId": "before", "configId": "llm", "value": "m/large"}
    agent.answer("choose-model", {"configOptions": OPTIONS})
    assert agent.ready["resumed"] is True


@pytest.mark.parametrize("offered", [{"configOptions": OPTIONS}, OLDER])
def test_what_is_not_offered_is_refused_with_what_is(offered: dict[str, Any]) -> None:
    agent = Exchange({}, model="m/huge")
    agent.answer("session", {"sessionId": "s", **offered})
    assert agent.adapter.failed == (
        "the agent has no model 'm/huge'; it offers 'm/large', 'm/small'"
    )
    agent = Exchange({}, mode="yolo")
    agent.answer("session", {"sessionId": "s", **offered})
    assert agent.adapter.failed == "the agent has no mode 'yolo'; it offers 'build', 'plan'"


def test_an_agent_that_offers_no_choice_is_told_as_such() -> None:
    agent = Exchange({}, model="m/large")
    agent.answer("session", {"sessionId": "s"})
    assert agent.adapter.failed is not None
    assert agent.adapter.failed.startswith("the agent lets nobody choose its model")
    assert "leave model out" in agent.adapter.failed


def test_a_choice_that_the_agent_refuses_is_told_with_its_reason() -> None:
    agent = Exchange({}, model="m/large")
    agent.answer("session", {"sessionId": "s", "configOptions": OPTIONS})
    agent.refuse("choose-model", "no credit")
    assert agent.adapter.failed == "the agent refused the model m/large: no credit"
    assert not agent.adapter.ready


@pytest.mark.parametrize(
    "nonsense",
    [
        {"configOptions": 5, "models": [], "modes": "x"},
        {"configOptions": [5, None, {"id": 3, "category": "model"}, {"category": ["model"]}]},
        {"configOptions": [{"id": "m", "category": "model", "options": {"value": "m/large"}}]},
        {"models": {"availableModels": [{"modelId": ["m/large"]}, 7, {"options": [[]]}]}},
    ],
)
def test_offers_that_are_none_offer_nothing(nonsense: dict[str, Any]) -> None:
    agent = Exchange({}, model="m/large")
    agent.answer("session", {"sessionId": "s", **nonsense})
    assert agent.adapter.failed is not None
    assert not agent.adapter.ready


def test_a_long_offer_is_cut() -> None:
    options = [{"value": f"model-{n}", "name": "same"} for n in range(500)]
    offered = [{"id": "model", "category": "model", "options": options}]
    agent = Exchange({}, model="same")  # what is ambiguous is not guessed
    agent.answer("session", {"sessionId": "s", "configOptions": offered})
    assert agent.adapter.failed is not None
    assert agent.adapter.failed.endswith("'model-29' and 470 more")
