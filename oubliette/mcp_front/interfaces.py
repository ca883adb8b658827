"""What the front needs from the floors below; the composition root hands it in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from oubliette.records import Token

if TYPE_CHECKING:
    from oubliette.tools.spec import CallContext

Verify = Callable[[str], Awaitable[Token]]
"""A key's text → its token; raises Unauthenticated if it is no good here and now."""

Ready = Callable[[], Awaitable[list[str]]]
"""Why the server does not take work now; an empty list when it does."""


class ToolAnswer(Protocol):
    """What a tool said."""

    @property
    def structured(self) -> dict[str, Any]:
        """The answer as an object."""
        ...

    @property
    def text(self) -> str:
        """The answer as text; the sentence, if it is an error."""
        ...

    @property
    def raw(self) -> bytes | None:
        """`structured` as JSON, where it is no error and was encoded already."""
        ...

    @property
    def is_error(self) -> bool:
        """Whether the tool could not do it."""
        ...


class ToolTable(Protocol):
    """The tools at the HTTP door."""

    def has(self, name: str) -> bool:
        """Whether there is such a tool, for anybody."""
        ...

    def streams(self, name: str) -> bool:
        """Whether this tool may answer as a stream."""
        ...

    def list(self, context: CallContext) -> list[dict[str, Any]]:
        """The tools that this key may call: name, description, inputSchema, …, in stable order."""
        ...

    async def call(
        self, context: CallContext, name: str, arguments: dict[str, Any] | None
    ) -> ToolAnswer:
        """Call one. Failures come as an answer with `is_error`, or as an OublietteError."""
        ...
