"""HTTP connections parsed by h11, which is pure Python and so runs on every machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.types import Send


class H11Connection(H11Protocol):
    """Parser of one connection's requests."""

    upgrade: bytes | None = None
    """Its requests keep their header Upgrade."""

    def unparsed(self) -> bytes:
        """The bytes behind the current request, which are no request of HTTP."""
        return self.conn.trailing_data[0]

    def send_document(
        self, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes
    ) -> bool:
        """Return that the document has to be sent by `send`: h11 has to see each part."""
        del send, status, headers, body
        return False

    def body_is_coming(self) -> bool:
        """Whether the head of a request was received, and its body was not."""
        return self.conn.their_state is h11.SEND_BODY
