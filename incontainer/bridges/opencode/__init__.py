"""OpenCode's HTTP server as a program on standard streams."""
