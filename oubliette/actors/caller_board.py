"""CallerBoard, the port to what all nodes of a cluster know of a caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from oubliette.records import CallerTool

if TYPE_CHECKING:
    from collections.abc import Sequence


class SharedCaller(msgspec.Struct, frozen=True, kw_only=True):
    """State of a caller that all nodes share, as of the moment at which it was read.

    It is that of keys of one reach: of those that are bound to a project, or of those that are not.
    """

    node: str
    """Node of its newest provider."""
    generation: int
    """Number of that provider, higher than those before it; 0: it never had one."""
    change: int
    """Number of the latest change that the nodes were notified of; it rises."""
    held: bool
    """Whether the provider is open."""
    seconds: float
    """Time for which the caller counts as present; negative: since when it does not."""
    reason: str
    """Reason why it is absent, once it is."""
    tools: tuple[CallerTool, ...] | None = None
    """Tools that it provides; None: it never provided any."""
    delivered: int | None = None
    """Seq up to which it has received events, as of its latest release; None: unknown."""


class CallerBoard(Protocol):
    """The shared state of all callers. All nodes are notified of a change with `CallerChanged`.

    Each method returns the state afterwards, and raises `StorageUnavailable` if it cannot be known
    within some seconds.
    """

    @property
    def node(self) -> str: ...

    @property
    def unsure_seconds(self) -> float:
        """Time for which no caller may be taken for absent by its rows; 0: they are up to date.

        After it was away the nodes need some seconds to write again which of their callers live.
        """
        ...

    async def projects(self, principal: str, caller_id: str) -> list[str]:
        """The projects for whose bound keys a caller has a place of its own."""
        ...

    async def read(self, principal: str, caller_id: str, project: str) -> SharedCaller | None:
        """Return the state of a caller; None: no node knows it."""
        ...

    async def open(
        self,
        principal: str,
        caller_id: str,
        project: str,
        *,
        grace: float,
        tools: Sequence[CallerTool] | None,
        delivered: int,
        head: int,
    ) -> SharedCaller:
        """Record a new provider on this node, which supersedes the one before.

        The state that is returned is another node's if that one opened a newer one meanwhile.

        Args:
            principal: Principal of the caller.
            caller_id: Its id.
            project: That its keys are bound to; empty: to none.
            grace: Seconds for which it counts as present if this node is gone.
            tools: Tools that it provides; None: as before.
            delivered: Seq up to which it has received events here.
            head: End of the log; counts as delivered as far as another node may have delivered.
        """
        ...

    async def release(
        self,
        principal: str,
        caller_id: str,
        project: str,
        generation: int,
        *,
        seconds: float,
        reason: str,
        delivered: int,
    ) -> SharedCaller | None:
        """Record that a provider of this node has ended, unless a newer one superseded it.

        Args:
            principal: Principal of the caller.
            caller_id: Its id.
            project: That its keys are bound to; empty: to none.
            generation: Number of the provider.
            seconds: Time for which the caller still counts as present.
            reason: Reason why it is absent afterwards.
            delivered: Seq up to which it has received events.
        """
        ...

    async def note(
        self,
        principal: str,
        caller_id: str,
        project: str,
        *,
        seconds: float,
        reason: str,
        tools: Sequence[CallerTool] | None,
    ) -> SharedCaller:
        """Record a sign of life, or the tools of a caller, or both.

        Args:
            principal: Principal of the caller.
            caller_id: Its id.
            project: That its keys are bound to; empty: to none.
            seconds: Time for which it counts as present at least; 0: it gave no sign of life.
            reason: Reason why it is absent afterwards, if it was absent before.
            tools: Tools that it provides; None: as before.
        """
        ...
