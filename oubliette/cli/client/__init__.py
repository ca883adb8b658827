"""Clients of a server: its control socket, HTTP, or the database while none runs."""
