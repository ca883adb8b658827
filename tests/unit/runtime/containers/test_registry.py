"""Container runtimes that packages of others bring, by the group `oubliette.containers`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from oubliette.cli.doctor import engines
from oubliette.config.schema import Config, ContainersConfig, DockerConfig, ProcessConfig
from oubliette.errors import ConfigError
from oubliette.runtime.containers import options, registry, selection, server_runtime
from oubliette.runtime.zipapp import zipapp_path
from tests.conformance import cage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.sandboxless]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Installs a package of somebody else with these entry points."""
    folder = tmp_path / "site"

    def installs(**points: str) -> None:
        folder.mkdir()
        monkeypatch.syspath_prepend(str(cage.install(folder, points or None)))
        registry.installed.cache_clear()

    yield installs
    monkeypatch.undo()
    sys.modules.pop("oubliette_cage", None)
    registry.installed.cache_clear()


def with_runtime(name: str) -> Config:
    return Config(containers=ContainersConfig(runtime=name))


@pytest.mark.requires("bubblewrap")
@pytest.mark.parametrize("name", ["cage", "kennel"])
async def test_a_runtime_of_a_package_is_chosen_by_its_name_and_its_aliases(
    package: Callable[..., None], tmp_path: Path, name: str
) -> None:
    package()
    config = with_runtime(name)
    runtime, why = await selection.choose(config, tmp_path, tmp_path, tmp_path)
    try:
        assert (runtime.name, why) == ("cage", f"containers.runtime = {name}")
        server_runtime.check(tmp_path, runtime.name, config, why)
        server_runtime.remember(tmp_path, runtime.name, config)
        assert server_runtime.recall(tmp_path) == "cage"
        assert options.network_of(config, runtime.name) == "none"
        assert options.limits_of(config, runtime.name).memory_bytes is None
    finally:
        await runtime.aclose()


def test_auto_tries_no_runtime_of_a_package(package: Callable[..., None]) -> None:
    package()
    assert "cage" in registry.installed().specs
    assert set(selection.order()) <= set(registry.BUILT_IN)


def test_auto_gives_no_weaker_wall_than_that_of_a_package(
    package: Callable[..., None], tmp_path: Path
) -> None:
    package()
    (tmp_path / "runtime").write_text("cage\n")
    server_runtime.check(tmp_path, "docker", Config(), "it works")
    server_runtime.check(tmp_path, "process", Config(), "it works")
    (tmp_path / "runtime").write_text("docker\n")
    with pytest.raises(ConfigError, match="keeps them in less than docker"):
        server_runtime.check(tmp_path, "process", Config(), "not docker")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nowhere:X", "ModuleNotFoundError: No module named 'nowhere'"),
        ("oubliette_cage:Nothing", "has no attribute 'Nothing'"),
        ("oubliette_cage:Cage", "it is no RuntimeSpec but 'type'"),
        ("oubliette_cage:TAKES_A_NAME", "there is a runtime called docker already"),
        ("oubliette_cage:TAKES_AN_ALIAS", "there is a runtime called podman already"),
        ("oubliette_cage:NAMELESS", "its name is ' '"),
    ],
)
def test_a_package_that_is_no_good_is_named_when_its_runtime_is_asked_for(
    package: Callable[..., None], tmp_path: Path, target: str, reason: str
) -> None:
    package(x=target, cage="oubliette_cage:CAGE")
    assert registry.installed().specs["docker"] is registry.BUILT_IN["docker"]
    assert "cage" in registry.installed().specs  # the others are as they were
    with pytest.raises(ConfigError, match="the package oubliette-cage 2.0.1 is no good") as caught:
        selection.make("x", Config(), tmp_path, tmp_path, tmp_path)
    assert caught.value.message.startswith("containers.runtime: ")
    assert reason in caught.value.message
    assert "uninstall" in (caught.value.hint or "")


