"""Writes the methods of `oubliette.api` that have many options, with each option by name.

python .ci/api_signatures.py            renews them
python .ci/api_signatures.py --check    fails if they are not current; `make lint` does this

Their options are the fields of the Structs of `oubliette.contract`, with their texts. A method is
written from a private one of the class above, which takes them as `options` and has the rest of the
signature and of the docstring.
"""
# ruff: noqa: INP001 -- a program, not a package

from __future__ import annotations

import ast
import re
import subprocess
import sys
import textwrap
import typing
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING

import msgspec

from oubliette.contract.agent_options import SessionSpawn
from oubliette.contract.limits import TreeLimits
from oubliette.contract.project import ProjectCreate, RepositorySource

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
API = ROOT / "oubliette" / "api"
SPAWN = {
    "tools": (
        "Iterable[object] | None",
        "Tools of this program that the agent and its children may call.",
    ),
    "on_permission": (
        "OnPermission | None",
        "Policy for what agents ask permission for: `rules(…)`, or a function of the request.",
    ),
    "caller": (
        "Caller | None",
        "Caller that provides the tools, instead of `tools` and `on_permission`.",
    ),
}
"""Options of a session that only the API has."""
PROJECT = {
    "repository": (
        "str | os.PathLike[str] | None",
        "Repository to clone, by URL or by the path of a checkout on the server's machine.",
    ),
}
"""Options of a project that only the API has, or has in another form."""
RENAMED = {"create_workspace": "new_workspace", "push": "allow_push"}
LEFT_OUT = {
    SessionSpawn: {
        *("context", "caller_id", "caller_tools", "api_key", "api_key_project", "tree", "source"),
        *("api_key_ttl_seconds", "external_id", "project_id", "prompt", "new_session"),
    },
    ProjectCreate: {"name", "repository", "accept_bare", "placement"},
    RepositorySource: {"url", "path"},
    TreeLimits: set[str](),
}
"""Fields that are no options of the API; `Oubliette.call` takes them."""

EXTRA = (
    "import os",
    "from collections.abc import Iterable, Mapping",
    "from oubliette.api.callers.caller import Caller",
    "from oubliette.api.callers.caller_loops import OnPermission",
    "from oubliette.api.unknown_option import check_options",
)
"""Imports of what options are; those that a module does not need are removed."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Options = dict[str, tuple[str, str]]
"""Type and text of each option."""


def fields(kind: type[msgspec.Struct]) -> Options:
    """Return the options that the fields of a Struct are."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        RENAMED.get(name, name): (f"{python_type(hint)} | None", described(hint))
        for name, hint in hints.items()
        if name not in LEFT_OUT[kind]
    }


