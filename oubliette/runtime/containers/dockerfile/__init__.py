"""The Dockerfile of agents' containers."""
