"""The runner of an agent in Python, as a program of its own, with a relay that a test plays."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import textwrap
import zipfile

import pytest

from oubliette.runtime.zipapp import zipapp_path
from tests import requirements
from tests.unit.incontainer.fake_server import ADD, SECONDS, FakeServer, LineProcess, environment

pytestmark = pytest.mark.anyio

UNREACHABLE = "/tmp/there-is-no-such-relay.sock"
OLDEST = requirements.python39()


class RunnerProcess(LineProcess):
    """The runner with the function `agent` of this source."""

    def __init__(self, home, source, path=UNREACHABLE, *, python=sys.executable, **more):
        folder = home / ".oubliette-agent"
        folder.mkdir(exist_ok=True)
        with zipfile.ZipFile(folder / "agent.zip", "w") as archive:
            archive.writestr("mine.py", textwrap.dedent(source))
            archive.writestr("side.py", "NAME = 'side'")
        zipapp = str(zipapp_path())
        settings = {
            "name": "mine",
            "archive": str(folder / "agent.zip"),
            "module": "__main__",
            "file": "mine.py",
            "function": "agent",
            "packages": [],
            "client": [python, "-I", "-S", zipapp, "client"],
            **more,
        }
        argv = [python, "-s", zipapp, "python-agent", json.dumps(settings)]
        given = {"OUBLIETTE_AGENT_HOME": str(home), "OUBLIETTE_WORKSPACE": str(home)}
        super().__init__(argv, environment(path, **given), cwd=home)
        self._turn = 0

    async def ready(self):
        event = await self.receive()
        assert (event["type"], event["agent"]) == ("ready", "mine")

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
            if event["type"] == kind and turn in {None, event["turn"]}:
                return events

    async def turn(self, text):
        """Run one turn; its events."""
        self.prompt(text)
        return await self.until("completion")

    async def answer(self, text):
        """Run one turn; its final text."""
        end = (await self.turn(text))[-1]
        assert end["status"] == "completed", end
        return end["final_text"]

    async def refused(self):
        """Its standard error, once it has ended with code 1."""
        async with asyncio.timeout(SECONDS):
            _, err = await self.process.communicate()
        assert self.process.returncode == 1
        return err.decode()


ECHO = """
    import oubliette, side, sys
    @oubliette.agent
    async def agent(turn):
        yield turn.prompt
        yield " " + side.NAME
"""


async def test_pieces_are_deltas_and_one_message(tmp_path):
    async with RunnerProcess(tmp_path, ECHO) as agent:
        await agent.ready()
        kinds = [(event["type"], event.get("text")) for event in await agent.turn("hello")]
        assert kinds == [
            ("turn_started", None),
            ("delta", "hello"),
            ("delta", " side"),
            ("message", "hello side"),
            ("completion", None),
        ]


@pytest.mark.requires("python3.9")
async def test_it_runs_on_the_oldest_python(tmp_path):
    source = """
        import oubliette
        @oubliette.agent(name="x")
        async def agent(turn):
            return (await turn.call("ant_add", {"a": 1}))["sum"] * "x"
    """
    async with (
        FakeServer(ADD) as server,
        RunnerProcess(tmp_path, source, server.path, python=OLDEST) as agent,
    ):
        await agent.ready()
        agent.prompt("go")
        link = await server.link()
        link.answer(await link.request(), {"sum": 2})
        assert (await agent.until("completion"))[-1]["final_text"] == "xx"
        agent.prompt("again")
        request = await link.request()
        agent.send({"type": "interrupt", "turn": 2})
        assert (await agent.until("completion"))[-1]["status"] == "interrupted"
        assert request["params"]["arguments"] == {"a": 1}


TOOLS = """
    import asyncio, os, oubliette
    @oubliette.agent
    async def agent(turn):
        if turn.prompt == "list":
            yield " ".join(sorted(each["name"] for each in await turn.tools()))
        elif turn.prompt == "gather":
            calls = [turn.call("ant_add", {"a": n}) for n in range(2)]
            yield repr(await asyncio.gather(*calls))
        else:
            yield "I call. "
            try:
                yield repr(await turn.call("ant_add", {"a": 1}))
            except oubliette.ToolFailed as error:
                yield f"failed: {error}"
