"""Messages to the actors of trees, to their branches on other nodes, and to their supervisor."""

from __future__ import annotations

import msgspec

from oubliette.actors.session.messages import LimitNotice, RootCaller
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
    node: str | None = None
    """Node of a cluster on which the session lives; None: that of the tree."""

    @property
    def counts(self) -> bool:
        """Whether it takes one of the slots: a child, or one root of several."""
        return self.depth > 0 or self.tree_limits is not None


class Unreserve(Message):
    """Release a slot: the session was not made, or did not resume, after all."""

    session_id: str
    new: bool = True


class GetUsage(Message, Reply[dict[str, float]]):
    """Request for the used part of the limits, by the names of `records.Limits`."""


class OpenTree(Message, Reply[str]):
    """To `trees`: the name of the tree's actor; starts it.

    On a node that is not the home of the tree that is a BranchActor, which passes on what it gets.
    """

    tree_id: str
    limits: Limits
    """Those of its root."""
    project_id: str
    """Project at whose home the tree is counted."""
    at_home: bool = False
    """Whether only the tree itself will do; `ProjectMoves` if its home is another node."""


class CloseTrees(Message, Reply[None]):
    """To `trees`: end the trees that are counted here, as their project gets another home.

    None of them is opened here until `ReopenTrees`.
    """

    project_id: str


class ReopenTrees(Message, Reply[None]):
    """To `trees`: other sessions may live here, or other trees may have their home here.

    The project of `CloseTrees` has its new home, or keeps this one.
    """

    project_id: str | None = None


class ProjectGone(Message, Reply[None]):
    """To `trees`: a project has no sessions any more, and was deleted.

    Its home goes with it, unless a tree that began in it has sessions in other projects: then it
    goes with that tree.
    """

    project_id: str


class BranchMember(msgspec.Struct, frozen=True, kw_only=True):
    """A session of a tree, as the branch on its node knows it."""

    session_id: str
    root_session_id: str
    limits: Limits | None
    lives: int = 1
    """2 is one that is resumed while it finishes."""
    works: bool = True
    waits: bool = False
    cost_usd: float = 0.0


class JoinTree(Message):
    """To an TreeActor, from a branch: all sessions of the tree that live on its node."""

    node: str
    members: tuple[BranchMember, ...]
    asks: bool = False
    """Whether a request for a place follows: the tree stays although nothing of it lives."""


class PassToMember(Message):
    """To a BranchActor: a message for a session on its node."""

    session_id: str
    message: LimitNotice | RootCaller
