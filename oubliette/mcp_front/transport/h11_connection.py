"""HTTP connections parsed by h11, which is pure Python and so runs on every machine."""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class H11Connection(H11Protocol):
    """Parser of one connection's requests."""

    def body_is_coming(self) -> bool:
        """Whether the head of a request was received, and its body was not."""
        return self.conn.their_state is h11.SEND_BODY