def python_type(hint: typing.Any) -> str:
    """Return the type as programs write it, without bounds and None."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return python_type(parts[0])
    if origin in {typing.Union, UnionType}:
        (kind,) = [each for each in parts if each is not NoneType]
        return python_type(kind)
    if origin is typing.Literal:
        return "str"
    if origin is dict or issubclass(hint, msgspec.Struct):
        return "Mapping[str, Any]"
    return hint.__name__


def described(hint: typing.Any) -> str:
    """Return the text of a field, in words of Python."""
    metas = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, msgspec.Meta)]
    (text,) = [each.description for each in metas if each.description]
    return re.sub(r"\b(Unset|null)\b", "None", text)


SESSION_OPTIONS = {**SPAWN, **fields(SessionSpawn)}
PROJECT_OPTIONS = {**PROJECT, **fields(RepositorySource), **fields(ProjectCreate)}
CLASSES = {
    "spawner": ("Spawner", "spawner", "SpawnerBase", SESSION_OPTIONS),
    "project_calls": ("ProjectCalls", "projects", "Projects", PROJECT_OPTIONS),
    "tree_calls": ("TreeCalls", "tree", "TreeMaker", fields(TreeLimits)),
}
"""Modules, with the class, and of the one above it the module, the name and the options."""
OVERLOADS = {
    "_run": {
        "returns: None = None": "TurnResult",
        "returns: type[T], attempts: int = 3": "T",
        "returns: object, attempts: int = 3": "Any",
    },
    "_map": {
        "at_once: int = AT_ONCE, returns: None = None": "list[TurnResult | OublietteError]",
        "at_once: int = AT_ONCE, returns: type[T], attempts: int = 3": "list[T | OublietteError]",
        "at_once: int = AT_ONCE, returns: object, attempts: int = 3": "list[Any]",
    },
}
"""Results by the parameters that they depend on."""


def written(module: str) -> str:
    """Return a module, without its layout."""
    name, above, base_name, options = CLASSES[module]
    source = f"oubliette.api.{above}"
    tree = ast.parse((API / f"{above}.py").read_text(encoding="utf-8"))
    classes = {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}
    base = classes[base_name]
    head = f"# Generated by .ci/api_signatures.py from {source}."
    parts = [f'{head}\n"""{ast.get_docstring(tree)}"""']
    parts.append("from __future__ import annotations\n\nfrom typing import Never, overload")
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            parts.append(f"from {source} import {node.name}")
        elif isinstance(node, ast.Assign):
            parts += [f"from {source} import {ast.unparse(each)}" for each in node.targets]
        elif isinstance(node, ast.If):
            parts += [ast.unparse(each) for each in node.body]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            parts.append(ast.unparse(node))
    parts += EXTRA
    parts.append(f'class {name}({base_name}):\n    """{ast.get_docstring(base)}"""')
    for node in base.body:
        if isinstance(node, Function) and any(each.arg == "options" for each in node.args.args):
            parts += [textwrap.indent(each, "    ") for each in methods(node, options)]
    return "\n\n".join(parts)


def methods(node: Function, options: Options) -> Iterator[str]:
    """Yield the public method of a private one, which takes the options by name, with overloads."""
    positional = [each for each in node.args.args[1:] if each.arg != "options"]
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    own = [f"{ast.unparse(each)} = {ast.unparse(default)}" for each, default in pairs if default]
    named = [f"{option}: {kind} = None" for option, (kind, _) in options.items()]
    way = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    first = f"{way} {node.name[1:]}({', '.join(['self', *map(ast.unparse, positional), '*'])}, "
    for extra, result in OVERLOADS.get(node.name, {}).items():
        yield f"@overload\n{first}{extra}, {', '.join(named)}) -> {result}: ..."
    before, _, after = (ast.get_docstring(node) or "").partition("    options:")
    texts = [
        textwrap.fill(f"{option}: {text}", 84, initial_indent=" " * 4, subsequent_indent=" " * 8)
        for option, (_, text) in options.items()
    ]
    docstring = "\n".join([before + "\n".join(texts).strip("\n"), after.partition("\n")[2]])
    checked = options is SESSION_OPTIONS
    known = ", ".join(f'"{option}": {option}' for option in options)
    given = [each.arg for each in positional] + ["options"]
    given += [f"{each.arg}={each.arg}" for each in node.args.kwonlyargs]
    wait = "await " if way == "async def" else ""
    body = [
        f'"""{docstring.rstrip()}\n"""',
        f"options: dict[str, Any] = {{{known}}}",
        *(["check_options(unknown, options)"] if checked else []),
        f"return {wait}self.{node.name}({', '.join(given)})",
    ]
    assert node.returns is not None
    tail = ["**unknown: Never"] if checked else []
    head = f"{first}{', '.join([*own, *named, *tail])}) -> {ast.unparse(node.returns)}:"
    yield f"{head}\n{textwrap.indent(chr(10).join(body), '    ')}"


def laid_out(text: str) -> str:
    """Return a module as the others are laid out."""
    ruff = (sys.executable, "-m", "ruff")
    file = ("--config", ROOT / "pyproject.toml", "--stdin-filename", API / "_generated/any.py", "-")
    fix = ("check", "--fix-only", "--unsafe-fixes", "--select", "F401,TC,I")
    for command in (fix, fix, ("format",)):
        line = [*ruff, *command, "--silent", "--no-cache", *file]
        done = subprocess.run(line, input=text, check=True, capture_output=True, text=True)
        text = done.stdout
    return text


def main() -> None:
    """Write what is not current, or refuse it."""
    for module in CLASSES:
        path = API / "_generated" / f"{module}.py"
        text = laid_out(written(module))
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv:
            sys.exit(
                f"{path.relative_to(ROOT)} is not current; renew: python .ci/api_signatures.py"
            )
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
