"""The zipapp: what is in it, and where the server finds it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from oubliette.incontainer import build
from oubliette.runtime import zipapp
from tests.unit.incontainer.hostclient import ROOT, HostProcess


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build(tmp_path_factory.mktemp("zipapp") / "new" / "o.pyz")


def test_the_same_sources_give_the_same_bytes(packed: Path) -> None:
    same = build.content() == packed.read_bytes()
    assert same


def test_the_bytes_do_not_depend_on_what_the_process_has_loaded(packed: Path) -> None:
    """As bytecode with references does: they are written where the process has others too."""
    names = [word for path in build.sources() for word in path.read_text().split()]
    kept = [sys.intern(name) for name in names]
    again = build.content() == packed.read_bytes()
    assert kept
    assert again


def test_it_holds_every_module_with_bytecode_and_not_the_builder(packed: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        names = set(archive.namelist())
    assert {
        "__main__.py",
        "incontainer/guest/server.py",
        "incontainer/guest/server.pyc",
        "incontainer/client/agent_tools.json",
        "incontainer/wire.py",
    } <= names
    assert "incontainer/build.py" not in names
    assert packed.stat().st_mode & 0o777 == 0o755


def test_a_host_runs_from_it(packed: Path) -> None:
    with HostProcess(target=["-I", "-S", str(packed)]) as host:
        control = host.control()
        control.start("p", "true")
        assert control.event("exited", proc="p")["exit"] == {"code": 0, "signal": None}


def test_the_bytecode_is_what_runs_where_it_fits(packed: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import incontainer.wire as w; print(w.__cached__ or w.__spec__.loader.get_filename('incontainer.wire'), w.parse_header.__code__.co_filename)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(packed)],
        capture_output=True,
        text=True,
        check=True,
        timeout=10,
    )
    assert (
        done.stdout.split()[1] == "incontainer/wire.py"
    )  # as compiled at build time, not in the zip


def test_the_exit_code_comes_through(packed: Path) -> None:
    for arguments, code in [(["host", "--nonsense"], 2), ([], 2)]:
        assert (
            subprocess.run(
                [sys.executable, str(packed), *arguments],
                capture_output=True,
                timeout=10,
                check=False,
            ).returncode
            == code
        )


def test_the_module_builds_from_the_command_line(tmp_path: Path, packed: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "oubliette.incontainer.build", str(tmp_path / "x.pyz")],
        cwd=ROOT,
        check=True,
        timeout=20,
    )
    # Compared as a fact: an explanation of how 300 kB differ takes minutes.
    same = (tmp_path / "x.pyz").read_bytes() == packed.read_bytes()
    assert same
    assert [path.name for path in tmp_path.iterdir()] == ["x.pyz"]


def test_a_checkout_builds_it_once_per_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipapp, "BUNDLED", tmp_path / "none")
    first = zipapp.zipapp_path(tmp_path)
    built_at = first.stat().st_mtime_ns
    assert zipapp.zipapp_path(tmp_path) == first
    assert first.stat().st_mtime_ns == built_at
    modules = tmp_path / "modules"
    modules.mkdir()
    for path in (*build.sources(), *build.data_files()):
        copy = modules / path.relative_to(build.MODULES)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(build, "MODULES", modules)
    assert zipapp.zipapp_path(tmp_path) == first
    for name in ("wire.py", "client/agent_tools.json"):
        before = zipapp.zipapp_path(tmp_path)
        (modules / name).write_bytes((modules / name).read_bytes() + b"\n")
        assert zipapp.zipapp_path(tmp_path) != before


def test_a_wheel_brings_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = tmp_path / "oubliette.pyz"
    bundled.write_bytes(b"x")
    monkeypatch.setattr(zipapp, "BUNDLED", bundled)
    assert zipapp.zipapp_path(tmp_path / "unused") == bundled
    assert not (tmp_path / "unused").exists()
