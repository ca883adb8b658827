"""The vendors' own client libraries judge the scripted model: OpenAI's for two APIs, Anthropic's."""

from __future__ import annotations

import abc
import asyncio
import importlib
import json
from typing import Any

import pytest

from oubliette.testing.model_server import ModelServer

pytestmark = [pytest.mark.anyio, pytest.mark.whole]

SCHEMA = {"type": "object", "properties": {"n": {"type": "number"}}}
Said = tuple[str, list[tuple[str, str, Any]], tuple[int, int]]
"""Text, calls as (id, name, arguments), tokens read and written."""


class Client(abc.ABC):
    library: str
    """Name of the vendor's module. Imported by a test that runs: at collection it would cost every
    process seconds."""

    def __init__(self, model: ModelServer, **more: Any) -> None:
        self.vendor = importlib.import_module(self.library)
        self.model = model
        self.api = self.make(**{"api_key": "k", "timeout": 10, "max_retries": 0, **more})
        self.history: list[Any] = []

    @abc.abstractmethod
    def make(self, **options: Any) -> Any: ...

    @abc.abstractmethod
    async def whole(self) -> Said: ...

    @abc.abstractmethod
    async def streamed(self) -> Said: ...

    @abc.abstractmethod
    def result(self, said: Said, text: str) -> None:
        """Put the answer and the result of its one call into the history."""

    async def ask(self, prompt: str, *, stream: bool = True) -> Said:
        self.history.append({"role": "user", "content": prompt})
        return await (self.streamed() if stream else self.whole())


class Chat(Client):
    library = "openai"
    function = {"name": "echo", "description": "Says it again", "parameters": SCHEMA}

    def make(self, **options: Any) -> Any:
        return self.vendor.AsyncOpenAI(base_url=self.model.url, **options)

    @property
    def request(self) -> dict[str, Any]:
        tools = [{"type": "function", "function": self.function}]
        return {"model": "scripted", "messages": self.history, "tools": tools}

    async def whole(self) -> Said:
        answer = await self.api.chat.completions.create(**self.request)
        message = answer.choices[0].message
        calls = [
            (call.id, call.function.name, json.loads(call.function.arguments))
            for call in message.tool_calls or []
        ]
        assert answer.choices[0].finish_reason == ("tool_calls" if calls else "stop")
        usage = answer.usage
        return message.content or "", calls, (usage.prompt_tokens, usage.completion_tokens)

    async def streamed(self) -> Said:
        more = {"stream_options": {"include_usage": True}}
        async with self.api.chat.completions.stream(**self.request, **more) as stream:
            answer = await stream.get_final_completion()
        message = answer.choices[0].message
        calls = [
            (call.id, call.function.name, json.loads(call.function.arguments))
            for call in message.tool_calls or []
        ]
        usage = answer.usage
        return message.content or "", calls, (usage.prompt_tokens, usage.completion_tokens)

    def result(self, said: Said, text: str) -> None:
        ((call, name, arguments),) = said[1]
        function = {"name": name, "arguments": json.dumps(arguments)}
        calls = [{"id": call, "type": "function", "function": function}]
        self.history += [
            {"role": "assistant", "content": said[0], "tool_calls": calls},
            {"role": "tool", "tool_call_id": call, "content": text},
        ]


class Responses(Client):
    library = "openai"

    def make(self, **options: Any) -> Any:
        return self.vendor.AsyncOpenAI(base_url=self.model.url, **options)

    @property
    def request(self) -> dict[str, Any]:
        tools = [{"type": "function", "name": "echo", "parameters": SCHEMA, "strict": False}]
        return {"model": "scripted", "input": self.history, "tools": tools}

    def said(self, answer: Any) -> Said:
        assert answer.status == "completed"
        calls = [
            (item.call_id, item.name, json.loads(item.arguments))
            for item in answer.output
            if item.type == "function_call"
        ]
        return answer.output_text, calls, (answer.usage.input_tokens, answer.usage.output_tokens)

    async def whole(self) -> Said:
        return self.said(await self.api.responses.create(**self.request))

    async def streamed(self) -> Said:
        async with self.api.responses.stream(**self.request) as stream:
            async for event in stream:
                if event.type == "response.failed":
                    raise self.vendor.APIError(event.response.error.message, None, body=None)
            return self.said(await stream.get_final_response())

    def result(self, said: Said, text: str) -> None:
        ((call, name, arguments),) = said[1]
        made = {"name": name, "arguments": json.dumps(arguments), "call_id": call}
        self.history += [
            {"type": "function_call", **made},
            {"type": "function_call_output", "call_id": call, "output": text},
        ]


