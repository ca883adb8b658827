"""Writes the tables of docs/tools.md, docs/events.md and docs/configuration.md from the code.

python .ci/tables.py            renews them
python .ci/tables.py --check    fails if they are not current; `make lint` does this

In docs/tools.md these are the scope `read`, the errors and the reference; in docs/events.md the
fields of each type; in docs/configuration.md the keys of each section. What stands between them is
written by hand.
"""
# ruff: noqa: INP001 -- a program, not a package

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oubliette import errors
from oubliette.config import json_schema
from oubliette.config.field_docs import field_docs
from oubliette.contract.events import CLASSES, Event, SystemEvent
from oubliette.tools.registry import TABLE, input_schema, output_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from oubliette.tools.spec import Tool

DOCS = Path(__file__).resolve().parents[1] / "docs"
NULL = {"type": "null"}


def cell(text: str) -> str:
    """The text in a cell of a table: `|` would be its end, and outside of code `<` a tag."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    parts[::2] = [each.replace("<", "\\<") for each in parts[::2]]
    return "`".join(parts)


def value(content: object) -> str:
    """A default as JSON; nothing where it is null, or has nothing but nulls."""
    if content is None or (isinstance(content, dict) and not any(content.values())):
        return ""
    return f"`{cell(json.dumps(content))}`"


def kind(schema: dict[str, Any]) -> str:
    """The type of a parameter, in words."""
    choices = [each for each in schema.get("anyOf", [schema]) if each != NULL]
    if len(choices) > 1:
        return " or ".join(map(kind, choices))
    (only,) = choices
    if "enum" in only:
        return " \\| ".join(f"`{each}`" for each in only["enum"])
    if only.get("type") == "array":
        items = kind(only["items"])
        return f"array of {items}s" if items.isalpha() else f"array of {items}"
    return str(only.get("type", "any"))


def fields(schema: dict[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """What stands between the name of an object and those of its fields, and its schema."""
    for each in schema.get("anyOf", [schema]):
        if each.get("properties"):
            return ".", each
        if (items := each.get("items")) and items.get("properties"):
            return "[].", items
    return None


def parameters(
    tool: str, prefix: str, schema: dict[str, Any], known: dict[str, str]
) -> Iterator[str]:
    """Rows of the parameters; the fields of an object where it comes first, later a link."""
    for name, each in schema["properties"].items():
        star = "\\*" if name in schema.get("required", ()) else ""
        described, inside = kind(each), fields(each)
        first = known.setdefault(json.dumps(inside[1]["properties"]), tool) if inside else tool
        if first != tool:
            described += f" as in [`{first}`](#{first})"
        default = value(each.get("default"))
        text = cell(each.get("description", ""))
        yield f"| `{prefix}{name}`{star} | {described} | {default} | {text} |"
        if inside and first == tool:
            yield from parameters(tool, f"{prefix}{name}{inside[0]}", inside[1], known)


def reference(tool: Tool, known: dict[str, str]) -> Iterator[str]:
    """The section of one tool."""
    yield f"### {tool.name}\n\n{cell(tool.description)} Scope: {tool.scope}.\n"
    if rows := list(parameters(tool.name, "", input_schema(tool), known)):
        yield from ("| parameter | type | default | |", "|---|---|---|---|", *rows, "")
    yield f"Result: {', '.join(f'`{name}`' for name in output_schema(tool)['properties'])}.\n"


def codes(error: type[errors.OublietteError]) -> Iterator[str]:
    """Rows of the errors below this one, each followed by those that are one of it."""
    of = "" if error is errors.OublietteError else f" One of `{error.code}`."
    for each in error.__subclasses__():
        if each.__module__ == errors.__name__:
            text, _, _ = inspect.cleandoc(each.__doc__ or "").partition("\n\n")
            yield f"| `{each.code}` | {each.exit_code} | {each.jsonrpc_code} | {cell(text)}{of} |"
            yield from codes(each)


def tools(page: str) -> str:
    """The page of the tools, renewed."""
    read = " ".join(tool.name for tool in TABLE.values() if tool.scope == "read")
    page = re.sub(r"(?m)^(\| `read`, also written `admin:ro` \| ).*$", rf"\1`{read}` |", page)
    head = "| code | exit code | JSON-RPC | |\n|---|---|---|---|\n"
    rows = "\n".join(codes(errors.OublietteError))
    page = re.sub(rf"(?s){re.escape(head)}.*?\n\n", lambda _: f"{head}{rows}\n\n", page)
    head, _, _ = page.partition("\n### ")
    known: dict[str, str] = {}
    sections = (line for tool in TABLE.values() for line in reference(tool, known))
    return head + "\n" + "\n".join(sections).rstrip() + "\n"


def with_rows(page: str, title: str, head: str, rows: Iterator[str]) -> str:
    """The page with these rows in the table of that head below that heading, if it has one."""
    begun = re.search(rf"(?s)\n### {title}\n(?:(?!\n##).)*?\n{re.escape(head)}", page)
    if begun is None:
        return page
    rest = re.sub(r"^(\|[^\n]*\n)*", "", page[begun.end() :])
    return page[: begun.end()] + "".join(rows) + rest


def events(page: str) -> str:
    """The page of the events, renewed."""
    common = set(Event.__struct_fields__)
    for name, each in CLASSES.items():
        if each is SystemEvent:  # has other fields in a program than on the wire
            continue
        texts = {field: text for field, text in field_docs(each).items() if field not in common}
        rows = (
            f"| `{field}` | {cell(text).replace('None', 'null')} |\n"
            for field, text in texts.items()
        )
        page = with_rows(page, f"`{name}`", "| field | |\n|---|---|\n", rows)
    return page


def configuration(page: str) -> str:
    """The page of the configuration, renewed."""
    head = "| key | default | |\n|---|---|---|\n"
    for name, section in json_schema.schema()["properties"].items():
        page = with_rows(page, rf"\[{name}(?:\.NAME)?\]", head, keys(section))
    return page


def keys(section: dict[str, Any]) -> Iterator[str]:
    """Rows of the keys of a section, or of each table in it."""
    table = next(iter(section.get("patternProperties", {"": section}).values()))
    for name, each in table["properties"].items():
        default = value(each["default"]) if "default" in each else "required"
        yield f"| `{name}` | {default} | {cell(each['description'])} |\n"


PAGES = {"tools.md": tools, "events.md": events, "configuration.md": configuration}


def main() -> int:
    """Renew the pages, or say which are not current; 1 if one is not."""
    stale = 0
    for name, renewed in PAGES.items():
        before = (DOCS / name).read_text(encoding="utf-8")
        after = renewed(before)
        if "--check" not in sys.argv:
            (DOCS / name).write_text(after, encoding="utf-8")
        elif before != after:
            stale = 1
            sys.stderr.write(f"docs/{name} is not current; renew: python .ci/tables.py\n")
    return stale


if __name__ == "__main__":
    sys.exit(main())
