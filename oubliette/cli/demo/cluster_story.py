"""ClusterStory, the story of the demo on a cluster: another node than ours is killed in a turn.

The program stays connected to its node all the time; the agent goes on in its container, and the
node's next process takes it over.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from oubliette.cli.demo.shop import CALLER
from oubliette.cli.demo.story import Story

if TYPE_CHECKING:
    import asyncio

    import oubliette
    from oubliette.cli.demo.cluster import DemoCluster

DEAD: Final = "that process is dead; the agent still runs and waits, and our connection is whole"


class ClusterStory(Story):
    """One run of the demo against a trial cluster."""

    _server: DemoCluster

    async def _tell(self, ob: oubliette.Oubliette, printing: asyncio.Task[None]) -> None:
        async with ob.caller(CALLER, [self._shop]) as caller:
            session = await self._spawn(ob, caller)
            await self._until_asked(session)
            await self._server.kill()
            self._lines.say("demo", DEAD)
            outage = await self._server.restart()
            killed = self._server.killed
            self._lines.say("demo", f"Ray runs {killed} again after {outage:.1f} s")
            self._shop.may_answer.set()
            await self._until_ended(session, printing)
        await self._check(ob, session, outage)
        sys.stdout.write(
            f"  cluster          {self._server.nodes} nodes; the program used {self._server.front},"
            f" the session was on {killed}\n"
        )
