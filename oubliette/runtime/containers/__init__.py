"""Container runtimes behind one interface; the process runtime needs no daemon."""

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
from oubliette.runtime.containers.runtime_spec import RuntimeSetup, RuntimeSpec

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
    "RuntimeSetup",
    "RuntimeSpec",
    "RuntimeStatus",
)
