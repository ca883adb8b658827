"""Containers, agents, files and the store, each behind an interface."""
