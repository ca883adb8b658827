"""The libraries of the agents' protocols judge what we say, and read recordings as we do.

Our adapters use plain objects, because a later release of an agent may say more than a type knows,
and because an adapter has to know the place of each line. So the types stand here instead.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from oubliette.runtime.agents import AcpAdapter, AgentSession, DroidAdapter, DroidRuntime
from oubliette.runtime.agents.acp.runtime import opening
from oubliette.runtime.containers import Inside

WIRE = Path(__file__).parents[3] / "conformance" / "wire"
METHODS = {
    "initialize": "InitializeRequest",
    "session/new": "NewSessionRequest",
    "session/load": "LoadSessionRequest",
    "session/resume": "ResumeSessionRequest",
    "session/prompt": "PromptRequest",
    "session/cancel": "CancelNotification",
}


def acp(model: str) -> Any:
    """A model of ACP's library.

    It and Droid's are imported by the tests that run: at collection both would cost every process
    more than a second.
    """
    return getattr(importlib.import_module("acp.schema"), model)


def droid(module: str, model: str) -> Any:
    """A model of Droid's library."""
    return getattr(importlib.import_module(f"droid_sdk.schemas.{module}"), model)


def session(**fields: Any) -> AgentSession:
    told = {
        "session_id": "gogol_1",
        "project_id": "proj_1",
        "depth": 0,
        "cwd": "/workspace",
        "home": "/home/agent/gogol_1",
        "pairing_secret": "secret",
        "mcp_servers": {"tracker": {"command": "tracker", "args": ["-v"], "env": {"A": "b"}}},
    }
    return AgentSession(**{**told, **fields})


def said(frames: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for frame in frames for line in frame.splitlines()]