def test_of_two_packages_with_one_name_the_second_is_refused(package: Callable[..., None]) -> None:
    package(a="oubliette_cage:CAGE", b="oubliette_cage:BROKEN")
    found = registry.installed()
    assert len(found.broken) == 1
    assert "there is a runtime called cage already" in next(iter(found.broken.values()))


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("oubliette_cage:BROKEN", "ZeroDivisionError"),
        ("oubliette_cage:UNFINISHED", "it has no aclose, adopt, build,"),
        ("oubliette_cage:MISNAMED", "its name is 'process'"),
    ],
)
def test_what_a_package_makes_has_to_be_a_runtime(
    package: Callable[..., None], tmp_path: Path, target: str, reason: str
) -> None:
    package(cage=target)
    with pytest.raises(ConfigError, match="oubliette-cage 2.0.1 cannot make") as caught:
        selection.make("cage", Config(), tmp_path, tmp_path, tmp_path)
    assert reason in caught.value.message


def test_a_name_that_nobody_has_is_refused_with_those_that_there_are(
    package: Callable[..., None],
) -> None:
    package()
    with pytest.raises(ConfigError, match="no runtime 'caeg'") as caught:
        registry.find("caeg")
    assert caught.value.hint == (
        "did you mean cage? there are: auto, apple, cage, docker, podman, process"
    )


@pytest.mark.whole
@pytest.mark.requires("bubblewrap")
def test_the_doctor_tells_of_runtimes_of_packages(package: Callable[..., None]) -> None:
    package(cage="oubliette_cage:CAGE", x="nowhere:X")
    found = {check.name: check for check in engines.engines(with_runtime("kennel"))}
    assert (found["cage"].status, found["x"].status) == ("ok", "ok")
    assert found["x"].detail.startswith("not used: the package oubliette-cage 2.0.1 is no good")
    found = {check.name: check for check in engines.engines(with_runtime("x"))}
    assert (found["x"].status, found["x"].remedy) == (
        "fail",
        "update that package, or uninstall it",
    )
    found = {check.name: check for check in engines.engines(with_runtime("dcoker"))}
    assert found["container runtime"].status == "fail"
    assert "did you mean docker?" in (found["container runtime"].remedy or "")
    tables = Config(package_runtimes={"caeg": {}})
    found = {check.name: check for check in engines.engines(tables)}
    assert found["container runtime"].detail.startswith("package_runtimes.caeg: ")


@pytest.mark.parametrize("name", list(registry.BUILT_IN))
def test_a_spec_says_the_same_as_the_runtime_that_it_describes(tmp_path: Path, name: str) -> None:
    spec = registry.find(name)
    runtime = selection.make(name, Config(), tmp_path, tmp_path, tmp_path)
    assert (runtime.name, runtime.capabilities.images) == (name, spec.images)


def test_an_oci_runtime_of_docker_is_for_no_other_engine() -> None:
    config = Config(docker=DockerConfig(oci_runtime="runsc"))
    assert options.hardening_of(config, "docker").oci_runtime == "runsc"
    for other in ("podman", "apple"):
        assert options.hardening_of(config, other).oci_runtime is None


async def test_a_runtime_of_a_package_gets_its_own_table(
    package: Callable[..., None], tmp_path: Path
) -> None:
    package()
    config = Config(package_runtimes={"cage": {"bars": 20}})
    made: Any = selection.make("cage", config, tmp_path, tmp_path, tmp_path)
    assert made.settings.bars == 20
    config = Config(package_runtimes={"cage": {"brs": 20}})
    with pytest.raises(ConfigError, match=r"package_runtimes\.cage: .* unknown field brs"):
        selection.make("cage", config, tmp_path, tmp_path, tmp_path)
    with pytest.raises(ConfigError, match=r"package_runtimes\.docker: no installed") as refused:
        await selection.choose(
            Config(package_runtimes={"docker": {}}), tmp_path, tmp_path, tmp_path
        )
    assert "remove [package_runtimes.docker]" in (refused.value.hint or "")


