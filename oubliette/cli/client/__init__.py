"""How commands reach a server: its control socket, HTTP, or the database while none runs."""
