"""The program that reads and writes workspaces, and its parts; it knows nothing of the server."""
