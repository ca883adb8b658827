"""Ports of containers that are open for a browser: their owner, and the messages to it."""
