"""Parameters of requests on a session's link, and the errors of answers (JSON-RPC 2.0)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from oubliette.actors.agent_requests.caller_tools import outcome_error
from oubliette.contract.agent_tools import AGENT_TOOLS
from oubliette.contract.field_types import Params, check_storable
from oubliette.contract.validation import decode
from oubliette.errors import InvalidParameter, OublietteError

if TYPE_CHECKING:
    from oubliette.records import Session

P = TypeVar("P", bound=Params)


class OutcomeError(OublietteError):
    """Error of a settled call without a result, found again by its call id."""

    def __init__(self, outcome: str, text: str | None) -> None:
        super().__init__(text or outcome)
        self.outcome = outcome


def rpc_error(error: BaseException) -> dict[str, Any]:
    """Return the JSON-RPC error object for any failure; it contains nothing internal."""
    if isinstance(error, OutcomeError):
        return outcome_error(error.outcome, error.message)
    if isinstance(error, OublietteError):
        return {
            "code": error.jsonrpc_code,
            "message": str(error),
            "data": {"kind": error.code},
        }
    if isinstance(error, TimeoutError):
        return outcome_error("deadline_exceeded", "the server did not answer in time")
    return outcome_error("error", f"the server could not do it ({type(error).__name__})")


def text_param(params: dict[str, Any], field_: str, limit: int) -> str:
    """The string `field_`, of 1 to `limit` characters.

    Raises:
        InvalidParameter: it is something else; names the field.
    """
    value = params.get(field_)
    if not isinstance(value, str) or not value:
        raise InvalidParameter(f"{field_}: must be a string that is not empty", field=field_)
    if len(value) > limit:
        raise InvalidParameter(f"{field_}: longer than {limit} characters", field=field_)
    return check_storable(value, field_)


def optional_text(params: dict[str, Any], field_: str, limit: int) -> str | None:
    """Same as `text_param`, but None if the field is missing or null."""
    return None if params.get(field_) is None else text_param(params, field_, limit)


def base_params(kind: type[P], params: dict[str, Any], tool: str) -> P:
    """The parameters of a base tool, without the `call_id` that the client adds.

    Raises:
        InvalidParameter: names the field and the remedy.
    """
    return decode(kind, {name: params[name] for name in params if name != "call_id"}, tool)


def known_params(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return `params` without what a base tool does not take, for clients of the first form.

    That form does not limit the parameters, and clients may have added their own.
    """
    tool = AGENT_TOOLS.get(method)
    if tool is None:
        return params
    known = {"call_id", *tool.params.__struct_fields__}
    return {name: value for name, value in params.items() if name in known}


class RequestInput(NamedTuple):
    """State at the moment at which a request of the agent's client is decided on."""

    record: Session
    now: float
    """Wall second."""
    stopping: bool
    """Whether the session accepts nothing new."""
