"""JSON Schema of the configuration file, with the description of each key."""

from __future__ import annotations

from typing import Any

import msgspec

from oubliette.config.container_options import ContainerOptions, ContainerOverrides
from oubliette.config.field_docs import field_docs
from oubliette.config.schema import FILE_NAME, AcpConfig, Config, CredentialConfig
from oubliette.config.sections import (
    SECTIONS_OF_PACKAGES,
    SECTIONS_OF_TABLES,
    duration_keys,
    sections,
    table_kind,
)
from oubliette.durations import PATTERN


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the file, with a description of each key."""
    (root,), parts = msgspec.json.schema_components((Config,), ref_template="{name}")
    document: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": FILE_NAME,
        **parts[root["$ref"]],
    }
    document["title"] = FILE_NAME
    for section, kind in sections().items():
        document["properties"][section] = part = _described(parts, kind, field_docs(kind))
        for name in duration_keys(kind):
            part["properties"][name] = _or_duration(part["properties"][name])
    tables: dict[type[msgspec.Struct], dict[str, Any]] = {
        ContainerOptions: _described(parts, ContainerOverrides, field_docs(ContainerOptions)),
        CredentialConfig: _described(parts, CredentialConfig, field_docs(CredentialConfig)),
        AcpConfig: parts[AcpConfig.__name__],  # described as a section
    }
    for section, pattern in SECTIONS_OF_TABLES.items():
        free = {"type": "object"}
        document["properties"][section] = {
            "type": "object",
            "description": field_docs(Config)[section],
            "patternProperties": {
                pattern: free if section in SECTIONS_OF_PACKAGES else tables[table_kind(section)]
            },
            "additionalProperties": False,
        }
    return document


def _or_duration(number: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a key that takes seconds, or a text with units."""
    said = {name: number.pop(name) for name in ("description", "default") if name in number}
    return {"anyOf": [number, {"type": "string", "pattern": PATTERN}], **said}


def _described(
    parts: dict[str, dict[str, Any]], kind: type[msgspec.Struct], docs: dict[str, str]
) -> dict[str, Any]:
    part = parts[kind.__name__]
    part.pop("title", None)
    for name, text in docs.items():
        part["properties"][name]["description"] = text
    return part
