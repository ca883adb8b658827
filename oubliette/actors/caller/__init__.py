"""Callers: clients that provide tools to agents and receive the events of their sessions."""
