"""Parts of a request to a model that identify it from run to run.

They are the conversation, the model, and whether tools are offered. Instructions are not among
them: agents put the date, paths and versions there. Ids and times in the conversation count by
their kind alone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

from oubliette.testing.cassette.redaction import Redactor, steady
from oubliette.testing.model_apis.chat_completions import ChatCompletions
from oubliette.testing.model_apis.messages import Messages
from oubliette.testing.model_apis.responses import Responses

if TYPE_CHECKING:
    import re
    from collections.abc import Sequence

    from oubliette.testing.model_apis.base import Api

APIS: Final[dict[str, type[Api]]] = {
    api.path: api for api in (ChatCompletions, Responses, Messages)
}


def asked(
    method: str,
    path: str,
    body: bytes,
    redactor: Redactor,
    changing: Sequence[tuple[re.Pattern[str], str]] = (),
) -> dict[str, Any]:
    """Return what identifies a request, without secrets.

    Args:
        method: GET, POST ….
        path: With the query.
        body: As it was sent.
        redactor: Removes secrets.
        changing: Further patterns of texts that differ from run to run, and their replacements.
    """

    def plain(text: str) -> str:
        return steady(redactor.redact(text), changing)

    found: dict[str, Any] = {"method": method, "path": plain(path)}
    if not body:
        return found
    try:
        value: Any = json.loads(body)
    except ValueError:
        return {**found, "body": plain(body.decode("utf-8", "replace"))}
    api = APIS.get(path.partition("?")[0])
    if api is None or not isinstance(value, dict):
        text = json.dumps(value, sort_keys=True)
        return {**found, "body": plain(text)}
    request = api.read(cast("dict[str, Any]", value))
    return {
        **found,
        "model": request.model,
        "stream": request.stream,
        "tools": bool(request.tools),
        "conversation": [[said.kind, plain(said.text)] for said in request.said],
    }


def described(asks: dict[str, Any]) -> str:
    """Return a request in a few words, for an error."""
    head = f"{asks['method']} {asks['path']}"
    conversation = asks.get("conversation")
    if not conversation:
        return head
    kind, text = conversation[-1]
    count = len(conversation)
    return f"{head} ({asks['model']}, {count} entries, the last one of the {kind}: {text[:200]!r})"