"""


async def test_what_was_said_before_a_call_is_a_message_of_its_own(tmp_path):
    async with (
        FakeServer(ADD) as server,
        RunnerProcess(tmp_path, TOOLS, server.path) as agent,
    ):
        await agent.ready()
        agent.prompt("call")
        link = await server.link()
        link.answer(await link.request(), {"sum": 2})
        events = await agent.until("completion")
        shown = [event for event in events if event["type"] not in {"delta", "turn_started"}]
        assert [event["type"] for event in shown] == [
            "message",
            "tool_call",
            "tool_result",
            "message",
            "completion",
        ]
        assert shown[0]["text"] == "I call. "
        assert shown[1]["call_id"] == shown[2]["call_id"]
        assert (shown[2]["result"], shown[2]["is_error"]) == ({"sum": 2}, False)
        assert shown[-1]["final_text"] == "{'sum': 2}"


async def test_a_failed_call_raises_the_text_of_the_tool(tmp_path):
    async with (
        FakeServer(ADD) as server,
        RunnerProcess(tmp_path, TOOLS, server.path) as agent,
    ):
        await agent.ready()
        agent.prompt("call")
        link = await server.link()
        link.fail(await link.request(), -32000, "recipient not found", "tool_error")
        events = await agent.until("completion")
        assert events[-1]["final_text"] == "failed: recipient not found"
        (result,) = [event for event in events if event["type"] == "tool_result"]
        assert (result["result"], result["is_error"]) == ("recipient not found", True)


async def test_a_result_that_is_too_long_to_be_read_is_an_error_of_its_call(tmp_path):
    """The client writes an object twice, as text and structured: the line is twice as long."""
    async with (
        FakeServer(ADD) as server,
        RunnerProcess(tmp_path, TOOLS, server.path) as agent,
    ):
        await agent.ready()
        agent.prompt("call")
        link = await server.link()
        link.answer(await link.request(), {"sum": "x" * (9 << 20)})
        events = await agent.until("completion")
        assert events[-1]["final_text"].startswith("failed: the answer is a line of ")
        assert events[-1]["final_text"].endswith(f"at most {16 << 20} are read")


async def test_calls_run_at_the_same_time(tmp_path):
    async with (
        FakeServer(ADD) as server,
        RunnerProcess(tmp_path, TOOLS, server.path) as agent,
    ):
        await agent.ready()
        agent.prompt("gather")
        link = await server.link()
        first, second = await link.request(), await link.request()
        link.answer(second, "later")
        link.answer(first, "sooner")
        by_number = {first["params"]["arguments"]["a"]: "sooner"}
        by_number[second["params"]["arguments"]["a"]] = "later"
        final = (await agent.until("completion"))[-1]["final_text"]
        assert final == repr([by_number[0], by_number[1]])


async def test_tools_are_listed_as_they_are_now(tmp_path):
    async with (
        FakeServer(ADD) as server,
        RunnerProcess(tmp_path, TOOLS, server.path) as agent,
    ):
        await agent.ready()
        assert "ant_add" in (await agent.answer("list")).split()


CLIENTS_END = """
    import asyncio, os, signal, oubliette, subprocess
    @oubliette.agent
    async def agent(turn):
        names = [each["name"] for each in await turn.tools()]
        if turn.prompt == "kill":
            pid = int(subprocess.check_output(["pgrep", "-P", str(os.getpid()), "-f", "client"]))
            os.kill(pid, signal.SIGKILL)
            try:
                yield repr(await turn.call("ant_add"))
            except oubliette.OublietteError as error:
                yield f"{type(error).__name__}: {error}"
        yield str("ant_add" in names)
"""


async def test_a_client_that_ended_is_started_again(tmp_path):
    async with (
        FakeServer(ADD) as server,
        RunnerProcess(tmp_path, CLIENTS_END, server.path) as agent,
    ):
        await agent.ready()
        assert "ended" in await agent.answer("kill")
        assert await agent.answer("and now?") == "True"


INTERRUPTS = """
    import asyncio, oubliette
    @oubliette.agent
    async def agent(turn):
        yield "waiting"
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if turn.prompt != "deaf":
                raise
            yield f" cancelled={turn.cancelled}"
