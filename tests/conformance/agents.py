"""The agents that the suite is run against.

An agent joins by one entry in `AGENTS`: its runtime, a transcript of what such an agent says (as it
was really said), and how its prompts are phrased where a test needs it to do something.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from oubliette import ids
from oubliette.runtime.agents import AgentRuntime, AgentSession, ScriptedRuntime
from oubliette.runtime.containers.folders import make_owned
from tests.conformance.engines import SECONDS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from oubliette.runtime.agents import AgentEvent, Executor
    from tests.conformance.engines import Running

SCRIPTED_TRANSCRIPT = (
    b'{"type": "ready", "turn": 0, "agent": "scripted", "version": "0.1.0"}\n'
    b'{"type": "turn_started", "turn": 1}\n'
    b'{"type": "delta", "turn": 1, "text": "h\xc3\xa9"}\n'
    b'{"type": "tool_call", "turn": 1, "call_id": "c1", "tool": "weather", "arguments": {"a": 1}}\n'
    b'{"type": "tool_result", "turn": 1, "call_id": "c1", "tool": "weather", "is_error": false,'
    b' "result": {"content": []}}\n'
    b'{"type": "permission_request", "turn": 1, "request_id": "r1", "text": "may I?"}\n'
    b'{"type": "usage", "turn": 1, "cost_usd": 0.5, "tokens": 12}\n'
    b"Segmentation fault (core dumped)\n"
    b"\n"
    b'{"type": "news", "turn": 1, "of": "a later release"}\n'
    b'{"type": "error", "turn": 1, "message": "what went wrong"}\n'
    b'{"type": "message", "turn": 1, "text": "done"}\n'
    b'{"type": "completion", "turn": 1, "final_text": "done", "status": "completed"}\n'
    b'{"type": "completion", "turn": "one", "final_text": 1, "status": "whatever"}\n'
    b"[1, 2]\n\xff\xfe\n"
)


@dataclass(frozen=True)
class Agent:
    name: str
    runtime: Callable[[], AgentRuntime]
    transcript: bytes
    kinds: tuple[str, ...]
    """The kinds of the transcript's events, in order."""
    say: Callable[[str], str]
    """A prompt that is answered by exactly this text."""
    wait: str
    """A prompt that takes very long and can be interrupted."""
    ask: str
    """A prompt that asks for permission."""
    crash: str
    """A prompt at which the process ends."""
    remember: tuple[str, str, str]
    """A prompt to keep something, one to recall it, and what is then said."""
    requires: str | None = None


AGENTS = [
    Agent(
        name="scripted",
        runtime=ScriptedRuntime,
        transcript=SCRIPTED_TRANSCRIPT,
        kinds=(
            "ready turn_started delta tool_call tool_result permission_request usage system system"
            " error message completion system system system"
        ).split(" "),  # type: ignore[arg-type]
        say=lambda text: f"say {text}",
        wait="sleep 1000",
        ask="ask may I go on?",
        crash="crash 3",
        remember=("remember colour blue", "recall colour", "blue"),
    )
]


@dataclass
class Talk:
    """A running agent, and what it has said so far."""

    executor: Executor
    session: AgentSession
    events: list[AgentEvent] = field(default_factory=list)
    _source: Any = None

    async def until(self, kind: str) -> AgentEvent:
        """The next event of that kind; what comes before it is kept."""
        async with asyncio.timeout(SECONDS):
            async for event in self._source:
                self.events.append(event)
                if event.type == kind:
                    return event
        raise AssertionError(f"no {kind} in {self.events}: {self.executor.stderr}")

    async def turn(self, prompt: str) -> AgentEvent:
        await self.executor.send(prompt)
        return await self.until("completion")


def new_session(running: Running, session_id: str | None = None, **fields: Any) -> AgentSession:
    session_id = session_id or ids.new_id(ids.SESSION)
    homes = next(m.source for m in running.spec.mounts if m.target == "/home/agent")
    make_owned(homes, session_id, uid=running.bench.agent_uid)
    return AgentSession(
        session_id=session_id,
        project_id=ids.new_id(ids.PROJECT),
        depth=0,
        cwd="/workspace",
        home=f"/home/agent/{session_id}",
        pairing_secret=secrets.token_hex(16),
        **fields,
    )


@contextlib.asynccontextmanager
async def talking(
    agent: Agent, running: Running, session: AgentSession | None = None
) -> AsyncIterator[Talk]:
    runtime = agent.runtime()
    session = session or new_session(running)
    async with asyncio.timeout(SECONDS):
        executor = await runtime.execute_streaming(running.link, running.info.inside, session)
    events = executor.events()
    talk = Talk(executor, session, _source=events)
    try:
        yield talk
    finally:
        async with asyncio.timeout(SECONDS):
            await events.aclose()
            await executor.close()
            await runtime.close()
