"""Writes docs/python-reference.md: the public names of the package, from their docstrings.

python .ci/python_reference.py
"""
# ruff: noqa: INP001 -- a program, not a package

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import sys
import textwrap
import typing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

import oubliette
from oubliette.errors import OublietteError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "python-reference.md"
HEAD = """\
# Python reference

The names that `oubliette` exports, from their docstrings; [python.md](python.md) is the tutorial.
This page is generated: `python .ci/python_reference.py` renews it. Classes that a program gets
from a method are shown without their constructor.
"""
PARTS = {
    "Opening": ("open", "connect"),
    "The system": (
        *("Oubliette", "Project", "Session", "Turn", "Tree", "WorkspaceFiles", "BrowserPort"),
        "Caller",
    ),
    "Records": ("TurnResult", "ToolCallRecord", "Usage"),
    "Tools": ("tool", "mcp", "Call"),
    "Permissions": ("rules", "PermissionRules"),
    "Agents of a program": ("agent",),
}
"""Names by heading. Events, errors and other records follow, each under a heading of their own."""
MODULES = {"errors", "kit", "messages", "sync", "__version__"}
MADE_BY_PROGRAMS = {"Call", "ToolError"}
SECTION = re.compile(r"^(Args|Returns|Raises|Blocking):$")
HEADINGS = {"Blocking": "In `oubliette.sync`"}
"""Sections that get another heading; `.ci/blocking_api.py` has what that one does."""
ITEM = re.compile(r"^    (\**\w[\w.]*): (.*)$")


def page() -> str:
    """Return the text of the page."""
    names = [each for each in oubliette.__all__ if each not in MODULES]
    placed = {name for part in PARTS.values() for name in part}
    rest = {name: named(name) for name in names if name not in placed}
    errors = [name for name, each in rest.items() if _is_a(each, OublietteError)]
    events = [name for name, each in rest.items() if _is_a(each, oubliette.Event)]
    others = [name for name in rest if name not in {*errors, *events}]
    parts = {**PARTS, "Events": events, "Errors": errors, "Other names": others}
    return HEAD + "".join(
        f"\n## {heading}\n" + "".join(entry(name, named(name)) for name in part)
        for heading, part in parts.items()
        if part
    )


def named(name: str) -> object:
    """Return what a public name stands for."""
    return getattr(oubliette, name)


def entry(name: str, value: object) -> str:
    """Return the section of a name."""
    if not isinstance(value, type):
        return f"\n### `{name}`\n\n```python\n{signature(value)}\n```\n\n{prose(value.__doc__)}"
    text = f"\n### `{name}`\n\n"
    bases = [each.__name__ for each in value.__bases__ if each.__name__ in oubliette.__all__]
    if bases:
        text += f"Below {', '.join(f'`{each}`' for each in bases)}.\n\n"
    text += prose(value.__doc__)
    if name in MADE_BY_PROGRAMS:
        text += f"\n```python\n{signature(value.__init__, name)}\n```\n"
    attributes = "".join(
        f"* `{attribute}`" + (f": {' '.join(said.split())}\n" if said else "\n")
        for attribute, said in attributes_of(value)
    )
    text += f"\n{attributes}" if attributes else ""
    return text + "".join(methods(name, value))


def methods(name: str, value: type) -> Iterator[str]:
    """Yield the sections of the public methods of a class, those of its private bases included."""
    mine = inspect.getmodule(OublietteError)
    shown: set[str] = set()
    for part in value.__mro__:
        if not part.__module__.startswith("oubliette") or inspect.getmodule(part) is mine:
            continue
        if part is not value and part.__name__ in oubliette.__all__:
            continue
        for method, member in vars(part).items():
            documented = inspect.getdoc(member) or ""
            internal = documented.endswith("For the package.") or ". For the runner" in documented
            if method.startswith("_") or method in shown or not inspect.isfunction(member):
                continue
            shown.add(method)
            if not internal:
                block = f"```python\n{signature(member)}\n```"
                yield f"\n#### `{name}.{method}`\n\n{block}\n\n{prose(member.__doc__)}"


