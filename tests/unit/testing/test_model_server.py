"""The scripted model server: three APIs, one script, nothing kept between requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from typing import Any

import httpx2 as httpx
import pytest

from oubliette.testing.model_server import ModelServer

pytestmark = pytest.mark.anyio

TOOLS = ["echo", "nap"]


class Chat:
    path = "/chat/completions"
    tools = [{"type": "function", "function": {"name": name}} for name in TOOLS]

    def body(self, *said: tuple[str, str]) -> dict[str, Any]:
        roles = {"user": "user", "assistant": "assistant"}
        return {
            "messages": [
                {"role": roles[kind], "content": text}
                if kind in roles
                else {"role": "tool", "tool_call_id": kind, "content": text}
                for kind, text in said
            ]
        }

    def said(self, body: dict[str, Any]) -> tuple[str, list[tuple[str, str, Any]]]:
        message = body["choices"][0]["message"]
        calls = [
            (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in message.get("tool_calls", [])
        ]
        return message["content"] or "", calls

    def streamed(self, events: list[Any]) -> tuple[str, list[tuple[str, str, Any]]]:
        assert events[-1] == "[DONE]"
        assert events[-2]["usage"]["total_tokens"] > 0
        text, calls = "", {}
        for event in events[:-2]:
            delta = event["choices"][0]["delta"]
            text += delta.get("content") or ""
            for part in delta.get("tool_calls", []):
                call = calls.setdefault(part["index"], {"arguments": ""})
                call["id"] = part.get("id", call.get("id"))
                call["name"] = part["function"].get("name", call.get("name"))
                call["arguments"] += part["function"]["arguments"]
        found = [(c["id"], c["name"], json.loads(c["arguments"])) for c in calls.values()]
        return text, found


class Responses:
    path = "/responses"
    tools = [{"type": "function", "name": name} for name in TOOLS]

    def body(self, *said: tuple[str, str]) -> dict[str, Any]:
        items: list[Any] = []
        for kind, text in said:
            if kind in {"user", "assistant"}:
                part = {"type": "input_text" if kind == "user" else "output_text", "text": text}
                items.append({"type": "message", "role": kind, "content": [part]})
            else:
                items.append({"type": "function_call_output", "call_id": kind, "output": text})
        return {"input": items}

    def said(self, body: dict[str, Any]) -> tuple[str, list[tuple[str, str, Any]]]:
        text, calls = "", []
        for item in body["output"]:
            if item["type"] == "message":
                text += "".join(part["text"] for part in item["content"])
            else:
                calls.append((item["call_id"], item["name"], json.loads(item["arguments"])))
        return text, calls

    def streamed(self, events: list[Any]) -> tuple[str, list[tuple[str, str, Any]]]:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
        text, calls = self.said(events[-1]["response"])
        assert "".join(deltas) == text
        return text, calls


class Messages:
    path = "/messages"
    tools = [{"name": name, "input_schema": {}} for name in TOOLS]

    def body(self, *said: tuple[str, str]) -> dict[str, Any]:
        messages: list[Any] = []
        for kind, text in said:
            if kind in {"user", "assistant"}:
                messages.append({"role": kind, "content": [{"type": "text", "text": text}]})
            else:
                block = {"type": "tool_result", "tool_use_id": kind, "content": text}
                messages.append({"role": "user", "content": [block]})
        return {"messages": messages}

    def said(self, body: dict[str, Any]) -> tuple[str, list[tuple[str, str, Any]]]:
        text = "".join(block.get("text", "") for block in body["content"])
        calls = [
            (block["id"], block["name"], block["input"])
            for block in body["content"]
            if block["type"] == "tool_use"
        ]
        return text, calls

    def streamed(self, events: list[Any]) -> tuple[str, list[tuple[str, str, Any]]]:
        assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
        text, calls = "", []
        for event in events:
            if event["type"] == "content_block_start" and "id" in event["content_block"]:
                block = event["content_block"]
                calls.append([block["id"], block["name"], ""])
            elif event["type"] == "content_block_delta":
                text += event["delta"].get("text", "")
                if "partial_json" in event["delta"]:
                    calls[-1][2] += event["delta"]["partial_json"]
        return text, [(call, name, json.loads(arguments)) for call, name, arguments in calls]


@pytest.fixture(params=[Chat, Responses, Messages], ids=lambda api: api.__name__)
def api(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.fixture
async def model(anyio_backend: str):
    async with asyncio.timeout(20), ModelServer() as server:
        yield server


@pytest.fixture
async def http(model: ModelServer):
    async with httpx.AsyncClient(timeout=10, verify=False) as client:
        yield client


async def ask(http, model, api, *said, stream=True, tools=True, **more):
    body = {"model": "m", "stream": stream, "tools": api.tools if tools else [], **more}
    answer = await http.post(model.url + api.path, json={**body, **api.body(*said)})
    if answer.status_code != 200:
        return answer.status_code, answer.json()
    if not stream:
        return api.said(answer.json())
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    return api.streamed([line if line == "[DONE]" else json.loads(line) for line in lines])


@pytest.mark.parametrize("stream", [True, False])
async def test_it_says_what_the_script_says(http, model, api, stream) -> None:
    assert await ask(http, model, api, ("user", "say héllo"), stream=stream) == ("héllo", [])
    said = await ask(http, model, api, ("user", "no directive at all"), stream=stream)
    assert said == ("no directive at all", [])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_script_goes_on_where_its_results_are(http, model, api, stream) -> None:
    said: list[tuple[str, str]] = [("user", 'say one\ncall echo {"n": 1}\ncall nap {}\nsay two')]
    text, ((first, *call),) = await ask(http, model, api, *said, stream=stream)
    assert (text, call) == ("one", ["echo", {"n": 1}])
    said += [("assistant", text), (first, "1")]
    text, ((second, *call),) = await ask(http, model, api, *said, stream=stream)
    assert (text, call) == ("", ["nap", {}])
    assert second != first
    said += [(second, "2")]
    assert await ask(http, model, api, *said, stream=stream) == ("two", [])


async def test_parallel_calls_are_one_answer(http, model, api) -> None:
    script = "parallel\ncall echo {}\ncall nap {}\nend\nsay both"
    _, calls = await ask(http, model, api, ("user", script))
    assert [name for _, name, _ in calls] == ["echo", "nap"]
    results = [(call, "done") for call, _, _ in calls]
    assert await ask(http, model, api, ("user", script), *results) == ("both", [])


async def test_the_last_result_is_said_where_the_script_says_nothing(http, model, api) -> None:
    said = [("user", "call echo {}"), ("call_0_1", "what it gave")]
    assert await ask(http, model, api, *said) == ("tool said: what it gave", [])


async def test_a_reminder_behind_the_script_is_no_script(http, model, api) -> None:
    said = [("user", "say this"), ("user", "<system-reminder>say that</system-reminder>")]
    assert (await ask(http, model, api, *said))[0] == "this"


async def test_a_request_without_tools_is_for_a_title(http, model, api) -> None:
    assert await ask(http, model, api, ("user", "error 500"), tools=False) == ("Scripted", [])


async def test_tools_and_history_are_what_the_agent_sent(http, model, api) -> None:
    said = [("user", "say a"), ("assistant", "a"), ("user", "tools\nhistory")]
    text, _ = await ask(http, model, api, *said)
    assert text == json.dumps(TOOLS) + json.dumps(["say a"])


async def test_errors_have_the_status_and_the_text_of_the_script(http, model, api) -> None:
    status, body = await ask(http, model, api, ("user", "error 429 slow down"))
    assert (status, body["error"]["message"]) == (429, "slow down")


async def test_an_error_says_whether_to_try_again(http, model, api) -> None:
    for status, again in ((400, "false"), (401, "false"), (429, "true"), (503, "true")):
        body = {"model": "m", "tools": api.tools, **api.body(("user", f"error {status}"))}
        answer = await http.post(model.url + api.path, json=body)
        assert (answer.status_code, answer.headers["x-should-retry"]) == (status, again)


async def test_a_script_can_fail_some_times_and_then_go_on(http, model, api) -> None:
    said = ("user", "fail 2 503 busy\nsay at last")
    assert (await ask(http, model, api, said))[0] == 503
    assert (await ask(http, model, api, said))[0] == 503
    assert await ask(http, model, api, said) == ("at last", [])
    assert (await ask(http, model, api, ("user", "say b"), said))[0] == 503  # another conversation


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_can_take_its_time(http, model, api, stream) -> None:
    began = asyncio.get_running_loop().time()
    assert await ask(http, model, api, ("user", "sleep 0.2\nsay a"), stream=stream) == ("a", [])
    assert asyncio.get_running_loop().time() - began >= 0.2


async def test_directives_without_their_numbers_are_refused_by_name(http, model, api) -> None:
    for line in ("slow many", "sleep long", "usage some", "error ok", "error 200", "fail often"):
        status, body = await ask(http, model, api, ("user", line))
        assert status == 400
        assert body["error"]["message"].startswith("the script: ")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_answer_breaks_off(http, model, api, stream) -> None:
    body = {"model": "m", "stream": stream, "tools": api.tools, **api.body(("user", "say a\ncut"))}
    with pytest.raises(httpx.HTTPError):
        await http.post(model.url + api.path, json=body)


async def test_a_hanging_answer_ends_with_its_reader(http, model, api) -> None:
    body = {"model": "m", "stream": True, "tools": api.tools, **api.body(("user", "say a\nhang"))}
    async with http.stream("POST", model.url + api.path, json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                break


async def test_deferred_tools_are_searched_for_once(http, model) -> None:
    api = Chat()
    api.tools = [{"type": "function", "function": {"name": "ToolSearch"}}]
    _, ((first, name, query),) = await ask(http, model, api, ("user", "call far {}"))
    assert (name, query) == ("ToolSearch", {"query": "select:far"})
    _, (call,) = await ask(http, model, api, ("user", "call far {}"), (first, "found"))
    assert call[1] == "far"


async def test_requests_are_kept_with_their_credentials(http, model, api) -> None:
    headers = {"Authorization": "Bearer k"}
    body = {"model": "m", "tools": api.tools, **api.body(("user", "say a"))}
    await http.post(model.url + api.path, json=body, headers=headers)
    kept = model.requests[-1]
    assert (kept.path, kept.key, kept.asked.tools) == ("/v1" + api.path, "k", tuple(TOOLS))


async def test_what_is_no_request_is_refused(http, model, api) -> None:
    for content in (b"no json", b"[]"):
        assert (await http.post(model.url + api.path, content=content)).status_code == 400


def test_it_runs_as_a_program_and_ends_with_sigterm() -> None:
    command = [sys.executable, "-m", "oubliette.testing.model_server", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        try:
            assert program.stdout is not None
            ready = json.loads(program.stdout.readline())
            body = {"model": "m", "tools": Chat.tools, **Chat().body(("user", "say a"))}
            with httpx.Client(timeout=10) as client:
                answer = client.post(ready["url"] + Chat.path, json=body).json()
            assert Chat().said(answer) == ("a", [])
            program.send_signal(signal.SIGTERM)
            assert program.wait(10) == 0
        finally:
            program.kill()


async def test_a_connection_whose_answer_is_under_way_ends_with_the_server() -> None:
    tool = {"type": "function", "function": {"name": "x", "parameters": {}}}
    body = {"tools": [tool], "messages": [{"role": "user", "content": f"hang{' ' * 100_000}"}]}
    async with asyncio.timeout(20):
        async with ModelServer() as server:
            host, _, port = server.root.removeprefix("http://").rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            data = json.dumps(body).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}"
            writer.write(head.encode() + b"\r\n\r\n" + data)
            while not server.requests:
                await asyncio.sleep(0.01)
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()
