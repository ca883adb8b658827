"""Agents behind one port; one module for each protocol that they speak."""

from oubliette.runtime.agents.acp import AcpAdapter
from oubliette.runtime.agents.acp_runtime import AcpRuntime
from oubliette.runtime.agents.droid import DroidAdapter
from oubliette.runtime.agents.droid_runtime import DroidRuntime
from oubliette.runtime.agents.executor import Executor
from oubliette.runtime.agents.opencode import OpencodeAcpRuntime
from oubliette.runtime.agents.opencode_runtime import OpencodeRuntime
from oubliette.runtime.agents.opencode_serve import OpencodeAdapter
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
    "AcpAdapter",
    "AcpRuntime",
    "AgentAdapter",
    "AgentCommand",
    "AgentEvent",
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
