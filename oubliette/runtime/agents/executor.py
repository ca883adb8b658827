"""Conversation with one agent process, without a session actor (for embedding).

Built once, above an adapter and a process stream, which do not depend on it. Sessions of the server
do not use it: they keep a log, this stores nothing.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import signal
from typing import TYPE_CHECKING, Final

from oubliette import ids
from oubliette.errors import Conflict, RuntimeFailure
from oubliette.runtime.agents.base import AgentEvent
from oubliette.runtime.agents.silence import events_of_silence, pause_of, with_silences
from oubliette.runtime.containers.base import ISOLATED
from oubliette.runtime.guest import Exit, LinkClosed, Output, StartProcess
from oubliette.runtime.guest.errors import CommandFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping
    from typing import Any

    from oubliette.runtime.agents.base import AgentAdapter, AgentCommand, AgentFile, AgentSession
    from oubliette.runtime.containers.base import Inside
    from oubliette.runtime.guest import ControlLink, ProcessStream

STDERR_KEPT: Final = 8192  # bytes of standard error that an error message may quote from
CLOSE_GRACE: Final = 3.0  # seconds from the end of input to SIGKILL
ACK_EVERY: Final = 1 << 20  # bytes read between two acks


_PLACE: Final = """
import os, sys
path = os.path.join(os.environ["HOME"], sys.argv[1])
os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, int(sys.argv[2])), "wb") as file:
    file.write(sys.stdin.buffer.read())
