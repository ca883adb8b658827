"""Extensions of installed packages: how entry points are loaded, checked, and named in errors.

A package adds agents and container runtimes by entry points (see the registry of each). One that
cannot be used does not prevent the start of the server.
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any, Final

import msgspec

from oubliette.errors import ConfigError, did_you_mean
from oubliette.ids import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

REMEDY: Final = "update that package, or uninstall it"
"""Remedy for an extension that cannot be used."""


class Extension(msgspec.Struct, frozen=True):
    """One entry point of an installed package."""

    point: importlib.metadata.EntryPoint

    @property
    def name(self) -> str:
        return self.point.name

    @property
    def package(self) -> str:
        if self.point.dist is None:
            return self.point.value
        return f"{self.point.dist.name} {self.point.dist.version}"

    def load(self) -> Any:
        """Import what the entry point names; raises any error that the package raises."""
        return self.point.load()

    def unusable(self, error: Exception) -> str:
        """Return why it cannot be used, as a sentence that names the package."""
        return f"the package {self.package} is no good for this server: {described(error)}"


def extensions(group: str) -> Iterator[Extension]:
    """Iterate over the entry points of a group."""
    return (Extension(point) for point in importlib.metadata.entry_points(group=group))


def described(error: Exception) -> str:
    """An error of a package's code as text."""
    return f"{type(error).__name__}: {error}"


def lacking(made: object, protocol: type) -> str:
    """The names, separated by commas, of public members of `protocol` that `made` lacks."""
    wanted = [name for name in vars(protocol) if not name.startswith("_")]
    return ", ".join(sorted(name for name in wanted if not hasattr(made, name)))


def check_table(section: str, name: str, what: str, known: Collection[str]) -> None:
    """Check that a table `[section.NAME]` of the configuration belongs to an extension.

    Args:
        section: `package_agents`, for example.
        name: Name of the table.
        what: What the extension is, with its article: "an agent".
        known: Names of the installed extensions.

    Raises:
        ConfigError: no package has one of that name.
    """
    if name not in known:
        raise ConfigError(
            f"{section}.{name}: no installed package has {what} {shown(name)}",
            hint=f"{did_you_mean(name, known)}install its package, or remove [{section}.{name}]",
        )


def refused_settings(section: str, error: Exception) -> ConfigError:
    """The error for a table that its extension does not accept.

    Args:
        section: Name of the table: `package_agents.NAME`, for example.
        error: The extension's ConfigError, or the ValidationError of a conversion.
    """
    text = error.message if isinstance(error, ConfigError) else str(error).replace("`", "")
    hint = error.hint if isinstance(error, ConfigError) else None
    return ConfigError(
        text if text.startswith(section) else f"{section}: {text}",
        hint=hint or f"the package's documentation has the keys of [{section}]",
    )
