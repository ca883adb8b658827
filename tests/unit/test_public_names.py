"""Names that programs import from `oubliette`: all there, all light, the same to type checkers."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import oubliette
from oubliette.api import errors as api_errors
from oubliette.errors import OublietteError
from tests.syntax import parse

SOURCE = Path(oubliette.__file__).read_text(encoding="utf-8")
TABLE = {**oubliette._WHERE, **{name: f"oubliette.{name}" for name in oubliette._SUBMODULES}}
"""Name → the module that it comes from, or that it is."""
HEAVY = {
    "anyio",
    "asyncio",
    "docker",
    "httpx2",
    "mcp",
    "msgspec",
    "pydantic",
    "pykka",
    "rich",
    "sqlite3",
    "starlette",
    "structlog",
    "tenacity",
    "textual",
    "typer",
    "uvicorn",
}
CLIENT = {"anyio", "asyncio", "httpx2", "msgspec", "tenacity"}
"""What a client of a server elsewhere may import."""


def modules_after(code: str) -> set[str]:
    """The modules that an interpreter has imported after this code, and had not before."""
    program = f"""
import sys
before = set(sys.modules)
{code}
after = set(sys.modules) - before
import json
print(json.dumps(sorted(after)))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return set(json.loads(done.stdout))


def test_the_table_is_what_the_package_exports() -> None:
    assert set(oubliette.__all__) == TABLE.keys() | {"__version__"}
    assert list(oubliette.__all__) == sorted(oubliette.__all__)
    names = [name for names in oubliette._NAMES.values() for name in names]
    assert len(names) == len(set(names))
    assert not set(names) & set(oubliette._SUBMODULES)


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    (block,) = (
        node
        for node in parse(SOURCE).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen: dict[str, str] = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname is None
            is_module = node.module == "oubliette"
            seen[alias.name] = f"oubliette.{alias.name}" if is_module else str(node.module)
    assert seen == TABLE


@pytest.mark.parametrize("name", sorted(TABLE))
def test_each_name_is_there(name: str) -> None:
    module = importlib.import_module(TABLE[name])
    found = getattr(oubliette, name)
    assert found is (module if name in oubliette._SUBMODULES else getattr(module, name))
    assert inspect.getdoc(found)


def test_no_name_is_hidden_by_a_module_of_the_package() -> None:
    modules = {module.name for module in pkgutil.iter_modules(oubliette.__path__)}
    assert not modules & oubliette._WHERE.keys()
    assert modules >= set(oubliette._SUBMODULES)


def test_every_error_of_the_tree_that_programs_know_is_exported() -> None:
    for module in (oubliette.errors, api_errors):
        for name, kind in vars(module).items():
            if inspect.isclass(kind) and issubclass(kind, OublietteError):
                assert getattr(oubliette, name) is kind


def test_a_name_that_there_is_not_is_an_error_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'oubliette' has no attribute 'opne'"):
        _ = oubliette.opne  # type: ignore[attr-defined]
    with pytest.raises(ImportError):
        exec("from oubliette import opne")
    assert not hasattr(oubliette, "__wrapped__")


def test_the_names_are_listed_before_they_are_imported() -> None:
    code = "import oubliette; assert set(oubliette.__all__) <= set(dir(oubliette))"
    assert not modules_after(code) & HEAVY


def test_all_names_can_be_imported_at_once() -> None:
    names: dict[str, object] = {}
    exec("from oubliette import *", names)
    assert names.keys() >= set(oubliette.__all__)


# ---------------------------------------------------------------------- imports


def test_the_package_alone_imports_nothing_else() -> None:
    assert modules_after("import oubliette") <= {
        "oubliette",
        "oubliette.version",
        "importlib",
        "importlib._bootstrap",
        "importlib._bootstrap_external",
        "__future__",
        "warnings",
        "_warnings",
    }


def test_errors_are_light() -> None:
    assert not modules_after("import oubliette; oubliette.NotFound; oubliette.Closed") & HEAVY


@pytest.mark.parametrize("module", ["oubliette.api", "oubliette.api.errors"])
def test_the_api_imports_its_libraries_when_they_are_used(module: str) -> None:
    assert not modules_after(f"import {module}") & (HEAVY - {"anyio", "asyncio", "msgspec"})


def test_a_connection_needs_what_clients_need() -> None:
    code = 'from oubliette.api.http import HttpConnection; HttpConnection("http://x", "oub_x")'
    assert not modules_after(code) & (HEAVY - CLIENT)
    assert "httpx2" not in modules_after("from oubliette.api.http import HttpConnection")


def test_a_library_that_is_missing_is_named_with_the_remedy() -> None:
    code = """
import sys
sys.modules["pykka"] = None
import oubliette
try:
    oubliette.kit
except ModuleNotFoundError as error:
    assert "oubliette.kit needs pykka, which is not installed" in str(error), error
    assert "pip install oubliette-agents" in str(error), error
else:
    raise AssertionError
"""
    modules_after(code)
