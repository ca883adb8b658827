"""Needs of projects, from what their records and requests declare and this node's configuration.

The memory and the processors are those of a project's containers. All nodes are taken to have the
same container options; a node that has others checks by its own before it takes a project.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from oubliette.config.container_options import BASE
from oubliette.runtime.containers.base import MIB
from oubliette.runtime.containers.options import options_of, options_of_new
from oubliette.runtime.store.postgres.cluster.node_records import ProjectNeeds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from oubliette.config.container_options import ContainerOptions
    from oubliette.config.schema import Config
    from oubliette.records import Project


class _Placement(msgspec.Struct):
    labels: dict[str, str] = {}
    runtime: str | None = None


class _NewProject(msgspec.Struct):
    """The part of a request for a project that its node depends on."""

    name: str = ""
    container_type: str | None = None
    workspace_isolation: bool = False
    placement: _Placement | None = None


def needs_of(config: Config, project: Project | None) -> ProjectNeeds:
    """Return the needs of a project; None: it is not known, and needs nothing special."""
    if project is None:
        return ProjectNeeds()
    options = options_of(config, project.container_type or BASE, project)
    return _needs(
        options,
        isolated=project.workspace_isolation,
        container_type=project.container_type,
        placement=_Placement(labels=project.labels, runtime=project.runtime),
    )


def needs_of_new(config: Config, arguments: Mapping[str, Any]) -> ProjectNeeds:
    """Return the needs of a project that is asked for; the tool's handler checks the request."""
    try:
        asked = msgspec.convert(arguments, _NewProject)
    except msgspec.ValidationError:
        return ProjectNeeds()
    return _needs(
        options_of_new(config, asked.container_type, asked.name),
        isolated=asked.workspace_isolation,
        container_type=asked.container_type,
        placement=asked.placement or _Placement(),
    )


def _needs(
    options: ContainerOptions, *, isolated: bool, container_type: str | None, placement: _Placement
) -> ProjectNeeds:
    return ProjectNeeds(
        memory_bytes=options.memory_mb * MIB,
        processors=options.cpus,
        isolated=isolated,
        runtime=placement.runtime,
        container_type=container_type,
        labels=placement.labels,
    )
