"""JSON Schemas of tools (2020-12), derived from their Structs: object root, self-contained."""

from __future__ import annotations

from typing import Any, cast

import msgspec

_REF = "#/$defs/"


def object_schema(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of `kind` with all references inlined, required properties first.

    Agents' clients and model providers differ in which references they resolve; all accept this.
    """
    (root,), parts = msgspec.json.schema_components((kind,), ref_template=_REF + "{name}")
    schema = _inlined(root, parts)
    schema.pop("description", None)
    return msgspec.json.decode(msgspec.json.encode(schema))  # defaults may be tuples


def _inlined(node: dict[str, Any], parts: dict[str, Any]) -> dict[str, Any]:
    here = dict(node)
    reference = here.pop("$ref", None)
    if isinstance(reference, str):
        part = dict(parts[reference.removeprefix(_REF)])
        part.pop("description", None)  # the docstring of a class is for readers of the code
        here = {**part, **here}
    here.pop("title", None)
    for key, value in here.items():
        if key == "properties":
            required = here.get("required", ())
            here[key] = {
                name: _inlined(value[name], parts)
                for name in sorted(value, key=lambda name: name not in required)
            }
        elif key in {"items", "additionalProperties"} and isinstance(value, dict):
            here[key] = _inlined(cast("dict[str, Any]", value), parts)
        elif key in {"anyOf", "prefixItems"}:
            here[key] = [_inlined(part, parts) for part in value]
    return here


def at_path(schema: dict[str, Any], path: list[str]) -> dict[str, Any]:
    """Return the part of an inlined schema that describes `path`; {} if there is none."""
    here = schema
    for step in path:
        here = _with_parts(here, "items" if step.startswith("[") else "properties")
        inner: Any
        if step.startswith("["):
            inner = here.get("items", here.get("additionalProperties"))
        else:
            inner = here.get("properties", {}).get(step)
        if not isinstance(inner, dict):
            return {}
        here = cast("dict[str, Any]", inner)
    return _without_null(here)


def object_part(schema: dict[str, Any]) -> dict[str, Any]:
    """The alternative of an inlined schema that is an object, else the schema."""
    return _with_parts(schema, "properties")


def _with_parts(schema: dict[str, Any], key: str) -> dict[str, Any]:
    """The alternative of `schema` that has `key`: of a text or an object, the object."""
    schema = _without_null(schema)
    return next((part for part in schema.get("anyOf", ()) if key in part), schema)


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    kinds = [part for part in schema.get("anyOf", ()) if part.get("type") != "null"]
    return {**kinds[0], **schema} if len(kinds) == 1 else schema
