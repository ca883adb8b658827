"""Dockerfile of agents' containers."""
