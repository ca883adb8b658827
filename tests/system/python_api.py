"""The doors of the Python API that one suite of tests goes through."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import oubliette

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.system.site import Site

DOORS = ("embedded", "connected", "blocking")
"""In this process, over MCP to a server, and in this process through the blocking twin."""
_AT_ONCE = {"events", "caller", "tree"}
"""Methods of the API that are not awaited."""
_END = object()


class Awaited:
    """A blocking object behind the face of its asynchronous twin: its calls wait in threads."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.ismethod(found):
            return _faced(found)
        if name in _AT_ONCE:
            return lambda *args, **kwargs: _faced(found(*_bare(args), **_bare(kwargs)))

        async def call(*args: Any, **kwargs: Any) -> Any:
            return _faced(await asyncio.to_thread(found, *_bare(args), **_bare(kwargs)))

        return call

    def __await__(self) -> Any:
        return asyncio.to_thread(self._inner.result).__await__()

    def __aiter__(self) -> Any:
        return Awaited(iter(self._inner))

    async def __anext__(self) -> Any:
        event = await asyncio.to_thread(next, self._inner, _END)
        if event is _END:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Any:
        return _faced(await asyncio.to_thread(self._inner.__enter__))

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._inner.__exit__, *error)


def _faced(value: Any) -> Any:
    if isinstance(value, list):
        return [_faced(each) for each in value]
    return Awaited(value) if type(value).__module__.startswith("oubliette.sync") else value


def _bare(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: getattr(each, "_inner", each) for name, each in values.items()}
    return [getattr(each, "_inner", each) for each in values]


def settings() -> dict[str, Any]:
    """Settings of an embedded system in which only the sandbox and the scripted agent are used."""
    return {
        "agents.default": "scripted",
        "containers.runtime": "process",
        "process.sandbox": "bubblewrap" if shutil.which("bwrap") else "best-effort",
        "sessions.max_live_per_project": 500,
    }


@contextlib.contextmanager
def short_home() -> Any:
    """A home whose path leaves room for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="ob", dir="/tmp"))
    try:
        yield folder / "home"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.asynccontextmanager
async def opened(door: str, site: Site, **options: Any) -> AsyncIterator[oubliette.Oubliette]:
    """An `Oubliette` through a door."""
    if door == "connected":
        async with oubliette.connect(site.server.url, site.principal(), **options) as ob:
            yield ob
        return
    with short_home() as home:
        if door == "blocking":
            async with Awaited(oubliette.sync.open(home, config=settings(), **options)) as ob:
                yield ob
            return
        async with oubliette.open(home, config=settings(), **options) as ob:
            yield ob
