"""Oubliette runs coding agents in containers and lets them call their sender's tools."""

__version__ = "0.1.0"
