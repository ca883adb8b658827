"""`CallableTool`: a function, method or callable object of the program as a tool."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread
from anyio.lowlevel import RunVar

from oubliette import ids
from oubliette.api.tools import docstrings
from oubliette.api.tools.arguments import Arguments
from oubliette.api.tools.decorator import NO_OPTIONS, ToolOptions, options_of
from oubliette.api.tools.errors import BadTool
from oubliette.api.tools.guarded import GuardedTool
from oubliette.api.tools.signatures import signature_of, underlying
from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.api.tools.context import Call

_THREADS: Final = 32  # per tool and event loop


class CallableTool(GuardedTool):
    """A function as a tool, described by its signature, type hints and docstring.

    An `async` function runs on the event loop, any other in a worker thread. Each tool has threads
    of its own, so that one that hangs does not keep the others from running.
    """

    def __init__(self, function: Callable[..., Any], options: ToolOptions | None = None) -> None:
        """Prepare `function`; `options` are by default those of its mark.

        Raises:
            BadTool: it cannot be offered to agents; the message names the parameter and the remedy.
        """
        inner, _ = underlying(function)
        options = options or options_of(function) or options_of(inner) or NO_OPTIONS
        docs = docstrings.parsed(_doc(function, inner))
        signature = signature_of(function, docs.parameters)
        if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
            raise BadTool(f"{signature.label}: yields its results one by one", hint="return a list")
        self.name = options.name or _name(function, signature.label)
        self.label = signature.label
        self.description = docs.description if options.description is None else options.description
        self.durable = options.durable
        self.timeout = options.timeout
        self._function = function
        self._is_async = inspect.iscoroutinefunction(inner)
        self._call_parameters = signature.call_parameters
        self.calls_on_loop = self._is_async and bool(self._call_parameters)
        self._arguments = Arguments(signature)
        self.input_schema = self._arguments.schema
        self._limiter: RunVar[anyio.CapacityLimiter] = RunVar(f"threads of {self.name}")

    async def carry_out(self, arguments: dict[str, Any], call: Call) -> Any:
        """Check the arguments and call the function with them.

        Raises:
            ToolCallRefused: the arguments are invalid.
            Exception: that of the function.
        """
        values = self._arguments.converted(self.name, arguments)
        values.update(dict.fromkeys(self._call_parameters, call))
        if self._is_async:
            return await self._function(**values)
        result = await self._in_thread(functools.partial(self._function, **values))
        # A plain function around an `async` one, such as a decorator makes it.
        return await result if inspect.isawaitable(result) else result

    async def _in_thread(self, function: Callable[[], Any]) -> Any:
        """Call `function` in a worker thread, which is left behind if this is cancelled.

        A thread that is left behind counts among the tool's threads until it ends.
        """
        place = object()
        limiter = self._threads()
        await limiter.acquire_on_behalf_of(place)
        loop = asyncio.get_running_loop()
        started = released = False

        def release() -> None:
            nonlocal released
            if not released:  # a thread may start just after it was left behind
                released = True
                limiter.release_on_behalf_of(place)

        def called() -> Any:
            nonlocal started
            started = True
            try:
                return function()
            finally:
                with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                    loop.call_soon_threadsafe(release)

        try:
            return await anyio.to_thread.run_sync(
                called, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
            )
        finally:
            if not started:
                release()

    def _threads(self) -> anyio.CapacityLimiter:
        limiter = self._limiter.get(None)
        if limiter is None:
            limiter = anyio.CapacityLimiter(_THREADS)
            self._limiter.set(limiter)
        return limiter


def _doc(function: Callable[..., Any], inner: Any) -> str | None:
    doc = inspect.getdoc(inner)
    if isinstance(function, functools.partial) or inspect.isroutine(function):
        return doc
    own = inspect.getdoc(type(function))  # a callable object is described by either
    return doc if inner.__doc__ else own


def _name(function: Callable[..., Any], label: str) -> str:
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__name__", type(inner).__name__)
    if name == "<lambda>":
        raise BadTool(
            f"{label}: a lambda has no name",
            hint='write a function, or oubliette.tool(name="…")(lambda: …)',
        )
    try:
        return ids.check_tool_name(name)
    except InvalidParameter as error:
        raise BadTool(
            f"{label}: agents cannot call it by this name: {error}",
            hint='give another one: @oubliette.tool(name="…")',
        ) from None