"""


class Executor:
    """One running agent. One reader of `events` at a time; `send` may come from other tasks."""

    def __init__(
        self, link: ControlLink, proc: str, stream: ProcessStream, adapter: AgentAdapter
    ) -> None:
        self._link = link
        self._stream = stream
        self._adapter = adapter
        self._seq = 0
        self._turn = 0
        self._busy = False
        self._waiting: str | None = None
        self._withdrawn = False
        self._writing = asyncio.Lock()
        self._ends = [0, 0]
        self._acked = 0
        self._stderr = b""
        self.proc: Final = proc
        """Id of the process in the guest."""
        self.exit: Exit | None = None
        """Set once the process has ended and its output was read."""

    @property
    def stderr(self) -> str:
        """The end of its standard error so far, for error messages."""
        return self._stderr.decode("utf-8", "replace")

    async def send(self, text: str) -> int:
        """Begin a turn and return its number.

        Raises:
            Conflict: the previous turn has not ended yet.
        """
        if self._busy:
            raise Conflict(f"turn {self._turn} has not ended", hint="wait for its completion")
        self._busy = True
        self._turn += 1
        if self._adapter.ready:
            await self._write(self._adapter.prompt(self._turn, text))
        else:
            self._waiting = text  # until the end of the handshake, which `events` sees
        return self._turn

    async def interrupt(self) -> None:
        """End the running turn early; its `completion` still comes. No effect before the first one.

        A prompt that waits for the agent to be ready is withdrawn and never sent.
        """
        if not self._busy or self._withdrawn:
            return
        if self._waiting is not None:
            self._waiting, self._withdrawn = None, True
            return
        data = self._adapter.interrupt(self._turn)
        if data is None:
            await self._link.signal(self.proc, int(signal.SIGINT), tree=False)
        else:
            await self._write(data)

    async def answer(self, request_id: str, *, allow: bool, reason: str = "") -> None:
        decision = "allow" if allow else "deny"
        await self._write(self._adapter.permission(request_id, decision, reason))

    async def events(self) -> AsyncGenerator[AgentEvent, None]:
        """Iterate over the agent's events until its end. Unread output blocks it; nothing is lost.

        Raises:
            RuntimeFailure: the agent's handshake failed.
        """
        await self._answer()
        async for item in with_silences(self._stream, lambda: pause_of(self._adapter)):
            if isinstance(item, Exit):
                self.exit = item
            if item is None or item is self.exit:
                for event in self._noted(events_of_silence(self._adapter)):
                    yield event
                await self._answer()
            elif isinstance(item, Output):
                self._ends[item.stream - 1] = item.offset + len(item.data)
                if item.stream == 1:
                    for event in self._noted(self._adapter.feed(item.data, item.offset)):
                        yield event
                    await self._answer()
                    if self._withdrawn and self._adapter.ready:
                        yield self._interrupted_event()
                else:
                    self._stderr = (self._stderr + item.data)[-STDERR_KEPT:]
                await self._ack()
        self._busy = False

    def _noted(self, events: list[AgentEvent]) -> Iterator[AgentEvent]:
        for event in events:
            if event.type == "completion" and event.data.get("turn") == self._turn:
                self._busy = False
            yield event

    def _interrupted_event(self) -> AgentEvent:
        self._busy = self._withdrawn = False
        fields = {"turn": self._turn, "final_text": "", "status": "interrupted"}
        return AgentEvent(type="completion", data=fields, end_offset=0, ordinal=0, ack_offset=0)

    async def _answer(self) -> None:
        """Send the frames that the protocol requires, and the input that waited for them."""
        await self._write(b"".join(self._adapter.writes()))
        if self._adapter.failed is not None:
            raise RuntimeFailure(self._adapter.failed)
        if self._waiting is not None and self._adapter.ready:
            text, self._waiting = self._waiting, None
            await self._write(self._adapter.prompt(self._turn, text))

    async def _ack(self) -> None:
        # Nothing is resumed from here, so output already read may be dropped.
        if sum(self._ends) - self._acked >= ACK_EVERY:
            self._acked = sum(self._ends)
            await self._link.ack(self.proc, *self._ends)

    async def _write(self, data: bytes) -> None:
        if not data:
            return
        async with self._writing:
            self._seq += 1
            await self._stream.write(self._seq, data)

    async def close(self) -> None:
        """End the process: close its input, then after a grace period kill it and its children."""
        with contextlib.suppress(LinkClosed):
            async with self._writing:
                self._seq += 1
                await self._stream.write_eof(self._seq)
        with contextlib.suppress(TimeoutError, LinkClosed, RuntimeFailure):
            async with asyncio.timeout(CLOSE_GRACE):
                async for _ in self.events():
                    pass
        await self._stream.aclose()
        with contextlib.suppress(LinkClosed, CommandFailed):
            await self._link.signal(self.proc, int(signal.SIGKILL))
            if self.exit is not None:
                await self._link.forget(self.proc)


async def _place(link: ControlLink, inside: Inside, command: AgentCommand, file: AgentFile) -> None:
    """Write a file into the HOME of a session, as its user."""
    request = StartProcess(
        proc=ids.new_id(ids.PROCESS),
        argv=(inside.python, *ISOLATED, "-c", _PLACE, file.path, str(file.mode)),
        env={**inside.env, "HOME": command.env["HOME"]},
        cwd=command.cwd,
        uid=inside.uid,
    )
    await link.start(request)
    async with await link.attach(request.proc) as stream:
        await stream.write(1, file.content)
        await stream.write_eof(2)
        async for item in stream:
            if isinstance(item, Exit) and item.code != 0:
                raise RuntimeFailure(f"{file.path} could not be written into HOME: {item}")
    await link.forget(request.proc)


class StreamExecution(abc.ABC):
    """Base with `execute` and `execute_streaming`, for runtimes with `command` and `adapter`."""

    @property
    def hears_tool_changes(self) -> bool:
        """Whether tool changes are noticed, as by most agents; subclasses override it."""
        return True

    @property
    def starts_mcp(self) -> bool:
        """Whether our MCP server is started unprompted, as by most agents."""
        return True

    @property
    def slow_start(self) -> str:
        """Advice for a slow start: none."""
        return ""

    @abc.abstractmethod
    def command(self, session: AgentSession, inside: Inside) -> AgentCommand: ...

    @abc.abstractmethod
    def adapter(
        self, session: AgentSession, inside: Inside, state: Mapping[str, Any] | None = None
    ) -> AgentAdapter: ...

    async def execute_streaming(
        self, link: ControlLink, inside: Inside, session: AgentSession
    ) -> Executor:
        """Start the process and converse with it turn by turn."""
        command = self.command(session, inside)
        for file in command.files:
            await _place(link, inside, command, file)
        proc = ids.new_id(ids.PROCESS)
        await link.start(
            StartProcess(
                proc=proc,
                argv=command.argv,
                env=command.env,
                cwd=command.cwd,
                uid=inside.uid,
                session=session.session_id,
            )
        )
        adapter = self.adapter(session, inside)
        return Executor(link, proc, await link.attach(proc), adapter)

    async def execute(
        self, link: ControlLink, inside: Inside, session: AgentSession, prompt: str
    ) -> str:
        """Run one turn in a process of its own."""
        executor = await self.execute_streaming(link, inside, session)
        try:
            await executor.send(prompt)
            reason = ""
            async with contextlib.aclosing(executor.events()) as events:
                async for event in events:
                    if event.type == "error":
                        reason = str(event.data.get("message") or "")
                    if event.type == "completion":
                        final = str(event.data["final_text"])
                        if event.data["status"] == "failed":
                            raise RuntimeFailure(f"the turn failed: {reason or final}")
                        return final
            raise RuntimeFailure(
                f"the agent ended in its turn ({executor.exit}): {executor.stderr[-500:].strip()}"
            )
        finally:
            await executor.close()
