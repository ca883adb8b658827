"""`requires(...)` skips, `OUBLIETTE_REQUIRE` turns skips into failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import selection

ROOT = Path(__file__).parents[2]

TEST = """
import pytest
from tests import requirements

requirements.PROBES["docker"] = lambda: "no engine here"
requirements.PROBES["podman"] = lambda: None

@pytest.mark.requires("docker")
def test_missing():
    pass

@pytest.mark.requires("podman")
def test_there():
    pass
"""


def run(
    folder: Path, demanded: str, text: str = TEST, without: str = "", suite: str = ""
) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(text)
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    marker = "markers = requires(name)"
    (folder / "pytest.ini").write_text(f"[pytest]\n{marker}\npythonpath = {ROOT}\n")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ
        | {
            "OUBLIETTE_REQUIRE": demanded,
            "OUBLIETTE_WITHOUT": without,
            "OUBLIETTE_SUITE": suite,
        },
    )


@pytest.mark.whole
def test_a_missing_requirement_skips_and_says_why(tmp_path: Path) -> None:
    done = run(tmp_path, "")
    assert done.returncode == 0
    assert "1 passed, 1 skipped" in done.stdout
    assert "needs docker: no engine here" in done.stdout


@pytest.mark.whole
def test_a_requirement_can_be_left_out_where_it_is_met(tmp_path: Path) -> None:
    done = run(tmp_path, "", without="podman")
    assert done.returncode == 0
    assert "2 skipped" in done.stdout
    assert "needs podman: left out by OUBLIETTE_WITHOUT" in done.stdout


@pytest.mark.whole
def test_a_missing_requirement_that_is_demanded_fails(tmp_path: Path) -> None:
    done = run(tmp_path, "podman, docker")
    assert done.returncode == 1
    assert "docker is demanded, and missing: no engine here" in done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.whole
def test_an_unknown_demand_is_a_usage_error_that_names_the_known(tmp_path: Path) -> None:
    done = run(tmp_path, "doker")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    said = done.stdout + done.stderr
    assert "OUBLIETTE_REQUIRE names doker; known are: apple-standin, bubblewrap" in said


@pytest.mark.whole
def test_an_unknown_name_in_a_mark_fails_that_test(tmp_path: Path) -> None:
    text = TEST.replace('requires("podman")', 'requires("podmann")')
    done = run(tmp_path, "", text)
    assert done.returncode == 1
    assert "requires('podmann'): there is no such requirement" in done.stdout


SUITE = (
    TEST.replace('"docker"] = lambda: "no engine here"', '"docker"] = lambda: None')
    + """
@pytest.mark.whole
def test_of_the_whole():
    pass

@pytest.mark.requires("bubblewrap")
def test_sandbox():
    pass

requirements.PROBES["bubblewrap"] = lambda: "no bwrap"

@pytest.mark.parametrize("kind", ["sdk-auto", "sdk-legacy", "http-auto", "http-legacy"])
def test_kinds(kind):
    pass
"""
)
LEFT_OUT = (
    "Left out: 4 of the whole suite alone, 1 need docker, 1 need podman, 1 need bubblewrap.\n"
)
REMEDY = (
    "To have it: apt-get install bubblewrap, as root .ci/engines make test-all, make test-all.\n"
)


@pytest.mark.whole
def test_the_core_leaves_engines_and_matrices_to_the_whole_and_says_so_in_two_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-n 2")
    done = run(tmp_path, "", SUITE, suite="core")
    assert done.returncode == 0
    assert f"\n{LEFT_OUT}{REMEDY}1 passed, 1 skipped" in done.stdout


@pytest.mark.whole
def test_the_core_has_what_is_demanded(tmp_path: Path) -> None:
    done = run(tmp_path, "docker,podman", SUITE, suite="core")
    assert done.returncode == 0
    assert "3 passed, 1 skipped" in done.stdout


@pytest.mark.whole
def test_the_whole_leaves_out_what_is_missing_alone(tmp_path: Path) -> None:
    done = run(tmp_path, "", SUITE)
    assert done.returncode == 0
    assert "7 passed, 1 skipped" in done.stdout
    assert "Left out: 1 need bubblewrap.\nTo have it: apt-get install bubblewrap.\n" in done.stdout


ALL = """
import pytest

@pytest.mark.parametrize("kind", ["sdk-auto", "sdk-legacy"])
@pytest.mark.parametrize(
    "engine",
    ["process"]
    + [pytest.param(name, marks=pytest.mark.requires(name)) for name in ("docker", "podman")]
    + [pytest.param("both", marks=pytest.mark.requires("docker", "apple-standin"))],
)
def test_kinds(engine, kind):
    pass

@pytest.mark.requires("opencode")
def test_agent():
    pass

@pytest.mark.whole
def test_of_the_whole():
    pass
"""


@pytest.mark.whole
def test_the_shares_have_each_test_of_the_whole_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    had = {}
    for share in ("", *selection.SHARES):
        # What is demanded is of no account: the core of `.ci/all` demands none of these.
        done = run(tmp_path, "" if share == "core" else "docker,opencode", ALL, suite=share)
        had[share] = [line for line in done.stdout.splitlines() if "::" in line]
    whole = had.pop("")
    assert len(whole) == 10
    assert sorted(sum(had.values(), [])) == sorted(whole)
    assert {share: len(tests) for share, tests in had.items()} == {
        "core": 1,
        "beyond": 2,
        "agents": 1,
        "docker": 2,
        "podman": 4,
    }


def test_a_share_that_is_none_is_refused_with_the_names_of_all(monkeypatch):
    monkeypatch.setenv(selection.VARIABLE, "rest")
    with pytest.raises(
        pytest.UsageError, match="one of core, beyond, agents, docker, podman, not 'rest'"
    ):
        selection.share()


@pytest.mark.parametrize(("missing", "marks"), [("no bwrap", []), (None, [pytest.mark.whole])])
def test_a_variant_without_a_sandbox_is_of_the_core_where_there_is_none(mocker, missing, marks):
    mocker.patch("tests.requirements.missing", {"bubblewrap": missing}.get)
    assert selection.without_sandbox() == [pytest.mark.sandboxless, *marks]
