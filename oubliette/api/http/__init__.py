"""Connections to servers elsewhere, over HTTP."""

from oubliette.api.http.connection import HttpConnection

__all__ = ("HttpConnection",)
