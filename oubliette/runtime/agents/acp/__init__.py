"""Agents with the Agent Client Protocol."""
