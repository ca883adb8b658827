"""Errors of an engine, distinguished by their remedy."""

from __future__ import annotations

from oubliette.errors import NotFound, RuntimeFailure, Unavailable


class EngineMissing(Unavailable):
    """The engine does not listen at its address, or refuses access."""

    code = "engine_missing"


class EngineRefused(RuntimeFailure):
    """The engine answered with an error."""

    code = "engine_refused"

    def __init__(self, message: str, *, status: int = 500, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class EngineNotFound(NotFound):
    """The engine has no such container, image or network."""
