"""Files of an agent: its module or its package, from wherever its program was started."""

from __future__ import annotations

import importlib
import importlib.util
import io
import linecache
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from oubliette.api import agent_files
from oubliette.api.agent_files import BadAgent, files_of

ROOT = Path(__file__).parents[3]
SOURCE = """
from oubliette.api.own_agent import agent

@agent
async def echo(turn):
    yield turn.prompt
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder to import from; what was imported from it is forgotten."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def written(folder, files):
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def shipped(module, extra=()):
    return files_of(importlib.import_module(module).echo.function, extra, "echo")


def test_a_module_of_its_own_travels_alone(site):
    written(site, {"single_agent.py": SOURCE, "secret.txt": "not yours"})
    found = shipped("single_agent")
    assert list(found.files) == ["single_agent.py"]
    assert (found.module, found.file, found.function) == ("single_agent", "single_agent.py", "echo")


def test_files_beside_it_are_named(site):
    files = {"single_agent.py": SOURCE, "side.py": "", "prompts/a.md": "", "prompts/b/c.md": ""}
    written(site, {**files, "prompts/.hidden": "", "prompts/__pycache__/d.pyc": ""})
    found = shipped("single_agent", ["side.py", "prompts", "prompts/a.md"])
    assert sorted(found.files) == sorted(files)


@pytest.mark.parametrize("entry", ["/etc/passwd", "../x", "a/../../x", "", ".", "missing.py"])
def test_a_file_elsewhere_or_missing_is_refused(site, entry):
    written(site, {"single_agent.py": SOURCE})
    with pytest.raises(BadAgent, match="agent echo: files: "):
        shipped("single_agent", [entry])


def test_a_module_of_a_package_has_the_whole_package(site):
    files = {
        "crew/__init__.py": "",
        "crew/data/prompt.md": "be kind",
        "crew/agents/__init__.py": "",
        "crew/agents/one.py": SOURCE,
        "crew/tools.py": "",
    }
    written(site, {**files, "crew/__pycache__/x.pyc": "", "crew/.git/config": "", "beside.py": ""})
    found = shipped("crew.agents.one")
    assert sorted(found.files) == sorted(files)
    assert (found.module, found.file) == ("crew.agents.one", "crew/agents/one.py")


def test_a_package_that_is_the_module_itself(site):
    written(site, {"crew2/__init__.py": SOURCE, "crew2/more.py": ""})
    found = shipped("crew2")
    assert sorted(found.files) == ["crew2/__init__.py", "crew2/more.py"]
    assert (found.module, found.file) == ("crew2", "crew2/__init__.py")


def test_of_a_namespace_only_the_package_in_it_travels(site):
    written(site, {"shared_ns/mine/__init__.py": SOURCE, "shared_ns/theirs/__init__.py": ""})
    found = shipped("shared_ns.mine")
    assert list(found.files) == ["shared_ns/mine/__init__.py"]
    assert found.module == "shared_ns.mine"


def test_a_module_imported_under_another_name_is_found_by_its_file(site):
    written(site, {"odd-name.py": SOURCE})
    spec = importlib.util.spec_from_file_location("renamed", site / "odd-name.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["renamed"] = module
    spec.loader.exec_module(module)
    found = files_of(module.echo.function, (), "echo")
    assert (found.module, found.file) == ("__main__", "odd-name.py")


@pytest.mark.parametrize(
    ("words", "module", "file"),
    [
        (["{site}/run_me.py"], "__main__", "run_me.py"),
        (["-m", "run_me"], "run_me", "run_me.py"),
        (["-m", "tour.stop"], "tour.stop", "tour/stop.py"),
        (["-m", "tour"], "tour.__main__", "tour/__main__.py"),
    ],
)
def test_a_program_has_its_agent_in_the_file_that_is_run(site, words, module, file):
    program = (
        SOURCE
        + """
if __name__ == "__main__":
    from oubliette.api.agent_files import files_of
    found = files_of(echo.function, (), "echo")
    print(found.module, found.file, found.file in found.files)
"""
    )
    written(site, {"run_me.py": program, "tour/__init__.py": "", "tour/stop.py": program})
    written(site, {"tour/__main__.py": program})
    done = subprocess.run(
        [sys.executable, *(word.format(site=site) for word in words)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{ROOT}:{site}"},
    )
    assert done.stdout.split() == [module, file, "True"]


def test_too_large_a_package_is_refused_with_the_remedy(site, monkeypatch):
    monkeypatch.setattr(agent_files, "MOST_BYTES", 1 << 20)
    written(site, {"heavy/__init__.py": SOURCE})
    (site / "heavy" / "weights.bin").write_bytes(bytes(1 << 20))
    with pytest.raises(BadAgent, match=r"take more than 1 MiB .*small module"):
        shipped("heavy")


def test_the_same_files_make_the_same_archive(site):
    written(site, {"single_agent.py": SOURCE, "side.py": "x = 1"})
    first = shipped("single_agent", ["side.py"]).archive()
    (site / "side.py").touch()
    assert shipped("single_agent", ["side.py"]).archive() == first
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        assert archive.read("side.py") == b"x = 1"


# ---------------------------------------------------------------- without a file


def cell(text: str, name: str = "echo", **names):
    """A function as a notebook defines it: its source is in a cache of lines."""
    place = f"<ipython-input-{len(linecache.cache)}>"
    linecache.cache[place] = (len(text), None, text.splitlines(keepends=True), place)
    there = {"__name__": "__main__", **names}
    exec(compile(text, place, "exec", dont_inherit=True), there)
    return there[name]


def source_of(function):
    found = files_of(function, (), "echo")
    assert found.module == "oubliette_agent_cell"
    return found.files[found.file].decode()


def test_a_function_of_a_notebook_travels_with_the_names_that_it_uses():
    import json
    from pathlib import PurePath

    text = (
        "@decorate\n"
        "async def echo(turn: Missing):\n"
        "    '''Doc.'''\n"
        "    def inner():\n"
        "        return json.dumps([len(NAME), N])\n"
        "    yield inner() + str(Path('a'))\n"
    )
    names = {"json": json, "Path": PurePath, "NAME": "x", "N": 2.5}
    function = cell(text, decorate=lambda it: it, Missing=int, **names)
    made = source_of(function)
    assert "decorate" not in made
    there = {}
    exec(compile(made, "made", "exec"), there)
    assert "import json as json" in made
    assert (there["NAME"], there["N"], there["json"]) == ("x", 2.5, json)
    assert there["Path"] is PurePath


def test_a_name_of_another_cell_is_refused_with_the_remedy():
    function = cell("async def echo(turn):\n    return helper(turn)\n", helper=lambda _: None)
    with pytest.raises(BadAgent, match="it uses helper, which is defined in another cell"):
        source_of(function)
    with pytest.raises(BadAgent, match="it uses missing"):
        source_of(cell("async def echo(turn):\n    return missing(turn)\n"))


def test_a_function_without_any_source_is_refused():
    there = {"__name__": "__main__"}
    exec("async def echo(turn):\n    return turn\n", there)
    with pytest.raises(BadAgent, match="its source is in no file"):
        source_of(there["echo"])
