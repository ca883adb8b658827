"""Requests of an agent to its session: tools of its caller, children, events."""
