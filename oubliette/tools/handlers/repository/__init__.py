"""Handlers of the tools of repositories, and of what sessions have changed."""
