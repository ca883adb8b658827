"""Errors about sessions of other principals, whom tools answer as if there was no such session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oubliette.errors import Forbidden, NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from oubliette.errors import OublietteError


def explained(
    get: Callable[[str, dict[str, Any]], object], session_id: str, error: OublietteError, may: str
) -> OublietteError:
    """The error with which a command about a session ends.

    Args:
        get: Calls a tool as the operator, who sees every session.
        session_id: Whole id of the session.
        error: What the tool answered.
        may: What only the owner of a session may do.

    Raises:
        NotFound: there is no such session.
    """
    if error.code != NotFound.code:
        return error
    get("session_get", {"session_id": session_id})  # fails if it does not exist
    return Forbidden(
        f"session {session_id} belongs to another principal, and only that one may {may}",
        hint=f"oubliette audit --session {session_id} --tool session_spawn names it, and oubliette"
        " token create --principal makes a key of it",
    )