class Messages(Client):
    library = "anthropic"

    def make(self, **options: Any) -> Any:
        return self.vendor.AsyncAnthropic(base_url=self.model.root, **options)

    @property
    def request(self) -> dict[str, Any]:
        tools = [{"name": "echo", "description": "Says it again", "input_schema": SCHEMA}]
        return {"model": "scripted", "max_tokens": 99, "messages": self.history, "tools": tools}

    def said(self, answer: Any) -> Said:
        text = "".join(block.text for block in answer.content if block.type == "text")
        calls = [
            (block.id, block.name, block.input)
            for block in answer.content
            if block.type == "tool_use"
        ]
        assert answer.stop_reason == ("tool_use" if calls else "end_turn")
        return text, calls, (answer.usage.input_tokens, answer.usage.output_tokens)

    async def whole(self) -> Said:
        return self.said(await self.api.messages.create(**self.request))

    async def streamed(self) -> Said:
        async with self.api.messages.stream(**self.request) as stream:
            return self.said(await stream.get_final_message())

    def result(self, said: Said, text: str) -> None:
        ((call, name, arguments),) = said[1]
        use = {"type": "tool_use", "id": call, "name": name, "input": arguments}
        result = {"type": "tool_result", "tool_use_id": call, "content": text}
        texts = [{"type": "text", "text": said[0]}] if said[0] else []
        self.history += [
            {"role": "assistant", "content": [*texts, use]},
            {"role": "user", "content": [result]},
        ]


@pytest.fixture(params=[Chat, Responses, Messages], ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
async def model(anyio_backend: str):
    async with asyncio.timeout(20), ModelServer() as server:
        yield server


@pytest.fixture
async def client(kind: Any, model: ModelServer):
    made = kind(model)
    async with made.api:
        yield made


@pytest.mark.parametrize("stream", [True, False])
async def test_a_conversation_with_a_call_and_its_result(client: Client, stream: bool) -> None:
    said = await client.ask('say let me see\ncall echo {"n": 1}\nsay that is all', stream=stream)
    assert said[0] == "let me see"
    assert [call[1:] for call in said[1]] == [("echo", {"n": 1})]
    client.result(said, "1")
    end = await (client.streamed() if stream else client.whole())
    assert end[:2] == ("that is all", [])
    assert client.model.requests[-1].key == "k"


@pytest.mark.parametrize("stream", [True, False])
async def test_usage_is_what_the_script_says(client: Client, stream: bool) -> None:
    said = await client.ask("usage 1200 34\nsay dear", stream=stream)
    assert (said[0], said[2]) == ("dear", (1200, 34))


async def test_parallel_calls_are_put_together_from_a_stream(client: Client) -> None:
    said = await client.ask('parallel\ncall echo {"n": 1}\ncall echo {"n": 2}\nend')
    assert [call[1:] for call in said[1]] == [("echo", {"n": 1}), ("echo", {"n": 2})]
    assert len({call[0] for call in said[1]}) == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_errors_are_those_of_the_vendor(client: Client, stream: bool) -> None:
    for status, error in (
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
    ):
        with pytest.raises(getattr(client.vendor, error), match="not today"):
            await client.ask(f"error {status} not today", stream=stream)


async def test_what_can_be_tried_again_is(kind: Any, model: ModelServer) -> None:
    client = kind(model, max_retries=1)
    async with client.api:
        assert (await client.ask("fail 1 503 busy\nsay at last"))[0] == "at last"
        before = len(model.requests)
        with pytest.raises(client.vendor.BadRequestError):
            await client.ask("error 400 never")
        assert len(model.requests) == before + 1


async def test_an_error_in_the_middle_of_an_answer_is_told(client: Client) -> None:
    with pytest.raises(client.vendor.APIError, match="no more"):
        await client.ask("say something\nerror 503 no more")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_slow_answer_runs_into_the_clients_deadline(
    kind: Any, model: ModelServer, stream: bool
) -> None:
    client = kind(model, timeout=0.3)
    async with client.api:
        with pytest.raises(Exception) as caught:
            await client.ask("sleep 100\nsay late", stream=stream)
        assert "Timeout" in type(caught.value).__name__


async def test_a_cut_answer_is_an_error_of_the_connection(client: Client) -> None:
    with pytest.raises(Exception, match="(?i)connection|incomplete|peer closed"):
        await client.ask("say something\ncut", stream=False)


async def test_models_are_listed(client: Client) -> None:
    if isinstance(client, Messages):
        counted = await client.api.messages.count_tokens(
            model="scripted", messages=[{"role": "user", "content": "how long?"}]
        )
        assert counted.input_tokens > 0
    else:
        assert [each.id async for each in client.api.models.list()] == ["scripted"]
