"""HTTP requests as h11 reads them: in Python, so on every machine."""

from __future__ import annotations

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class H11Connection(H11Protocol):
    """Reads the requests of one connection."""

    def body_is_coming(self) -> bool:
        """Whether the head of a request is here, and its body is not."""
        return self.conn.their_state is h11.SEND_BODY
