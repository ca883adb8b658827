"""How the cost of what is done often grows with what is stored, as exponents.

    python -m tests.bench.growth [--sizes 1000 10000 100000]

One database is filled by the store's own operations up to each size, with sessions that ended (of
one project, as children of one session, with a key each), projects, and one live session in a long
turn. At each size the processor time of each row is measured, the median of several calls. Between
the two largest sizes it grows with the exponent: 0 is constant, 1 linear, 2 quadratic. Rows above
what they should be come once more at the end, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import logging
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import structlog

from oubliette import ids
from oubliette.actors.container.lease_memory import LeaseMemory
from oubliette.actors.session import recovery
from oubliette.actors.session.event_writer import EventWriter
from oubliette.clock import SystemClock
from oubliette.records import CallerTool, Event, Project, Session, Token, Turn, Used, Workspace
from oubliette.runtime import audit_log
from oubliette.runtime.files import disk_usage, leftovers
from oubliette.runtime.files.project_dirs import Folders
from oubliette.runtime.store import Database, Reader, operations, queries
from oubliette.runtime.store.execute import perform
from oubliette.tools.auth.api_keys import ApiKeys
from oubliette.tools.auth.scopes import Scope
from oubliette.tools.event_queries import event_piece, listing_facts, tree_log
from oubliette.tools.handlers.tokens import TokenList, token_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from sqlite3 import Connection

    from oubliette.runtime.store.operations import Op, Result

SIZES: Final = (1_000, 10_000, 100_000)
NOISE: Final = 0.4
"""Exponent that a busy machine and caches add between two sizes."""
LEAST: Final = 50e-6
"""Seconds that count as nothing: a clock that is read twice, a statement that is prepared."""
SECONDS: Final = 1.0
"""Processor time that the calls of one row take at one size; one call in any case."""
PROJECT, WORKSPACE, OWNER = "proj_0", "w0", "prin"
LONG: Final = ids.new_id(ids.SESSION)
"""A live session, in a turn with as many events as the size."""
PARENT: Final = ids.new_id(ids.SESSION)
LARGE: Final = 80
"""Bytes of the large event for each of the size: 8 MB at 100,000."""

AUDIT_LINE: Final = b"%b\n" % msgspec.json.encode(
    audit_log.AuditEntry(
        ts=1.0, tool="session_get", transport="http", token_id="tok_1", principal=OWNER
    )
)


class Row(NamedTuple):
    """One measurement."""

    name: str
    should: float
    """Exponent that it should have at most."""
    call: Callable[[Growth], object]


class Growth:
    """The database, and what is measured on it."""

    def __init__(self, folder: Path) -> None:
        self.size = 0
        self.folders = Folders(folder)
        self.folders.prepare()
        self.database = Database(folder / "store.db")
        self.writing: Connection = self.database.connect()
        self.reading: Connection = self.database.connect_read_only()
        self.reader = Reader(self.database, threads=1)
        self.loop = asyncio.new_event_loop()
        self.keys = ApiKeys(self._commit, self.reader, SystemClock())
        self.ended: list[str] = []
        self.write(
            operations.PutWorkspace(workspace(WORKSPACE, is_default=True)),
            operations.PutSession(self.session(LONG, status="running", process_id="p")),
            operations.PutSession(self.session(PARENT)),
            operations.PutTurn(
                Turn(
                    session_id=LONG,
                    number=1,
                    prompt="x",
                    state="running",
                    created_at=1.0,
                    began_at=1.0,
                    began_index=0,
                )
            ),
            operations.AppendEvents((self.event(LONG, "status"),)),
        )

    def close(self) -> None:
        self.loop.run_until_complete(self.keys.aclose())
        self.loop.close()
        self.reader.close()
        self.database.release(self.reading)
        self.database.release(self.writing)
        self.database.close()

    async def _commit(self, ops: tuple[Op, ...]) -> Result:
        return self.write(*ops)

    def write(self, *ops: Op) -> Result:
        self.writing.execute("BEGIN IMMEDIATE")
        result = perform(self.writing, ops)
        self.writing.execute("COMMIT")
        return result

    @contextlib.contextmanager
    def undone(self) -> Iterator[Connection]:
        """A transaction that leaves the store as it was."""
        self.writing.execute("BEGIN IMMEDIATE")
        try:
            yield self.writing
        finally:
            self.writing.execute("ROLLBACK")

    # ------------------------------------------------------------------ filling

    def session(self, session_id: str, **fields: Any) -> Session:
        known: dict[str, Any] = {
            "project_id": PROJECT,
            "workspace_id": WORKSPACE,
            "principal": OWNER,
            "agent": "scripted",
            "status": "completed",
            "created_at": 1.0,
            "updated_at": 9.0,
            "exploration_id": f"expl_{session_id}",
        }
        return Session(id=session_id, **{**known, **fields})

    def event(self, session_id: str, kind: str = "delta", text: str = "some words") -> Event:
        return Event(
            session_id=session_id,
            index=-1,
            ts=1.0,
            type=kind,
            principal=OWNER,
            caller_id="c" if session_id == LONG else None,
            data={"text": text},
        )

    def fill(self, size: int) -> None:
        self.large = self.write(
            operations.AppendEvents((self.event(PARENT, text="x" * (LARGE * size)),))
        )[0][0]
        with (self.folders.home / audit_log.FILE_NAME).open("ab") as audit:
            audit.write(AUDIT_LINE * (size - self.size))
        for start in range(self.size, size, 500):
            ops = (op for number in range(start, min(start + 500, size)) for op in self.one(number))
            self.write(*ops)
        self.size = size
        self.tools = tuple(
            CallerTool(name=f"t{number}", description="d" * 100) for number in range(size // 100)
        )
        self.writer = EventWriter(
            self.session(LONG, status="running", process_id="p", caller_tools=self.tools),
            [],
            -1,
            ring_size=1,
            now=lambda: 1.0,
            wake=lambda: None,
        )
        self.writer.change(turn_count=1)
        batch = self.writer.take()
        assert batch is not None
        self.write(*batch.ops)
        self.writer.committed(())
        self.head = queries.last_seq(self.reading)
        self.last = queries.last_index(self.reading, LONG)
        self.wait(self.keys.load())
        self.key = self.wait(self.keys.create(name="newest", scope=Scope(level="read"))).key

    def one(self, number: int) -> Iterator[Op]:
        """Return what is stored of one more session that ended, and beside it."""
        child, minted = ids.new_id(ids.SESSION), f"tok_{number:026}"
        self.ended.append(child)
        yield operations.PutSession(
            self.session(
                child,
                parent_session_id=PARENT,
                exploration_id=f"expl_{PARENT}",
                ended_by="user",
                minted_token_id=minted,
            )
        )
        yield operations.PutTurn(
            Turn(session_id=child, number=1, prompt="x", state="done", created_at=1.0)
        )
        used = Used(input_tokens=9, reported_usd=0.5, turns=1)
        yield operations.AddUsage(child, number, PROJECT, OWNER, "scripted", "m", used)
        events = self.event(child, "status"), self.event(child, "completion"), self.event(LONG)
        yield operations.AppendEvents(events)
        yield operations.PutToken(
            token(minted, principal=f"session:{child}", session_id=child, transports=("socket",))
        )
        if number % 10 == 0:
            yield operations.PutProject(project(number))
            yield operations.PutProject(project(number, "gone", deleted_at=1.0))
            yield operations.PutWorkspace(workspace(f"w{number}_gone", deleted_at=1.0))
            yield operations.PutToken(token(f"tok_a{number:025}", name="of a user"))
            (self.folders.logs / f"{child}{leftovers.STDERR}").touch()
            (self.folders.session_homes(PROJECT) / child).mkdir(parents=True)

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    # ------------------------------------------------------------------ what is measured

    def commit_writer(self) -> None:
        batch = self.writer.take()
        assert batch is not None
        with self.undone() as connection:
            perform(connection, batch.ops)
        self.writer.committed(())

    def turn_with_tools(self) -> None:
        self.writer.change(turn_count=2)
        self.commit_writer()

    def do(self, *ops: Op) -> None:
        with self.undone() as connection:
            perform(connection, ops)

    def ask(self, query: Callable[..., Any], *values: object, **more: object) -> Any:
        return query(self.reading, *values, **more)

    def load_keys(self) -> None:
        self.wait(ApiKeys(self._commit, self.reader, SystemClock()).load())

    def read_event(self) -> None:
        offset: int | None = 0
        while offset is not None:
            piece = event_piece(self.reading, PARENT, self.large.index, offset, 512 * 1024)
            assert piece is not None
            offset = piece[1]

    def read_tree(self) -> None:
        seq, more = 0, True
        while more:
            page = tree_log(self.reading, PARENT, seq, 500, 1 << 20, 1 << 18)
            seq, more = page.last_seq, page.more

    def read_log(self) -> None:
        """Read the long log in pages, and of it the last tenth, as what is read is in memory."""
        at, more = self.last - self.size // 10, True
        while more:
            page = self.ask(queries.log, LONG, at)
            at, more = page.events[-1].index, page.more

    def begin_tree(self) -> None:
        """Read what `TreeActor` begins with."""
        self.ask(queries.tree_members, f"expl_{PARENT}")

    def check_key(self) -> None:
        async def check() -> None:
            self.keys.verify(self.key, "http")

        self.wait(check())

    def list_keys(self) -> None:
        services: Any = SimpleNamespace(keys=self.keys, nodes=None)
        context: Any = None
        listed = self.wait(token_list.handler(services, context, TokenList(limit=20)))
        assert listed.tokens

    def measure_files(self) -> None:
        used = disk_usage.measure([self.folders.session_homes(PROJECT)], seconds=60.0)
        assert used.complete

    def read_audit(self) -> None:
        last = collections.deque(audit_log.read(self.folders.home), maxlen=10)
        assert len(last) == 10

    def start_agents(self) -> None:
        memory = LeaseMemory(None)
        for number in range(self.size // 10):
            memory.hold(str(number), 350, starts=True)

    def find_leftovers(self) -> None:
        known = leftovers.deleted(self.reading, time.time())
        found = leftovers.find(self.folders, known, 0.0)
        leftovers.without_sessions(self.reading, found)


def project(number: int, kind: str = "proj", **fields: Any) -> Project:
    return Project(
        id=f"{kind}_{number}",
        name=f"Project {number}",
        created_at=1.0,
        default_workspace_id=WORKSPACE,
        uid=1000,
        **fields,
    )


def workspace(workspace_id: str, **fields: Any) -> Workspace:
    return Workspace(id=workspace_id, project_id=PROJECT, created_at=1.0, **fields)


def token(token_id: str, **fields: Any) -> Token:
    known: dict[str, Any] = {"name": "session key", "scope": "write", "principal": OWNER}
    return Token(id=token_id, digest=bytes(32), created_at=1.0, **{**known, **fields})


ROWS: Final = (
    Row("session_list, first page", 0, lambda g: g.ask(queries.sessions, PROJECT)),
    Row(
        "session_list, last page",
        0,
        lambda g: g.ask(queries.sessions, PROJECT, cursor=g.ended[-50]),
    ),
    Row("session_list, status", 0, lambda g: g.ask(queries.sessions, PROJECT, "failed")),
    Row("project_list", 0, lambda g: g.ask(queries.projects_with_containers)),
    Row("workspace_list", 0, lambda g: g.ask(queries.workspace_page, PROJECT)),
    Row("workspaces of a project", 0, lambda g: g.ask(queries.workspaces, PROJECT)),
    Row(
        "a workspace is made: its time",
        0,
        lambda g: g.ask(queries.next_workspace_time, PROJECT, 1.0),
    ),
    Row("session_get", 0, lambda g: g.ask(queries.session, g.ended[-1])),
    Row("session_get, a session with many tools", 0, lambda g: g.ask(queries.session, LONG)),
    Row(
        "session_list, a row of a parent of all",
        0,
        lambda g: g.ask(listing_facts, [g.session(PARENT)], None),
    ),
    Row(
        "message that begins a session: the latest one",
        0,
        lambda g: g.ask(queries.latest_session, WORKSPACE, OWNER),
    ),
    Row(
        "a new session is stored",
        0,
        lambda g: g.do(operations.PutSession(g.session(ids.new_id(ids.SESSION)))),
    ),
    Row("a turn beside tools of a caller", 0, Growth.turn_with_tools),
    Row(
        "an event is stored in a long log",
        0,
        lambda g: g.do(operations.AppendEvents((g.event(LONG),))),
    ),
    Row("a long log, first page", 0, lambda g: g.ask(queries.log, LONG)),
    Row("a long log, page by page", 1, Growth.read_log),
    Row("a long log, last page", 0, lambda g: g.ask(queries.log, LONG, g.last - 50)),
    Row("a tree's log, at its end", 0, lambda g: g.ask(tree_log, PARENT, g.head - 5, 500, 1 << 20)),
    Row("a tree's log, whole", 1, Growth.read_tree),
    Row(
        "a subscription to a project, at its end",
        0,
        lambda g: g.ask(queries.committed_events, g.head - 5, PROJECT),
    ),
    Row("event_read of the whole", 1, Growth.read_event),
    Row(
        "recovery of a session in a long turn",
        0,
        lambda g: g.ask(recovery.stored, LONG, 200, 0.0),
    ),
    Row(
        "resume of a stored session",
        0,
        lambda g: g.ask(recovery.stored, g.ended[0], 200, 0.0),
    ),
    Row(
        "a listener, at its end",
        0,
        lambda g: g.ask(queries.caller_events, OWNER, "c", g.head - 50),
    ),
    Row("config_limits of a tree", 1, Growth.begin_tree),
    Row(
        "usage_report of a day",
        0,
        lambda g: g.ask(queries.usage_sums, "session", g.size - 24),
    ),
    Row(
        "usage_report of all days",
        1,
        lambda g: g.ask(queries.usage_sums, "model"),
    ),
    Row("the first message to a tree", 1, Growth.begin_tree),
    Row("start: live sessions", 0, lambda g: g.ask(queries.live_sessions)),
    Row("start: keys", 1, Growth.load_keys),
    Row("after the start: leftovers", 1, Growth.find_leftovers),
    Row("a key is checked", 0, Growth.check_key),
    Row("token_list, first page", 0, Growth.list_keys),
    Row("end of a session: its keys", 0, lambda g: g.wait(g.keys.end_session(g.ended[0]))),
    Row("session_cleanup, nothing to delete", 0, lambda g: g.ask(queries.ended_sessions, 5.0)),
    Row("session_cleanup, one session", 0, lambda g: g.do(operations.PurgeSession(g.ended[0]))),
    Row(
        "workspace_delete: who lives there",
        0,
        lambda g: g.ask(queries.live_sessions, workspace_id=WORKSPACE),
    ),
    Row("files of a project are measured", 1, Growth.measure_files),
    Row("audit, the last ten calls", 1, Growth.read_audit),
    Row("agents that start in one container", 1, Growth.start_agents),
)


def cost(growth: Growth, row: Row) -> float:
    """The median of the processor time of several calls."""
    row.call(growth)
    spent: list[float] = []
    while not spent or (sum(spent) < SECONDS and len(spent) < 15):
        began = time.process_time()
        row.call(growth)
        spent.append(time.process_time() - began)
    return statistics.median(spent)


def exponent(costs: list[float], sizes: list[int]) -> float:
    before, after = (max(each, LEAST) for each in costs[-2:])
    return math.log(after / before) / math.log(sizes[-1] / sizes[-2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    sizes: list[int] = sorted(parser.parse_args().sizes)
    if len(sizes) < 2 or sizes[0] < 100:
        parser.error("--sizes: give two sizes at least, of 100 or more")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    costs: dict[str, list[float]] = {row.name: [] for row in ROWS}
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(Growth(Path(folder))) as growth,
    ):
        for size in sizes:
            growth.fill(size)
            for row in ROWS:
                costs[row.name].append(cost(growth, row))
    wide = max(len(row.name) for row in ROWS)
    print(f"{'ms at':{wide}}", *(f"{size:>9}" for size in sizes), " exponent  should be")
    above: list[str] = []
    for row in ROWS:
        grows = exponent(costs[row.name], sizes)
        line = f"{row.name:{wide}} " + " ".join(f"{each * 1e3:9.3f}" for each in costs[row.name])
        line += f"  {grows:8.2f}  {row.should:9g}"
        print(line)
        if grows > row.should + NOISE:
            above.append(line)
    print("\nabove what they should be:", "none" if not above else "")
    for line in above:
        print(line)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
