"""Fetches: requests that were admitted, served at the home of their project."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from oubliette.errors import LimitExceeded, ProjectMoves
from oubliette.kit import ActorDead
from oubliette.kit.fair_loop import working_for
from oubliette.mcp_front.git_http.git_request import GitRequest
from oubliette.mcp_front.git_http.upload_pack import ClientGone, head_of, upload_pack
from oubliette.mcp_front.quotas import decrement
from oubliette.tools.call_at_home import ATTEMPTS
from oubliette.tools.home_streams import LivesElsewhere, open_at_home

if TYPE_CHECKING:
    from collections.abc import Generator

    from starlette.types import Message, Receive, Send

    from oubliette.tools.git_views import ProjectViews
    from oubliette.tools.home_nodes import HomeNodes
    from oubliette.tools.home_streams import HomeStream, StreamEnd
    from oubliette.tools.spec import CallContext

KIND: Final = "git"
"""Kind of the streams to the home of a project."""
AT_ONCE: Final = 8
"""Requests of one principal that a machine serves at a time: each has processes of its own."""
_BEGUN: Final = b"+"
"""First bytes of a stream: its home will answer the request."""


class Fetch(NamedTuple):
    """A request, its body and its response."""

    request: GitRequest
    receive: Receive
    send: Send


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A request that another machine passes on."""

    project_id: str
    principal: str
    request: GitRequest


class Fetches:
    """Serves requests of this machine's clients, and those that other machines pass on to it.

    Args:
        views: The repositories.
        nodes: Machines of the cluster; None: this one is alone.
    """

    def __init__(self, views: ProjectViews, nodes: HomeNodes | None) -> None:
        self.views = views
        self._nodes = nodes
        self._served: Counter[str] = Counter()
        """Requests that are being served, also for other machines and by them, by principal."""

    async def fetch(self, context: CallContext, fetch: Fetch) -> None:
        """Answer a request of an admitted client, from the repository at its project's home.

        Raises:
            LimitExceeded: too many of its principal are being served.
            OublietteError: it cannot be answered, or the answer was cut.
        """
        with self._place(context.principal):
            await self._fetch(context, fetch)

    @contextlib.contextmanager
    def _place(self, principal: str) -> Generator[None]:
        if self._served[principal] >= AT_ONCE:
            raise LimitExceeded(
                f"{AT_ONCE} requests of git are being served already", hint="wait for one of them"
            )
        self._served[principal] += 1
        try:
            yield
        finally:
            decrement(self._served, principal)

    async def _fetch(self, context: CallContext, fetch: Fetch) -> None:
        project_id = node = None
        for _ in range(ATTEMPTS):
            project_id, node = await self.views.find(context, fetch.request.project_id)
            if node is None or self._nodes is None:
                await self._upload(project_id, *fetch)
                return
            wanted = _Wanted(
                project_id=project_id, principal=context.principal, request=fetch.request
            )
            try:
                async with open_at_home(
                    self._nodes, node, KIND, msgspec.msgpack.encode(wanted)
                ) as stream:
                    await stream.read()  # what was begun
                    await _pass_on(stream, fetch)
            except LivesElsewhere:
                self._nodes.forget(project_id)
            except ActorDead:  # the project may have another home by the next request
                self._nodes.forget(project_id)
                raise
            else:
                return
        raise ProjectMoves(f"project {project_id} is moving to another node", hint="try again")

    async def _upload(
        self, project_id: str, request: GitRequest, receive: Receive, send: Send
    ) -> None:
        folder = await self.views.folder(project_id)
        await upload_pack(folder, request, receive, send, seconds=self.views.seconds)

    async def serve(self, given: bytes, end: StreamEnd) -> None:
        """Answer a request that another machine has admitted; the work of a stream."""
        wanted = msgspec.msgpack.decode(given, type=_Wanted)
        working_for.set(wanted.principal)
        if self._nodes is not None:
            self._nodes.forget(wanted.project_id)  # the other one may know better
            if await self._nodes.home(wanted.project_id, needed=False) is not None:
                raise LivesElsewhere(f"project {wanted.project_id} lives elsewhere")
        with self._place(wanted.principal):
            folder = await self.views.folder(wanted.project_id)
            await end.send(_BEGUN)
            receive, send = _asgi(end)
            await upload_pack(folder, wanted.request, receive, send, seconds=self.views.seconds)


def _asgi(end: StreamEnd) -> tuple[Receive, Send]:
    """Return the body of a request that another machine passes on, and its response."""

    async def receive() -> Message:
        piece = await end.receive()
        return {"type": "http.request", "body": piece.data, "more_body": not piece.last}

    async def send(message: Message) -> None:
        await end.send(message.get("body", b""))  # the other machine knows the head

    return receive, send


async def _pass_on(stream: HomeStream, fetch: Fetch) -> None:
    """Pass the body of a request on to the home of its project, and the answer to the client."""
    request, receive, send = fetch
    answered = asyncio.Event()

    async def upload() -> None:
        more = not request.advertise
        while (message := await receive())["type"] != "http.disconnect":
            if more:
                more = message.get("more_body", False)
                await stream.write(message.get("body", b""), last=not more)
        if not answered.is_set():  # otherwise it is the end of the answer
            raise ClientGone("the client is gone")

    async def download() -> None:
        block = await stream.read()
        await send(head_of(request))
        while block:
            await send({"type": "http.response.body", "body": block, "more_body": True})
            block = await stream.read()
        answered.set()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    try:
        async with asyncio.TaskGroup() as tasks:
            uploading = tasks.create_task(upload())
            await download()
            uploading.cancel()
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
