"""Agent runtimes."""
