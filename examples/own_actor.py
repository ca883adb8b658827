"""Program with an actor of its own beside those of Oubliette: it counts events.

python examples/own_actor.py HOME

It runs a server inside the program, starts a session with a message, and follows its log. Run
it twice on the same home: the second run continues where the first one was.
"""

import asyncio
import sys
from collections import Counter
from pathlib import Path

from oubliette.actors.subscriptions import subscribe
from oubliette.config.loader import load
from oubliette.kit import Actor, ChildSpec, Message, Reply, Supervisor, handles
from oubliette.messages import CreateProject, EventsCommitted, OpenProject, SpawnSession
from oubliette.server import running

SECONDS = 60.0


class Turns(Message, Reply[int]):
    """To the auditor: wait until `count` turns are complete; answers how many are."""

    count: int


class Auditor(Actor):
    """Counts the events of each type, and prints what agents say."""

    def __init__(self) -> None:
        self.types = Counter()
        self.waiting = []

    @handles(EventsCommitted)
    def _seen(self, message: EventsCommitted) -> None:
        for event in message.events:
            self.types[event.type] += 1
            if event.type == "message":
                print("the agent says:", event.data["text"])
        for count, answer in self.waiting:
            if self.types["completion"] >= count:
                answer.set(self.types["completion"])

    @handles(Turns)
    def _turns(self, message: Turns) -> int | None:
        if self.types["completion"] >= message.count:
            return self.types["completion"]
        self.waiting.append((message.count, self.defer()))
        return None


async def main(home: Path) -> None:
    settings = {"server.port": 0, "server.on_stop": "end"}
    async with running(home, load(home, overrides=settings).config) as server:
        system = server.system
        auditor = ChildSpec(name="auditor", cls=Auditor, known_as="auditor")
        system.spawn(Supervisor, [auditor], name="mine")
        subscription = await subscribe(system, "auditor", after=-1, name="audit")
        print("begins after", subscription.after)

        projects = system.ref("projects")
        known = await server.context.reader.project_named("audited")
        if known is None:
            known = await projects.ask(
                CreateProject(principal="program", name="audited", init_git=False)
            )
        project = system.ref(await projects.ask(OpenProject(project_id=known.id)))
        spawned = await project.ask(
            SpawnSession(
                principal="program", prompt="say audited", agent="scripted", new_session=True
            )
        )
        turns = await system.ref("auditor").ask(Turns(count=1), timeout=SECONDS)
        print("turns:", turns, "of", spawned.session_id)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
