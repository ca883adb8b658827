"""Ports of the front to the layers below; `startup.py` implements or connects them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from oubliette.records import Token

if TYPE_CHECKING:
    from pathlib import Path

    from oubliette.tools.spec import CallContext

Verify = Callable[[str], Awaitable[Token]]
"""Key → its token; raises Unauthenticated if the key is not valid on this transport now."""

WhileGood = Callable[[str], AbstractAsyncContextManager[None]]
"""Id of a token → the context of what its key does, which is cancelled when the key ends; then it
raises Unauthenticated."""


class KeyChecks(NamedTuple):
    """Checks of keys: before an answer, and during it."""

    verify: Verify
    while_good: WhileGood


Ready = Callable[[], Awaitable[list[str]]]
"""Returns the reasons why the server takes no work now; empty if it does."""


class ToolAnswer(Protocol):
    """Answer of a tool."""

    @property
    def structured(self) -> dict[str, Any]:
        """The answer as an object."""
        ...

    @property
    def text(self) -> str:
        """The answer as text; of an error, its message."""
        ...

    @property
    def raw(self) -> bytes | None:
        """`structured` as JSON, if it is no error and was encoded already."""
        ...

    @property
    def is_error(self) -> bool:
        """Whether the tool failed."""
        ...


class GitViews(Protocol):
    """The repositories that git's clients may fetch from."""

    @property
    def seconds(self) -> float:
        """Time for one answer."""
        ...

    async def find(self, context: CallContext, project: str) -> tuple[str, str | None]:
        """Return the id of a project, and the machine on which it lives; None: this one.

        Args:
            context: The caller.
            project: Id or name of the project, as the client gave it.

        Raises:
            NotFound: there is no such project, or the key does not reach it.
            Unavailable: no machine can take it.
        """
        ...

    async def folder(self, project_id: str) -> Path:
        """The folder of the repository of a project of this machine, as new as the answer.

        Raises:
            Unavailable: git is missing here.
            OublietteError: it cannot be served now.
        """
        ...

    async def note(
        self, context: CallContext, project_id: str | None, outcome: str, seconds: float
    ) -> None:
        """Log a request."""
        ...


class ToolTable(Protocol):
    """The tools that are available over HTTP."""

    def has(self, name: str) -> bool:
        """Whether there is such a tool, for any key."""
        ...

    def streams(self, name: str) -> bool:
        """Whether this tool may answer as a stream."""
        ...

    def list(self, context: CallContext) -> list[dict[str, Any]]:
        """The tools that this key may call (name, inputSchema, …), in stable order."""
        ...

    async def project_of_workspace(self, context: CallContext, workspace_id: str) -> str | None:
        """The project of a workspace, if this key reaches it."""
        ...

    async def call(
        self, context: CallContext, name: str, arguments: dict[str, Any] | None
    ) -> ToolAnswer:
        """Call a tool. A failure is an answer with `is_error`, or an OublietteError."""
        ...
