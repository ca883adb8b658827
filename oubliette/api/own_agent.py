"""Agent written as one Python function: `@oubliette.agent`.

The function itself runs in the container of each session, from its file; here it is only described.
"""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias, overload

from oubliette.api.agent_files import BadAgent

if TYPE_CHECKING:
    import contextlib
    from collections.abc import (
        AsyncIterator,
        Awaitable,
        Callable,
        Mapping,
        Sequence,
    )

    from oubliette.runtime.agents.base import AgentRuntime

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}\Z")


class PastTurn(Protocol):
    """One earlier turn of the session."""

    @property
    def prompt(self) -> str:
        """Its prompt."""
        ...

    @property
    def answer(self) -> str:
        """Its messages, separated by blank lines."""
        ...

    @property
    def status(self) -> str:
        """`completed`, `interrupted` or `failed`."""
        ...


class StepOfAgent(Protocol):
    """A tool of the agent's own, while it runs."""

    result: Any
    """Result that the log gets at the end of the block."""


class AgentTurn(Protocol):
    """One prompt, as the function of an agent gets it in the container."""

    @property
    def prompt(self) -> str:
        """The message to answer."""
        ...

    @property
    def number(self) -> int:
        """Number of the turn in its session."""
        ...

    @property
    def session_id(self) -> str:
        """Id of the session."""
        ...

    @property
    def project_id(self) -> str:
        """Id of its project."""
        ...

    @property
    def workspace(self) -> str:
        """Path of the session's folder, which is the working directory too."""
        ...

    @property
    def model(self) -> str | None:
        """Model that the session was started with, if any."""
        ...

    @property
    def history(self) -> Sequence[PastTurn]:
        """Earlier turns of the session, also those before a restart of the agent."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the turn was interrupted; the function gets `asyncio.CancelledError` as well."""
        ...

    async def tools(self) -> list[dict[str, Any]]:
        """Return the tools that the session has now: name, description, inputSchema."""
        ...

    async def call(self, tool: str, arguments: dict[str, Any] | None = None) -> Any:
        """Call a tool of the session and return its result; the log gets call and result.

        Raises:
            ToolFailed: the tool failed; the message is the tool's.
        """
        ...

    def tool(
        self, name: str, arguments: dict[str, Any] | None = None
    ) -> contextlib.AbstractContextManager[StepOfAgent]:
        """Return a context manager that logs a tool of the agent's own, its result and failure."""
        ...

    async def ask(self, text: str) -> bool:
        """Ask for a permission; return whether it was given."""
        ...

    def usage(
        self, *, cost_usd: float | None = None, input_tokens: int = 0, output_tokens: int = 0
    ) -> None:
        """Report what a call of a model has used, in US dollars and tokens.

        A cost of None is unknown.
        """
        ...


Answering: TypeAlias = "Callable[[Any], AsyncIterator[str] | Awaitable[str | None]]"
"""Function of an agent: an async generator of pieces of its answer, or a coroutine of all of it."""

Packages: TypeAlias = Literal["image", "program"]
"""Other packages that an agent can import."""


