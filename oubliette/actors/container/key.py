"""The key of a container: what the sessions that share one have in common."""

from __future__ import annotations

import msgspec


class ContainerKey(msgspec.Struct, frozen=True):
    """What a container is shared by; `workspace_id` is set exactly when isolation is on."""

    container_type: str
    workspace_id: str | None = None

    @property
    def label(self) -> str:
        """As a name under the project's units."""
        return self.container_type + (f":{self.workspace_id}" if self.workspace_id else "")
