"""Addresses of actors in a cluster: `NODE!name`, and what may be the name of a node."""

from __future__ import annotations

import re

from oubliette.errors import InvalidParameter

SEPARATOR = "!"
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


def may_be_node(node: str) -> bool:
    """Return whether a node may have that name."""
    return _NODE.fullmatch(node) is not None


def checked_node(node: str) -> str:
    """Return the name of a node if it may be one.

    Raises:
        InvalidParameter: it has another form.
    """
    if not may_be_node(node):
        raise InvalidParameter(
            f"{node!r} cannot be the name of a node",
            field="node",
            hint="use 1 to 63 letters, digits, dots, dashes or underscores, no dash or dot first",
        )
    return node


def split_address(address: str) -> tuple[str, str]:
    """Return the node and the actor's name of `NODE!name`.

    Raises:
        InvalidParameter: a part is missing, or the node cannot be the name of one.
    """
    node, mark, name = address.partition(SEPARATOR)
    if not mark or not name:
        raise InvalidParameter(
            f"{address!r} names no actor of a node", field="name", hint="write NODE!name"
        )
    return checked_node(node), name