def attributes_of(value: type) -> Iterator[tuple[str, str]]:
    """Yield attributes that have a docstring, and properties; the fields of a record, described."""
    if issubclass(value, msgspec.Struct):
        above = [each for each in value.__mro__ if each.__module__.startswith("oubliette")]
        public = {*oubliette.__all__} - {value.__name__}
        texts = [dict(_attributes(each)) for each in above if each.__name__ not in public]
        hints = typing.get_type_hints(value, include_extras=True)
        for field in value.__struct_fields__:
            if any(field in each for each in texts):
                said = next((each[field] for each in texts if each.get(field)), "")
                yield field, said or _description(hints[field])
        return
    yield from _attributes(value)
    for attribute, member in vars(value).items():
        if isinstance(member, property) and not attribute.startswith("_"):
            yield attribute, (member.__doc__ or "").partition("\n\n")[0]


def _description(hint: object) -> str:
    """Return what a tool's schema has of a field, in words of Python."""
    metas = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, msgspec.Meta)]
    texts = [each.description for each in metas if each.description]
    return re.sub(r"\bnull\b", "None", " ".join(texts))


def _attributes(value: type) -> Iterator[tuple[str, str]]:
    for parent in ast.walk(_tree(value)):
        if not isinstance(parent, ast.ClassDef | ast.FunctionDef):
            continue
        for before, after in itertools.pairwise([*parent.body, ast.Pass()]):
            if not isinstance(before, ast.AnnAssign | ast.Assign):
                continue
            target = before.target if isinstance(before, ast.AnnAssign) else before.targets[0]
            attribute = ast.unparse(target).removeprefix("self.")
            said = _text(after)
            is_field = parent.__class__ is ast.ClassDef and isinstance(before, ast.AnnAssign)
            if attribute.isidentifier() and not attribute.startswith("_") and (said or is_field):
                yield attribute, said


def _text(statement: ast.stmt) -> str:
    """Return the text of a statement that is only a text; else an empty one."""
    constant = statement.value if isinstance(statement, ast.Expr) else None
    found = constant.value if isinstance(constant, ast.Constant) else None
    return found if isinstance(found, str) else ""


def signature(function: object, name: str = "") -> str:
    """Return the head of a function as it is written in its module, with a line per parameter."""
    (tree,) = _tree(function).body
    assert isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef)
    prefix = "async def" if isinstance(tree, ast.AsyncFunctionDef) else "def"
    arguments = tree.args
    ordinary = [*arguments.posonlyargs, *arguments.args]
    first = len(ordinary) - len(arguments.defaults)
    parts = [
        _parameter(each, arguments.defaults[place - first] if place >= first else None)
        for place, each in enumerate(ordinary)
        if each.arg != "self"
    ]
    if arguments.vararg or arguments.kwonlyargs:
        parts.append(f"*{arguments.vararg.arg if arguments.vararg else ''}")
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    parts += [_parameter(each, default) for each, default in pairs]
    if arguments.kwarg:
        parts.append("**" + _parameter(arguments.kwarg, None))
    returns = "" if name or tree.returns is None else f" -> {ast.unparse(tree.returns)}"
    head = f"{prefix} {name or tree.name}({', '.join(parts)}){returns}: ..."
    if len(head) > 88:
        listed = "".join(f"    {each},\n" for each in parts)
        head = f"{prefix} {name or tree.name}(\n{listed}){returns}: ..."
    return head if '"' in head else head.replace("'", '"')


def _parameter(given: ast.arg, default: ast.expr | None) -> str:
    text = given.arg if given.annotation is None else ast.unparse(given)
    if default is None:
        return text
    return f"{text}{' = ' if given.annotation is not None else '='}{ast.unparse(default)}"


def prose(docstring: str | None) -> str:
    """Return a docstring as Markdown: its sections as lists."""
    lines: list[str] = []
    listing = False
    for line in inspect.cleandoc(docstring or "").splitlines():
        heading = SECTION.match(line)
        item = ITEM.match(line) if listing else None
        if heading:
            listing = True
            lines += [f"{HEADINGS.get(heading[1], heading[1])}:", ""]
        elif item:
            lines.append(f"* `{item[1]}`: {item[2]}")
        elif listing and line.startswith("    "):
            continued = lines[-1].startswith(("* ", "  "))
            lines.append(("  " if continued else "") + line.strip())
        else:
            lines.append(line)
    return "\n".join(lines).strip() + "\n"


@functools.cache
def _tree(value: object) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(value))))  # type: ignore[arg-type]


def _is_a(value: object, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {len(PAGE.read_text().splitlines())} lines\n")
