"""Messages to the actors of trees and to their supervisor."""

from __future__ import annotations

from oubliette.kit import Message, Reply
from oubliette.records import Limits


class Reserve(Message, Reply[None]):
    """Reserve a slot for a session that is about to be made, or whose agent is to work again.

    `LimitExceeded` names the limit, its value and its source.
    """

    session_id: str
    depth: int
    new: bool = True
    root_session_id: str = ""
    """The root above it, or itself; empty in records of earlier releases."""
    tree_limits: Limits | None = None
    """Limits that were given for a tree of several roots, in which roots count as children do."""
    limits: Limits | None = None
    """Limits of the session, which may be tighter than the tree's if its project is another one."""


class Unreserve(Message):
    """Release a slot: the session was not made, or did not resume, after all."""

    session_id: str
    new: bool = True


class GetUsage(Message, Reply[dict[str, float]]):
    """Request for the used part of the limits, by the names of `records.Limits`."""


class OpenExploration(Message, Reply[str]):
    """To `explorations`: the name of the tree's actor; starts it."""

    exploration_id: str
    limits: Limits
    """Those of its root."""
