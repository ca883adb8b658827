"""Model and mode of an ACP session: the agent's offers, and the request that chooses one.

Agents offer them as `configOptions` with a category, or, in earlier releases of the protocol, as
`models` and `modes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, cast

import msgspec

from oubliette.ids import shown
from oubliette.runtime.agents.handshake_adapter import Json, object_of

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["model", "mode"]

_NAMED: Final = 30  # number of offers listed in an error
_SET: Final = {"model": "session/set_model", "mode": "session/set_mode"}


class NotOffered(Exception):
    """The requested value is not among the agent's offers; the message lists those."""


class Choice(msgspec.Struct, frozen=True):
    """Request that chooses a value, without the session."""

    method: str
    params: Json


class _Offer(msgspec.Struct):
    method: str
    params: Json
    key: str
    """Key in `params` of the value."""
    current: object
    values: dict[str, str]
    """Value → its display name."""


def choice(kind: Kind, wanted: str, opened: Json) -> Choice | None:
    """Return the request for the `wanted` model or mode; None if the session has it already.

    Args:
        kind: `model` or `mode`.
        wanted: the id, or the agent's display name, case-insensitive.
        opened: the agent's answer to `session/new`, `session/load` or `session/resume`.

    Raises:
        NotOffered: the agent does not offer it.
    """
    offer = _offer(kind, opened)
    if offer is None:
        raise NotOffered(
            f"the agent lets nobody choose its {kind}, so it cannot be {shown(wanted)}:"
            f" leave {kind} out, and choose by the agent's own command line, variables or files"
        )
    value = _found(wanted, offer.values)
    if value is None:
        names = [shown(each) for each in offer.values]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        raise NotOffered(
            f"the agent has no {kind} {shown(wanted)}; it offers"
            f" {', '.join(names[:_NAMED]) or 'none'}{more}"
        )
    if value == offer.current:
        return None
    return Choice(offer.method, {**offer.params, offer.key: value})


def _found(wanted: str, values: dict[str, str]) -> str | None:
    if wanted in values:
        return wanted
    folded = wanted.casefold()
    near = [
        value for value, name in values.items() if folded in {value.casefold(), name.casefold()}
    ]
    return near[0] if len(near) == 1 else None


def _offer(kind: Kind, opened: Json) -> _Offer | None:
    for option in _objects(opened.get("configOptions")):
        named = option.get("id")
        if option.get("category") == kind and isinstance(named, str):
            values = dict(_values(option.get("options"), "value"))
            params = {"configId": named}
            current = option.get("currentValue")
            return _Offer("session/set_config_option", params, "value", current, values)
    state = object_of(opened.get(f"{kind}s"))
    if not state:
        return None
    key = f"{kind}Id"
    values = dict(
        _values(state.get(f"available{kind.title()}s"), "modelId" if kind == "model" else "id")
    )
    return _Offer(_SET[kind], {}, key, state.get(f"current{kind.title()}Id"), values)


def _values(options: object, key: str) -> Iterator[tuple[str, str]]:
    """Iterate over the values of a list of options, or of groups of them."""
    for option in _objects(options):
        value, name = option.get(key), option.get("name")
        if isinstance(value, str):
            yield value, name if isinstance(name, str) else value
        elif "options" in option:
            for inner in _objects(option["options"]):
                value, name = inner.get(key), inner.get("name")
                if isinstance(value, str):
                    yield value, name if isinstance(name, str) else value


def _objects(value: object) -> list[Json]:
    found = cast("list[Any]", value) if isinstance(value, list) else []
    return [object_of(each) for each in found]
