"""Arguments of one tool: described by a schema, checked and converted before the function runs."""

from __future__ import annotations

import re
from typing import Any, Final, cast, get_args

import msgspec

from oubliette import ids
from oubliette.api.tools import foreign_types, schemas
from oubliette.api.tools.errors import BadTool, ToolCallRefused
from oubliette.api.tools.foreign_types import ForeignRefusal
from oubliette.api.tools.signatures import REQUIRED, ToolParameter, ToolSignature

_OMITTED: Final = msgspec.UNSET


class Arguments:
    """The parameters of a function as one class of msgspec, and its JSON Schema.

    Values that are right are taken as they are. Models often give a number, `true` or a whole
    object as text, or null for what they leave out: such values are converted if the type of the
    parameter allows no other meaning, and only after they were refused as they are.
    """

    def __init__(self, signature: ToolSignature) -> None:
        """Make the class.

        Raises:
            BadTool: the type of a parameter is not supported.
        """
        self._parameters = {each.name: each for each in signature.parameters}
        self._required = [each.name for each in signature.parameters if each.default is REQUIRED]
        self._kinds = {
            each.name: _supported(each, signature.label) for each in signature.parameters
        }
        fields: list[Any] = []
        for place, each in enumerate(signature.parameters):
            settings: Any = msgspec.field(name=each.name)
            if each.default is not REQUIRED:
                settings = msgspec.field(name=each.name, default_factory=_omitted)
            fields.append((f"p{place}", self._kinds[each.name], settings))
        self._kind = msgspec.defstruct(
            "Arguments", fields, kw_only=True, forbid_unknown_fields=True
        )
        self.schema = self._described()

    def _described(self) -> dict[str, Any]:
        schema = schemas.schema_of(self._kind)
        properties = cast("dict[str, dict[str, Any]]", schema["properties"])
        for each in self._parameters.values():
            shown = properties[each.name]
            if each.description:
                shown.setdefault("description", each.description)
            if isinstance(text := _text_of(each.hint), str):
                shown["description"] = text
            if each.default is not REQUIRED:
                default = _json_default(each.default)
                if default is not _OMITTED:
                    shown["default"] = default
        return schema

    def converted(self, tool: str, arguments: object) -> dict[str, Any]:
        """Return what to call the function with: parameters by name, without those left out.

        Raises:
            ToolCallRefused: the arguments are invalid; names the field with its path.
        """
        given: object = cast("object", {}) if arguments is None else arguments
        try:
            values = self._values(tool, given)
        except RecursionError:
            raise ToolCallRefused(f"{tool}: the arguments are nested too deeply") from None
        found: dict[str, Any] = {}
        for place, name in enumerate(self._parameters):
            value = getattr(values, f"p{place}")
            if value is not _OMITTED:
                is_held = isinstance(value, foreign_types.ForeignValue)
                found[name] = value.value if is_held else value
        return found

    def _values(self, tool: str, given: object) -> msgspec.Struct:
        try:
            return self._decoded(given, strict=True)
        except msgspec.ValidationError as error:
            try:
                return self._decoded(self._repaired(given), strict=False)
            except msgspec.ValidationError:
                # The first refusal is about what the agent gave, not about the attempt to mend it.
                raise ToolCallRefused(self._refusal(tool, given, error)) from None

    def _decoded(self, given: object, *, strict: bool) -> msgspec.Struct:
        return msgspec.convert(
            given, self._kind, strict=strict, str_keys=True, dec_hook=foreign_types.decode
        )

    def _repaired(self, given: object) -> object:
        """Return the arguments with objects for their texts, and without null for a default."""
        if not isinstance(given, dict):
            return given
        mended: dict[str, Any] = {}
        for name, value in cast("dict[str, Any]", given).items():
            parameter = self._parameters.get(name)
            mended[name] = value
            if parameter is None or self._accepts(name, value):
                continue
            if value is None and parameter.default is not REQUIRED:
                del mended[name]
            elif isinstance(value, str) and value.lstrip()[:1] in {"[", "{"}:
                mended[name] = _parsed(value)
        return mended

    def _accepts(self, name: str, value: object) -> bool:
        try:
            msgspec.convert(value, self._kinds[name], str_keys=True, dec_hook=foreign_types.decode)
        except msgspec.ValidationError:
            return False
        return True

    def _refusal(self, tool: str, given: object, error: msgspec.ValidationError) -> str:
        problems: list[str] = []
        if isinstance(given, dict):
            names = [str(name) for name in cast("dict[Any, Any]", given)]
            if absent := [name for name in self._required if name not in names]:
                problems.append(missing(absent))
            if strange := [name for name in names if name not in self._parameters]:
                problems.append(unknown(strange, list(self._parameters)))
        reason = "; ".join(problems) or in_words(error, self.schema)
        return f"invalid arguments of {tool}: {reason}"


def _supported(parameter: ToolParameter, label: str) -> Any:
    """Return the type of a parameter as msgspec takes it.

    Raises:
        BadTool: neither msgspec nor Pydantic supports it.
    """
    hint = parameter.hint
    try:
        if foreign_types.is_foreign(hint):
            hint = foreign_types.standing_for(hint)
        schemas.schema_of(hint)
    except Exception as error:
        reason = str(error).strip().rpartition("\n")[2]
        raise BadTool(
            f"{label}: parameter {parameter.name}: its type is not supported: {reason}",
            hint="use JSON's types, dataclasses, TypedDicts, msgspec Structs, Enums, Literal or"
            " Pydantic models, defined at the top of a module",
        ) from None
    return hint


