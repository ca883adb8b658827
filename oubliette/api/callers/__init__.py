"""Callers: the program's answers to tool calls and permission requests of agents."""