"""


@pytest.mark.parametrize(
    ("prompt", "final"), [("plain", "waiting"), ("deaf", "waiting cancelled=True")]
)
async def test_an_interrupt_cancels_the_function(tmp_path, prompt, final):
    async with RunnerProcess(tmp_path, INTERRUPTS) as agent:
        await agent.ready()
        agent.prompt(prompt)
        await agent.until("delta")
        agent.send({"type": "interrupt", "turn": 1})
        end = (await agent.until("completion"))[-1]
        assert (end["status"], end["final_text"]) == ("interrupted", final)


async def test_a_turn_that_waits_is_withdrawn_and_a_foreign_interrupt_is_ignored(tmp_path):
    async with RunnerProcess(tmp_path, INTERRUPTS) as agent:
        await agent.ready()
        agent.prompt("first")
        await agent.until("delta")
        agent.prompt("second")
        agent.send({"type": "interrupt", "turn": 2})
        agent.send({"type": "interrupt", "turn": 7})
        end = (await agent.until("completion"))[-1]
        assert (end["turn"], end["status"], end["final_text"]) == (2, "interrupted", "")
        agent.send({"type": "interrupt", "turn": 1})
        assert (await agent.until("completion"))[-1]["turn"] == 1


async def test_sigterm_interrupts_the_turn_and_ends_the_process(tmp_path):
    async with RunnerProcess(tmp_path, INTERRUPTS) as agent:
        await agent.ready()
        agent.prompt("first")
        await agent.until("delta")
        agent.process.send_signal(signal.SIGTERM)
        assert (await agent.until("completion"))[-1]["status"] == "interrupted"
        async with asyncio.timeout(SECONDS):
            assert await agent.process.wait() == 0


async def test_turns_that_were_given_are_finished_at_the_end_of_stdin(tmp_path):
    async with RunnerProcess(tmp_path, ECHO) as agent:
        await agent.ready()
        agent.prompt("one")
        agent.prompt("two")
        agent.process.stdin.close()
        assert (await agent.until("completion"))[-1]["final_text"] == "one side"
        assert (await agent.until("completion"))[-1]["final_text"] == "two side"
        async with asyncio.timeout(SECONDS):
            assert await agent.process.wait() == 0


FAILS = """
    import asyncio, os, sys, oubliette
    print("imported")
    @oubliette.agent
    async def agent(turn):
        if turn.prompt == "number":
            yield 5
        if turn.prompt == "cancel":
            raise asyncio.CancelledError
        if turn.prompt == "object":
            with turn.tool("look", {"at": object}) as step:
                step.result = {object}
            with turn.tool("break"):
                raise KeyError("gone")
        if turn.prompt == "environ":
            yield str(os.environ.get("OUBLIETTE_PAIRING_SECRET"))
        yield f"{turn.model} {len(turn.history)} {turn.history and turn.history[-1].status}"
