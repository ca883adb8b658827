"""What an agent might say that is hostile or out of its mind: real frames, mutated, and any JSON.

`Conversation` is a function of its seed. `python -m tests.conformance.frames` runs many of them.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import math
import random
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from oubliette.runtime.agents import AgentSession
from oubliette.runtime.agents.opencode.parts import stamp_of
from oubliette.runtime.agents.silence import events_of_silence
from oubliette.runtime.containers import Inside
from tests.conformance.agents import AGENTS

if TYPE_CHECKING:
    from oubliette.runtime.agents import AgentAdapter, AgentEvent
    from tests.conformance.agents import Agent

FIXED = {
    "scripted": [
        {"type": kind, "turn": 1, "call_id": "c", "tool": "t", "arguments": {}, "is_error": False}
        | {"request_id": "r", "text": "x", "cost_usd": 1, "tokens": 2, "input_tokens": 1}
        | {"message": "m", "final_text": "f", "status": "completed", "asks_for": "t: x"}
        for kind in ("tool_call", "tool_result", "permission_request", "usage", "error", "delta")
    ],
    "droid": [
        {"type": "notification", "method": "droid.session_notification", "params": {"notification": n}}
        for n in (
            {"type": "llm_retry", "attempt": 1, "reason": "busy"},
            {"type": "error", "message": "no"},
            {"type": "tool_progress_update", "x": 1},
            {"type": "tool_result", "toolUseId": "call_1", "content": [{"type": "text", "text": "x"}]},
            {"type": "agent_turn_completed", "turnId": "x", "reason": "error", "tokenUsage": {"inputTokens": 1, "outputTokens": 2}},
        )
    ]
    + [
        {"type": "request", "id": "p", "method": "droid.request_permission",
         "params": {"toolUses": [{"toolUse": {"name": "Execute", "input": {"command": "ls"}}, "confirmationType": "exec", "details": {"impactLevel": "low"}}]}},
        {"type": "request", "id": "q", "method": "droid.ask_user", "params": {}},
        {"type": "response", "id": "prompt-1", "error": {"message": "no"}},
        {"type": "response", "id": "load", "result": {}},
        {"type": "response", "id": "load", "error": {"message": "gone"}},
        {"type": "response", "id": "settings", "result": {"sessionId": "s"}},
    ],
    "acp": [
        {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": u}}
        for u in (
            {"sessionUpdate": "usage_update", "cost": {"amount": 1.5, "currency": "USD"}},
            {"sessionUpdate": "plan", "entries": []},
            {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "hm"}},
            {"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed", "rawOutput": {"a": 1}, "rawInput": {"b": 2}, "content": [{"type": "content", "content": {"type": "text", "text": "x"}}]},
        )
    ]
    + [
        {"jsonrpc": "2.0", "id": 7, "method": "session/request_permission",
         "params": {"toolCall": {"toolCallId": "c", "title": "rm", "kind": "execute"}, "options": [{"optionId": "a", "kind": "allow_once"}, {"optionId": "r", "kind": "reject_once"}]}},
        {"jsonrpc": "2.0", "id": 8, "method": "fs/read_text_file", "params": {"path": "x"}},
        {"jsonrpc": "2.0", "id": "prompt-1", "result": {"stopReason": "max_tokens", "usage": {"totalTokens": 3, "inputTokens": 1, "outputTokens": 2}}},
        {"jsonrpc": "2.0", "id": "prompt-1", "error": {"code": 1, "message": "no"}},
        {"jsonrpc": "2.0", "id": "session", "error": {"code": 1, "message": "no"}},
        {"jsonrpc": "2.0", "id": "session-anew", "result": {"sessionId": "s2"}},
        {"jsonrpc": "2.0", "id": "initialize", "result": {"protocolVersion": 1, "agentCapabilities": {"loadSession": True, "sessionCapabilities": {"resume": {}}}}},
    ],
    "opencode": [
        {"bridge": "again"}, {"bridge": "failed", "reason": "x"}, {"bridge": "serving"}, {"oversize": 9},
        {"id": "abort-1", "status": 200, "body": True},
        {"id": "status-1", "status": 200, "body": {}},
        {"id": "prompt-1", "status": 500, "body": {}}, {"id": "prompt-1", "error": "broken"},
        {"id": "session", "status": 404, "body": {}}, {"id": "question", "status": 500, "body": {}},
        {"id": "messages-1", "status": 200, "body": [
            {"info": {"id": f"msg_0123456789ab{stamp_of(1)}", "role": "user", "sessionID": "ses_1"}, "parts": []},
            {"info": {"id": "m2", "role": "assistant", "parentID": f"msg_0123456789ab{stamp_of(1)}", "sessionID": "ses_1", "time": {"completed": 1}, "finish": "stop"},
             "parts": [{"id": "p1", "messageID": "m2", "type": "text", "text": "hello", "time": {"end": 1}}]}]},
    ]
    + [
        {"event": {"type": kind, "properties": {"sessionID": "ses_1", **properties}}}
        for kind, properties in (
            ("session.status", {"status": {"type": "busy"}}),
            ("session.status", {"status": {"type": "retry", "attempt": 2, "message": "m"}}),
            ("session.idle", {}),
            ("session.error", {"error": {"name": "APIError", "data": {"message": "m"}}}),
            ("permission.asked", {"id": "p", "permission": "bash", "patterns": ["ls"], "always": ["ls *"]}),
            ("question.asked", {"id": "q"}),
            ("message.updated", {"info": {"id": "m2", "role": "assistant", "sessionID": "ses_1", "parentID": f"msg_0123456789ab{stamp_of(1)}"}}),
            ("message.part.updated", {"part": {"id": "p", "messageID": "m2", "type": "step-finish", "cost": 1, "tokens": {"input": 1, "output": 2, "reasoning": 3, "cache": {"read": 1, "write": 2}}}}),
            ("message.part.updated", {"part": {"id": "q", "messageID": "m2", "type": "tool", "tool": "bash", "callID": "c", "state": {"status": "running", "input": {}}}}),
        )
    ],
}  # fmt: skip
"""Frames that the recordings lack."""

BIG = "\x01%d\x01"
"""Stands for a number of so many digits; `json` would not write it."""
WORDS = (
    "",
    "completed",
    "assistant",
    "text",
    "tool",
    "ses_1",
    "prompt-1",
    "1",
    "\x00",
    "é\u2028😀",
)


@functools.cache
def frames_of(name: str) -> tuple[dict[str, Any], ...]:
    """What this agent is known to say."""
    agent = next(agent for agent in AGENTS if agent.name == name)
    lines = agent.transcript.splitlines()
    found = [frame for line in lines if isinstance(frame := _json(line), dict)]
    return (*found, *FIXED["acp" if "acp" in name else name])


def _json(line: bytes) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def any_json(chance: random.Random, depth: int = 3) -> Any:
    """Any JSON value; mostly small, sometimes with numbers and texts that hurt."""
    kind = chance.randrange(16 if depth else 12)
    match kind:
        case 0:
            return None
        case 1 | 2:
            return chance.random() < 0.5
        case 3:
            return chance.randrange(-3, 12)
        case 4:
            return chance.choice((1 << 31, 1 << 53, 1 << 64, -(1 << 63) - 1, 10**30, -(10**300)))
        case 5:
            return chance.choice((0.5, -1.5, 1e300, 1e-320, -0.0, 1e16))
        case 6:
            return BIG % chance.choice((40, 308, 309, 400, 4300, 5000))
        case 7:
            return chance.choice(("prompt-", "abort-", "status-", "messages-")) + chance.choice(
                ("9" * 5000, "٣", "²", "-1", "007", "9" * 19, "")
            )
        case 8:
            return stamp_of(chance.randrange(3))
        case 9 | 10 | 11:
            return chance.choice(WORDS)
        case 12 | 13:
            return [any_json(chance, depth - 1) for _ in range(chance.randrange(4))]
        case _:
            names = ("type", "id", "text", "status", "x", "content", "name")
            return {
                chance.choice(names): any_json(chance, depth - 1)
                for _ in range(chance.randrange(4))
            }


def mutated(frame: dict[str, Any], chance: random.Random) -> Any:
    """The frame with some of its values replaced, dropped or moved."""
    frame = copy.deepcopy(frame)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        places = list(_places(frame))
        if not places:
            break
        holder, key = chance.choice(places)
        if chance.random() < 0.15:
            del holder[key]
        elif chance.random() < 0.15:
            other, at = chance.choice(places)
            holder[key] = copy.deepcopy(other[at])
        else:
            holder[key] = any_json(chance)
    return frame


def _places(value: Any) -> Any:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(pairs):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def line_of(frame: Any, chance: random.Random) -> bytes:
    """As a line; now and then a broken one."""
    data = json.dumps(frame, ensure_ascii=chance.random() < 0.5).encode("utf-8", "replace")
    while (at := data.find(b'"\\u0001')) >= 0:
        end = data.index(b'\\u0001"', at + 1)
        data = data[:at] + b"7" * int(data[at + 7 : end]) + data[end + 7 :]
    odd = chance.randrange(200)
    if odd == 0:
        data = data[: chance.randrange(len(data) + 1)]
    elif odd == 1:
        depth = chance.choice((90, 300, 900, 3000))
        data = data.replace(b"{}", b"[" * depth + b"]" * depth, 1)
    elif odd == 2:
        data = data.replace(b'"text"', b'"\\ud800"')
    return data.replace(b"\n", b" ") + b"\n"


class Conversation:
    """Some phases of output; between two of them somebody says something to the agent."""

    def __init__(self, agent: Agent, seed: int, frames: int = 40) -> None:
        self.agent = agent
        self.name = f"{agent.name} seed {seed}"
        chance = random.Random(f"{agent.name} {seed}")  # noqa: S311 -- to be repeated
        self._chance = chance
        self._autonomy = chance.choice(("off", "ask"))
        self._known = chance.choice((None, "ses_1"))
        known = frames_of(agent.name)
        start = chance.choice((0, 0, 0, chance.randrange(len(known))))
        self.phases: list[list[bytes]] = []
        rate = chance.choice((0.05, 0.3, 0.9))
        count = 0
        while count < frames:
            phase: list[bytes] = []
            for _ in range(min(frames - count, chance.choice((1, 4, 10, 30)))):
                if chance.random() < 0.6:
                    frame: Any = known[(start + count) % len(known)]
                else:
                    frame = chance.choice(known)
                if chance.random() < rate:
                    frame = mutated(frame, chance)
                elif chance.random() < 0.03:
                    frame = any_json(chance)
                phase.append(line_of(frame, chance))
                count += 1
            self.phases.append(phase)
        self._inputs = [chance.randrange(6) for _ in self.phases]

    def adapter(self) -> AgentAdapter:
        """A fresh one."""
        session = AgentSession(
            session_id="gogol_1",
            project_id="proj_1",
            depth=0,
            cwd="/workspace",
            home="/home/agent/gogol_1",
            pairing_secret="secret",
            autonomy=self._autonomy,
            agent_session_id=self._known,
        )
        return self.agent.runtime().adapter(session, Inside())

    def check(self) -> int:
        """Hear it whole and cut; the number of its frames.

        Raises:
            AssertionError: the two differ, or an event is none.
        """
        whole, cut = self.adapter(), self.adapter()
        offset = turn = 0
        assert whole.writes() == cut.writes(), self.name
        for number, phase in enumerate(self.phases):
            data = b"".join(phase)
            events = whole.feed(data, offset)
            said = whole.writes()
            in_pieces: list[AgentEvent] = []
            said_in_pieces: list[bytes] = []
            for start, end in self._cuts(phase, len(data)):
                in_pieces += cut.feed(data[start:end], offset + start)
                said_in_pieces += cut.writes()
            if number % 2:
                events += events_of_silence(whole)
                in_pieces += events_of_silence(cut)
            told = f"{self.name} phase {number}"
            assert in_pieces == events, told
            assert said_in_pieces == said, told
            assert _state(cut) == _state(whole), told
            for event in events:
                check_event(event, told)
                if event.type == "permission_request" and whole.ready:
                    asked = event.data["request_id"]
                    for adapter in (whole, cut):
                        _check_frame(adapter.permission(asked, "deny"), told)
            offset += len(data)
            turn = self._say(number, turn, whole, cut)
        return sum(map(len, self.phases))

    def _cuts(self, phase: list[bytes], size: int) -> list[tuple[int, int]]:
        ends: set[int] = {0, size}
        if self._chance.random() < 0.5:
            at = 0
            for line in phase:
                at += len(line)
                ends.add(at)
        ends |= {self._chance.randrange(size + 1) for _ in range(self._chance.randrange(6))}
        edges = sorted(ends)
        return list(zip(edges, edges[1:], strict=False))

    def _say(self, number: int, turn: int, *adapters: AgentAdapter) -> int:
        if not adapters[0].ready:
            return turn
        match self._inputs[number]:
            case 0 | 1 | 2:
                turn += 1
                for adapter in adapters:
                    _check_frame(adapter.prompt(turn, "go on"), self.name)
            case 3 if turn:
                first, second = (adapter.interrupt(turn) for adapter in adapters)
                assert first == second, self.name
            case _:
                pass
        return turn


def _state(adapter: AgentAdapter) -> tuple[Any, ...]:
    return adapter.ready, adapter.failed, adapter.steps, adapter.state()


def _check_frame(data: bytes, told: str) -> None:
    assert data.endswith(b"\n"), told
    json.loads(data)


NEEDED: dict[str, dict[str, Any]] = {
    "turn_started": {},
    "delta": {"text": str},
    "message": {"text": str},
    "tool_call": {"call_id": str, "tool": str, "arguments": dict},
    "tool_result": {"call_id": str, "tool": str, "is_error": bool, "result": object},
    "permission_request": {"request_id": str, "text": str},
    "usage": {"tokens": int},
    "error": {"message": str},
    "completion": {"final_text": str, "status": str},
}


def check_event(event: AgentEvent, told: str) -> None:
    """It holds what readers rely on, and can be stored."""
    data = event.data
    told = f"{told}: {event.type} {str(data)[:300]}"
    text = msgspec.json.encode(data)
    assert msgspec.json.decode(text) == data, told
    assert _depth(data) <= 210, told
    if event.type in {"ready", "system"}:
        return
    needed = NEEDED[event.type]
    assert type(data.get("turn")) is int, told
    for name, kind in needed.items():
        assert name in data or kind is object, told
        if kind is not object:
            assert type(data[name]) is kind, told
    if event.type == "usage":
        cost = data.get("cost_usd", 0)  # absent: unknown
        assert type(cost) in {int, float}, told
        assert math.isfinite(cost), told
        assert cost >= 0, told
        for name in ("tokens", "input_tokens", "output_tokens"):
            assert type(data.get(name, 0)) is int, told
            assert 0 <= data.get(name, 0) < 1 << 53, told
    if event.type == "completion":
        assert data["status"] in {"completed", "interrupted", "failed"}, told


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
    return depth


def main() -> int:
    """Run conversations until there were so many frames; print what went wrong."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    began, frames, failures, seed = time.process_time(), 0, 0, arguments.seed
    while frames < arguments.frames:
        for agent in AGENTS:
            conversation = Conversation(agent, seed)
            try:
                frames += conversation.check()
            except Exception as error:  # noqa: BLE001 -- whatever an adapter raises is reported
                failures += 1
                frames += sum(map(len, conversation.phases))
                if failures <= 20:
                    print(f"{conversation.name}: {type(error).__name__}: {str(error)[:300]}")
        seed += 1
    seconds = time.process_time() - began
    print(f"{frames} frames, seeds {arguments.seed} to {seed - 1}, {failures} failures,"
          f" {seconds:.0f} s of a processor")  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
