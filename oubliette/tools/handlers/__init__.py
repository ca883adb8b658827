"""Handlers of the tools, one module for each noun."""