"""


async def test_what_goes_wrong_fails_the_turn_only(tmp_path):
    async with RunnerProcess(tmp_path, FAILS) as agent:
        await agent.ready()
        for prompt, message in (
            ("number", "TypeError: an agent yields pieces of its answer as str, not int"),
            ("cancel", "RuntimeError: the function was cancelled from within"),
            ("object", "KeyError: 'gone'"),
        ):
            events = await agent.turn(prompt)
            assert events[-1]["status"] == "failed"
            (error,) = [event for event in events if event["type"] == "error"]
            assert error["message"] == message
        results = [event for event in events if event["type"] == "tool_result"]
        assert [result["is_error"] for result in results] == [False, True]
        assert await agent.answer("go on") == "None 3 failed"
        assert await agent.answer("environ") == "NoneNone 4 completed"


async def test_lines_that_are_no_message_are_complained_about(tmp_path):
    async with RunnerProcess(tmp_path, ECHO) as agent:
        await agent.ready()
        agent.process.stdin.write(b"no json\n\n[1]\n")
        for _ in range(2):
            assert "unreadable line" in (await agent.until("error"))[-1]["message"]
        assert await agent.answer("still there") == "still there side"


async def test_the_history_is_read_again_even_if_a_kill_has_cut_it(tmp_path):
    source = """
        import oubliette
        @oubliette.agent
        async def agent(turn):
            return repr(list(turn.history))
    """
    async with RunnerProcess(tmp_path, source) as agent:
        await agent.ready()
        assert await agent.answer("one") == "[]"
    history = tmp_path / ".oubliette-agent" / "history.jsonl"
    with history.open("a") as file:
        file.write('{"prompt": "half')
    async with RunnerProcess(tmp_path, source) as agent:
        await agent.ready()
        assert await agent.answer("two") == "[Exchange('one', '[]', 'completed')]"
    async with RunnerProcess(tmp_path, source) as agent:
        await agent.ready()
        assert (await agent.answer("three")).count("Exchange(") == 2 + 1  # one is quoted in another


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import numpy_of_another_world", "the image needs that package"),
        ("raise ValueError('broken')", "ValueError: broken"),
        ("x = 1", "has no attribute 'agent'"),
        ("agent = 5", "agent of mine.py is no function there"),
        ("def (", "SyntaxError"),
        ("import oubliette\noubliette.open()", 'put the program under `if __name__ == "__main__"'),
        ("import oubliette\noubliette.sync.connect('x')", "oubliette.sync.connect runs while"),
    ],
)
async def test_a_module_that_cannot_be_imported_ends_the_process_with_a_remedy(
    tmp_path, source, reason
):
    async with RunnerProcess(tmp_path, source) as agent:
        last = (await agent.refused()).strip().splitlines()[-1]
        assert last.startswith("the agent mine cannot be run: ")
        assert reason in last


PROGRAM = """
    from __future__ import annotations
    import oubliette
    import oubliette.errors as errors
    from oubliette import Call, ToolError, kit, open as open_system, tool
    from oubliette.kit import Actor, handles
    from oubliette.messages import EventsCommitted

    policy = oubliette.rules(allow=["read"], otherwise="deny")
    limit: oubliette.Usage | None = None

    @tool(durable=True, timeout=5)
    def refund(order: str, *, call: oubliette.Call) -> str:
        return order

    @oubliette.tool
    def plain(order: str) -> str:
        return order

    class Wrong(errors.ConfigError):
        pass

    class Mine(oubliette.AgentTurn):
        pass

    class Auditor(Actor):
        @handles(EventsCommitted)
        def seen(self, message): ...
        @kit.handles(oubliette.messages.EventsCommitted)
        def seen_too(self, message): return message

    @oubliette.agent(name="mine")
    async def agent(turn):
        try:
            raise Wrong("caught")
        except (ToolError, oubliette.NotFound):
            yield "not this"
        except Wrong as error:
            yield f"{error} {refund('A', call=None)} {plain('B')} {Auditor.seen_too(1, 2)}"

    async def main():
        async with oubliette.open(agents=[agent]) as system:
            pass

    if __name__ == "__main__":
        raise SystemExit("the program")
"""


async def test_the_program_beside_an_agent_is_defined_and_does_not_run(tmp_path):
    async with RunnerProcess(tmp_path, PROGRAM) as agent:
        await agent.ready()
        assert await agent.answer("go") == "caught A B 2"


async def test_permissions_that_are_open_at_the_end_are_denied(tmp_path):
    source = """
        import oubliette
        @oubliette.agent
        async def agent(turn):
            return str(await turn.ask("may I?"))
    """
    async with RunnerProcess(tmp_path, source) as agent:
        await agent.ready()
        agent.prompt("go")
        request = (await agent.until("permission_request"))[-1]
        asked = request["request_id"]
        agent.send({"type": "permission", "request_id": "another", "decision": "allow"})
        agent.send({"type": "permission", "request_id": asked, "decision": "allow"})
        assert (await agent.until("completion"))[-1]["final_text"] == "True"
        agent.prompt("again")
        await agent.until("permission_request")
        agent.process.stdin.close()
        assert (await agent.until("completion"))[-1]["final_text"] == "False"


async def test_values_that_are_no_json_are_written_as_text(tmp_path):
    source = """
        import math, oubliette
        @oubliette.agent
        async def agent(turn):
            circle = []
            circle.append(circle)
            for place, value in enumerate((math.inf, circle, {(1, 2): 3}, b"bytes")):
                with turn.tool("look", {"at": value, "place": place}) as step:
                    step.result = value
            yield "\\ud800 done"
    """
    async with RunnerProcess(tmp_path, source) as agent:
        await agent.ready()
        events = await agent.turn("go")
        results = [event["result"] for event in events if event["type"] == "tool_result"]
        assert results == ["inf", "[[...]]", {"repr": "{(1, 2): 3}"}, "b'bytes'"]
        calls = [event["arguments"] for event in events if event["type"] == "tool_call"]
        assert all(isinstance(arguments, dict) for arguments in calls)
        assert events[-1]["final_text"] == "? done"
