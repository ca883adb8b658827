"""Results of tools as plain JSON values, or the reason why they have no such form."""

from __future__ import annotations

import os
from typing import Any, cast

import msgspec

from oubliette.api.tools import foreign_types
from oubliette.errors import InvalidParameter


class NotJson(ValueError):
    """A value has no form in JSON that could be sent; the message is the reason."""


def plain(value: Any) -> Any:
    """Return `value` as dicts, lists, texts, numbers, booleans and None.

    Dataclasses, Structs, models of Pydantic, Enums, sets, dates and bytes have a usual form.

    Raises:
        NotJson: a part of it has none, or could not be sent: NaN, half a surrogate pair, an integer
            of more than 64 bits, more than 64 levels.
    """
    # Imported late: it is of no use to programs that provide no tools.
    from oubliette.json_values import check_values

    try:
        found = _without_tuples(msgspec.to_builtins(value, str_keys=True, enc_hook=_dumped))
        check_values({"result": found})
    except InvalidParameter as error:
        raise NotJson(str(error).removeprefix("result: ")) from None
    except RecursionError:
        raise NotJson("it is nested too deeply, or contains itself") from None
    except (TypeError, ValueError, NotImplementedError) as error:
        raise NotJson(str(error)) from None
    return found


def _dumped(value: Any) -> Any:
    """Return an object that msgspec does not know as a value that it does: its `enc_hook`.

    Raises:
        NotImplementedError: there is none.
    """
    # Classes of libraries that are texts or numbers all the same, without their own `__str__`.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(cast("os.PathLike[str]", value))
    return foreign_types.dumped(value)


def _without_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {key: _without_tuples(part) for key, part in pairs.items()}
    if isinstance(value, list | tuple):
        return [_without_tuples(part) for part in cast("list[Any]", value)]
    return value