class AgentFunction:
    """An agent that is one function; `oubliette.open(agents=[…])` takes it.

    A package names it by an entry point of the group `oubliette.agents`.

    Args:
        function: The decorated function.
        name: Name of the agent.
        files: Files and folders beside the function's file that it needs too.
        packages: `image`: other packages are those of the container; `program`: those installed
            for this program too, which are mounted read-only.

    Raises:
        BadAgent: the function cannot be an agent, or the name is invalid.
    """

    def __init__(
        self,
        function: Answering,
        *,
        name: str | None = None,
        files: Sequence[str] = (),
        packages: Packages = "image",
    ) -> None:
        _check(function)
        if packages not in {"image", "program"}:
            raise BadAgent(
                f"agent {getattr(function, '__name__', '')}: packages is {packages!r}",
                hint="image or program",
            )
        self.function: Final = function
        self.name: Final = getattr(function, "__name__", "") if name is None else name
        self.files: Final = tuple(files)
        self.packages: Final = packages
        if not _NAME.match(self.name):
            raise BadAgent(
                f"agent {self.name!r}: it is no name of an agent",
                hint='@oubliette.agent(name="…") with lower-case letters, digits, - and _',
            )
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def __call__(self, turn: Any) -> Any:
        """Call the function itself: for tests of it, with a turn of their own."""
        return self.function(turn)

    def __repr__(self) -> str:
        return f"<agent {self.name}>"

    def agent_runtime(self) -> AgentRuntime:
        """Return it as an `AgentRuntime`, with the files as they are now.

        Raises:
            BadAgent: its files cannot be read, or are too large.
        """
        from oubliette.api.agent_files import files_of, program_packages
        from oubliette.runtime.agents.function.runtime import FunctionRuntime, ShippedFunction

        found = files_of(self.function, self.files, self.name)
        return FunctionRuntime(
            ShippedFunction(
                name=self.name,
                archive=found.archive(),
                module=found.module,
                file=found.file,
                function=found.function,
                packages=program_packages() if self.packages == "program" else (),
            )
        )


@overload
def agent(function: Answering, /) -> AgentFunction: ...
@overload
def agent(
    *, name: str | None = None, files: Sequence[str] = (), packages: Packages = "image"
) -> Callable[[Answering], AgentFunction]: ...
def agent(
    function: Answering | None = None,
    /,
    *,
    name: str | None = None,
    files: Sequence[str] = (),
    packages: Packages = "image",
) -> AgentFunction | Callable[[Answering], AgentFunction]:
    """Make an agent of an async function that answers one prompt.

    Args:
        function: Gets an `AgentTurn`; yields pieces of its answer, or returns all of it.
        name: Name of the agent; None: the function's.
        files: Files and folders, relative to the function's file, that it needs in the container.
            A module in a package has the whole package there without them.
        packages: `image`: imports of other packages find those of the container's image;
            `program`: then those that are installed for this program, mounted read-only. They have
            to fit the Python of the image.

    Raises:
        BadAgent: the function cannot be an agent.
    """
    if function is not None:
        return AgentFunction(function, name=name, files=files, packages=packages)

    def decorate(inner: Answering) -> AgentFunction:
        return AgentFunction(inner, name=name, files=files, packages=packages)

    return decorate


def _check(function: Any) -> None:
    """Refuse what cannot be an agent.

    Raises:
        BadAgent: names the function and the remedy.
    """
    if not inspect.isfunction(function):
        raise BadAgent(
            f"agent: {function!r} is no function", hint="decorate `async def NAME(turn): …`"
        )
    name: str = function.__qualname__
    where = f"agent {name} ({_place(function)})"
    if function.__name__ == "<lambda>":
        raise BadAgent(f"{where}: it is a lambda", hint="write `async def NAME(turn): …`")
    if "<locals>" in name:
        raise BadAgent(
            f"{where}: it is defined inside another function, where its container cannot import it",
            hint="define it at the top of its module",
        )
    if not (inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function)):
        raise BadAgent(
            f"{where}: it is not async",
            hint="`async def` that yields pieces of its answer, or returns it; blocking work goes"
            " into `await asyncio.to_thread(…)`",
        )
    _check_parameters(function, where)


def _check_parameters(function: Callable[..., Any], where: str) -> None:
    parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    first, *others = [*parameters.values()] or [None]
    takes_one = first is not None and first.kind in {
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    }
    needed = [
        each
        for each in others
        if each is not None
        and each.default is each.empty
        and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
    ]
    if not takes_one or needed:
        raise BadAgent(f"{where}: it takes one argument, the turn", hint="`async def NAME(turn)`")


def _place(function: Callable[..., Any]) -> str:
    code = inspect.unwrap(function).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