def _omitted() -> msgspec.UnsetType:
    """Return the mark of an argument that was not given: the function has its own default."""
    return _OMITTED


def _text_of(hint: Any) -> str | None:
    """Return the text in `Annotated[TYPE, "text"]`, which may be an alternative to None."""
    parts = [hint, *get_args(hint)] if type(None) in get_args(hint) else [hint]
    metadata = [each for part in parts for each in getattr(part, "__metadata__", ())]
    return next((each for each in metadata if isinstance(each, str)), None)


def _json_default(value: object) -> Any:
    """Return a default as JSON values; `UNSET` if it has no form in JSON."""
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=foreign_types.dumped)
        return msgspec.json.decode(msgspec.json.encode(plain))
    except Exception:  # an object that only the function knows what to do with
        return _OMITTED


def _parsed(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


_AT: Final = re.compile(r" - at `(?P<key>key` in `)?\$(?P<path>[^`]*)`$", re.DOTALL)
_WORDS: Final = {
    "array": "an array",
    "bool": "true or false",
    "bytes": "a string in base64",
    "date": "a date (RFC 3339)",
    "datetime": "a date and time (RFC 3339)",
    "decimal": "a decimal number",
    "duration": "a duration (ISO 8601)",
    "float": "a number",
    "int": "an integer",
    "null": "null",
    "object": "an object",
    "str": "a string",
    "time": "a time (RFC 3339)",
    "uuid": "a UUID",
}
_LIMITS: Final = {"<=": "at most", ">=": "at least", "<": "less than", ">": "more than"}


def in_words(error: Exception, schema: dict[str, Any]) -> str:
    """Return the sentence for an error of msgspec about arguments with this schema."""
    text = str(error)
    path = ""
    if at := _AT.search(text):
        text = text[: at.start()]
        path = at["path"].replace("[...]", ".*") + (".*" if at["key"] else "")
    cause = error.__cause__
    if isinstance(cause, ForeignRefusal):
        path += "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in cause.path)
        return f"{path.lstrip('.') or 'arguments'}: {cause.text}"
    where = path.lstrip(".")
    if found := re.fullmatch(r"Object missing required field `(.*)`", text, re.DOTALL):
        return f"{where}.{found[1]}".lstrip(".") + ": is required"
    if found := re.fullmatch(r"Object contains unknown field `(.*)`", text, re.DOTALL):
        return f"{where}.{found[1]}".lstrip(".") + ": is unknown; leave it out"
    return f"{where or 'arguments'}: {_reason(text, path, schema)}"


def missing(names: list[str]) -> str:
    """Return the sentence for parameters that were not given."""
    return "; ".join(f"{name}: is required" for name in names)


def unknown(names: list[str], known: list[str]) -> str:
    """Return the sentence for arguments that no parameter has the name of."""
    given = ", ".join(ids.shown(name) for name in names[:5])
    there = ", ".join(known) or "none"
    return f"{given}: unknown; the parameters are: {there}"


def _reason(text: str, path: str, schema: dict[str, Any]) -> str:
    if found := re.fullmatch(r"Expected `(\w+)` of length (<=|>=) (\d+)", text):
        parts = "characters" if found[1] == "str" else "entries"
        return f"must have {_LIMITS[found[2]]} {found[3]} {parts}"
    if found := re.fullmatch(r"Expected `\w+` (<=|>=|<|>) (\S+)", text):
        return f"must be {_LIMITS[found[1]]} {found[2]}"
    if found := re.fullmatch(r"Expected `\w+` that's a multiple of (\S+)", text):
        return f"must be a multiple of {found[1]}"
    if found := re.fullmatch(r"Expected `str` matching regex (.*)", text, re.DOTALL):
        return f"must match the regular expression {found[1]}"
    if found := re.fullmatch(r"Expected `(.*)`, got `(.*)`", text, re.DOTALL):
        wanted = " or ".join(_WORDS.get(name, name) for name in found[1].split(" | "))
        return f"must be {wanted}, not {_WORDS.get(found[2], found[2])}"
    if found := re.fullmatch(r"Invalid enum value (.*)", text, re.DOTALL):
        values = _part(schema, path).get("enum", ())
        if values:
            return f"must be one of {', '.join(map(repr, values))}, not {found[1]}"
    return text[:1].lower() + text[1:]


def _part(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the part of a schema that describes the value at `path`; {} if it is not found."""
    root, here = schema, _resolved(schema, schema)
    for step in re.findall(r"\.([^.\[]+)|(\[\d+\])", path):
        name, index = step
        if index:
            inner: Any = here.get("items")
        else:
            inner = here.get("properties", {}).get(name, here.get("additionalProperties"))
        if not isinstance(inner, dict):
            return {}
        here = _resolved(cast("dict[str, Any]", inner), root)
    return here


def _resolved(node: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """Return `node` without its reference and, of `… | null`, the other alternative."""
    reference = str(node.get("$ref", "")).removeprefix("#/$defs/")
    node = cast("dict[str, Any]", root.get("$defs", {}).get(reference, node))
    kinds = [part for part in node.get("anyOf", ()) if part.get("type") != "null"]
    return _resolved(kinds[0], root) if len(kinds) == 1 else node
