"""Key of a container: the values that the sessions sharing it have in common."""

from __future__ import annotations

import msgspec


class ContainerKey(msgspec.Struct, frozen=True):
    """Identity of a shared container; `workspace_id` is set exactly when isolation is on."""

    container_type: str
    workspace_id: str | None = None

    @property
    def label(self) -> str:
        """Its name below the project's containers."""
        return self.container_type + (f":{self.workspace_id}" if self.workspace_id else "")
