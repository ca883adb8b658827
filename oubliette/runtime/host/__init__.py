"""The server's side of the host protocol."""
