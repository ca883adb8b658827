"""An agent on the `agent-client-protocol` library that keeps its conversations and forks them.

It answers each prompt with all that it was told in its conversation, as JSON. With --refuse it
advertises forks and refuses them. With --late half of its answer follows the end of its turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path

sys.path.insert(0, sys.argv[1])

import acp  # noqa: E402 -- by the path above
from acp.schema import (  # noqa: E402
    AgentCapabilities,
    ForkSessionResponse,
    Implementation,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionForkCapabilities,
    SessionResumeCapabilities,
)

REFUSE = "--refuse" in sys.argv
LATE = "--late" in sys.argv


class Forking(acp.Agent):
    """Its conversations are files in HOME, below a folder that is named like the one it works in."""

    def on_connect(self, conn) -> None:
        self.client = conn

    def place(self, session_id: str) -> Path:
        folder = Path(os.environ["HOME"], ".forking", self.cwd.strip("/").replace("/", "-"))
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{session_id}.json"

    def read(self, session_id: str) -> list[str]:
        try:
            return json.loads(self.place(session_id).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise acp.RequestError.resource_not_found(session_id) from None

    def begin(self, cwd: str, told: list[str]) -> str:
        self.cwd, made = cwd, uuid.uuid4().hex
        self.place(made).write_text(json.dumps(told), encoding="utf-8")
        return made

    async def initialize(self, protocol_version, **_):
        return acp.InitializeResponse(
            protocol_version=protocol_version,
            agent_capabilities=AgentCapabilities(
                session_capabilities=SessionCapabilities(
                    fork=SessionForkCapabilities(), resume=SessionResumeCapabilities()
                )
            ),
            agent_info=Implementation(name="forking", title="Forking", version="1.0.0"),
        )

    async def new_session(self, cwd, **_):
        return acp.NewSessionResponse(session_id=self.begin(cwd, []))

    async def resume_session(self, cwd, session_id, **_):
        self.cwd = cwd
        self.read(session_id)
        return ResumeSessionResponse()

    async def fork_session(self, cwd, session_id, **_):
        self.cwd = cwd
        if REFUSE:
            raise acp.RequestError.invalid_params({"details": "not today"})
        return ForkSessionResponse(session_id=self.begin(cwd, self.read(session_id)))

    async def say(self, session_id: str, text: str) -> None:
        update = acp.update_agent_message_text(text)
        await self.client.session_update(session_id=session_id, update=update)

    async def prompt(self, session_id, prompt, **_):
        told = [*self.read(session_id), prompt[0].text]
        said = json.dumps(told)
        self.place(session_id).write_text(said, encoding="utf-8")
        cut = len(said) // 2 if LATE else len(said)
        await self.say(session_id, said[:cut])
        if LATE:
            later = self.say(session_id, said[cut:])
            asyncio.get_running_loop().call_later(0.015, asyncio.ensure_future, later)
        return acp.PromptResponse(stop_reason="end_turn")


asyncio.run(acp.run_agent(Forking(), use_unstable_protocol=True))
