"""The scripted agent: every directive, and how its turns begin and end."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from oubliette.incontainer.scripted_agent.main import ScriptedAgent
from tests.unit.incontainer.fake_server import (
    ADD,
    SCRIPTED,
    SECONDS,
    FakeServer,
    LineProcess,
    environment,
)

pytestmark = pytest.mark.anyio

UNREACHABLE = "/tmp/there-is-no-such-relay.sock"


class ScriptedProcess(LineProcess):
    """A scripted agent with a home of its own."""

    def __init__(self, home, path=UNREACHABLE, **more):
        super().__init__(
            SCRIPTED, environment(path, OUBLIETTE_AGENT_HOME=str(home), **more), cwd=home
        )
        self._turn = 0

    async def __aenter__(self):
        await super().__aenter__()
        assert await self.receive() == {
            "type": "ready",
            "turn": 0,
            "agent": "scripted",
            "version": "0.1.0",
        }
        return self

    def prompt(self, text):
        self._turn += 1
        self.send({"type": "prompt", "turn": self._turn, "text": text})
        return self._turn

    async def until(self, kind, turn=None):
        """The events up to the next one of that kind."""
        events = []
        while True:
            event = await self.receive()
            events.append(event)
            if event["type"] == kind and turn in (None, event["turn"]):
                return events

    async def turn(self, text):
        """Run one turn; its events."""
        number = self.prompt(text)
        events = await self.until("completion")
        assert {event["turn"] for event in events} == {number}
        assert events[0]["type"] == "turn_started"
        return events

    async def says(self, text):
        """Run one turn that completes; its last message."""
        events = await self.turn(text)
        assert events[-1]["status"] == "completed", events
        assert events[-2] == {
            "type": "message",
            "turn": self._turn,
            "text": events[-1]["final_text"],
        }
        return events[-1]["final_text"]

    async def fails(self, text):
        """Run one turn that fails; its error."""
        events = await self.turn(text)
        assert events[-1]["status"] == "failed", events
        (error,) = [event["message"] for event in events if event["type"] == "error"]
        return error


@pytest.fixture
def agent(tmp_path):
    return ScriptedProcess(tmp_path)


def messages(events):
    return [event["text"] for event in events if event["type"] == "message"]


async def test_text_is_said_back_and_a_turn_ends_with_its_last_message(agent):
    async with agent:
        events = await agent.turn(
            "hello there\n\nsay  hi é \nsayings are no directive\ntools are none here"
        )
        assert messages(events) == [
            "hello there",
            "hi é",
            "sayings are no directive",
            "tools are none here",
        ]
        assert events[-1] == {
            "type": "completion",
            "turn": 1,
            "final_text": "tools are none here",
            "status": "completed",
        }


async def test_an_empty_prompt_completes_with_nothing_said(agent):
    async with agent:
        assert [event["type"] for event in await agent.turn("  \n ")] == [
            "turn_started",
            "completion",
        ]


async def test_tools_names_what_the_client_lists(tmp_path):
    async with FakeServer(ADD) as server, ScriptedProcess(tmp_path, server.path) as agent:
        assert json.loads(await agent.says("tools")) == [
            "session_message",
            "session_map",
            "session_events",
            "ant_add",
        ]


@pytest.mark.parametrize("version", ["2025-11-25", "2024-11-05", "2026-07-28"])
async def test_call_says_the_outcome_and_tells_of_call_and_result(tmp_path, version):
    async with (
        FakeServer(ADD) as server,
        ScriptedProcess(tmp_path, server.path, OUBLIETTE_AGENT_MCP_VERSION=version) as agent,
    ):
        agent.prompt('tools\ncall ant_add {"a": 1}')
        link = await server.link()
        request = await link.request()
        assert request["params"]["arguments"] == {"a": 1}
        link.answer(request, {"sum": 2})
        events = await agent.until("completion")
        call, result = events[2], events[3]
        assert (call["type"], call["tool"], call["arguments"]) == ("tool_call", "ant_add", {"a": 1})
        assert (result["type"], result["call_id"], result["tool"]) == (
            "tool_result",
            call["call_id"],
            "ant_add",
        )
        assert (result["is_error"], result["result"]) == (False, {"sum": 2})
        outcome = json.loads(events[-1]["final_text"])
        assert outcome.pop("elapsed_ms") > 0
        assert outcome == {
            "tool": "ant_add",
            "is_error": False,
            "text": '{"sum": 2}',
            "structured": {"sum": 2},
        }


async def test_a_failed_call_is_an_outcome_and_the_turn_goes_on(tmp_path):
    async with FakeServer(ADD) as server, ScriptedProcess(tmp_path, server.path) as agent:
        agent.prompt("call ant_add\ncall no_such_tool {}\nsay on")
        link = await server.link()
        link.fail(await link.request(), -32000, "recipient not found", "tool_error")
        link.provides_no(await link.request())
        events = await agent.until("completion")
        first, second, last = messages(events)
        assert (json.loads(first)["is_error"], json.loads(first)["text"]) == (
            True,
            "recipient not found",
        )
        assert json.loads(second)["is_error"] is True
        assert "no_such_tool" in json.loads(second)["text"]
        assert last == "on"


async def test_parallel_runs_its_calls_at_the_same_time_and_keeps_their_order(tmp_path):
    async with FakeServer(ADD) as server, ScriptedProcess(tmp_path, server.path) as agent:
        agent.prompt('parallel\ncall ant_add {"a": 0}\n\n call ant_add {"a": 1}\ncall nope\nend')
        link = await server.link()
        requests = [await link.request() for _ in range(3)]
        link.provides_no(requests[2])
        link.answer(requests[1], "second")
        results = await agent.until("tool_result")
        while "second" not in str(results[-1]):
            results += await agent.until("tool_result")
        link.answer(requests[0], "first")
        events = await agent.until("completion")
        outcomes = json.loads(events[-1]["final_text"])
        assert [outcome["text"] for outcome in outcomes[:2]] == ["first", "second"]
        assert outcomes[0]["elapsed_ms"] > outcomes[1]["elapsed_ms"]
        assert outcomes[2]["is_error"] is True


async def test_repeat_calls_in_sequence_and_counts_errors(tmp_path):
    async with FakeServer(ADD) as server, ScriptedProcess(tmp_path, server.path) as agent:
        agent.prompt('repeat 3 call ant_add {"a": 1}')
        link = await server.link()
        for number in range(3):
            request = await link.request()
            if number == 1:
                link.fail(request, -32000, "no")
            else:
                link.answer(request, 1)
        said = json.loads((await agent.until("completion"))[-1]["final_text"])
        assert (said["count"], said["errors"], len(said["elapsed_ms"])) == (3, 1, 3)


async def test_await_tool_waits_for_the_change_of_the_list(tmp_path):
    async with FakeServer(ADD) as server, ScriptedProcess(tmp_path, server.path) as agent:
        assert await agent.says("await-tool ant_add 5") == "true"
        assert await agent.says("await-tool ant_late 0.05") == "false"
        link = await server.link()
        agent.prompt("await-tool ant_late 5")
        await agent.until("turn_started")
        link.config({"name": "other"})
        link.config({"name": "late"})
        assert (await agent.until("completion"))[-1]["final_text"] == "true"


async def test_await_tool_hears_of_it_in_the_newer_generation_too(tmp_path):
    async with (
        FakeServer(ADD) as server,
        ScriptedProcess(tmp_path, server.path, OUBLIETTE_AGENT_MCP_VERSION="2026-07-28") as agent,
    ):
        await agent.says("tools")
        link = await server.link()
        agent.prompt("await-tool ant_late 5")
        await agent.until("turn_started")
        link.config({"name": "late"})
        assert (await agent.until("completion"))[-1]["final_text"] == "true"


async def test_emit_sends_deltas_of_the_size_asked_for(agent):
    async with agent:
        events = await agent.turn("emit 3\nemit 2 1000000\nemit 0\nemit 1 0")
        sizes = [len(event["text"]) for event in events if event["type"] == "delta"]
        assert sizes == [32, 32, 32, 1000000, 1000000, 0]
        assert messages(events) == ["emitted 3", "emitted 2", "emitted 0", "emitted 1"]


async def test_stderr_gets_as_many_bytes_as_asked_for(agent):
    async with agent:
        assert await agent.says("stderr 10000") == "wrote 10000 bytes to stderr"
        code, stderr = await agent.end()
        assert (code, len(stderr)) == (0, 10000)


async def test_exec_runs_a_shell_command_in_the_workspace(agent, tmp_path):
    async with agent:
        said = json.loads(await agent.says("exec pwd; echo wrong >&2; exit 3"))
        assert said == {"exit_code": 3, "stdout": f"{tmp_path}\n", "stderr": "wrong\n"}


async def test_exec_says_how_a_command_was_killed_and_reads_no_stdin(agent):
    async with agent:
        assert json.loads(await agent.says("exec cat; kill -9 $$"))["exit_code"] == -9


async def test_exec_caps_what_it_keeps_and_drains_the_rest(agent):
    async with agent:
        said = json.loads(
            await agent.says(
                "exec head -c 3000000 /dev/zero | tr '\\0' x; head -c 300000 /dev/zero >&2"
            )
        )
        assert (said["exit_code"], said["truncated"]) == (0, True)
        assert len(said["stdout"]) == len(said["stderr"]) == 256 * 1024


async def test_exec_does_not_wait_for_what_a_command_leaves_behind(agent):
    async with agent:
        said = json.loads(await agent.says("exec echo started; sleep 60 & echo $!"))
        started, pid = said["stdout"].split()
        assert started == "started"
        os.kill(int(pid), signal.SIGKILL)


async def test_exec_sees_neither_the_key_nor_the_pairing_secret(tmp_path):
    async with (
        FakeServer() as server,
        ScriptedProcess(tmp_path, server.path, OUBLIETTE_API_KEY="oub_k") as agent,
    ):
        said = json.loads(await agent.says("exec env | sort"))
        assert "OUBLIETTE_PROJECT_ID=proj_1" in said["stdout"]
        assert "s3cret" not in said["stdout"]
        assert "oub_k" not in said["stdout"]
        agent.prompt("tools")  # but the client has both
        link = await server.link()
        assert link.header.endswith(" s3cret")
        asked = await link.request()
        assert asked["params"] == {"api_key": "oub_k"}
        link.answer(asked, {"tools": []})


async def test_what_was_remembered_is_there_after_a_restart(tmp_path):
    async with ScriptedProcess(tmp_path) as agent:
        assert await agent.says("recall colour") == ""
        assert await agent.says("remember colour dark blue é") == "remembered colour"
        assert await agent.says("remember other x") == "remembered other"
    async with ScriptedProcess(tmp_path) as agent:
        assert await agent.says("recall colour") == "dark blue é"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["state.json", "turns.json"]


async def test_a_broken_state_fails_the_turn_and_not_the_agent(tmp_path):
    (tmp_path / "state.json").write_text("{")
    async with ScriptedProcess(tmp_path) as agent:
        assert "state.json" in await agent.fails("recall colour")
        assert await agent.says("say on") == "on"


async def test_a_number_that_no_json_has_fails_the_turn_and_not_the_agent(agent):
    async with agent:
        assert "not JSON" in await agent.fails('call add {"x": 1e400}')
        assert await agent.says("say on") == "on"


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_ask_waits_for_the_decision_on_its_own_request(agent, decision):
    async with agent:
        agent.prompt("ask may I?")
        request = (await agent.until("permission_request"))[-1]
        assert request["text"] == "may I?"
        agent.send({"type": "permission", "request_id": "another", "decision": "deny"})
        agent.send(
            {
                "type": "permission",
                "request_id": request["request_id"],
                "decision": decision,
                "reason": "x",
            }
        )
        assert (await agent.until("completion"))[-1]["final_text"] == decision


async def test_usage_is_reported(agent):
    async with agent:
        events = await agent.turn("usage 0.25 1200")
        assert events[1] == {"type": "usage", "turn": 1, "cost_usd": 0.25, "tokens": 1200}


async def test_fail_ends_the_turn_and_the_agent_lives(agent):
    async with agent:
        events = await agent.turn("say before\nfail out of luck\nsay never")
        assert messages(events) == ["before"]
        assert events[-2] == {"type": "error", "turn": 1, "message": "out of luck"}
        assert events[-1] == {
            "type": "completion",
            "turn": 1,
            "final_text": "before",
            "status": "failed",
        }
        assert await agent.says("say on") == "on"


async def test_crash_ends_the_process_at_once(agent):
    async with agent:
        agent.prompt("say before\ncrash 7\nsay never")
        assert (await agent.until("message"))[-1]["text"] == "before"
        assert await agent.exited() == (7, "")
        assert await agent.stdout.read() == b""


@pytest.mark.parametrize(
    "line",
    [
        "call", "call x {bad", "call x [1]", "call x 5", "repeat", "repeat x call y", "repeat 3 say y",
        "repeat -1 call y", "await-tool x", "await-tool x soon", "sleep", "sleep -1", "sleep inf", "sleep nan",
        "emit", "emit x", "emit 1 2 3", "emit 1 99999999999", "stderr x", "exec", "remember key", "recall",
        "ask", "usage 1", "usage x 1", "crash x", "crash 256", "end", "parallel\nsay x\nend", "parallel\ncall x {}",
        "parallel\nparallel\nend\nend",
    ],
)  # fmt: skip
async def test_a_malformed_directive_fails_the_turn_naming_the_line_and_nothing_runs(agent, line):
    async with agent:
        events = await agent.turn(f"say before\n{line}")
        assert [event["type"] for event in events] == ["turn_started", "error", "completion"]
        assert events[1]["message"].startswith("line 2: ")
        assert events[2]["status"] == "failed"


# ---------------------------------------------------------------- interrupts, queues, ends


async def test_an_interrupt_ends_a_sleep_and_the_next_turn_runs(agent):
    async with agent:
        agent.prompt("say before\nsleep 60\nsay never")
        await agent.until("message")
        agent.send({"type": "interrupt", "turn": 1})
        assert (await agent.receive()) == {
            "type": "completion",
            "turn": 1,
            "final_text": "before",
            "status": "interrupted",
        }
        assert await agent.says("sleep 0.01") == "slept"


async def test_an_interrupt_cancels_pending_calls_at_the_server(tmp_path):
    async with FakeServer(ADD) as server, ScriptedProcess(tmp_path, server.path) as agent:
        agent.prompt("parallel\ncall ant_add {}\ncall ant_add {}\nend")
        link = await server.link()
        requests = {(await link.request("caller_tool"))["id"] for _ in range(2)}
        agent.send({"type": "interrupt", "turn": 1})
        assert (await agent.until("completion"))[-1]["status"] == "interrupted"
        cancelled = {
            (await link.request("notifications/cancelled"))["params"]["requestId"] for _ in range(2)
        }
        assert cancelled == requests
        agent.prompt("call ant_add")
        link.answer(await link.request("caller_tool"), "works on")
        assert "works on" in (await agent.until("completion"))[-1]["final_text"]


async def test_an_interrupt_kills_a_command_and_its_children(agent, tmp_path):
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    async with agent:
        agent.prompt("exec (trap '' TERM; echo up; sleep 60) > alive | cat")
        with fifo.open("rb") as alive:  # its end of file: nobody of the group is left
            assert await asyncio.to_thread(alive.readline) == b"up\n"
            agent.send({"type": "interrupt", "turn": 1})
            assert (await agent.until("completion"))[-1]["status"] == "interrupted"
            async with asyncio.timeout(SECONDS):
                assert await asyncio.to_thread(alive.read) == b""


@pytest.mark.parametrize("line", ["ask may I?", "await-tool nothing 60", "emit 10000000"])
async def test_an_interrupt_ends_any_wait(agent, line):
    async with agent:
        agent.prompt(f"say before\n{line}")
        await agent.until("message")
        agent.send({"type": "interrupt", "turn": 1})
        assert (await agent.until("completion"))[-1]["status"] == "interrupted"
        assert await agent.says("say on") == "on"


async def test_prompts_that_arrive_while_it_is_busy_are_queued(agent):
    async with agent:
        agent.prompt("ask first?")
        request = (await agent.until("permission_request"))[-1]
        agent.prompt("say second")
        agent.prompt("say third")
        agent.send({"type": "permission", "request_id": request["request_id"], "decision": "allow"})
        events = await agent.until("completion", turn=3)
        completions = [
            (event["turn"], event["final_text"])
            for event in events
            if event["type"] == "completion"
        ]
        assert completions == [(1, "allow"), (2, "second"), (3, "third")]


async def test_a_queued_prompt_can_be_interrupted_and_has_its_completion(agent):
    async with agent:
        agent.prompt("ask first?")
        request = (await agent.until("permission_request"))[-1]
        agent.prompt("say never")
        agent.send({"type": "interrupt", "turn": 2})
        assert (await agent.receive()) == {
            "type": "completion",
            "turn": 2,
            "final_text": "",
            "status": "interrupted",
        }
        agent.send({"type": "permission", "request_id": request["request_id"], "decision": "allow"})
        assert (await agent.until("completion"))[-1]["turn"] == 1


async def test_an_interrupt_of_a_turn_that_has_ended_changes_nothing(agent):
    async with agent:
        await agent.says("say one")
        agent.send(
            {"type": "interrupt", "turn": 1},
            {"type": "interrupt", "turn": 99},
            {"type": "interrupt"},
        )
        assert await agent.says("sleep 0.01") == "slept"


async def test_a_line_that_is_no_message_is_an_error_and_serving_goes_on(agent):
    async with agent:
        for line in (b"garbage", b"\xff", b"[]", b"{}", b'{"type": "other"}', b"[" * 100_000):
            agent.send(line)
            assert (await agent.receive())["type"] == "error"
        agent.send(b"")
        assert await agent.says("say on") == "on"


async def test_a_client_that_died_is_started_again_at_the_next_use(tmp_path):
    async with FakeServer(ADD) as server, ScriptedProcess(tmp_path, server.path) as agent:
        await agent.says("tools")
        await server.link()
        children = await asyncio.to_thread(os.popen, f"pgrep -P {agent.process.pid}")
        with children:
            (client,) = map(int, children.read().split())
        end = os.pidfd_open(client)
        os.kill(client, signal.SIGKILL)
        assert await asyncio.to_thread(select.select, [end], [], [], SECONDS) == ([end], [], [])
        os.close(end)
        agent.prompt("call ant_add")
        link = await server.link()
        link.answer(await link.request(), "again")
        assert "again" in (await agent.until("completion"))[-1]["final_text"]


async def test_a_client_that_cannot_start_fails_the_turn_with_a_reason(tmp_path):
    async with ScriptedProcess(tmp_path, OUBLIETTE_PROJECT_ID=None) as agent:
        assert "oubliette-client" in await agent.fails("call session_events {}")
        assert await agent.says("say on") == "on"


def test_an_agent_without_room_for_a_thread_ends_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    agent: Any = SimpleNamespace(moment=None)
    with pytest.raises(SystemExit, match="no more thread .* its limit of processes"):
        ScriptedAgent(agent, 1).run()


async def test_the_end_of_stdin_lets_the_turns_finish_and_denies_what_is_asked(agent):
    async with agent:
        agent.prompt("ask may I?")
        agent.prompt("say last")
        agent.stdin.close()
        events = await agent.until("completion", turn=2)
        assert [event["final_text"] for event in events if event["type"] == "completion"] == [
            "deny",
            "last",
        ]
        assert (await agent.exited())[0] == 0


async def test_sigterm_ends_it_and_what_it_runs(agent, tmp_path):
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    async with agent:
        agent.prompt("exec (echo up; sleep 60) > alive")
        with fifo.open("rb") as alive:
            assert await asyncio.to_thread(alive.readline) == b"up\n"
            agent.process.send_signal(signal.SIGTERM)
            assert (await agent.exited())[0] == 0
            async with asyncio.timeout(SECONDS):
                assert await asyncio.to_thread(alive.read) == b""
