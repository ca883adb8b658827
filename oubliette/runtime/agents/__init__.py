"""Agents behind one interface; one package for each protocol."""

from oubliette.runtime.agents.acp.adapter import AcpAdapter
from oubliette.runtime.agents.acp.runtime import AcpRuntime
from oubliette.runtime.agents.base import (
    AgentAdapter,
    AgentCommand,
    AgentEvent,
    AgentExecutor,
    AgentFile,
    AgentRuntime,
    AgentSession,
    Availability,
    EventKind,
)
from oubliette.runtime.agents.droid.adapter import DroidAdapter
from oubliette.runtime.agents.droid.runtime import DroidRuntime
from oubliette.runtime.agents.executor import Executor
from oubliette.runtime.agents.opencode.adapter import OpencodeAdapter
from oubliette.runtime.agents.opencode.program import OpencodeAcpRuntime
from oubliette.runtime.agents.opencode.runtime import OpencodeRuntime
from oubliette.runtime.agents.scripted.adapter import ScriptedAdapter, ScriptedRuntime

__all__ = (
    "AcpAdapter",
    "AcpRuntime",
    "AgentAdapter",
    "AgentCommand",
    "AgentEvent",
    "AgentExecutor",
    "AgentFile",
    "AgentRuntime",
    "AgentSession",
    "Availability",
    "DroidAdapter",
    "DroidRuntime",
    "EventKind",
    "Executor",
    "OpencodeAcpRuntime",
    "OpencodeAdapter",
    "OpencodeRuntime",
    "ScriptedAdapter",
    "ScriptedRuntime",
)
