"""The table of a program's tools: from functions, objects with methods, and prepared tools."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from oubliette import ids
from oubliette.api.tools.callables import CallableTool
from oubliette.api.tools.decorator import ToolOptions, options_of
from oubliette.api.tools.errors import BadTool
from oubliette.api.tools.prepared import PreparedTool, ToolSource
from oubliette.errors import InvalidParameter
from oubliette.json_values import check_values

if TYPE_CHECKING:
    from contextlib import AsyncExitStack


async def opened_table(tools: Iterable[object], stack: AsyncExitStack) -> dict[str, PreparedTool]:
    """Open the sources among `tools`, and return the table of all; closing `stack` closes them.

    Raises:
        BadTool: a tool cannot be offered, a source not be opened, or two tools have one name.
    """
    given = listed_tools(tools)
    opened: dict[int, list[PreparedTool]] = {}
    tool_table(each for each in given if not isinstance(each, ToolSource))  # before any is opened
    for place, each in enumerate(given):
        if isinstance(each, ToolSource):
            opened[place] = await each.open(stack)
    parts = [opened.get(place, [each]) for place, each in enumerate(given)]
    return tool_table(each for part in parts for each in part)


def tool_table(tools: Iterable[object]) -> dict[str, PreparedTool]:
    """Return the tools by name, in the order in which they were given.

    Of an object the methods that are marked with `@tool` are tools. If none is marked, and the
    object itself cannot be called, all its public methods are: those without a leading `_`.

    Args:
        tools: functions, methods, `functools.partial`, objects, and `PreparedTool`s.

    Raises:
        BadTool: one cannot be offered to agents, or two have one name.
    """
    table: dict[str, PreparedTool] = {}
    for each in listed_tools(tools):
        for prepared in _prepared(each):
            if prepared.name in table:
                raise BadTool(
                    f"two tools are named {prepared.name}: {_origin(table[prepared.name])} and"
                    f" {_origin(prepared)}",
                    hint='give one another name: oubliette.tool(name="…")(FUNCTION), or'
                    " oubliette.mcp(…, prefix=…)",
                )
            try:
                # Where a session is started, it is four levels down.
                check_values(prepared.definition, envelope=-4)
            except InvalidParameter as error:
                raise BadTool(f"{_origin(prepared)}: {error}") from None
            table[prepared.name] = prepared
    return table


def listed_tools(tools: object) -> list[object]:
    """Return what a program gives as `tools`, as a list.

    Raises:
        BadTool: it is one tool, a text or a mapping, not a list.
    """
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Iterable):
        raise BadTool(
            f"tools: {ids.shown(cast('object', tools))} is no list of tools",
            hint="write tools=[…], also for one",
        )
    return list(cast("Iterable[object]", tools))


def _prepared(each: object) -> list[PreparedTool]:
    if isinstance(each, PreparedTool):
        return [each]
    if isinstance(each, ToolSource):
        raise BadTool(f"tools: {each!r} is not open", hint="open it first, with opened_table")
    if isinstance(each, type):
        raise BadTool(
            f"tools: {each.__qualname__} is a class", hint="give an instance, or a function of it"
        )
    if isinstance(each, ModuleType):
        raise BadTool(f"tools: {each.__name__} is a module", hint="give functions of it")
    if inspect.isroutine(each) and callable(each):
        return [CallableTool(each)]
    if isinstance(each, functools.partial) or (callable(each) and options_of(each) is not None):
        return [CallableTool(cast("Any", each))]
    return _of_object(each)


def _of_object(each: object) -> list[PreparedTool]:
    marked, public = _methods(type(each))
    if not marked and callable(each):
        return [CallableTool(each)]
    names: Mapping[str, ToolOptions | None] = marked or dict.fromkeys(public)
    if not names:
        raise BadTool(
            f"tools: {ids.shown(each)} is no function, and has no public methods",
            hint="give functions, or objects with methods that are marked with @oubliette.tool",
        )
    try:
        return [
            # An object is named after its class, its `__call__` is not.
            CallableTool(cast("Any", each if name == "__call__" else getattr(each, name)), options)
            for name, options in names.items()
        ]
    except BadTool as error:
        if marked:
            raise
        raise BadTool(
            f"tools: {type(each).__qualname__}, of which all public methods are tools: {error}",
            hint="or mark those that are meant with @oubliette.tool",
        ) from None


def _methods(cls: type) -> tuple[dict[str, ToolOptions], list[str]]:
    """Return the marked methods of a class with their options, and the names of public ones.

    A method that overrides a marked one is marked too.
    """
    marked: dict[str, ToolOptions] = {}
    methods: dict[str, bool] = {}
    for part in reversed(cls.__mro__):
        if part.__module__ == "builtins":
            continue
        member: Any
        for name, member in vars(part).items():
            if not isinstance(member, FunctionType | staticmethod | classmethod):
                marked.pop(name, None)
                methods.pop(name, None)
                continue
            methods[name] = not name.startswith("_")
            if (options := options_of(cast("object", member))) is not None:
                marked[name] = options
    return marked, [name for name, is_public in methods.items() if is_public]


def _origin(prepared: PreparedTool) -> str:
    return prepared.label if isinstance(prepared, CallableTool) else repr(prepared)
