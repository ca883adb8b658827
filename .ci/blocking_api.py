"""Writes the blocking classes of `oubliette.sync` from the asynchronous ones of `oubliette.api`.

python .ci/blocking_api.py            renews them
python .ci/blocking_api.py --check    fails if one of them is not current; `make lint` does this

A method has the head and the docstring of the asynchronous one, which it calls on the thread of the
loop. An attribute becomes a property. A section `Blocking:` of a docstring replaces the last
paragraph before the other sections, or follows the first one if there is no further one.
"""
# ruff: noqa: INP001 -- a program, not a package

from __future__ import annotations

import ast
import inspect
import itertools
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "oubliette" / "sync"
WRITTEN = {
    "BrowserPort": "oubliette.api.browser_port",
    "Caller": "oubliette.api.callers.caller",
    "Oubliette": "oubliette.api.client",
    "Project": "oubliette.api.project",
    "Session": "oubliette.api.session",
    "Spawner": "oubliette.api._generated.spawner",
    "Tree": "oubliette.api.tree",
    "Turn": "oubliette.api.turn",
    "WorkspaceFiles": "oubliette.api.files.workspace_files",
}
"""Asynchronous classes; the blocking one has the same name, in a module of the same name."""
ABOVE = {
    "Oubliette": {
        "oubliette.api._generated.project_calls": "ProjectCalls",
        "oubliette.api.projects": "Projects",
    },
    "Project": {
        "oubliette.api._generated.tree_calls": "TreeCalls",
        "oubliette.api.tree": "TreeMaker",
    },
    "Spawner": {"oubliette.api.spawner": "SpawnerBase"},
}
"""Classes above, by module, whose methods the blocking class has itself."""
LEFT_OUT = {
    "Oubliette.__enter__",
    "Oubliette.__exit__",
    "Oubliette.subscribe",
    "Oubliette.system",
    "Session.subscribe",
    "Turn.__await__",
}
"""Without a blocking version, as methods for the package are; test_twin.py has the reasons."""
NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "aclose": "close",
    "EventIterator": "Events",
    "TurnEvents": "Events",
}
RESULTS = {
    "{}": "{}(self._thread, twin)",
    "{} | None": "None if twin is None else {}(self._thread, twin)",
    "list[{} | OublietteError]": "[each if isinstance(each, OublietteError)"
    " else {}(self._thread, each) for each in twin]",
}
"""Types of results that have a blocking version, with a class in the place of {}, and this."""
READ_HERE = {
    "Iterable[object]": "{0} = listed_tools({0})",
    "Iterable[object] | None": "{0} = None if {0} is None else listed_tools({0})",
    "Iterable[str]": "{0} = list({0})",
    "Caller | None": "given = {0}.twin if isinstance({0}, Caller) else {0}",
}
"""Parameters by type that are read in the thread of the program, where iterables may belong."""
OWN_BODIES = {
    "Oubliette.__aenter__": "return self.start()",
    "Oubliette.start": "self._thread.open(self._client.start, self._client.aclose)\nreturn self",
    "Oubliette.__aexit__": "self.close()",
    "Oubliette.aclose": "self._thread.stop(self._client.aclose)",
}
"""Methods of the object that has the thread."""
IMPORTED = {
    **{name: f"oubliette.sync.{module.rpartition('.')[2]}" for name, module in WRITTEN.items()},
    "Events": "oubliette.sync.events",
    "PortalThread": "oubliette.sync.portal_thread",
    "listed_tools": "oubliette.api.tools.objects",
}
SECTION = re.compile(r"^(?:Args|Returns|Raises|Blocking):$", re.MULTILINE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Twin:
    """An asynchronous class, to be written as a blocking one."""

    def __init__(self, name: str, module: str, source: str) -> None:
        self.name = name
        self.module = module
        self.defined = [each for each in ast.parse(source).body if not isinstance(each, ast.Expr)]
        for above in ABOVE.get(name, {}):
            source += "\n" + (ROOT / (above.replace(".", "/") + ".py")).read_text(encoding="utf-8")
        self.lines = source.splitlines()
        self.tree = ast.parse(source)
        self.classes = {
            each.name: each for each in self.tree.body if isinstance(each, ast.ClassDef)
        }
        self.node = self.classes[name]
        for above in ABOVE.get(name, {}).values():
            self.node.body += self.classes[above].body
            self.node.bases += self.classes.pop(above).bases
        inits = [each for each in self.node.body if getattr(each, "name", "") == "__init__"]
        others = [each for each in self.node.body if each not in inits]
        first = 1 if ast.get_docstring(self.node) else 0
        self.node.body = [*others[:first], *inits[:1], *others[first:]]
        self.own = "twin" if name == "Caller" else f"_{module.rpartition('.')[2]}"
        """Attribute with the asynchronous object; that of a caller is passed to sessions."""

    def text(self) -> str:
        """Return the module of the blocking class, without its layout."""
        body = "\n".join(self._members())
        head = f"class {self.name}{f'({self._base()})' if self._base() else ''}:\n"
        defined = head + textwrap.indent(f"{self._about(self.node)}\n{body}", "    ")
        first = f"# Generated by .ci/blocking_api.py from {self.module}.\n"
        about = quoted(f"{ast.get_docstring(self.tree)}\n\nIts calls block.")
        return f"{first}{about}\n\n{self._imports()}\n\n{defined}"

    def _base(self) -> str:
        """Return the class above that has a blocking version, or no text."""
        return next(
            (name for each in self.node.bases if (name := ast.unparse(each)) in WRITTEN), ""
        )

    def _members(self) -> Iterator[str]:
        for node in self.node.body:
            if isinstance(node, Function):
                if node.name == "__init__":
                    yield self._init(node, above=bool(self._base()))
                    yield from self._attributes(node)
                elif node.name == "__repr__":
                    yield self._head(node) + f"    return repr(self.{self.own})\n"
                elif not self._is_left_out(node):
                    yield self._method(node)

    def _is_left_out(self, node: Function) -> bool:
        about = (ast.get_docstring(node) or "").partition("\n\n")[0]
        private = node.name.startswith("_") and not node.name.startswith("__")
        return (
            private or f"{self.name}.{node.name}" in LEFT_OUT or about.endswith("For the package.")
        )

    def _init(self, node: Function, *, above: bool) -> str:
        first = (ast.get_docstring(node) or "").partition("\n")[0]
        shown = f"    {quoted(first)}\n" if first else ""
        twin = f"twin: twins.{self.name}"
        if self.name == "Oubliette":
            head, body = f"self, {twin}", "self._thread = PortalThread()"
        else:
            head, body = f"self, thread: PortalThread, {twin}", "self._thread = thread"
        if above:
            body = "super().__init__(thread, twin)"
        return f"def __init__({head}) -> None:\n{shown}    {body}\n    self.{self.own} = twin\n"

    def _attributes(self, node: Function) -> Iterator[str]:
        for before, after in itertools.pairwise([*node.body, ast.Pass()]):
            if not isinstance(before, ast.Assign | ast.AnnAssign):
                continue
            target = before.target if isinstance(before, ast.AnnAssign) else before.targets[0]
            if not isinstance(target, ast.Attribute) or target.attr.startswith("_"):
                continue
            name = target.attr
            about = after.value if isinstance(after, ast.Expr) else None
            if not (isinstance(before, ast.AnnAssign) and isinstance(about, ast.Constant)):
                self._refuse(f"{name} needs a type and a docstring")
            kind = ast.unparse(before.annotation)
            body = self._returned(kind, f"self.{self.own}.{name}")
            text = f"{quoted(inspect.cleandoc(str(about.value)))}\n{body}\n"
            yield f"@property\ndef {name}(self) -> {kind}:\n{textwrap.indent(text, '    ')}"

    def _method(self, node: Function) -> str:
        head = self._head(node)
        decorators = [ast.unparse(each) for each in node.decorator_list]
        if "overload" in decorators:
            return head
        body = OWN_BODIES.get(f"{self.name}.{node.name}")
        if body is None:
            body = self._body(node, attribute="property" in decorators)
        return head + textwrap.indent(self._about(node) + body, "    ") + "\n"

    def _head(self, node: Function) -> str:
        """Return the lines before the body, with decorators; of an overload all lines."""
        first = min(each.lineno for each in [node, *node.decorator_list])
        last = node.body[0].lineno - 1
        if node.body[0].col_offset > node.col_offset + 4:  # `: ...`
            last += 1
        lines = textwrap.dedent("\n".join(self.lines[first - 1 : last]))
        text = re.sub(r"^async def", "def", lines, flags=re.MULTILINE)
        return renamed(text) + "\n"

    def _body(self, node: Function, *, attribute: bool) -> str:
        if node.returns is None:
            self._refuse(f"{node.name} needs the type of its result")
        called = f"self.{self.own}.{node.name}"
        given, prepared = self._arguments(node.args)
        if attribute:
            value = called
        else:
            way = "call" if isinstance(node, ast.AsyncFunctionDef) else "read"
            value = f"self._thread.{way}({f'lambda: {called}({given})' if given else called})"
        return prepared + self._returned(ast.unparse(node.returns), value)

    def _returned(self, kind: str, value: str) -> str:
        if kind in {"None", "Self"}:
            return value if kind == "None" else f"{value}\nreturn self"
        kind = renamed(kind)
        for name in {*re.findall(r"\w+", kind)} & {*WRITTEN, "Events"}:
            for shape, text in RESULTS.items():
                if shape.format(name) == kind:
                    return f"twin = {value}\nreturn {text.format(name)}"
            self._refuse(f"{kind} has no blocking version in RESULTS")
        return f"return {value}"

    def _arguments(self, given: ast.arguments) -> tuple[str, str]:
        """Return the arguments that pass parameters on, and the lines before the call."""
        lines = ""
        parts: list[str] = []
        starred = [(given.vararg, "*{1}"), (given.kwarg, "**{1}")]
        for each, way in [
            *((each, "{1}") for each in given.args[1:]),
            *((each, "{0}={1}") for each in given.kwonlyargs),
            *((each, way) for each, way in starred if each is not None),
        ]:
            kind = ast.unparse(each.annotation) if each.annotation else ""
            line = READ_HERE.get(kind, "").format(each.arg)
            if "Iterable[" in kind and not line:
                self._refuse(f"{each.arg}: {kind} is not in READ_HERE")
            lines += f"{line}\n" if line else ""
            value = "given" if line.startswith("given = ") else each.arg
            parts.append(way.format(each.arg, value))
        return ", ".join(parts), lines

    def _about(self, node: ast.ClassDef | Function) -> str:
        """Return the docstring of the blocking version, between its quotes."""
        before, found, own = (ast.get_docstring(node) or "").partition("\nBlocking:\n")
        if found:
            if SECTION.search(own):
                self._refuse(f"{node.name}: the section `Blocking:` is the last one")
            section = SECTION.search(before)
            end = section.start() if section else len(before)
            first, *further = before[:end].rstrip().split("\n\n")
            parts = [first, *further[:-1], textwrap.dedent(own), before[end:].rstrip()]
            before = "\n\n".join(each for each in parts if each)
        return f"{quoted(before)}\n" if before else ""

    def _refuse(self, why: str) -> NoReturn:
        sys.exit(f"{self.module}: {self.name}: {why}")

    def _imports(self) -> str:
        """Return imports of all that the module may name; what it does not is removed later."""
        defined = [
            ast.unparse(target)
            for node in self.defined
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        ]
        package, _, module = self.module.rpartition(".")
        lines = [f"from {package} import {module} as twins"]
        lines += [f"from {self.module} import {each}" for each in [*defined, *self.classes]]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                lines += [f"from {node.module} import {ast.unparse(each)}" for each in node.names]
            elif isinstance(node, ast.Import):
                lines.append(ast.unparse(node))
        taken = tuple(f" import {each}" for each in (*IMPORTED, "annotations"))
        lines = [each for each in lines if not each.endswith(taken)]
        ours = [f"from {at} import {name}" for name, at in IMPORTED.items() if name != self.name]
        return "\n".join(["from __future__ import annotations", *dict.fromkeys(lines), *ours])


def renamed(text: str) -> str:
    """Return a text with the names of the blocking version."""
    return re.sub(r"\w+", lambda word: NAMES.get(word[0], word[0]), text)


def quoted(text: str) -> str:
    """Return a docstring between its quotes."""
    text = text.replace("\\", "\\\\")
    return f'"""{text}\n"""' if "\n" in text else f'"""{text}"""'


def current() -> dict[Path, str]:
    """Return the modules as they are to be, laid out as the others are."""
    with tempfile.TemporaryDirectory() as folder:
        written: list[Path] = []
        for name, module in WRITTEN.items():
            source = (ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8")
            written.append(Path(folder) / f"{module.rpartition('.')[2]}.py")
            written[-1].write_text(Twin(name, module, source).text(), encoding="utf-8")
        config = ("--config", ROOT / "pyproject.toml", "--silent", "--no-cache", folder)
        fix = ("check", "--fix-only", "--unsafe-fixes", "--select")
        for command in ((*fix, "F401,TC"), (*fix, "I"), ("format",)):
            subprocess.run([sys.executable, "-m", "ruff", *command, *config], check=True)
        return {PACKAGE / each.name: each.read_text(encoding="utf-8") for each in written}


def main() -> None:
    """Write what is not current, or refuse it."""
    stale = {
        path: text
        for path, text in current().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }
    for path, text in stale.items():
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv:
        sys.exit("not current; renew: python .ci/blocking_api.py")


if __name__ == "__main__":
    main()
