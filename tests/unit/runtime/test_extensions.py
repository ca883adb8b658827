"""Entry points of installed packages: what they are called, and how a bad one is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
import pytest

from oubliette.errors import ConfigError
from oubliette.runtime import extensions

if TYPE_CHECKING:
    from pathlib import Path

GROUP = "oubliette.test_extensions"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> extensions.Extension:
    info = tmp_path / "zoo-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: zoo\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\nparrot = zoo_of_no_file:make\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = extensions.extensions(GROUP)
    return found


def test_an_extension_is_named_with_its_package_and_version(
    installed: extensions.Extension,
) -> None:
    assert (installed.name, installed.package) == ("parrot", "zoo 1.5")
    with pytest.raises(ModuleNotFoundError) as failed:
        installed.load()
    assert installed.unusable(failed.value) == (
        "the package zoo 1.5 is no good for this server: ModuleNotFoundError: No module named"
        " 'zoo_of_no_file'"
    )


def test_members_that_an_extension_lacks_are_listed() -> None:
    class Wanted(Protocol):
        def talk(self) -> None: ...
        def fly(self) -> None: ...
        def _own(self) -> None: ...

    class Talks:
        def talk(self) -> None: ...

    assert extensions.lacking(Talks(), Wanted) == "fly"
    assert extensions.lacking(object(), Wanted) == "fly, talk"


def test_a_table_without_an_extension_is_refused_with_the_nearest_name() -> None:
    extensions.check_table("package_agents", "parrot", "an agent", {"parrot"})
    with pytest.raises(ConfigError) as refused:
        extensions.check_table("package_agents", "parot", "an agent", {"parrot"})
    assert refused.value.message == (
        "package_agents.parot: no installed package has an agent 'parot'"
    )
    assert refused.value.hint == (
        "did you mean parrot? install its package, or remove [package_agents.parot]"
    )


def test_refused_settings_name_their_table_once_and_the_remedy() -> None:
    section = "package_agents.parrot"
    invalid = extensions.refused_settings(section, msgspec.ValidationError("Expected `int`"))
    assert invalid.message == "package_agents.parrot: Expected int"
    assert invalid.hint == f"the package's documentation has the keys of [{section}]"
    own = extensions.refused_settings(section, ConfigError(f"{section}.n: too low", hint="more"))
    assert (own.message, own.hint) == (f"{section}.n: too low", "more")
