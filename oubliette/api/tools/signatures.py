"""Signatures of the functions that are tools: what an agent gives, and what it never sees."""

from __future__ import annotations

import functools
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Optional, cast, get_args, get_type_hints

from oubliette.api.tools import foreign_types
from oubliette.api.tools.context import Call
from oubliette.api.tools.errors import BadTool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Set as AbstractSet

REQUIRED: Final = inspect.Parameter.empty
"""Default of a parameter that has none."""


class ToolParameter(NamedTuple):
    """One parameter that the agent gives."""

    name: str
    hint: Any
    default: Any
    description: str


class ToolSignature(NamedTuple):
    """The parameters of a function, by who gives them."""

    label: str
    """Name of the function in errors, such as `Orders.find()`."""
    parameters: tuple[ToolParameter, ...]
    call_parameters: tuple[str, ...]
    """Those that get the `Call`."""


def signature_of(function: Callable[..., Any], descriptions: Mapping[str, str]) -> ToolSignature:
    """Return what `function` takes.

    Raises:
        BadTool: a parameter cannot be given by name, or has no type that can be found out.
    """
    inner, given = underlying(function)
    label = label_of(function)
    try:
        found = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise BadTool(
            f"{label}: has no signature: {error}", hint="write a function with type hints for it"
        ) from None
    hints = _hints(inner, label, found.parameters.keys() - given)
    parameters: list[ToolParameter] = []
    calls: list[str] = []
    for name, parameter in found.parameters.items():
        if name in given:
            continue  # a value that functools.partial fixed, which is not the agent's to choose
        _check_kind(parameter, label)
        if name not in hints:
            raise _untyped(name, label, first=name == next(iter(found.parameters)))
        hint = hints[name]
        if hint is Call or Call in get_args(hint):
            calls.append(name)
            continue
        if foreign_types.is_field(parameter.default):
            raise BadTool(
                f"{label}: parameter {name}: Field(…) is no default value",
                hint=f"write it as {name}: Annotated[TYPE, Field(…)]",
            )
        if parameter.default is None:
            hint = Optional[hint]  # noqa: UP045 - not all hints have the operator
        parameters.append(ToolParameter(name, hint, parameter.default, descriptions.get(name, "")))
    return ToolSignature(label, tuple(parameters), tuple(calls))


def underlying(function: Callable[..., Any]) -> tuple[Any, frozenset[str]]:
    """Return the function with the code, and the parameters that `functools.partial` fixed."""
    given: set[str] = set()
    inner: Any = function
    while isinstance(inner, functools.partial):
        partial = cast("functools.partial[Any]", inner)
        given |= partial.keywords.keys()
        inner = partial.func
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    return inner, frozenset(given)


def label_of(function: object) -> str:
    """Return the name of a function for errors."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = cast("functools.partial[Any]", inner).func
    name = getattr(inner, "__qualname__", None)
    return f"{name if isinstance(name, str) else type(inner).__qualname__}()"


def _hints(inner: Any, label: str, names: AbstractSet[str]) -> dict[str, Any]:
    """Return the type hints of the parameters `names`; others need not exist at run time."""
    annotations = getattr(inner, "__annotations__", {})
    holder = SimpleNamespace(
        __annotations__={name: hint for name, hint in annotations.items() if name in names},
        __type_params__=getattr(inner, "__type_params__", ()),
    )
    try:
        return get_type_hints(
            holder, getattr(inspect.unwrap(inner), "__globals__", {}), include_extras=True
        )
    except NameError as error:
        raise BadTool(
            f"{label}: the type hint {error.name} cannot be found at run time",
            hint="define or import it at the top of the module, outside of `if TYPE_CHECKING`; a"
            " type that is defined in a function cannot be used with"
            " `from __future__ import annotations`",
        ) from None
    except Exception as error:
        raise BadTool(f"{label}: its type hints cannot be read: {error}") from None


def _check_kind(parameter: inspect.Parameter, label: str) -> None:
    if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
        raise BadTool(
            f"{label}: {parameter}: agents give each parameter by name",
            hint="name the parameters; a decorator of the function needs functools.wraps",
        )
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise BadTool(
            f"{label}: parameter {parameter.name} is positional-only, and agents give each one by"
            " name",
            hint="remove the `/` from the signature",
        )


def _untyped(name: str, label: str, *, first: bool) -> BadTool:
    if first and name in {"self", "cls"}:
        return BadTool(
            f"{label}: is a method without its object", hint="give OBJECT.METHOD, or the object"
        )
    example = "call: oubliette.Call" if name == "call" else f"{name}: str"
    return BadTool(
        f"{label}: parameter {name} has no type hint, so agents cannot know what to give",
        hint=f"add one, such as {example}",
    )
