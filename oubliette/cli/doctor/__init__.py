"""Command `oubliette doctor`: checks that this machine can run the configuration."""
