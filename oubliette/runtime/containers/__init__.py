"""Containers behind one port; the process runtime is the engine that needs no daemon."""

from oubliette.runtime.containers.base import (
    LABEL_CONTAINER,
    LABEL_INSTANCE,
    LABEL_PROJECT,
    LABEL_SPEC,
    Capabilities,
    ContainerInfo,
    ContainerLimits,
    ContainerRuntime,
    ContainerSpec,
    Dial,
    Inside,
    Logs,
    Mount,
    RuntimeStatus,
)
from oubliette.runtime.containers.process.runtime import ProcessRuntime

__all__ = (
    "LABEL_CONTAINER",
    "LABEL_INSTANCE",
    "LABEL_PROJECT",
    "LABEL_SPEC",
    "Capabilities",
    "ContainerInfo",
    "ContainerLimits",
    "ContainerRuntime",
    "ContainerSpec",
    "Dial",
    "Inside",
    "Logs",
    "Mount",
    "ProcessRuntime",
    "RuntimeStatus",
)
