"""Sections of the configuration file: which there are, which hold tables, which keys are times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast, get_type_hints

from oubliette.config.container_options import TYPE_NAME, ContainerOptions
from oubliette.config.schema import AcpConfig, Config, CredentialConfig
from oubliette.contract.field_types import Seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import msgspec

SECTIONS_OF_TABLES: Final[Mapping[str, str]] = {
    "container_types": TYPE_NAME,
    "project_containers": r"^[^\x00-\x1f]{1,200}$",
    "credentials": r"^[a-z0-9][a-z0-9_]{0,63}$",
    "acp_agents": r"^[a-z][a-z0-9_-]{0,31}$",
    "package_agents": r"^[^\x00-\x1f]{1,200}$",
    "package_runtimes": r"^[^\x00-\x1f]{1,200}$",
}
"""Section → pattern of its tables' names."""

SECTIONS_OF_PACKAGES: Final = frozenset(("package_agents", "package_runtimes"))
"""Those whose tables have the keys of a package, which checks them."""


def configured_model(config: Config, agent: str) -> str | None:
    """Return the model of that agent's section; None: the agent's own choice."""
    section = getattr(config, agent.removesuffix("-acp"), None)
    model = getattr(section, "model", None)
    return model if isinstance(model, str) else None


def table_kind(section: str) -> type[msgspec.Struct]:
    """The struct whose fields are the keys of the tables in `section`."""
    plain: dict[str, type[msgspec.Struct]] = {
        "credentials": CredentialConfig,
        "acp_agents": AcpConfig,
    }
    return plain.get(section, ContainerOptions)


def is_setting(value: object) -> bool:
    """Whether a key of a package's table can have that value: no table, no date."""
    if isinstance(value, list | tuple):
        return all(is_setting(each) for each in cast("Sequence[object]", value))
    return isinstance(value, str | bool | int | float)


def sections() -> dict[str, type[msgspec.Struct]]:
    """Return the sections with fixed keys, and their structs."""
    hints = get_type_hints(Config)
    return {name: kind for name, kind in hints.items() if name not in SECTIONS_OF_TABLES}


def duration_keys(kind: type[msgspec.Struct]) -> set[str]:
    hints = get_type_hints(kind, include_extras=True)
    return {name for name, hint in hints.items() if hint == Seconds}
