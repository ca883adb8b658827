"""The story of the demo: an ordinary program on `oubliette.connect`, whose server is killed.

It provides two tools, starts a session whose agent calls them, kills the server while a call is
open, starts it again, and goes on waiting for the same turn.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Final

import oubliette
from oubliette.cli.demo.agents import CHILDREN, FINAL
from oubliette.cli.demo.event_printer import EventPrinter
from oubliette.cli.demo.shop import CALLER, Shop
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette import Caller, Session
    from oubliette.cli.demo.agents import DemoAgent
    from oubliette.cli.demo.cluster import DemoCluster
    from oubliette.cli.demo.lines import DemoOutput
    from oubliette.cli.demo.server import DemoServer

CALL_SECONDS: Final = 120.0  # a project with its first container, on a busy machine
TURN_SECONDS: Final = 240.0  # real agents take seconds to start, three of them at once more


class Story:
    """One run of the demo against its own server.

    Args:
        server: Not started yet; running when the story ends.
        agent: Takes the session.
        lines: Prints what happens.
        environment: More configuration of the server.
    """

    def __init__(
        self,
        server: DemoServer | DemoCluster,
        agent: DemoAgent,
        lines: DemoOutput,
        environment: Mapping[str, str],
    ) -> None:
        self._server = server
        self._agent = agent
        self._lines = lines
        self._shop = Shop(lines)
        self._printer = EventPrinter(lines)
        self._environment = environment

    async def run(self) -> None:
        """Run the demo from the server's start to the summary.

        Raises:
            OublietteError: it did not end as it should.
        """
        began = time.monotonic()
        url = await self._server.start(0, **self._environment)
        seconds = time.monotonic() - began
        self._lines.say("demo", f"server at {url} after {seconds:.1f} s, home {self._server.home}")
        token = await self._server.token()
        # Its sessions are ended by the server, whose agents end with it.
        async with oubliette.connect(url, token, on_exit="keep") as ob:
            follow = self._printer.follow(ob, await self._printer.begin(ob))
            printing = asyncio.create_task(follow, name="events of the demo")
            try:
                await self._tell(ob, printing)
            finally:
                printing.cancel()
                await asyncio.gather(printing, return_exceptions=True)

    async def _tell(self, ob: oubliette.Oubliette, printing: asyncio.Task[None]) -> None:
        async with ob.caller(CALLER, [self._shop]) as caller:
            session = await self._spawn(ob, caller)
            await self._until_asked(session)
            await self._server.kill()
            self._lines.say("demo", "the server is dead; the agent still runs and waits")
        outage = await self._server.restart(**self._environment)
        self._lines.say("demo", f"a new server runs after {outage:.1f} s; the caller comes back")
        self._shop.may_answer.set()
        async with ob.caller(CALLER, [self._shop]):
            await self._until_ended(session, printing)
        await self._check(ob, session, outage)

    async def _spawn(self, ob: oubliette.Oubliette, caller: Caller) -> Session:
        async with self._lines.waiting("the project and the agent's session", CALL_SECONDS):
            project = await ob.create_project("demo")
            return await project.spawn(
                self._agent.prompt,
                agent=self._agent.name,
                caller=caller,
                api_key_scope="read",
            )

    async def _until_ended(self, session: Session, printing: asyncio.Task[None]) -> None:
        assert session.turn is not None
        waited = f"the end of the agent's turn ({self._agent.name})"
        async with self._lines.waiting(waited, TURN_SECONDS):
            await session.turn
            await printing

    async def _check(self, ob: oubliette.Oubliette, session: Session, outage: float) -> None:
        async with self._lines.waiting("the session's log", CALL_SECONDS):
            await self._summarise(ob, session, outage)

    async def _until_asked(self, session: Session) -> None:
        """Wait until the agent asks for the approval.

        Raises:
            OublietteError: its turn ended without that.
        """
        assert session.turn is not None
        asked = asyncio.create_task(self._shop.is_asked.wait())
        ended = asyncio.ensure_future(session.turn.result())
        try:
            async with self._lines.waiting(
                f"the agent ({self._agent.name}) to ask us for approve", TURN_SECONDS
            ):
                await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                await ended  # raises why the turn failed, if it did
                raise OublietteError(
                    "the agent's turn is over, and it did not call the caller's tool"
                )
        finally:
            asked.cancel()
            ended.cancel()
            await asyncio.gather(asked, ended, return_exceptions=True)

    async def _summarise(self, ob: oubliette.Oubliette, session: Session, outage: float) -> None:
        info = await session.get()
        indexes = [event.index async for event in session.events()]
        projects = [project.name for project in await ob.projects()]
        final = info.final_response
        whole = indexes == list(range(len(indexes)))
        complete = self._agent.free or (final == FINAL and self._printer.answered == CHILDREN)
        if not (complete and whole and final and projects == ["demo"]):
            raise OublietteError(
                f"the demo did not end as it should: {final!r}, {self._printer.answered} children"
                f" answered, {'no gap' if whole else 'a gap'} in the log,"
                f" projects: {', '.join(projects)}"
            )
        sys.stdout.write(
            f"""
The agent said at the end: {final}
  agent            {info.agent}, isolation: {info.isolation}
  children         {self._printer.children()}
  minted key       may read; there is no project but {projects[0]!r}
  server           killed with -9 in the middle of the turn, back after {outage:.1f} s
  log              {len(indexes)} events of the agent, indexes 0 to {indexes[-1]}, no gap, no repeat
"""
        )
