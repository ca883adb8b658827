"""`@tool`: the mark of a function or method that is a tool, with its options."""

from __future__ import annotations

import inspect
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import msgspec

from oubliette import ids
from oubliette.api.tools.errors import BadTool
from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F")

_MARK: Final = "__oubliette_tool__"


class ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that `@tool` was given."""

    name: str | None = None
    """None: the name of the function."""
    description: str | None = None
    """None: the docstring's text."""
    durable: bool = False
    timeout: float | None = None
    """Seconds."""


NO_OPTIONS: Final = ToolOptions()


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    durable: bool = False,
    timeout: float | None = None,
) -> Callable[[F], F]: ...
def tool(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    durable: bool = False,
    timeout: float | None = None,
) -> Any:
    """Mark a function or method as a tool; `@tool` and `@tool(durable=True)` are both valid.

    The function itself is returned and can be called as before. A plain function needs no mark to
    be given as a tool: the mark is for options, and to choose among the methods of an object.

    Args:
        function: a function, a method in a class body (also above or below `@staticmethod` and
            `@classmethod`), a `functools.partial`, or an object with `__call__`.
        name: what agents see behind `<caller_id>_`; by default the function's name.
        description: for the agent; by default the docstring without its sections.
        durable: calls wait for a program that is not there, until their deadline.
        timeout: seconds after which a call fails; by default it may take until its deadline,
            when the server stops waiting for it.

    Raises:
        BadTool: an option is invalid, or the function is marked already with other options.
    """
    options = _checked(
        ToolOptions(name=name, description=description, durable=durable, timeout=timeout)
    )
    return partial(_marked, options) if function is None else _marked(options, function)


def options_of(function: object) -> ToolOptions | None:
    """Return the options of a marked function; None if it has no mark of its own."""
    try:
        found: object = getattr(function, "__dict__", {}).get(_MARK)
        if found is None and (inner := getattr(function, "__func__", None)) is not None:
            return options_of(inner)
    except Exception:  # `__getattr__` of someone else's object
        return None
    return found if isinstance(found, ToolOptions) else None


def _checked(options: ToolOptions) -> ToolOptions:
    if options.name is not None:
        try:
            ids.check_tool_name(options.name)
        except InvalidParameter as error:
            raise BadTool(f"@tool: {error}") from None
    check_timeout(options.timeout, "@tool")
    return options


def check_timeout(seconds: float | None, where: str) -> None:
    """Refuse what is no time limit.

    Raises:
        BadTool: it is not a positive number of seconds; the message begins with `where`.
    """
    if seconds is not None and not (0 < seconds < math.inf):
        raise BadTool(f"{where}: timeout: {seconds!r} must be a positive number of seconds")


def _marked(options: ToolOptions, function: Any) -> Any:
    if isinstance(function, str):
        raise BadTool(f"@tool: give the name as name={ids.shown(function)}")
    if inspect.isclass(function):
        raise BadTool(
            f"@tool: {function.__name__} is a class",
            hint="mark its methods, and give an instance of it as a tool",
        )
    inner: Any = getattr(function, "__func__", None)
    target: Any = function if inner is None else inner
    if not callable(target):
        raise BadTool(f"@tool: {ids.shown(function)} cannot be called", hint="mark a function")
    earlier = options_of(target)
    if earlier is not None and earlier != options:
        raise BadTool(
            f"@tool: {getattr(target, '__qualname__', target)} is marked already, with other"
            " options",
            hint="make a second function of it with functools.partial, and mark that",
        )
    try:
        setattr(target, _MARK, options)
    except (AttributeError, TypeError):
        raise BadTool(
            f"@tool: {ids.shown(function)} takes no attributes, so it cannot be marked",
            hint="write a function that calls it, and mark that",
        ) from None
    return function
