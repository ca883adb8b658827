"""Requests that an agent makes of its session: tools of its caller, children, events."""
