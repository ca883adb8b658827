"""Oubliette runs coding agents in containers and lets them call their sender's tools."""

from oubliette.version import __version__

__all__ = ("__version__",)
