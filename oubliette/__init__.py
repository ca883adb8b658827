"""Oubliette runs coding agents in containers and lends them the tools of whoever sent them."""

__version__ = "0.1.0"
