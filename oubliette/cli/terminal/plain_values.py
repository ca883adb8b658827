"""Conversion of plain option values without Pydantic.

Typer passes every value to a Pydantic adapter, and the import of Pydantic takes longer than most
commands do. Plain text, numbers and choices are accepted directly; all other values take Typer's
usual path, and get its usual errors.
"""

from __future__ import annotations

import enum
import math
import re
from typing import TYPE_CHECKING, Any, Final, cast

from typer.core import TyperGroup

if TYPE_CHECKING:
    from collections.abc import Iterable

_KEPT: Final = "_runtime_param"
"""Attribute in which a parameter of Typer keeps its adapter (Typer 0.26 and later)."""


class LeanGroup(TyperGroup):
    """Group of commands whose plain values need no Pydantic; for `typer.Typer(cls=…)`."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Begin to parse a command line."""
        spare(self)
        return super().make_context(*args, **kwargs)


def spare(command: Any) -> None:
    """Let the parameters of this command, and of those below it, convert plain values."""
    get_params = command.get_params

    def with_plain_values(context: Any) -> list[Any]:
        found = get_params(context)  # with --help, which is made here
        for parameter in found:
            if getattr(parameter, _KEPT, parameter) is None:
                descriptor = parameter.type_descriptor
                if descriptor.parameter_info.parser is None:
                    setattr(parameter, _KEPT, _Plain(parameter, descriptor))
        return found

    command.get_params = with_plain_values
    below: dict[str, Any] = getattr(command, "commands", {})
    for each in below.values():
        spare(each)


class _Plain:
    """Replacement of a parameter's adapter, until a value needs the adapter."""

    def __init__(self, parameter: Any, descriptor: Any) -> None:
        self._parameter = parameter
        self._kind: Any = descriptor.annotation
        self._info: Any = descriptor.parameter_info

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return `value` converted for the command.

        Raises:
            BadParameter: the value is invalid.
        """
        many = param.multiple or param.nargs == -1
        if value is None:
            return () if many else None
        found = self._plain_list(value) if many else self._plain(self._kind, value)
        if found is not _OTHER:
            return found
        setattr(self._parameter, _KEPT, None)
        return self._parameter.get_runtime_param().coerce(value, param=param, ctx=ctx)

    def _plain_list(self, value: Any) -> Any:
        if getattr(self._kind, "__args__", None) == (str,) and isinstance(value, list | tuple):
            found = list(cast("Iterable[Any]", value))
            return found if all(type(each) is str for each in found) else _OTHER
        return _OTHER

    def _plain(self, kind: Any, value: Any) -> Any:
        if kind in {str, bool} and type(value) is kind:
            return value
        if kind in {int, float}:
            return self._number(kind, value)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            if isinstance(value, kind):
                return value
            return next((each for each in kind if each.value == value), _OTHER)
        return _OTHER

    def _number(self, kind: Any, value: Any) -> Any:
        info = self._info
        number: Any = kind(value) if type(value) is str and _PLAIN[kind](value) else value
        if type(number) is not kind or info.clamp:
            return _OTHER
        low = -math.inf if info.min is None else info.min
        high = math.inf if info.max is None else info.max
        return number if low <= number <= high else _OTHER


_OTHER: Final = object()
_PLAIN: Final = {
    int: re.compile(r"[0-9]{1,18}").fullmatch,
    float: re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?").fullmatch,
}
