"""Source of an agent's function that has no file: written in a notebook's cell, or at a prompt.

The function travels alone. Modules that it uses are imported there under the same names, plain
values are written out, and anything else is refused.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import textwrap
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from oubliette.api.bad_agent import BadAgent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CELL: Final = "oubliette_agent_cell"
"""Name of the module in the container."""
_PLAIN: Final = (bool, int, float, str, bytes, type(None))


def cell_source(function: Callable[..., Any], name: str) -> bytes:
    """Return a module with the function in it, and the names of other cells that it uses.

    Raises:
        BadAgent: there is no source, or the function uses something that cannot travel.
    """
    bare = inspect.unwrap(function)
    try:
        lines, _ = inspect.getsourcelines(bare)
    except (OSError, TypeError) as error:
        raise BadAgent(
            f"agent {name}: its source is in no file",
            hint="write the function into a file, and import it from there",
        ) from error
    start = next(i for i, line in enumerate(lines) if line.lstrip().startswith("async def "))
    head = ["from __future__ import annotations"]
    head += [_bound(each, bare.__globals__, name) for each in sorted(_names(bare))]
    body = textwrap.dedent("".join(lines[start:]))
    return "\n".join([*head, "", body]).encode()


def _names(function: Callable[..., Any]) -> set[str]:
    """Return the names of a function's module that it uses, in its inner functions too."""
    found = set(_loaded(function.__code__))
    return {each for each in found if each not in vars(builtins)}


def _loaded(code: CodeType) -> Iterator[str]:
    for step in dis.get_instructions(code):
        if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"} and isinstance(step.argval, str):
            yield step.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _loaded(constant)


def _bound(used: str, there: dict[str, Any], name: str) -> str:
    """Return the line that binds a name in the container as it is bound here."""
    missing = object()
    value = there.get(used, missing)
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {used}"
    if type(value) in _PLAIN:
        return f"{used} = {value!r}"
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module not in {None, "__main__"} and qualified.isidentifier():
        return f"from {module} import {qualified} as {used}"
    raise BadAgent(
        f"agent {name}: it uses {used}, which is defined in another cell",
        hint="define it inside the function, or write both into a file and import the agent",
    )
