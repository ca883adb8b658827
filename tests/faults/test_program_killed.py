"""A program with the system inside it is killed in the middle of a turn, and started again."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from oubliette.testing.server import ServerProcess
from tests.faults.here import until
from tests.faults.kills import left_on_disk, left_running
from tests.faults.shop_kills import Program, embedded_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = [pytest.mark.anyio, pytest.mark.whole, pytest.mark.timeout(300)]

SOON = 60.0  # seconds after which something hangs: a program starts in 15 on a busy machine


class Embedding:
    """A home, and the program that runs on it now."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.program = Program("turn_program", server.home / "spec.json", server.home / "log")
        self.events: list[dict[str, Any]] = []
        """Those that the programs have printed, in order."""
        self.spec: dict[str, Any] = {
            "home": str(server.home),
            "config": embedded_settings(server),
            "on_exit": "keep",
            "durable": True,
            "answers": True,
        }

    async def start(self, **more: Any) -> None:
        """Start the program."""
        self.spec |= more
        (self.server.home / "spec.json").write_text(json.dumps(self.spec))
        await self.program.start()

    async def until(self, word: str, value: object = None) -> dict[str, Any]:
        """Read until a line has this word, and this value if it is given."""
        async with asyncio.timeout(SOON):
            while (said := await self.program.next()) is not None:
                if "event" in said:
                    self.events.append(said)
                if "session" in said:
                    self.spec["session"] = said["session"]
                if word in said and value in {None, said[word]}:
                    return said
        raise AssertionError((self.server.home / "log").read_text()[-5000:])

    async def end(self) -> None:
        """Wait for the program's own end, which leaves nothing."""
        await self.until("finished")
        assert await self.program.ends() == 0
        assert [event["event"] for event in self.events] == list(range(len(self.events)))
        assert left_on_disk(self.server) == []
        assert left_running(self.server) == []


@pytest.fixture
async def embedding() -> AsyncIterator[Embedding]:
    async with ServerProcess() as server:
        made = Embedding(server)
        async with made.program:
            yield made


@pytest.mark.parametrize("kind", ["status", "message", "delta"])
async def test_the_agent_finishes_and_the_next_program_reads_on(embedding, kind):
    """Killed before the agent has its prompt, and while it is at work."""
    prompt = (
        "say one\nemit 10 10\nsay two\nsleep 0.5\nemit 10 10\n"
        'exec touch "$OUBLIETTE_WORKSPACE/ended"\nsay over'
    )
    await embedding.start(prompt=prompt)
    await embedding.until("type", kind)
    await embedding.program.kill()
    last = embedding.events[-1]["event"]
    if kind != "status":
        ended = "projects/*/workspaces/*/ended"
        await until(lambda: bool(list(embedding.server.home.glob(ended))))
    await embedding.start(after=last, on_exit="end")
    result = await embedding.until("result")
    assert (result["result"], result["status"]) == ("over", "completed")
    texts = [event["text"] for event in embedding.events if event["type"] == "message"]
    assert (texts[0], texts[-1], texts.count("two")) == ("one", "over", 1)
    await embedding.end()


@pytest.mark.parametrize("durable", [True, False])
async def test_a_call_that_was_open_is_asked_again(embedding, durable):
    await embedding.start(
        prompt='call look {"what": "A-17"}\nsay over', answers=False, durable=durable
    )
    first = await embedding.until("asked")
    last = embedding.events[-1]["event"]
    await embedding.program.kill()
    await embedding.start(after=last, answers=True, on_exit="end")
    second = await embedding.until("asked")
    assert second == first
    result = await embedding.until("result")
    assert result["calls"] == [["look", "seen A-17"]]
    await embedding.end()


async def test_a_program_may_be_killed_any_number_of_times(embedding):
    prompt = "".join(f'emit 5 10\ncall look {{"what": "{n}"}}\n' for n in range(8))
    await embedding.start(prompt=f"{prompt}say over")
    for _ in range(4):
        await embedding.until("asked")
        await embedding.program.kill()
        last = embedding.events[-1]["event"] if embedding.events else -1
        await embedding.start(after=last)
    await embedding.until("finished")
    await embedding.program.kill()
    await embedding.start(after=embedding.events[-1]["event"], on_exit="end")
    result = await embedding.until("result")
    assert [call[1] for call in result["calls"]] == [f"seen {n}" for n in range(8)]
    await embedding.end()