def line(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"


# ---------------------------------------------------------------- ACP


def check(message: dict[str, Any]) -> Any:
    assert message["jsonrpc"] == "2.0"
    return acp(METHODS[message["method"]]).model_validate(message["params"])


@pytest.mark.parametrize(
    ("can", "method"),
    [
        ({}, "session/new"),
        ({"loadSession": True}, "session/load"),
        ({"loadSession": True, "sessionCapabilities": {"resume": {}}}, "session/resume"),
    ],
)
def test_what_we_say_to_acp_agents_is_the_protocol(can: dict[str, Any], method: str) -> None:
    adapter = AcpAdapter(opening(session(agent_session_id="before", autonomy="ask"), Inside()))
    (hello,) = said(adapter.writes())
    assert check(hello).protocol_version == importlib.import_module("acp").PROTOCOL_VERSION == 1
    answer = {"protocolVersion": 1, "agentCapabilities": can}
    offset = line({"id": "initialize", "result": answer})
    adapter.feed(offset, 0)
    (opened,) = said(adapter.writes())
    assert opened["method"] == method
    servers = check(opened).mcp_servers
    assert [server.name for server in servers] == ["oubliette", "tracker"]
    assert servers[0].args == ["-I", "-S", Inside().zipapp, "client"]
    adapter.feed(line({"id": "session", "result": {"sessionId": "before"}}), len(offset))
    assert check(said([adapter.prompt(1, "hi")])[0]).prompt[0].text == "hi"
    (cancel,) = said([adapter.interrupt(1) or b""])
    assert check(cancel).session_id == "before"


@pytest.mark.parametrize("decision", ["allow", "deny"])
def test_our_decisions_are_the_protocol(decision: Any) -> None:
    """For once rather than for good, by the agent's own option; by any adapter."""
    adapter = AcpAdapter(opening(session(autonomy="ask"), Inside()), {"ready": True})
    request = {
        "sessionId": "s",
        "toolCall": {"toolCallId": "c", "title": "rm", "kind": "execute"},
        "options": [
            {"optionId": "a1", "name": "Always", "kind": "allow_always"},
            {"optionId": "a2", "name": "Once", "kind": "allow_once"},
            {"optionId": "r", "name": "No", "kind": "reject_once"},
        ],
    }
    acp("RequestPermissionRequest").model_validate(request)
    asked = line({"id": 7, "method": "session/request_permission", "params": request})
    (event,) = [each for each in adapter.feed(asked, 0) if each.type == "permission_request"]
    another = AcpAdapter(opening(session(), Inside()), {"ready": True})
    (answer,) = said([another.permission(event.data["request_id"], decision)])
    assert answer["id"] == 7
    outcome = acp("RequestPermissionResponse").model_validate(answer["result"]).outcome
    assert getattr(outcome, "option_id", None) == {"allow": "a2", "deny": "r"}[decision]
    (cancelled,) = said([another.permission("of nobody", decision)])
    assert acp("RequestPermissionResponse").model_validate(cancelled["result"])


def test_a_recording_of_acp_is_read_as_the_library_reads_it() -> None:
    recorded = (WIRE / "opencode_acp.jsonl").read_bytes()
    chunks, results = [], {}
    for raw in recorded.splitlines():
        message = json.loads(raw)
        if message.get("method") != "session/update":
            continue
        update = acp("SessionNotification").model_validate(message["params"]).update
        if update.session_update == "agent_message_chunk":
            chunks.append(update.content.text)
        elif update.session_update == "tool_call_update" and update.status in {
            "completed",
            "failed",
        }:
            results[update.tool_call_id] = update.status == "failed"
    events = AcpAdapter(opening(session(autonomy="ask"), Inside())).feed(recorded, 0)
    assert [event.data["text"] for event in events if event.type == "delta"] == chunks
    told = {e.data["call_id"]: e.data["is_error"] for e in events if e.type == "tool_result"}
    assert told == results
    called = {event.data["call_id"] for event in events if event.type == "tool_call"}
    assert called == set(results)
    texts = "".join(event.data["text"] for event in events if event.type == "message")
    assert texts == "".join(chunks)


# ---------------------------------------------------------------- Droid


def judged(frame: bytes) -> Any:
    (message,) = said([frame])
    return droid("client", "ClientRequest").model_validate(message).root


@pytest.mark.parametrize("autonomy", ["off", "high", "medium", "low", "ask"])
@pytest.mark.parametrize("known", [None, "before"])
def test_what_we_say_to_droid_is_the_protocol(autonomy: str, known: str | None) -> None:
    runtime = DroidRuntime({"model": "m"})
    told = session(autonomy=autonomy, agent_session_id=known)
    adapter = runtime.adapter(told, Inside())
    (hello,) = adapter.writes()
    opened = judged(hello)
    names = [server.name for server in opened.params.mcp_servers or []]
    assert names[:1] == ["oubliette"] or known is not None
    if known is not None:
        assert opened.params.session_id == "before"
        answer = {"type": "response", "id": opened.id, "result": {}}
        adapter.feed(line(answer), 0)
        again = judged(adapter.writes()[0])
        # What a resume has forgotten.
        level = {"off": "high", "ask": "off"}.get(autonomy, autonomy)
        assert again.params.autonomy_level.value == level
    prompt = judged(adapter.prompt(3, "hi"))
    assert prompt.params.text == "hi"
    assert judged(adapter.interrupt(3) or b"").method.endswith("interrupt_session")
    for decision in ("allow", "deny"):
        (answer,) = said([adapter.permission("id", decision)])
        droid("cli", "RequestPermissionResult").model_validate(answer["result"])


def test_a_recording_of_droid_is_read_as_the_library_reads_it() -> None:
    recorded = (WIRE / "droid.jsonl").read_bytes()
    deltas, results = [], {}
    for raw in recorded.splitlines():
        message = json.loads(raw)
        if "method" not in message:
            continue
        root = droid("cli", "CliRequestOrNotification").model_validate(message).root
        if not str(message["method"]).endswith("session_notification"):
            continue
        note = root.params.notification
        note = getattr(note, "root", note)
        kind = message["params"]["notification"]["type"]
        if kind == "assistant_text_delta":
            deltas.append(note.text_delta)
        elif kind == "tool_result":
            results[note.tool_use_id] = bool(note.is_error)
    told = session(autonomy="ask")
    adapter = DroidRuntime({"model": "m"}).adapter(told, Inside())
    assert isinstance(adapter, DroidAdapter)
    events = adapter.feed(recorded, 0)
    assert [event.data["text"] for event in events if event.type == "delta"] == deltas
    found = {e.data["call_id"]: e.data["is_error"] for e in events if e.type == "tool_result"}
    assert found == {call_id: found.get(call_id, failed) for call_id, failed in results.items()}
    # Told twice at an interrupt: once here.
    ended = [event.data["call_id"] for event in events if event.type == "tool_result"]
    assert len(ended) == len(set(ended)) == len(results)
