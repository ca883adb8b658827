"""Methods with many options name each of them, with its text; .ci/api_signatures.py writes them."""

from __future__ import annotations

import importlib.util
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import oubliette
from oubliette import sync
from oubliette.api._generated.spawner import Spawner
from oubliette.errors import InvalidParameter

pytestmark = pytest.mark.anyio

SCRIPT = Path(__file__).resolve().parents[3] / ".ci" / "api_signatures.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("api_signatures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_methods_are_current(script) -> None:
    for module in script.CLASSES:
        path = script.API / "_generated" / f"{module}.py"
        current = path.read_text(encoding="utf-8") == script.laid_out(script.written(module))
        assert current, "renew them: python .ci/api_signatures.py"


@pytest.mark.parametrize("package", [oubliette, sync])
def test_each_option_is_a_parameter_with_its_text_in_help(script, package) -> None:
    project, system = package.Project, package.Oubliette
    for options, methods in (
        (script.SESSION_OPTIONS, (project.spawn, project.run, project.map, package.Tree.run)),
        (script.PROJECT_OPTIONS, (system.project, system.create_project)),
        (script.CLASSES["tree_calls"][-1], (project.tree,)),
    ):
        for method in methods:
            shown = " ".join((inspect.getdoc(method) or "").split())
            for name, (_, text) in options.items():
                assert inspect.signature(method).parameters[name].default is None
                assert f"{name}: {text}" in shown


async def test_a_name_that_is_no_option_is_refused_with_what_was_probably_meant() -> None:
    spawner = Spawner(SimpleNamespace(), "proj_1")
    for call in (spawner.spawn("Go", modle="x"), spawner.map(["Go"], modle="x")):
        with pytest.raises(InvalidParameter, match="^modle: there is no option") as refused:
            await call
        assert refused.value.hint == "did you mean model?"
