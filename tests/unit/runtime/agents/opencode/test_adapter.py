"""What `opencode serve` says, as events: the turns that do not go by the book.

`tests/conformance/wire/opencode.jsonl` is what it really said in those that were recorded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oubliette.runtime.agents import AgentSession, OpencodeAdapter, OpencodeRuntime
from oubliette.runtime.agents.handshake_adapter import Opening
from oubliette.runtime.agents.opencode.parts import stamp_of, turn_of
from oubliette.runtime.containers import Inside

WIRE = Path(__file__).parents[4] / "conformance" / "wire" / "opencode.jsonl"
SES = "ses_1"
OURS = {"oubliette": {"status": "connected"}}


class Wire:
    """An adapter, what it is told, and what it says to that."""

    def __init__(self, known: str | None = None, autonomy: str = "off") -> None:
        opening = Opening(cwd="/workspace", agent_session_id=known, autonomy=autonomy)
        self.adapter = OpencodeAdapter(opening)
        self.offset = 0
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.said: list[dict[str, Any]] = []
        self._hear()

    def _hear(self) -> None:
        for frame in self.adapter.writes():
            self.said += [json.loads(line) for line in frame.splitlines()]

    def tell(self, message: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        data = json.dumps(message).encode() + b"\n"
        found = [(e.type, e.data) for e in self.adapter.feed(data, self.offset)]
        self.offset += len(data)
        self.events += found
        self._hear()
        return found

    def event(self, kind: str, **properties: Any) -> list[tuple[str, dict[str, Any]]]:
        properties.setdefault("sessionID", SES)
        return self.tell({"event": {"id": "evt", "type": kind, "properties": properties}})

    def answer(self, name: str, body: Any = None, status: int = 200) -> list[Any]:
        return self.tell({"id": name, "status": status, "body": body})

    def ready(self, servers: Any = None) -> Wire:
        self.tell({"bridge": "serving"})
        self.answer("session", {"id": SES, "version": "1.18.33"})
        self.answer("providers", {})
        self.answer("mcp", servers or OURS)
        return self

    # -------------------------------------------------------------- a turn as it goes

    def prompted(self, turn: int = 1) -> Wire:
        self.adapter.prompt(turn, "x")
        self.answer(f"prompt-{turn}", status=204)
        self.user(turn)
        self.event("session.status", status={"type": "busy"})
        return self

    def user(self, turn: int) -> list[Any]:
        info = {"id": f"msg_0123456789ab{stamp_of(turn)}", "role": "user", "sessionID": SES}
        return self.event("message.updated", info=info)

    def assistant(self, turn: int | None, name: str = "msg_a", **fields: Any) -> list[Any]:
        parent = "msg_compaction" if turn is None else f"msg_0123456789ab{stamp_of(turn)}"
        session = fields.pop("session", SES)
        info = {"id": name, "role": "assistant", "parentID": parent, "sessionID": session}
        return self.event("message.updated", sessionID=session, info={**info, **fields})

    def over(self, turn: int, name: str = "msg_a", **fields: Any) -> list[Any]:
        return self.assistant(turn, name, time={"completed": 2}, **{"finish": "stop", **fields})

    def part(self, kind: str, name: str = "prt_1", of: str = "msg_a", **fields: Any) -> list[Any]:
        part = {"id": name, "messageID": of, "sessionID": SES, "type": kind, **fields}
        return self.event("message.part.updated", part=part)

    def delta(self, text: str, name: str = "prt_1", of: str = "msg_a") -> list[Any]:
        return self.event("message.part.delta", messageID=of, partID=name, field="text", delta=text)

    def tool(self, status: str, name: str = "prt_t", call: str = "c1", **state: Any) -> list[Any]:
        told = {"status": status, "input": {"a": 1}, **state}
        return self.part("tool", name, tool="bash", callID=call, state=told)

    def idle(self) -> list[Any]:
        return self.event("session.idle")

    def status(self, turn: int, kind: str | None = None) -> list[Any]:
        return self.answer(f"status-{turn}", {SES: {"type": kind}} if kind else {})

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    def asked(self) -> list[str]:
        return [request["id"] for request in self.said]

    def completion(self) -> dict[str, Any]:
        (found,) = [data for kind, data in self.events if kind == "completion"]
        return found


@pytest.fixture
def wire() -> Wire:
    return Wire().ready()


@pytest.fixture
def turn(wire: Wire) -> Wire:
    wire.prompted()
    wire.assistant(1)
    wire.events.clear()
    return wire


def text_end(text: str) -> dict[str, Any]:
    return {"text": text, "time": {"start": 1, "end": 2}}


# ------------------------------------------------------------------ the handshake


def test_a_handshake_opens_a_session_and_looks_for_our_mcp_server() -> None:
    wire = Wire().ready()
    assert wire.asked() == ["session", "providers", "mcp"]
    assert (wire.said[0]["method"], wire.said[0]["path"]) == ("POST", "/session")
    assert wire.events == [
        (
            "ready",
            {
                "turn": 0,
                "agent": "OpenCode",
                "version": "1.18.33",
                "agent_session_id": SES,
                "resumed": False,
                "forks": "turn",
            },
        )
    ]


def test_a_session_without_our_mcp_server_fails_with_the_reason() -> None:
    failed = {"oubliette": {"status": "failed", "error": "ENOENT: python3"}}
    for servers, reason in ((failed, "ENOENT"), ({"other": OURS["oubliette"]}, "not know")):
        wire = Wire().ready(servers)
        assert wire.events == []
        assert "MCP server of Oubliette" in str(wire.adapter.failed)
        assert reason in str(wire.adapter.failed)


def test_another_mcp_server_that_is_not_there_is_told_and_no_reason_to_fail() -> None:
    wire = Wire().ready({**OURS, "theirs": {"status": "failed", "error": "no"}})
    assert wire.kinds() == ["system", "ready"]
    assert wire.events[0][1] == {
        "kind": "mcp_server",
        "server": "theirs",
        "status": "failed",
        "error": "no",
    }


def test_a_conversation_is_gone_on_with_or_said_to_be_lost() -> None:
    wire = Wire(known=SES).ready()
    assert (wire.said[0]["method"], wire.said[0]["path"]) == ("GET", f"/session/{SES}")
    assert wire.events[-1][1]["resumed"] is True
    lost = Wire(known="ses_0")
    lost.answer("session", {"name": "NotFoundError"}, status=404)
    lost.answer("session-anew", {"id": SES})
    lost.answer("mcp", OURS)
    assert lost.kinds() == ["system", "ready"]
    assert lost.events[0][1]["kind"] == "not_resumed"
    assert "ses_0" in lost.events[0][1]["reason"]
    assert lost.events[1][1]["resumed"] is False
    assert lost.asked() == ["session", "session-anew", "providers", "mcp"]


def test_what_goes_wrong_in_the_handshake_is_said_in_a_sentence() -> None:
    wire = Wire()
    wire.answer("session", {"name": "UnknownError", "data": {"message": "disk full"}}, status=500)
    assert wire.adapter.failed == "OpenCode opened no session: disk full (HTTP 500)"
    wire = Wire()
    wire.tell({"id": "session", "error": "nothing came for 60 s"})
    assert wire.adapter.failed == "OpenCode opened no session: nothing came for 60 s"
    wire = Wire()
    assert wire.tell({"bridge": "failed", "reason": "no events for 60 s"})[0][0] == "system"
    assert wire.adapter.failed == "no events for 60 s"


def test_the_number_of_handshake_frames_is_always_the_same() -> None:
    for known, lost in ((None, False), (SES, False), (SES, True)):
        adapter = OpencodeAdapter(Opening(cwd="/w", agent_session_id=known))
        frames = adapter.writes()
        lines = [{"id": "session", "status": 404 if lost else 200, "body": {"id": SES}}]
        lines += [{"id": "session-anew", "status": 200, "body": {"id": SES}}] if lost else []
        lines += [{"id": "mcp", "status": 200, "body": OURS}]
        data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        adapter.feed(data, 0)
        assert len(frames + adapter.writes()) == adapter.handshake
        assert adapter.ready


# ------------------------------------------------------------------ prompts and their ids


def test_a_prompt_carries_a_stamp_by_which_its_turn_is_known(wire: Wire) -> None:
    request = json.loads(wire.adapter.prompt(7, "é\n"))
    assert request["path"] == f"/session/{SES}/prompt_async"
    assert request["body"] == {"parts": [{"type": "text", "text": "é\n"}]}
    assert len(request["stamp"]) == 14
    assert turn_of("msg_0123456789ab" + request["stamp"]) == 7


@pytest.mark.parametrize(
    "other", [None, "", "msg_", "msg_0123456789abSTUVWXYZabcdef", "msg_0123456789abouc00000000001"]
)
def test_ids_of_opencode_are_no_turns(other: str | None) -> None:
    assert turn_of(other) is None


def test_the_users_own_text_is_not_said_again(wire: Wire) -> None:
    wire.prompted()
    user = f"msg_0123456789ab{stamp_of(1)}"
    wire.events.clear()
    assert wire.part("text", "prt_u", user, text="my prompt") == []
    assert wire.delta("my prompt", "prt_u", user) == []


def test_a_prompt_that_is_not_taken_fails_its_turn(wire: Wire) -> None:
    wire.adapter.prompt(1, "x")
    body = {"name": "BadRequest", "data": {"message": "what model?"}}
    wire.answer("prompt-1", body, status=400)
    assert wire.kinds()[-3:] == ["turn_started", "error", "completion"]
    assert wire.completion()["status"] == "failed"
    assert "what model? (HTTP 400)" in wire.completion()["final_text"]


def test_a_prompt_of_which_nothing_is_known_is_looked_for(wire: Wire) -> None:
    wire.adapter.prompt(1, "x")
    wire.tell({"id": "prompt-1", "error": "nothing came for 60 s"})
    assert wire.asked()[-2:] == ["messages-1", "status-1"]
    wire.answer("messages-1", [])
    wire.status(1)
    assert wire.completion()["status"] == "failed"
    assert "nothing came for 60 s" in wire.completion()["final_text"]


# ------------------------------------------------------------------ the end of a turn


def test_idle_ends_a_turn_whose_message_is_finished(turn: Wire) -> None:
    turn.part("text", **text_end("hello"))
    turn.over(1)
    assert turn.idle() == [
        ("completion", {"turn": 1, "final_text": "hello", "status": "completed"})
    ]
    assert turn.idle() == []


def test_the_second_idle_of_an_aborted_turn_does_not_end_the_next_one(turn: Wire) -> None:
    turn.event("session.error", error={"name": "MessageAbortedError", "data": {}})
    turn.idle()
    turn.over(1, finish=None, error={"name": "MessageAbortedError", "data": {}})
    turn.idle()
    assert turn.completion()["status"] == "interrupted"
    turn.adapter.prompt(2, "y")
    turn.user(2)
    assert turn.idle() == []  # the late one
    assert turn.status(1) == []
    turn.event("session.status", status={"type": "busy"})
    turn.assistant(2, "msg_b")
    turn.part("text", "prt_2", "msg_b", **text_end("two"))
    turn.over(2, "msg_b")
    assert turn.idle()[-1][1] == {"turn": 2, "final_text": "two", "status": "completed"}


def test_an_idle_in_mid_turn_is_asked_about(turn: Wire) -> None:
    assert turn.idle() == []
    assert turn.asked()[-1] == "status-1"
    assert turn.status(1, "busy") == []
    turn.over(1)
    assert turn.idle()[-1][0] == "completion"


@pytest.mark.parametrize("busy", [True, False])
def test_an_abort_before_there_is_a_message_ends_the_turn(wire: Wire, busy: bool) -> None:
    wire.adapter.prompt(1, "x")
    wire.user(1)
    if busy:
        wire.event("session.status", status={"type": "busy"})
    wire.adapter.interrupt(1)
    wire.answer("abort-1", True)
    wire.idle()
    assert wire.asked()[-1] == "status-1"
    wire.status(1)
    assert wire.completion()["status"] == "interrupted"


def test_an_abort_that_came_too_early_is_said_again(wire: Wire) -> None:
    wire.adapter.prompt(1, "x")
    wire.user(1)
    wire.adapter.interrupt(1)
    wire.answer("abort-1", True)
    before = wire.asked().count("abort-1")
    wire.event("session.status", status={"type": "busy"})
    assert wire.asked().count("abort-1") == before + 1
    wire.assistant(1)
    assert wire.asked().count("abort-1") == before + 1


def test_what_is_said_to_a_turn_cannot_be_taken_for_the_next(wire: Wire) -> None:
    """A repeated abort names its prompt, behind which alone the bridge passes it on."""
    wire.adapter.prompt(1, "x")
    lines = [
        {"id": "abort-1", "status": 200, "body": True},
        _event("message.updated", info=_info("msg_a", 1)),
        _event("message.updated", info=_info("msg_a", 1, time={"completed": 1})),
        _event("session.idle"),
    ]
    wire.user(1)
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    kinds = [event.type for event in wire.adapter.feed(data, wire.offset)]
    assert kinds == ["completion"]
    (abort,) = map(json.loads, wire.adapter.writes())
    assert (abort["id"], abort["newest"]) == ("abort-1", stamp_of(1))
    assert json.loads(wire.adapter.prompt(2, "y"))["stamp"] == stamp_of(2)


def _event(kind: str, **properties: Any) -> dict[str, Any]:
    return {"event": {"type": kind, "properties": {"sessionID": SES, **properties}}}


def _info(name: str, turn: int, **fields: Any) -> dict[str, Any]:
    parent = f"msg_0123456789ab{stamp_of(turn)}"
    return {"id": name, "role": "assistant", "parentID": parent, "sessionID": SES, **fields}


def test_an_abort_between_two_attempts_is_an_interrupt(turn: Wire) -> None:
    """It leaves neither an error nor a reason to have finished, only the end [seen on 1.18.33]."""
    turn.over(1, finish=None)
    turn.idle()
    assert turn.completion()["status"] == "interrupted"


def test_an_error_fails_the_turn_and_one_that_was_got_over_does_not(turn: Wire) -> None:
    error = {"name": "APIError", "data": {"message": "no way", "statusCode": 400}}
    turn.event("session.error", error=error)
    turn.assistant(1, "msg_b")
    turn.part("text", "prt_b", "msg_b", **text_end("after all"))
    turn.over(1, "msg_b")
    turn.idle()
    assert turn.completion() == {"turn": 1, "final_text": "after all", "status": "completed"}
    turn.events.clear()
    turn.prompted(2)
    turn.assistant(2, "msg_c")
    turn.event("session.error", error=error)
    turn.over(2, "msg_c", finish=None, error=error)
    turn.idle()
    assert turn.events[-2:] == [
        ("error", {"turn": 2, "message": "no way"}),
        ("completion", {"turn": 2, "final_text": "no way", "status": "failed"}),
    ]


def test_an_error_before_anything_was_done_ends_the_turn(wire: Wire) -> None:
    wire.adapter.prompt(1, "x")
    wire.user(1)
    wire.event("session.error", error={"name": "UnknownError", "data": {"message": "no model"}})
    wire.status(1)
    assert wire.completion()["final_text"] == "no model"


def test_an_answer_cut_at_its_limit_is_a_failure_that_keeps_its_text(turn: Wire) -> None:
    turn.part("text", **text_end("half a sent"))
    turn.over(1, finish="length")
    turn.idle()
    assert turn.completion()["status"] == "failed"
    assert turn.completion()["final_text"] == "half a sent"
    assert "limit of tokens" in dict(turn.events)["error"]["message"]


# ------------------------------------------------------------------ text


def test_text_is_told_in_deltas_and_once_as_a_message(turn: Wire) -> None:
    turn.part("text", text="", time={"start": 1})
    turn.delta("he")
    turn.delta("llo")
    turn.part("text", **text_end("hello"))
    turn.part("text", **text_end("hello"))
    assert turn.events == [
        ("delta", {"turn": 1, "text": "he"}),
        ("delta", {"turn": 1, "text": "llo"}),
        ("message", {"turn": 1, "text": "hello"}),
    ]


def test_deltas_that_did_not_come_are_made_up_for(turn: Wire) -> None:
    turn.delta("he")
    turn.part("text", **text_end("hello"))
    assert [data["text"] for _, data in turn.events] == ["he", "llo", "hello"]


def test_text_before_a_tool_call_is_told_before_it(turn: Wire) -> None:
    turn.delta("I shall ")
    turn.tool("pending")
    turn.tool("running")
    turn.part("text", **text_end("I shall see"))
    assert turn.kinds() == ["delta", "message", "tool_call", "delta", "message"]
    assert [data["text"] for kind, data in turn.events if kind == "message"] == ["I shall ", "see"]


def test_thoughts_are_kept_as_a_whole_and_are_no_text(turn: Wire) -> None:
    turn.part("reasoning", "prt_r", text="", time={"start": 1})
    assert turn.delta("hm", "prt_r") == []
    ((kind, data),) = turn.part("reasoning", "prt_r", **text_end("hmm"))
    assert (kind, data["type"], data["text"]) == ("system", "reasoning", "hmm")
    turn.over(1)
    turn.idle()
    assert turn.completion()["final_text"] == ""


def test_a_compaction_is_no_message_and_the_turn_goes_on_after_it(turn: Wire) -> None:
    turn.assistant(None, "msg_s", summary=True)
    assert turn.delta("what was", "prt_s", "msg_s") == []
    ((kind, data),) = turn.part("text", "prt_s", "msg_s", **text_end("what was said"))
    assert (kind, data["of"]) == ("system", "summary")
    info = {"id": "msg_u2", "role": "user", "sessionID": SES}
    assert turn.event("message.updated", info=info) == []
    assert turn.part("text", "prt_u2", "msg_u2", text="Continue") == []
    turn.assistant(None, "msg_c")
    turn.part("text", "prt_c", "msg_c", **text_end("done"))
    turn.assistant(None, "msg_c", time={"completed": 1}, finish="stop")
    turn.idle()
    assert turn.completion() == {"turn": 1, "final_text": "done", "status": "completed"}


# ------------------------------------------------------------------ tools


def test_a_call_is_told_once_however_often_its_progress_is(turn: Wire) -> None:
    turn.tool("pending")
    turn.tool("running")
    turn.tool("running", metadata={"output": "a"})
    turn.tool("completed", output="ab")
    turn.tool("completed", output="ab")
    assert turn.events == [
        ("tool_call", {"turn": 1, "call_id": "c1", "tool": "bash", "arguments": {"a": 1}}),
        (
            "tool_result",
            {
                "turn": 1,
                "call_id": "c1",
                "tool": "bash",
                "is_error": False,
                "result": {"content": [{"type": "text", "text": "ab"}]},
            },
        ),
    ]


def test_a_call_that_is_still_open_at_the_end_has_failed_and_its_late_error_is_kept(
    turn: Wire,
) -> None:
    turn.tool("running")
    turn.over(1, finish=None, error={"name": "MessageAbortedError", "data": {}})
    turn.idle()
    assert turn.kinds() == ["tool_call", "tool_result", "completion"]
    assert turn.events[1][1]["is_error"] is True
    assert [kind for kind, _ in turn.tool("error", error="Tool execution aborted")] == ["system"]


def test_calls_with_the_same_id_are_two_calls(turn: Wire) -> None:
    turn.tool("completed", "prt_1", output="1")
    turn.tool("error", "prt_2", error="2")
    assert turn.kinds() == ["tool_call", "tool_result"] * 2
    assert [d["is_error"] for k, d in turn.events if k == "tool_result"] == [False, True]


# ------------------------------------------------------------------ usage


def test_each_step_is_paid_for_once_also_those_of_subagents(turn: Wire) -> None:
    tokens = {"input": 10, "output": 3, "reasoning": 2, "cache": {"read": 5, "write": 1}}
    turn.part("step-finish", "prt_f", tokens=tokens, cost=0.25)
    turn.part("step-finish", "prt_f", tokens=tokens, cost=0.25)
    turn.assistant(1, "msg_k", session="ses_child")
    turn.part("step-finish", "prt_k", "msg_k", tokens={"input": 1, "output": 1}, cost=0)
    told = {"tokens": 21, "input_tokens": 16, "output_tokens": 5}
    assert turn.events == [
        ("usage", {"turn": 1, "cost_usd": 0.25, **told}),
        ("usage", {"turn": 1, "cost_usd": 0.0, "tokens": 2, "input_tokens": 1, "output_tokens": 1}),
    ]


def test_what_a_subagent_says_is_kept_and_is_no_text_of_the_turn(turn: Wire) -> None:
    turn.assistant(1, "msg_k", session="ses_child")
    assert turn.delta("sub", "prt_k", "msg_k") == []
    ((kind, data),) = turn.part("text", "prt_k", "msg_k", **text_end("sub"))
    assert (kind, data["of"], data["text"]) == ("system", "child", "sub")
    assert turn.event("session.idle", sessionID="ses_child") == []
    assert turn.event("session.error", sessionID="ses_child", error={})[0][0] == "system"


# ------------------------------------------------------------------ questions


def asked_for(wire: Wire, session: str = SES) -> list[Any]:
    return wire.event(
        "permission.asked",
        sessionID=session,
        id="per_1",
        permission="bash",
        patterns=["rm -r x"],
        always=["rm *"],
        metadata={},
    )


def test_a_permission_is_asked_for_and_answered_either_way() -> None:
    wire = Wire(autonomy="ask").ready().prompted()
    ((kind, data),) = asked_for(wire, "ses_child")
    assert kind == "permission_request"
    assert (data["request_id"], data["text"]) == ("per_1", "bash: rm -r x")
    assert data["asks_for"] == "bash: rm *"
    allow = json.loads(wire.adapter.permission("per_1", "allow", "fine"))
    assert (allow["path"], allow["body"]) == ("/permission/per_1/reply", {"reply": "once"})
    deny = json.loads(wire.adapter.permission("per_1", "deny", "because"))
    assert deny["body"] == {"reply": "reject", "message": "because"}
    assert json.loads(wire.adapter.permission("per_1", "deny"))["body"] == {"reply": "reject"}
    assert wire.answer("permission", {"name": "NotFoundError"}, status=404) == []
    assert wire.answer("permission", {}, status=500)[0][0] == "system"


def test_without_questions_a_permission_is_given_and_said() -> None:
    wire = Wire(autonomy="off").ready().prompted()
    ((kind, data),) = asked_for(wire)
    assert (kind, data["kind"], data["given"]) == ("system", "permission", True)
    assert wire.said[-1]["body"] == {"reply": "once"}


def test_a_question_to_a_person_is_rejected_and_said(turn: Wire) -> None:
    ((kind, _),) = turn.event("question.asked", id="que_1", questions=[])
    assert kind == "system"
    assert turn.said[-1]["path"] == "/question/que_1/reject"


# ------------------------------------------------------------------ what is kept


def test_retries_are_shown_with_their_number(turn: Wire) -> None:
    retry = {"type": "retry", "attempt": 3, "message": "overloaded", "next": 5}
    assert turn.event("session.status", status=retry) == [("system", {**retry, "turn": 1})]


@pytest.mark.parametrize("url", ["http://h:9/v1", "http://u:s3cr@h:9/v1", "http://h:9/v1?key=s3cr"])
def test_a_model_that_cannot_be_reached_is_shown_with_its_url(url: str) -> None:
    adapter = OpencodeAdapter(Opening(cwd="/w"), {"ready": True}, model_url=url)
    said = "Cannot connect to API: Unable to connect. Is the computer able to access the url?"
    retry = {"type": "retry", "attempt": 1, "message": said}
    line = {"event": {"type": "session.status", "properties": {"status": retry}}}
    event = adapter.feed(json.dumps(line).encode() + b"\n", 0)[-1]
    assert event.type == "system"
    assert event.data["message"] == f"{said} (http://h:9/v1)"
    assert event.data["unreachable"] is True


def test_what_is_not_known_is_kept(turn: Wire) -> None:
    assert turn.event("session.compacted") == [
        ("system", {"sessionID": SES, "type": "session.compacted"})
    ]
    assert turn.event("news.of.a.later.release", a=1)[0][1]["type"] == "news.of.a.later.release"
    assert turn.part("hologram", "prt_h")[0][1]["type"] == "hologram"
    assert turn.delta("lost", "prt_x", "msg_unknown")[0][0] == "system"
    assert turn.answer("unknown-thing", {})[0][0] == "system"
    assert turn.tell({"oversize": 20_000_000})[0][1] == {"oversize": 20_000_000, "type": "oversize"}


# ------------------------------------------------------------------ after a break


def test_what_was_said_while_nobody_listened_is_read_again(turn: Wire) -> None:
    turn.delta("he")
    turn.tell({"bridge": "again"})
    assert turn.asked()[-2:] == ["messages-1", "status-1"]
    info = {"role": "assistant", "parentID": f"msg_0123456789ab{stamp_of(1)}", "sessionID": SES}
    user = {"id": f"msg_0123456789ab{stamp_of(1)}", "role": "user", "sessionID": SES}
    old = {"id": f"msg_000000000000{stamp_of(1)}", "role": "user", "sessionID": SES}
    text = {"id": "prt_1", "messageID": "msg_a", "type": "text", **text_end("hello")}
    earlier = {"id": "prt_0", "messageID": "msg_0", "type": "text", **text_end("long ago")}
    state = {"status": "completed", "input": {}, "output": "x"}
    tool = {"id": "prt_t", "messageID": "msg_a", "type": "tool", "tool": "t", "callID": "c"}
    done = {"time": {"completed": 1}, "finish": "stop"}
    turn.answer(
        "messages-1",
        [
            {"info": old, "parts": []},
            {"info": {**info, "id": "msg_0", **done}, "parts": [earlier]},
            {"info": user, "parts": []},
            {"info": {**info, "id": "msg_a", **done}, "parts": [text, {**tool, "state": state}]},
        ],
    )
    turn.status(1)
    assert turn.kinds() == [
        "delta",
        "system",
        "delta",
        "message",
        "tool_call",
        "tool_result",
        "completion",
    ]
    assert turn.completion()["final_text"] == "hello"


def test_a_turn_that_still_runs_after_a_break_goes_on(turn: Wire) -> None:
    turn.tell({"bridge": "again"})
    turn.answer("messages-1", {"not": "a list"})
    assert turn.status(1, "busy") == []
    turn.over(1)
    assert turn.idle()[-1][0] == "completion"


def test_output_that_was_not_kept_is_asked_for_again(turn: Wire) -> None:
    turn.offset += 1000
    found = turn.event("todo.updated", todos=[])
    assert "missing" in found[0][1]
    assert [data.get("kind") for _, data in found] == [None, "read_again", None]
    assert turn.asked()[-2:] == ["messages-1", "status-1"]


# ------------------------------------------------------------------ the command

SESSION = AgentSession(
    session_id="gogol_1",
    project_id="proj_1",
    depth=0,
    cwd="/workspace",
    home="/home/agent/gogol_1",
    pairing_secret="pairing",
    mcp_servers={
        "files": {"command": "files", "args": ["-r", 1], "env": {"A": 1}},
        "web": {"url": "https://example.com/mcp", "headers": {"X": "y"}},
        "oubliette": {"command": "evil"},
        "nothing": 7,
    },
)


def test_everything_is_configured_by_the_environment_and_nothing_by_the_repository() -> None:
    runtime = OpencodeRuntime({"model": "m", "base_url": "http://127.0.0.1:1/v1"})
    command = runtime.command(SESSION, Inside())
    assert command.argv[-2] == "opencode"
    assert command.argv[-1].startswith("--program=")
    assert command.env["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"
    settings = json.loads(command.env["OPENCODE_CONFIG_CONTENT"])
    assert settings["permission"]["question"] == "deny"
    servers = settings["mcp"]
    assert set(servers) == {"files", "web", "oubliette"}
    assert servers["files"]["command"] == ["files", "-r", "1"]
    assert servers["files"]["environment"] == {"A": "1"}
    assert servers["web"]["oauth"] is False
    assert servers["oubliette"]["command"][-1] == "client"
    assert servers["oubliette"]["environment"]["OUBLIETTE_PAIRING_SECRET"] == "pairing"
    assert not any("PASSWORD" in name for name in command.env)


def test_the_recorded_transcript_sums_up() -> None:
    """What the real program said: every turn once, and every cent of it."""
    adapter = OpencodeAdapter(Opening(cwd="/workspace", autonomy="ask"))
    events = adapter.feed(WIRE.read_bytes(), 0)
    turns = [event.data["turn"] for event in events if event.type == "completion"]
    assert turns == list(range(1, 13))
    paid = [event.data for event in events if event.type == "usage"]
    read, written = (sum(each[key] for each in paid) for key in ("input_tokens", "output_tokens"))
    assert sum(each["cost_usd"] for each in paid) == pytest.approx(read * 3e-6 + written * 15e-6)
    calls = [event.data["call_id"] for event in events if event.type == "tool_call"]
    assert calls == [event.data["call_id"] for event in events if event.type == "tool_result"]
    texts: dict[int, str] = {}
    for event in events:
        if event.type in {"delta", "message"}:
            texts.setdefault(event.data["turn"], "")
            texts[event.data["turn"]] += event.data["text"] if event.type == "message" else ""
    deltas = {
        turn: "".join(
            e.data["text"] for e in events if e.type == "delta" and e.data["turn"] == turn
        )
        for turn in texts
    }
    assert deltas == texts


def test_a_turn_whose_end_was_lost_ends_when_the_next_one_begins() -> None:
    """Its open calls fail with it, and not with the turn that follows."""
    lost = (b'"status":"error","input":{"command":"echo deny"', b'"type":"session.idle"')
    told: list[bytes] = []
    within = False
    for line in LINES:
        within = (within or b"oub00000000004" in line) and b"oub00000000005" not in line
        if not (within and any(each in line for each in lost)):
            told.append(line)
    assert len(told) == len(LINES) - 2
    events = OpencodeAdapter(Opening(cwd="/workspace", autonomy="ask")).feed(b"".join(told), 0)
    turns = [event.data["turn"] for event in events if event.type == "completion"]
    assert turns == list(range(1, 13))
    calls, results = (
        [(event.data["turn"], event.data["call_id"]) for event in events if event.type == kind]
        for kind in ("tool_call", "tool_result")
    )
    assert calls == results


# ------------------------------------------------------------------ what may happen on the way


LINES = WIRE.read_bytes().splitlines(keepends=True)


@given(
    lost=st.sets(st.integers(0, len(LINES) - 1), max_size=12),
    twice=st.sets(st.integers(0, len(LINES) - 1), max_size=12),
    swapped=st.sets(st.integers(0, len(LINES) - 2), max_size=6),
)
def test_whatever_is_lost_repeated_or_late_no_turn_ends_twice_and_no_result_comes_alone(
    lost: set[int], twice: set[int], swapped: set[int]
) -> None:
    lines = list(LINES)
    for place in sorted(swapped):
        lines[place], lines[place + 1] = lines[place + 1], lines[place]
    told = [
        line for place, line in enumerate(lines) if place not in lost
        for _ in range(2 if place in twice else 1)
    ]  # fmt: skip
    adapter = OpencodeAdapter(Opening(cwd="/workspace", autonomy="ask"))
    events = adapter.feed(b"".join(told), 0)
    ended = [event.data["turn"] for event in events if event.type == "completion"]
    assert ended == sorted(set(ended))
    open_calls: set[tuple[int, str]] = set()
    for event in events:
        if event.type == "tool_call":
            open_calls.add((event.data["turn"], event.data["call_id"]))
        elif event.type == "tool_result":
            assert (event.data["turn"], event.data["call_id"]) in open_calls
        elif event.type == "completion":
            assert event.data["status"] in {"completed", "interrupted", "failed"}
