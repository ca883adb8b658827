"""Keys that may answer what agents ask permission for: one rule for all transports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oubliette.errors import Forbidden
from oubliette.tools.spec import OPERATOR

if TYPE_CHECKING:
    from oubliette.contract.project import Answers
    from oubliette.records import Project
    from oubliette.tools.spec import CallerIdentity


def may_answer(context: CallerIdentity, project: Project, owner: str) -> bool:
    """Whether a caller may decide what a session of this project asks for.

    An agent's key never may, even if its principal owns the tree: it would answer itself.

    Args:
        context: The caller.
        project: Project of the session that asks.
        owner: Principal of the root of the session's tree.
    """
    scope = context.scope
    if context.is_agent or not scope.covers("write") or not scope.reaches(project.id):
        return False
    return _is_trusted(context, owner) or project.answers == "team"


def check_setting(context: CallerIdentity, answers: Answers | None, owner: str) -> None:
    """Refuse a change of who may answer in a project to those who could let themselves in by it.

    Args:
        context: The caller.
        answers: New value of the setting; None: it stays.
        owner: Principal that made the project.

    Raises:
        Forbidden: the caller is an agent, or neither that principal, the operator nor an admin.
    """
    if answers is None or (_is_trusted(context, owner) and not context.is_agent):
        return
    raise Forbidden(
        "answers: only the principal that made the project, the operator and keys of scope admin"
        " decide who may answer permission requests; no agent does",
        hint="leave it out",
    )


def _is_trusted(context: CallerIdentity, owner: str) -> bool:
    return context.principal in {owner, OPERATOR.principal} or context.scope.level == "admin"
