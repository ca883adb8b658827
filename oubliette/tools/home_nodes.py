"""HomeNodes, the machines of a cluster and the homes of projects, and what they send each other.

Every machine serves every call. A project has a home, the machine where its containers and sessions
are, and a call that needs them is sent there as a message; the answer comes back as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from oubliette.kit import Actor, Message, Reply, handles
from oubliette.tools.schema.tool_result import ToolResult
from oubliette.tools.spec import CallerIdentity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from oubliette.kit import Ref, System

CALLS: Final = "calls"
"""Name of the actor on each machine that carries out the calls of the others."""


class ForwardedAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a ForwardedCall."""

    result: ToolResult | None = None
    """None: nothing was done, as the project lives elsewhere, or is on its way there."""
    moves: bool = False
    """Whether it is on its way."""


class ForwardedCall(Message, Reply[ForwardedAnswer]):
    """To the actor `calls` of another machine: carry out a call of a tool."""

    call_id: str
    tool: str
    arguments: bytes
    """JSON of the arguments, or of null."""
    caller: CallerIdentity
    project_id: str | None = None
    """Project that must live on the machine; None: the call creates one."""
    progress_to: tuple[str, str] | None = None
    """Machine and name of the actor that gets `CallProgressed`; None: none does."""


class CancelForwardedCall(Message):
    """To the actor `calls` of another machine: this call's result is no longer wanted."""

    call_id: str


class CallProgressed(Message):
    """Progress of a forwarded call, to the machine that serves its caller."""

    text: str


class HomeNodes(Protocol):
    """Machines of a cluster, and the homes of projects among them."""

    @property
    def name(self) -> str: ...

    @property
    def system(self) -> System: ...

    async def home(self, project_id: str, *, needed: bool) -> str | None:
        """Return the machine on which a project lives; None: this one, or none.

        With `needed`, a project without a home gets one.

        Raises:
            Unavailable: its machine is lost, and it cannot be given another one.
        """
        ...

    async def node_of_port(self, mark: str) -> str | None:
        """Return the machine with this mark in the names of its open ports; None: no other one.

        Raises:
            StorageUnavailable: the database does not answer.
        """
        ...

    async def home_of_new(self, arguments: Mapping[str, Any]) -> str | None:
        """Return the machine on which to create a project; None: this one.

        Raises:
            OublietteError: no machine can take it; names the reasons.
        """
        ...

    def forget(self, project_id: str) -> None:
        """Look a project's home up again at the next call."""
        ...

    def ref(self, node: str, name: str) -> Ref: ...


class ProgressReceiver(Actor):
    """Receiver of one forwarded call's progress, for as long as the call lasts."""

    def __init__(self, progress: Callable[[str], object]) -> None:
        super().__init__()
        self._progress = progress

    @handles(CallProgressed)
    def _progressed(self, message: CallProgressed) -> None:
        self._progress(message.text)
