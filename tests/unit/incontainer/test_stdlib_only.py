"""What runs inside a container needs Python 3.9 and its standard library, and nothing else.

The checks of the sources hold on every machine; where a Python 3.9 is, everything also runs on it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from oubliette.incontainer import build
from tests import requirements
from tests.syntax import parse
from tests.unit.incontainer.hostclient import ROOT, HostProcess

MODULES = build.sources()
NAMES = [
    path.relative_to(build.MODULES).with_suffix("").as_posix().replace("/", ".")
    for path in MODULES
    if path.stem not in {"__init__", "__main__"}
]
SINCE_3_10 = frozenset(
    ("tomllib", "_aix_support", "_collections_abc")
)  # not in 3.9's library, or not public
RUN = [sys.executable, "-I", "-S"]


def imports(tree: ast.AST, depth: int = 1) -> set[str]:
    """The top-level names imported when the module runs, not only when types are checked."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= depth, "the package is a top-level one in the zipapp"
            found.add("incontainer" if node.level else (node.module or "").split(".")[0])
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_imports_the_standard_library_only(path: Path) -> None:
    names = imports(parse(path.read_text()), len(path.relative_to(build.MODULES).parts))
    assert names <= (sys.stdlib_module_names - SINCE_3_10) | {"incontainer", "__future__"}


class _Runtime(ast.NodeVisitor):
    """Finds what parses on 3.9 and fails there when it runs."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def visit_If(self, node: ast.If) -> None:
        if not (isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        """Annotations are never evaluated."""

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (
            *node.decorator_list,
            *node.args.defaults,
            *filter(None, node.args.kw_defaults),
            *node.body,
        ):
            self.visit(part)

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """`int | str` and `X | None` as values came with 3.10."""
        sides = [node.left, node.right]
        if isinstance(node.op, ast.BitOr) and any(
            (isinstance(side, ast.Constant) and side.value is None)
            or (
                isinstance(side, ast.Name)
                and side.id in {"int", "str", "bytes", "float", "dict", "list", "bool"}
            )
            for side in sides
        ):
            self.wrong.append(f"line {node.lineno}: a union as a value")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Arguments and functions that came with 3.10 or later."""
        name = (
            node.func.id
            if isinstance(node.func, ast.Name)
            else node.func.attr
            if isinstance(node.func, ast.Attribute)
            else ""
        )
        if name == "zip" and any(keyword.arg == "strict" for keyword in node.keywords):
            self.wrong.append(f"line {node.lineno}: zip(strict=)")
        if name in {
            "aiter",
            "anext",
            "bit_count",
            "pairwise",
            "batched",
            "add_note",
            "file_digest",
        } or any(keyword.arg in {"slots", "kw_only"} for keyword in node.keywords):
            self.wrong.append(f"line {node.lineno}: {name} came with 3.10 or later")
        self.generic_visit(node)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_has_no_syntax_or_call_of_a_newer_python(path: Path) -> None:
    tree = parse(path.read_text(), feature_version=(3, 9))
    newer = [
        node for node in ast.walk(tree) if type(node).__name__ in {"Match", "TryStar", "TypeAlias"}
    ]
    assert not newer
    if len(tree.body) > 1:
        assert any(
            isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body
        )
    visitor = _Runtime()
    visitor.visit(tree)
    assert not visitor.wrong


def test_the_checks_find_what_they_look_for() -> None:
    visitor = _Runtime()
    visitor.visit(
        parse(
            "isinstance(x, int | str)\nlist(zip(a, b, strict=True))\nX = dict | None\ndef f(x: int | None = None) -> str | None: ...\n"
        )
    )
    assert len(visitor.wrong) == 3
    assert imports(parse("def f():\n import msgspec.json\n from . import wire")) == {
        "msgspec",
        "incontainer",
    }


def test_every_module_imports_without_site_packages() -> None:
    code = "import sys, importlib; sys.path.insert(0, sys.argv[1]); [importlib.import_module('oubliette.incontainer.' + name) for name in sys.argv[2:]]"
    done = subprocess.run(
        [*RUN, "-S", "-c", code, str(ROOT), *NAMES],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_host_imports_none_of_the_slow_modules_before_it_is_ready() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import oubliette.incontainer.guest.server, oubliette.incontainer.guest.options; print(sorted({'asyncio', 'typing', 'subprocess', 'hmac', 'hashlib', 'dataclasses', 'logging', 'argparse', 'inspect', 'threading'} & set(sys.modules)))"
    done = subprocess.run(
        [*RUN, "-S", "-c", code, str(ROOT)], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.stdout == "[]\n", done.stderr


def oldest() -> str:
    found = requirements.python39()
    assert found is not None
    return found


@pytest.mark.requires("python3.9")
class TestOnPython39:
    """The same on the oldest Python."""

    def test_every_module_imports(self) -> None:
        python = oldest()
        code = "import sys, importlib; sys.path.insert(0, sys.argv[1]); [importlib.import_module('oubliette.incontainer.' + name) for name in sys.argv[2:]]"
        done = subprocess.run(
            [python, "-I", "-S", "-W", "error", "-c", code, str(ROOT), *NAMES],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    @pytest.mark.parametrize("packed", [False, True])
    def test_a_host_serves_pairs_and_processes_and_drains(
        self, packed: bool, tmp_path: Path
    ) -> None:
        python = oldest()
        target = [str(build.build(tmp_path / "o.pyz"))] if packed else None
        with HostProcess(python=python, target=target) as host:
            control = host.control()
            control.expect("s", "sec")
            up, down = control.upstream("s"), host.dial()
            down.send(b"OUBLIETTE-DOWNSTREAM p s sec\nhi")
            assert up.exactly(2) == b"hi"
            up.close()
            assert down.rest() == b""
            control.start(
                "p",
                "sh",
                "-c",
                "cat; echo err >&2; exit 3",
                limits={"nofile": 64},
                deadline_seconds=20,
            )
            attached = control.attach("p")
            for seq in range(1, 5):
                attached.stdin(seq, b"x" * 100_000)
            attached.stdin_eof(5)
            assert attached.until_exit() == {"code": 3, "signal": None}
            assert (len(attached.out), attached.err) == (400_000, b"err\n")
            control.start("big", "head", "-c", "5000000", "/dev/zero")
            attached = control.attach("big")
            attached.until_exit()
            assert len(attached.out) == 5_000_000
            control.pty("screen", "stty", "size")
            attached = control.attach("screen")
            attached.until_exit()
            assert attached.out == b"24 80\r\n"
            attached.close()
            control.settle()
            control.start("tree", "sh", "-c", "setsid sleep 60 & sleep 60")
            assert control.ask("signal", proc="tree", signal="KILL") == {"delivered": True}
            control.event("exited", proc="tree")
            control.ask("forget", proc="p")
            assert control.ask("stats")["procs"] == 2
            control.ask("drain")
            assert host.process.wait(5) == 0
