"""Types of results: the schema that an agent is given, and the value that its answer becomes."""

from __future__ import annotations

import dataclasses
import sys
import typing
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, get_args, overload

import msgspec

from oubliette.api.errors import BadResultType, ResultInvalid
from oubliette.api.results.extraction import candidates

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
_REMEDY: Final = (
    "take a msgspec.Struct, a dataclass, a TypedDict, a NamedTuple, a pydantic model, an Enum, or"
    " a built-in type such as list[int]"
)
_FORM: Final = (
    "one JSON value, in one fenced block that begins with ```json, with no other JSON after it"
)


class ResultType(Generic[T]):
    """A type that an answer is to have; `result_type` makes it."""

    __slots__ = ("_decode", "name", "schema")

    def __init__(self, name: str, schema: dict[str, Any], decode: Callable[[str], T]) -> None:
        """Name the type, with its JSON Schema and a function of a JSON text.

        The function raises a `ValueError` or a `msgspec.ValidationError` that names the place.
        """
        self.name = name
        self.schema = schema
        self._decode = decode

    def __repr__(self) -> str:
        """Return the name."""
        return f"<{type(self).__name__} {self.name}>"

    def prompt(self, prompt: str) -> str:
        """Return a prompt behind a request for a result of this type."""
        schema = msgspec.json.encode(self.schema).decode()
        return (
            f"Your answer to the task below has to end with its result: {_FORM}. The value has to"
            f" be valid according to this JSON Schema:\n\n```json\n{schema}\n```\n\nThe task:\n\n"
            f"{prompt}"
        )

    def prompt_again(self, reason: str) -> str:
        """Return a prompt that describes the error in the last answer and asks for another one."""
        schema = msgspec.json.encode(self.schema).decode()
        return (
            f"Your last answer has no result that can be used: {reason}. Correct this, and give the"
            f" whole result once more: {_FORM}. Its JSON Schema:\n\n```json\n{schema}\n```"
        )

    def decode(self, text: str) -> T:
        """Return the value of a JSON text.

        Raises:
            ResultInvalid: it is not of this type; `reason` has the place of the error.
        """
        try:
            return self._decode(text)
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            reason = str(error) or type(error).__name__
            raise ResultInvalid(
                f"the answer is no {self.name}: {reason}", answer=text, reason=reason
            ) from error

    def read(self, answer: str) -> T:
        """Return the value in an answer of an agent, which may have prose around it.

        Of several JSON values, the last valid one counts, and one in a fenced block before others;
        see `oubliette.api.results.extraction`.

        Raises:
            ResultInvalid: there is none of this type.
        """
        reason: str | None = None
        for text, problem in candidates(answer):
            if problem is not None:
                reason = problem if reason is None else reason
                break
            try:
                return self.decode(text)
            except ResultInvalid as error:
                reason = error.reason if reason is None else reason
        reason = reason or "there is no JSON in it"
        raise ResultInvalid(f"the answer is no {self.name}: {reason}", answer=answer, reason=reason)


@overload
def result_type(kind: type[T]) -> ResultType[T]: ...
@overload
def result_type(kind: object) -> ResultType[Any]: ...
def result_type(kind: Any) -> ResultType[Any]:
    """Return the `ResultType` that validates results as this Python type, and its JSON Schema.

    The type is a `msgspec.Struct`, a dataclass, a `TypedDict`, a `NamedTuple` (an array in JSON),
    an `Enum`, a `Literal`, a built-in type such as `list[int]`, a union of them, or a type with
    pydantic's models in it, which pydantic validates.

    Raises:
        BadResultType: the type has no JSON Schema, or msgspec cannot decode it, such as
            a union of two classes without tags.
    """
    name = _name(kind)
    if kind is None or isinstance(kind, str) or (not isinstance(kind, type) and _is_value(kind)):
        raise BadResultType(f"{kind!r} is no type of a result", hint=_REMEDY)
    if _has_model(kind, set()):
        return _of_pydantic(name, kind)
    try:
        schema = msgspec.json.schema(kind)
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
    except (TypeError, NameError, ValueError, RecursionError) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = lines[-1] if lines else type(error).__name__
        raise BadResultType(
            f"{name} cannot be the type of a result: {reason}", hint=_REMEDY
        ) from error
    return ResultType(name, schema, decoder.decode)


def _of_pydantic(name: str, kind: Any) -> ResultType[Any]:
    pydantic: Any = sys.modules["pydantic"]  # a model of it is there, so it is imported

    try:
        adapter: Any = pydantic.TypeAdapter(kind)
        schema = cast("dict[str, Any]", adapter.json_schema())
    except Exception as error:  # pydantic has a tree of its own for this
        line = str(error).partition("\n")[0]
        raise BadResultType(
            f"{name} cannot be the type of a result: {line}", hint=_REMEDY
        ) from error

    def decode(text: str) -> Any:
        try:
            return adapter.validate_json(text)
        except ValueError as error:
            raise ValueError(_places(error)) from error

    return ResultType(name, schema, decode)


def _places(error: Any) -> str:
    """Return the errors of a validation by pydantic in one line, each with its place."""
    if not hasattr(error, "errors"):
        return str(error)
    listed = cast("list[dict[str, Any]]", error.errors(include_url=False, include_context=False))
    return "; ".join(
        f"{each['msg']} - at `{'.'.join(['$', *map(str, each['loc'])])}`" for each in listed
    )


def _has_model(kind: Any, seen: set[int]) -> bool:
    """Return whether a type is a model of pydantic's, or contains one that pydantic can reach."""
    if "pydantic" not in sys.modules or id(kind) in seen:
        return False
    seen.add(id(kind))
    if isinstance(kind, type) and hasattr(kind, "__pydantic_validator__"):
        return True
    inner = list(get_args(kind))
    if _has_fields(kind):
        try:
            inner += typing.get_type_hints(kind).values()
        except (NameError, TypeError):
            return False
    return any(_has_model(each, seen) for each in inner)


def _has_fields(kind: Any) -> bool:
    """Return whether pydantic would look at the fields of a type that is not its own."""
    return (
        dataclasses.is_dataclass(cast("object", kind))
        or typing.is_typeddict(kind)
        or isinstance(getattr(kind, "_fields", None), tuple)
    )


def _is_value(kind: Any) -> bool:
    return not get_args(kind) and typing.get_origin(kind) is None and kind is not Any


def _name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
