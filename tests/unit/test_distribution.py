"""What is uploaded: names, links and contents of the wheel and of the source distribution."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

from oubliette.runtime.containers.docker import client
from oubliette.runtime.containers.engine_errors import EngineMissing
from tests.product_files import product_files

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def description(wheel: zipfile.ZipFile) -> str:
    """The page on the package index."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = HeaderParser().parsestr(wheel.read(name).decode())
    assert metadata["Name"] == "oubliette-agents"
    assert metadata["Keywords"]
    return str(metadata.get_payload())


def test_the_wheel_takes_no_top_level_name_but_oubliette(wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0].split("-")[0] for name in wheel.namelist()} == {
        "oubliette",
        "oubliette_agents",
    }


def test_the_wheel_carries_the_zipapp_for_containers(wheel: zipfile.ZipFile) -> None:
    assert "oubliette/_bundled/oubliette.pyz" in wheel.namelist()


def test_all_that_is_uploaded_has_the_documents(built: Path, wheel: zipfile.ZipFile) -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert "command-line.md" in pages
    assert {f"oubliette/_bundled/docs/{page}" for page in pages} <= set(wheel.namelist())
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        assert pages <= {Path(each.name).name for each in archive if each.isfile()}


def test_the_base_tools_of_agents_are_in_all_that_is_uploaded(
    built: Path, wheel: zipfile.ZipFile
) -> None:
    name = "incontainer/client/agent_tools.json"
    content = (ROOT / "oubliette" / name).read_bytes()
    zipapp = zipfile.ZipFile(io.BytesIO(wheel.read("oubliette/_bundled/oubliette.pyz")))
    assert zipapp.read(name) == content
    assert wheel.read(f"oubliette/{name}") == content
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        packed = [each for each in archive.getnames() if each.endswith(name)]
    assert len(packed) == 1


def test_every_module_of_the_product_is_in_all_that_is_uploaded(
    built: Path, wheel: zipfile.ZipFile
) -> None:
    modules = {path.relative_to(ROOT).as_posix() for path in product_files()}
    assert "oubliette/incontainer/__main__.py" in modules
    assert modules <= set(wheel.namelist())
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        assert modules <= {each.name.split("/", 1)[1] for each in archive if each.isfile()}


def test_a_checkout_without_symbolic_links_is_refused_with_the_remedy(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "oubliette").mkdir()
    shutil.copy(ROOT / "oubliette" / "version.py", tmp_path / "oubliette")
    (tmp_path / "oubliette" / "incontainer").write_text("../incontainer")
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "git config core.symlinks true" in done.stderr
    assert "Traceback" not in done.stderr


def test_every_link_of_the_page_on_the_index_is_absolute(description: str) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", description)
    assert links
    assert [link for link in links if not link.startswith("https://")] == []


def test_every_link_into_the_repository_names_a_file_that_is_there(description: str) -> None:
    base = re.escape(PROJECT["urls"]["Source"])
    paths = re.findall(rf"\]\({base}/blob/v[^/]+/([^)#]+)[^)]*\)", description)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_source_distribution_has_what_a_build_needs_and_no_tests(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1].split("/")[0] for name in archive.getnames()}
    assert names == {
        ".gitignore",
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        "docs",
        "hatch_build.py",
        "oubliette",
        "pyproject.toml",
    }


def test_a_missing_library_is_installed_for_the_interpreter_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    with pytest.raises(EngineMissing) as caught:
        client.sdk()
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"{sys.executable} -m pip install ")
