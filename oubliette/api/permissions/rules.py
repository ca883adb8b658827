"""Rules that decide on permission requests: data first, a function of the program last."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast

import msgspec

from oubliette.api.permissions.globs import matches_name, matches_text
from oubliette.api.permissions.kinds import ON_PATHS, kind_of, names_of
from oubliette.api.permissions.patterns import Pattern, parse_pattern, parts_of
from oubliette.api.permissions.subjects import Subject, subject_of
from oubliette.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from oubliette.contract.events import PermissionRequest

Answer: TypeAlias = Literal["allow", "deny"]
"""A decision on a permission request."""
Answerer: TypeAlias = "Callable[[PermissionRequest], object]"
"""A function that decides: it returns `allow`, `deny`, True or False, or None to leave the request
undecided. It may be a coroutine function; another one runs in a worker thread."""

_ANSWERS: Final[dict[object, Answer]] = {True: "allow", False: "deny"}


class UnreachableRule(UserWarning):
    """A rule that never decides anything, since another one comes first or nothing matches it."""


class Ruling(NamedTuple):
    """The decision of rules, and the reason for it."""

    decision: Answer | None
    """None if no rule decides."""
    reason: str
    """The rule, as `deny web*`; or that there is none."""


class PermissionRules:
    """Rules for permission requests; `rules` makes them. They are immutable."""

    __slots__ = ("_allow", "_deny", "_otherwise")

    def __init__(
        self,
        allow: tuple[Pattern, ...],
        deny: tuple[Pattern, ...],
        otherwise: Literal["deny", "ask"] | Answerer,
    ) -> None:
        self._allow = allow
        self._deny = deny
        self._otherwise = otherwise

    def __repr__(self) -> str:
        """Return the call of `rules` that makes them."""
        allow, deny = (list(map(str, each)) for each in (self._allow, self._deny))
        return f"rules(allow={allow}, deny={deny}, otherwise={self._otherwise!r})"

    def ruling(self, request: PermissionRequest, *, workspace: str) -> Ruling:
        """Return what the patterns alone decide.

        Args:
            request: The request.
            workspace: Path of the workspace as the agent sees it; empty if it is unknown.
        """
        subject = subject_of(request)
        for pattern in self._deny:
            if pattern.denies(subject, workspace):
                return Ruling("deny", f"deny {pattern}")
        for pattern in self._deny:
            if pattern.undecided(subject):
                return Ruling(None, f"deny {pattern} may apply: the request names no subject")
        if not all(self._allows(part, workspace) for part in _parts(subject)):
            return Ruling(None, "no rule matches")
        allowing = [each for each in self._allow if each.names(subject, certain=True)]
        return Ruling("allow", f"allow {', '.join(map(str, allowing))}")

    def _allows(self, subject: Subject, workspace: str) -> bool:
        """Return whether a pattern allows one part of a request, or one each step of a command."""
        if any(pattern.allows(subject, workspace) for pattern in self._allow):
            return True
        steps = [part for command in subject.commands for part in parts_of(command)]
        return len(steps) > 1 and all(
            self._allows(msgspec.structs.replace(subject, commands=(step,)), workspace)
            for step in steps
        )

    async def decide(self, request: PermissionRequest, *, workspace: str) -> Answer | None:
        """Return the decision on a request; None leaves it to others, or to its deadline.

        Args:
            request: The request.
            workspace: Path of the workspace as the agent sees it; empty if it is unknown.

        Raises:
            InvalidParameter: the function `otherwise` returned something else than a decision.
            Exception: what that function raised. The request is undecided then.
        """
        decision = self.ruling(request, workspace=workspace).decision
        if decision is not None or self._otherwise == "ask":
            return decision
        if self._otherwise == "deny":
            return "deny"
        return _answer_of(await _ask(cast("Answerer", self._otherwise), request))


def rules(
    *,
    allow: Iterable[str] = (),
    deny: Iterable[str] = (),
    otherwise: Literal["deny", "ask"] | Answerer = "deny",
) -> PermissionRules:
    """Return rules for `on_permission`.

    ```python
    oubliette.rules(allow=["read", "edit:src/**", "bash:git *"], deny=["web*"], otherwise=ask_me)
    ```

    A pattern is `TOOL` or `TOOL:SUBJECT`. TOOL is a kind (`read`, `search`, `edit`, `delete`,
    `move`, `execute` or `bash`, `web` or `fetch`), which holds for the tools of every agent, or the
    agent's own name of a tool, in upper or lower case; `*` is any text in it. Most agents put
    `oubliette` and the caller's id before the name of a caller's tool: `*_find_order`. SUBJECT is,
    as the tool has it,

    - paths, relative to the workspace or absolute: `*` does not match `/`, `**` does. A path with
      `..`, or one that may lead elsewhere for another reason, is never allowed by such a pattern.
    - a command: `git *` does not allow `git status; rm -r x`, nor what has a redirection or a
      substitution in it; each part of a command needs a pattern that allows it.
    - an address: `docs.python.org/*`, `https://*.python.org`.

    A request that matches a pattern of `deny` is denied, also if `allow` has it; there a path
    without `/` matches in every folder, and each part of a command is compared. Commands can be
    written in many ways, so denying some of them is no protection against an agent that wants to
    run them: allow those that are wanted.

    Args:
        allow: Patterns of requests that are allowed.
        deny: Patterns of requests that are denied.
        otherwise: Decision on all other requests: `deny`; `ask`, to leave them undecided, for
            another program or until they are denied at their deadline; or a function that gets the
            `PermissionRequest` and returns `allow`, `deny`, a bool or None.

    Raises:
        InvalidParameter: a pattern or `otherwise` is invalid.

    Warns:
        UnreachableRule: a pattern can never decide.
    """
    allowing, denying = _patterns(allow, "allow"), _patterns(deny, "deny")
    if otherwise not in ("deny", "ask") and not callable(otherwise):
        raise InvalidParameter(
            f"otherwise is {otherwise!r}", field="otherwise", hint="deny, ask, or a function"
        )
    for field, text in why_unreachable(allowing, denying):
        warnings.warn(f"{field} can never decide: {text}", UnreachableRule, stacklevel=2)
    return PermissionRules(allowing, denying, otherwise)


def policy_of(on_permission: object) -> PermissionRules | None:
    """Return the rules that the parameter `on_permission` stands for; None leaves all undecided.

    It is what `rules` returns, or a function that decides on every request.

    Raises:
        InvalidParameter: it is neither.
    """
    if on_permission is None or isinstance(on_permission, PermissionRules):
        return on_permission
    if callable(on_permission):
        return PermissionRules((), (), cast("Answerer", on_permission))
    raise InvalidParameter(
        f"on_permission is {on_permission!r}",
        field="on_permission",
        hint="oubliette.rules(…), or a function that gets the request",
    )


def _patterns(given: object, field: str) -> tuple[Pattern, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidParameter(
            f"{field} is {given!r}, not a list of patterns",
            field=field,
            hint=f'{field}=["read", "edit:src/**"]',
        )
    listed = cast("Iterable[object]", given)
    return tuple(parse_pattern(each, f"{field}[{place}]") for place, each in enumerate(listed))


def _parts(subject: Subject) -> list[Subject]:
    """Return the subjects that need a pattern each: every path, command and address."""
    alone = msgspec.structs.replace(subject, paths=(), commands=(), addresses=(), texts=())
    parts = [
        msgspec.structs.replace(alone, **{name: (each,)})
        for name in ("paths", "commands", "addresses", "texts")
        for each in cast("tuple[str, ...]", getattr(subject, name))
    ]
    return parts or [alone]


async def _ask(answerer: Answerer, request: PermissionRequest) -> object:
    call = getattr(answerer, "__call__", answerer)  # noqa: B004 (of an object with the method)
    if inspect.iscoroutinefunction(answerer) or inspect.iscoroutinefunction(call):
        return await cast("Awaitable[object]", answerer(request))
    from anyio import to_thread

    # A cancelled decision does not wait for the person that the function asks.
    answer: Any = await to_thread.run_sync(answerer, request, abandon_on_cancel=True)
    return await cast("Awaitable[object]", answer) if inspect.isawaitable(answer) else answer


def _answer_of(answer: object) -> Answer | None:
    if answer is None or answer in ("allow", "deny"):
        return answer
    if isinstance(answer, bool):
        return _ANSWERS[answer]
    raise InvalidParameter(
        f"the function of otherwise returned {answer!r}",
        field="otherwise",
        hint='return "allow", "deny", a bool, or None to leave the request undecided',
    )


def why_unreachable(allow: Sequence[Pattern], deny: Sequence[Pattern]) -> Iterator[tuple[str, str]]:
    """Return the rules that can never decide, as `allow[0]: PATTERN`, each with the reason."""
    for place, pattern in enumerate(allow):
        covering = next((each for each in deny if _covers(each, pattern)), None)
        if covering is not None:
            yield f"allow[{place}]: {pattern}", f"deny {covering} comes first"
        elif (reason := _never_matches(pattern)) is not None:
            yield f"allow[{place}]: {pattern}", reason
    for name, patterns in (("allow", allow), ("deny", deny)):
        for place, pattern in enumerate(patterns):
            for other, each in enumerate(patterns):
                both_ways = _covers(pattern, each)
                if other != place and _covers(each, pattern) and (other < place or not both_ways):
                    yield f"{name}[{place}]: {pattern}", f"{name} {each} decides the same"
                    break


def _covers(wide: Pattern, narrow: Pattern) -> bool:
    """Return whether one pattern matches all that the other matches; in doubt it does not."""
    kind = kind_of(narrow.tool)
    names = names_of(kind, narrow.tool)
    if not any(matches_name(wide.tool, name) for name in names):
        return False
    if wide.subject is None or wide.subject == narrow.subject:
        return True
    if narrow.subject is None:
        return False
    if wide.subject.endswith("/**"):
        return narrow.subject.startswith(wide.subject[:-2]) and "*" not in wide.subject[:-2]
    return kind not in ON_PATHS and matches_text(wide.subject, narrow.subject)


def _never_matches(pattern: Pattern) -> str | None:
    if pattern.subject is None or kind_of(pattern.tool) not in ON_PATHS:
        return None
    if ".." in pattern.subject.split("/"):
        return "a path with .. is never allowed; write where it leads to"
    if "\\" in pattern.subject:
        return "paths have / between their parts"
    if pattern.subject.startswith("~"):
        return "a home directory is not known; write an absolute path"
    return None
