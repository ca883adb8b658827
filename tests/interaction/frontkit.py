"""A front on a real port over a real (in-memory) log, with a few tools of its own."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from typing import Any

import msgspec

from oubliette.actors.caller.messages import CallerState, GetCaller
from oubliette.actors.caller.supervisor import CallersActor
from oubliette.actors.messages import (
    CallerDisconnected,
    OpenCaller,
    TrackRequest,
    UntrackRequest,
    caller_actor_name,
)
from oubliette.actors.store.actor import StoreActor, Transact
from oubliette.clock import SystemClock
from oubliette.config.schema import CallersConfig, Config, ServerConfig
from oubliette.contract.validation import decode
from oubliette.errors import Conflict, NotFound, OublietteError, Unauthenticated
from oubliette.ids import new_id, new_uuid
from oubliette.kit import Actor, System, handles
from oubliette.mcp_front.actor import FrontActor, GetUrl
from oubliette.mcp_front.app import McpApp
from oubliette.mcp_front.auth import KeyChecks
from oubliette.mcp_front.transport.http_protocol import Deadlines
from oubliette.records import CallerRequest, Event, Token
from oubliette.runtime.store.database import Database
from oubliette.runtime.store.operations import AppendEvents, PutCallerRequest, SettleCallerRequest
from oubliette.runtime.store.reader import Reader
from oubliette.tools.auth.running_calls import RunningCalls
from oubliette.tools.caller_listen import CallerListen
from tests.callers import HttpCaller, SdkCaller

NO_WAIT = {"stream_grace_seconds": 0.15, "poll_grace_seconds": 0.4, "restart_grace_seconds": 0.3}


class Said(msgspec.Struct, frozen=True, kw_only=True):
    structured: dict[str, Any]
    text: str = ""
    is_error: bool = False
    raw: bytes | None = None


class Waiter(Actor):
    """Stands in for CallerRequestActors: remembers that the caller was lost."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = asyncio.get_running_loop().create_future()

    @handles(CallerDisconnected)
    def _lost(self, message: CallerDisconnected) -> None:
        if not self.lost.done():
            self.lost.set_result(message.reason)