# ---------------------------------------------------------------- passed by a program


def made(tmp_path: Path) -> Any:
    """A runtime of a program: an object, not a spec."""
    from oubliette.runtime.containers import ProcessRuntime

    class Pen(ProcessRuntime):
        """Works like the sandbox."""

        @property
        def name(self) -> str:
            return "pen"

    return Pen(tmp_path, zipapp_path(), home=tmp_path)


@pytest.mark.requires("bubblewrap")
@pytest.mark.parametrize("name", ["auto", "pen"])
async def test_a_runtime_that_is_passed_is_used_and_known_while_its_server_runs(
    tmp_path: Path, name: str
) -> None:
    config = msgspec.structs.replace(with_runtime(name), process=ProcessConfig(network="none"))
    with registry.passed(made(tmp_path)) as spec:
        assert spec is not None
        runtime, why = await selection.choose(config, tmp_path, tmp_path, tmp_path, spec)
        assert (runtime.name, why) == ("pen", "the program passes it")
        server_runtime.remember(tmp_path, runtime.name, config)
        assert server_runtime.recall(tmp_path) == "pen"
        assert options.network_of(config, runtime.name) == "none"
        await runtime.aclose()
    assert registry.lookup("pen") is None
    assert server_runtime.recall(tmp_path) is None


async def test_a_spec_that_is_passed_is_made_with_the_setup_of_its_server(tmp_path: Path) -> None:
    from tests.conformance.cage import oubliette_cage

    config = Config(package_runtimes={"cage": {"bars": 7}})
    with registry.passed(oubliette_cage.CAGE) as spec:
        registry.check_tables(config)
        assert spec is oubliette_cage.CAGE
        runtime = selection.make("cage", config, tmp_path, tmp_path, tmp_path)
        assert getattr(runtime, "settings").bars == 7
        await runtime.aclose()


async def test_auto_tries_no_runtime_that_is_only_known(tmp_path: Path) -> None:
    with registry.passed(made(tmp_path)):
        assert set(selection.order()) <= set(registry.BUILT_IN)


async def test_the_configuration_and_the_program_may_not_name_different_ones(
    tmp_path: Path,
) -> None:
    with (
        registry.passed(made(tmp_path)) as spec,
        pytest.raises(ConfigError, match=r"containers.runtime is docker, .* passes .* pen"),
    ):
        await selection.choose(with_runtime("docker"), tmp_path, tmp_path, tmp_path, spec)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (object(), "'object' has no aclose, "),
        ("docker", "'docker' is a name, and this is for a runtime of your own"),
        ("TAKES_A_NAME", "there is a runtime called docker already"),
        ("NAMELESS", "its name is ' '"),
    ],
)
def test_what_is_no_runtime_or_has_a_name_that_is_taken_is_refused(wrong: Any, why: str) -> None:
    from tests.conformance.cage import oubliette_cage

    wrong = getattr(oubliette_cage, wrong, wrong) if isinstance(wrong, str) else wrong
    with pytest.raises(ConfigError, match=f"runtime: {why}"), registry.passed(wrong):
        pass


def test_a_program_that_cannot_make_its_runtime_is_named(tmp_path: Path) -> None:
    from tests.conformance.cage import oubliette_cage

    with (
        registry.passed(oubliette_cage.UNFINISHED),
        pytest.raises(ConfigError, match="the program cannot make its runtime cage: TypeError"),
    ):
        selection.make("cage", Config(), tmp_path, tmp_path, tmp_path)


def test_two_servers_of_a_process_may_pass_runtimes_of_one_name(tmp_path: Path) -> None:
    with registry.passed(made(tmp_path)) as first:
        with registry.passed(made(tmp_path)) as second:
            assert registry.find("pen") is second
        assert registry.find("pen") is first
