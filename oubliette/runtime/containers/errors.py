"""What can be wrong with an engine, told apart by what is to be done about it."""

from __future__ import annotations

from oubliette.errors import NotFound, RuntimeFailure, Unavailable


class EngineMissing(Unavailable):
    """Nobody answers where the engine should be, or we may not talk to it."""

    code = "engine_missing"


class EngineRefused(RuntimeFailure):
    """The engine answered, and said no."""

    code = "engine_refused"

    def __init__(self, message: str, *, status: int = 500, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status


class EngineNotFound(NotFound):
    """The engine does not know this container, image or network."""
