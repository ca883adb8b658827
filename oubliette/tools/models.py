"""Models of sessions, and the default models of agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oubliette.config.schema import Config
    from oubliette.records import Session


def configured(config: Config, agent: str) -> str | None:
    """Return the model of that agent's section; None: the agent's own choice."""
    section = getattr(config, agent.removesuffix("-acp"), None)
    model = getattr(section, "model", None)
    return model if isinstance(model, str) else None


def model_of(config: Config, session: Session) -> str | None:
    """Return the model of a session: its own, else that of its agent's section."""
    return session.model or configured(config, session.agent)


def known(config: Config, agents: tuple[str, ...]) -> tuple[str, ...]:
    """Return the models of the sections of `agents`; sessions may name others."""
    found = (configured(config, agent) for agent in agents)
    return tuple(dict.fromkeys(model for model in found if model is not None))
