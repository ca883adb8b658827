"""Agents behind one port; the scripted agent is the one that needs no model."""

from oubliette.runtime.agents.executor import Executor
from oubliette.runtime.agents.port import (
    AgentAdapter,
    AgentCommand,
    AgentEvent,
    AgentFile,
    AgentRuntime,
    AgentSession,
    Availability,
    EventKind,
)
from oubliette.runtime.agents.scripted import ScriptedAdapter, ScriptedRuntime

__all__ = (
    "AgentAdapter",
    "AgentCommand",
    "AgentEvent",
    "AgentFile",
    "AgentRuntime",
    "AgentSession",
    "Availability",
    "EventKind",
    "Executor",
    "ScriptedAdapter",
    "ScriptedRuntime",
)
