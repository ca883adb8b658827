"""Container runtimes."""