class World:
    """A front and what it stands on."""

    def __init__(
        self,
        system: System,
        store: Any,
        reader: Reader,
        config: Config,
        deadlines: Any,
        direct: bool = True,
        parser: Any = None,
        rates: Any = None,
    ) -> None:
        self.system = system
        self.store = store
        self.reader = reader
        self.config = config
        self.tokens: dict[str, Token] = {}
        self.running = RunningCalls(SystemClock())
        self.not_ready: list[str] = []
        self.gate = asyncio.Event()
        self.calls: list[tuple[str, str]] = []
        self.indexes: dict[str, int] = {}
        self.answers: dict[str, Any] = {}
        self.callers = system.spawn(CallersActor, store, reader, config.callers, name="callers")
        self.front = McpApp(
            config=config,
            tools=self,
            keys=KeyChecks(self.verify, lambda key: self.running.until_end(key, None)),
            ready=self.ready,
            callers=self.callers,
            find=system.ref,
            deadlines=deadlines,
            direct=direct,
            parser=parser,
            rates=rates,
        )
        self.actor: Any = None
        self.open: list[Any] = []

    async def start(self) -> None:
        self.actor = self.system.spawn(FrontActor, self.front, name="front")
        await self.actor.ask(GetUrl(), 5)

    # ------------------------------------------------------------ keys
    def key(self, principal: str = "alice", **fields: Any) -> str:
        text = f"key-{len(self.tokens)}-of-{principal}"
        self.tokens[text] = Token(
            **{
                "id": new_id("tok"),
                "digest": hashlib.sha256(text.encode()).digest(),
                "name": text,
                "scope": "admin",
                "principal": principal,
                "created_at": 0.0,
                **fields,
            }
        )
        return text

    def key_with(self, token: Token, **fields: Any) -> Token:
        return msgspec.structs.replace(token, **fields)

    async def verify(self, key: str) -> Token:
        token = self.tokens.get(key)
        if token is None or token.revoked_at or (token.expires_at or 1e18) < time.time():
            raise Unauthenticated("invalid or expired API key")
        return token

    async def ready(self) -> list[str]:
        return self.not_ready

    # ------------------------------------------------------------ tool table
    def has(self, name: str) -> bool:
        return hasattr(self, f"tool_{name}")

    async def project_of_workspace(self, context: Any, workspace_id: str) -> str | None:
        return None

    def streams(self, name: str) -> bool:
        return name == "caller_listen"

    def list(self, context: Any) -> list[dict[str, Any]]:
        return [
            {"name": name[5:], "description": name[5:], "inputSchema": {"type": "object"}}
            for name in dir(self)
            if name.startswith("tool_")
        ]

    async def call(self, context: Any, name: str, arguments: dict[str, Any] | None) -> Said:
        self.calls.append((context.principal, name))
        answer = await getattr(self, f"tool_{name}")(context, arguments or {})
        raw = msgspec.json.encode(answer)
        return Said(structured=answer, text=raw.decode(), raw=raw)

    async def tool_echo(self, context: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"principal": context.principal, "said": arguments}

    async def tool_wait(self, context: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        await self.gate.wait()
        return {"waited": True}

    async def tool_big(self, context: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"data": "x" * arguments["size"]}

    async def tool_refuse(self, context: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        raise Conflict("it is not the time for that", hint="wait")

    async def tool_crash(self, context: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("secret of the house")

    async def tool_session_spawn(self, context: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        return {"session_id": new_id("gogol")}

    tool_session_message = tool_session_spawn

    async def tool_caller_listen(self, context: Any, arguments: dict[str, Any]) -> dict[str, Any]:
        params = decode(CallerListen, arguments, "caller_listen")
        return msgspec.to_builtins(await self.front.listening(context, params))

    async def tool_caller_tool_response(
        self, context: Any, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        (first,) = await self.store.ask(
            Transact(
                ops=(
                    SettleCallerRequest(
                        id=arguments["request_id"],
                        outcome="result",
                        result=arguments.get("result"),
                        error=arguments.get("error"),
                        settled_at=time.time(),
                    ),
                )
            )
        )
        if not first:
            raise NotFound("request not found or already resolved")
        self.answers[arguments["request_id"]] = arguments
        return {"accepted": True}

    # ------------------------------------------------------------ sessions
    async def events(
        self,
        *data: dict[str, Any],
        session: str = "gogol_1",
        principal: str = "alice",
        caller_id: str = "tester",
        kind: str = "message",
        more: tuple[Any, ...] = (),
    ) -> tuple[Event, ...]:
        """Commit events of a session, as its SessionActor would."""
        first = self.indexes.get(session, 0)
        self.indexes[session] = first + len(data)
        events = tuple(
            Event(
                session_id=session,
                index=index,
                ts=time.time(),
                type=one.pop("kind", kind),
                data=one,
                principal=principal,
                caller_id=caller_id,
            )
            for index, one in enumerate(data, first)
        )
        result = await self.store.ask(Transact(ops=(AppendEvents(events), *more)))
        return result[0]

    async def request(
        self,
        tool: str = "add",
        *,
        session: str = "gogol_1",
        principal: str = "alice",
        caller_id: str = "tester",
        **arguments: Any,
    ) -> str:
        """An agent calls a tool of its caller."""
        request_id = new_uuid()
        record = CallerRequest(
            id=request_id,
            session_id=session,
            principal=principal,
            caller_id=caller_id,
            tool=tool,
            arguments=arguments,
            created_at=time.time(),
            deadline=time.time() + 60,
            event_index=self.indexes.get(session, 0),
        )
        await self.events(
            {"request_id": request_id, "tool": tool, "arguments": arguments},
            session=session,
            principal=principal,
            caller_id=caller_id,
            kind="caller_tool_request",
            more=(PutCallerRequest(record),),
        )
        return request_id

    async def track(self, request_id: str = "r1", **fields: Any) -> Waiter:
        """Wait for the loss of the caller, as a CallerRequestActor does."""
        principal = fields.pop("principal", "alice")
        caller_id = fields.pop("caller_id", "tester")
        await self.callers.ask(OpenCaller(principal=principal, caller_id=caller_id))
        waiter: Any = self.system.spawn(Waiter)
        actor = waiter.resolve()
        self.system.ref(caller_actor_name(principal, caller_id)).tell(
            TrackRequest(request_id=request_id, session_id="s", reply_to=waiter.name, **fields)
        )
        return actor

    async def listening_state(self) -> CallerState:
        return await self.system.ref(caller_actor_name("alice", "tester")).ask(GetCaller())

    def untrack(self, request_id: str) -> None:
        self.system.ref(caller_actor_name("alice", "tester")).tell(
            UntrackRequest(request_id=request_id)
        )

    # ------------------------------------------------------------ clients
    @contextlib.asynccontextmanager
    async def caller(
        self, kind: str = "http", mode: str = "auto", key: str | None = None, **kw: Any
    ):
        cls: Any = SdkCaller if kind == "sdk" else HttpCaller
        kw.setdefault("tools", {"add": lambda a, b: a + b})
        async with cls(self.front.url, key or self.key(), mode=mode, **kw) as caller:
            yield caller


@contextlib.asynccontextmanager
async def world(
    *,
    callers: dict[str, Any] | None = None,
    server: dict[str, Any] | None = None,
    direct: bool = True,
    parser: Any = None,
    rates: Any = None,
    **deadlines: float,
):
    config = Config(
        server=ServerConfig(port=0, **(server or {})),
        callers=CallersConfig(**{**NO_WAIT, **(callers or {})}),
    )
    before = asyncio.all_tasks()
    database = Database(":memory:")
    reader = Reader(database)
    try:
        async with System(name="front-test") as system:
            store = system.spawn(StoreActor, database, name="store")
            limits = Deadlines(
                **{
                    "head": config.server.header_timeout_seconds,
                    "stall": config.callers.send_timeout_seconds,
                    **deadlines,
                }
            )
            made = World(system, store, reader, config, limits, direct, parser, rates)
            await made.start()
            try:
                yield made
            finally:
                await made.actor.stop(5)
    finally:
        await reader.aclose()
        with contextlib.suppress(OublietteError):
            database.close()
        left = {task for task in asyncio.all_tasks() - before if not task.done()}
        if left:
            await asyncio.wait(left, timeout=1)
        assert not [repr(task) for task in left if not task.done()], "tasks were left"
