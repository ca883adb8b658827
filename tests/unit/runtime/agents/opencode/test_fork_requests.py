"""OpenCode begins a session with a part of another one's conversation, in its own folder."""

from __future__ import annotations

import json
from typing import Any

import pytest

from oubliette.runtime.agents.base import ForkPoint
from oubliette.runtime.agents.handshake_adapter import Opening
from oubliette.runtime.agents.opencode.adapter import OpencodeAdapter
from oubliette.runtime.agents.opencode.parts import stamp_of

OURS = {"oubliette": {"status": "connected"}}
COPY = {"id": "ses_copy", "directory": "/w", "version": "1.18.33"}


def prompt(turn: int, at: int) -> str:
    return f"msg_{at:012x}{stamp_of(turn)}"


CONVERSATION = [
    "msg_000000000001inherited00001",
    prompt(1, 2),
    "msg_000000000003answer00000001",
    prompt(2, 4),
    "msg_000000000005answer00000002",
]


class Forking:
    """An adapter that is to fork the conversation `ses_other`, and what it asks for."""

    def __init__(self, turn: int, known: str | None = None) -> None:
        of = ForkPoint(agent_session_id="ses_other", turn=turn)
        self.adapter = OpencodeAdapter(Opening(cwd="/w", fork_of=of, agent_session_id=known))
        self.frames: list[bytes] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self._offset = 0
        self._take()

    def _take(self) -> None:
        self.frames += self.adapter.writes()

    @property
    def asked(self) -> dict[str, Any]:
        lines = [line for frame in self.frames for line in frame.splitlines() if line]
        return json.loads(lines[-1])

    def answer(self, body: Any, status: int = 200, name: str | None = None) -> None:
        told = {"id": name or self.asked["id"], "status": status, "body": body}
        line = json.dumps(told).encode() + b"\n"
        self.events += [(each.type, each.data) for each in self.adapter.feed(line, self._offset)]
        self._offset += len(line)
        self._take()

    def ready(self) -> dict[str, Any]:
        self.answer({}, name="providers")
        self.answer(OURS, name="mcp")
        assert self.adapter.ready
        assert len(self.frames) == self.adapter.handshake
        return self.events[-1][1]


def forked(turn: int, known: str | None = None) -> tuple[Forking, Any]:
    wire = Forking(turn, known)
    wire.answer(CONVERSATION, name="fork-messages")
    asked = wire.asked
    wire.answer({"id": "ses_copy", "directory": "/elsewhere"}, name="fork-copy")
    wire.answer({"text": ""}, status=204, name="fork-move")
    wire.answer(COPY, name="fork-check")
    return wire, asked


def test_it_asks_for_the_ids_of_the_messages_alone() -> None:
    assert Forking(1).asked == {
        "id": "fork-messages",
        "method": "GET",
        "path": "/session/ses_other/message",
        "ids": True,
    }


@pytest.mark.parametrize(
    ("turn", "body"),
    [
        (0, {"messageID": CONVERSATION[1]}),
        (1, {"messageID": CONVERSATION[3]}),
        (2, {}),
    ],
)
def test_it_copies_what_came_before_the_next_turn(turn: int, body: dict[str, str]) -> None:
    wire, asked = forked(turn)
    assert (asked["path"], asked["body"]) == ("/session/ses_other/fork", body)
    ready = wire.ready()
    assert (ready["agent_session_id"], ready["forked"], ready["resumed"]) == (
        "ses_copy", True, False,
    )  # fmt: skip
    assert json.loads(wire.adapter.prompt(1, "x"))["path"] == "/session/ses_copy/prompt_async"


def test_the_copy_is_moved_to_the_folder_of_the_session_and_looked_at() -> None:
    wire = Forking(2)
    wire.answer(CONVERSATION)
    wire.answer({"id": "ses_copy", "directory": "/elsewhere"})
    assert wire.asked["body"] == {"sessionID": "ses_copy", "destination": {"directory": "/w"}}
    wire.answer({"text": ""}, status=204)
    assert (wire.asked["method"], wire.asked["path"]) == ("GET", "/session/ses_copy")


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([({"name": "NotFoundError"}, 404)], "messages: NotFoundError"),
        ([([], 200)], "no turn up to 2"),
        ([(CONVERSATION, 200), ({"data": {"message": "disk full"}}, 500)], "copy: disk full"),
        ([(CONVERSATION, 200), ({"id": "ses_copy"}, 200), ({}, 404)], "move: no reason"),
        (
            [
                (CONVERSATION, 200),
                ({"id": "ses_copy"}, 200),
                ({}, 204),
                ({"id": "ses_copy", "directory": "/elsewhere"}, 200),
            ],
            "would work in /elsewhere",
        ),
    ],
)
def test_without_a_copy_in_its_folder_it_begins_anew_and_says_so(
    answers: list[tuple[Any, int]], reason: str
) -> None:
    wire = Forking(2)
    for body, status in answers:
        wire.answer(body, status)
    ((kind, told),) = wire.events
    assert (kind, told["kind"]) == ("system", "not_forked")
    assert reason in told["reason"]
    assert (wire.asked["method"], wire.asked["path"]) == ("POST", "/session")
    wire.answer({"id": "ses_new", "version": "1.18.33"}, name="session")
    ready = wire.ready()
    assert (ready["agent_session_id"], ready["forked"]) == ("ses_new", False)


def test_a_server_that_takes_over_reads_the_fork_of_the_one_before() -> None:
    wire, _ = forked(1, known="ses_copy")
    ready = wire.ready()
    assert (ready["agent_session_id"], ready["forked"]) == ("ses_copy", True)


def test_a_session_that_goes_on_forks_nothing() -> None:
    wire = Forking(1, known="ses_copy")
    assert wire.asked["path"] == "/session/ses_copy"
    wire.answer(COPY)
    ready = wire.ready()
    assert ready["resumed"] is True
    assert "forked" not in ready
